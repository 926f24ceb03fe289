"""`vldebias eval report`, `compare` and `data`: render and verify a result, compare two, describe a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli import common
from vldebias.cli.common import parse_pairs, piped, print_grid, print_json, say
from vldebias.cli.flags import Json
from vldebias.errors import shortened

Result = Annotated[
    Path,
    typer.Argument(exists=True, metavar="RESULT", help="A result.json, or the folder that holds one."),
]


def report(
    result: Result,
    page: Annotated[Path | None, typer.Option("--out", help="HTML page to write. Default: beside the result.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Render nothing: compare the files of the run with its manifest.")
    ] = False,
) -> None:
    """Render a result again from its figures, with the pictures beside it; or verify that its files are unchanged.

    --verify compares the SHA-256 of every file with manifest.json; exit code 1 if one differs, is missing or was
    added. Whoever can change a file can change the manifest: compare its own SHA-256, which is printed, with one kept
    elsewhere.

    [bold]Examples[/bold]

    \b
      vldebias eval report vldebias-miniature --out page.html
      vldebias eval report vldebias-miniature --verify
    """
    path = _file_of(result)
    from vldebias.evaluation import run
    from vldebias.evaluation.report import render
    from vldebias.evaluation.result import Result
    from vldebias.files import digest

    if not verify:
        say(render(Result.read(path), page or path.with_suffix(".html"), beside=path.parent))
        return
    differences = [f"{what}: {name}" for what, names in run.verify(path).items() for name in names]
    if differences:
        typer.echo("\n".join(differences))
        raise typer.Exit(1)
    say(f"every file is unchanged if {run.MANIFEST} is: its SHA-256 is {digest(path.parent / run.MANIFEST)}")


def compare(a: Result, b: Result, as_json: Json = False) -> None:
    """Compare two results figure by figure, and warn of everything else that differs between them.

    [bold]Examples[/bold]

    \b
      vldebias eval compare rn50/result.json vit-l-14/result.json
      vldebias eval compare before after --json
    """
    from vldebias.evaluation.comparison import compare
    from vldebias.evaluation.result import Result

    comparison = compare(Result.read(_file_of(a)), Result.read(_file_of(b)), (str(a), str(b)))
    frame = comparison.to_pandas()
    frame = frame.astype(object).where(frame.notna(), None)
    if as_json:
        about = {"a": comparison.a, "b": comparison.b, "warnings": comparison.warnings, "only": comparison.only}
        print_json({**about, "figures": frame.to_dict("records")})
    elif piped(tuple(map(str, frame)), frame.itertuples(index=False)):
        for text in comparison.warnings:
            say(text, "warning", "yellow")
    else:
        common.out.print(str(comparison), markup=False, highlight=False, soft_wrap=True)


def _file_of(given: Path) -> Path:
    return given / "result.json" if given.is_dir() else given


def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="waterbirds, celeba, fairface, manifest, ...")],
    root: Annotated[str | None, typer.Option(help="Its folder (a file for a manifest).")] = None,
    split: Annotated[str | None, typer.Option(help="train, val, test or all. Default: the one to measure on.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="name=value for the reader, such as image=path.")] = None,
    check: Annotated[bool, typer.Option("--check", help="List the images that cannot be read.")] = False,
    as_json: Json = False,
) -> None:
    """Count the images and labels of a data set, and check whether its images can be read.

    Exit code 1 if --check finds images that cannot be read.

    [bold]Examples[/bold]

    \b
      vldebias eval data waterbirds --root DIR
      vldebias eval data fairface --root DIR --split train --check
      vldebias eval data manifest --root my.csv --option image=path --option labels=gender
    """
    from vldebias.data import check_images, describe
    from vldebias.evaluation.session import open_split

    options = parse_pairs(option or (), "--option", "image=path")
    for key in {"labels", "columns"} & set(options):  # names, with commas between them
        options[key] = options[key].split(",") if isinstance(options[key], str) else options[key]
    opened = open_split(name, root, split, options)
    facts = describe(opened)
    if check:
        facts["unreadable"] = [{"id": one, "reason": why} for one, why in check_images(opened)]
    bad = facts.get("unreadable", [])
    if as_json:
        print_json(facts)
    else:
        say(f"{facts['name']} {facts['split']}: {facts['images']} images, {facts['captions']} captions")
        rows = [
            ("column", column, value, str(n))
            for column, told in facts["columns"].items()
            for value, n in (told["counts"] | {"unknown": told["unknown"]}).items()
        ]
        rows += [("unreadable", one["id"], one["reason"], "1") for one in bad]
        print_grid(("kind", "name", "value", "images"), rows)
        for key, value in (facts["about"]).items():
            say(f"{key}: {shortened(str(value), 160)}")
        if check:
            say(f"{len(bad)} images cannot be read")
    if bad:
        raise typer.Exit(1)
