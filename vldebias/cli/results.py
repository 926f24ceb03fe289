"""`vldebias eval report`, `compare` and `data`: render and verify a result, compare two, look into a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli import common, complete
from vldebias.cli.common import Json, aside, err, piped, print_grid, print_json, say, split_pair, tell
from vldebias.errors import InvalidInputError, shortened

Result = Annotated[Path, typer.Argument(help="A result.json of `vldebias eval`, or the folder that holds one.")]


def report(
    result: Result,
    page: Annotated[Path | None, typer.Option("--out", help="HTML page to write. Default: beside the result.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown on stdout instead.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print the tables for a paper instead.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Render nothing: compare the files of the run with its manifest.")
    ] = False,
) -> None:
    """Render a result again from its figures, with the pictures beside it; or verify that its files are unchanged.

    --verify compares the SHA-256 of every file with manifest.json; exit code 1 where one differs, is missing or was
    added. Whoever can change a file can change the manifest: compare its own SHA-256, which is printed, with one kept
    elsewhere.

    [bold]Examples[/bold]

    \b
      vldebias eval report vldebias-miniature --out page.html
      vldebias eval report result.json --markdown > result.md
      vldebias eval report vldebias-miniature --latex > tables.tex
      vldebias eval report vldebias-miniature --verify
    """
    path = _file_of(result)
    if as_markdown + as_latex + verify > 1:
        raise InvalidInputError("expected one of --markdown, --latex and --verify, got several")
    if verify:
        _verify(path)
        return
    from vldebias.evaluation.pages import render
    from vldebias.evaluation.report import latex, markdown
    from vldebias.evaluation.result import Result

    read = Result.read(path)
    if as_markdown or as_latex:
        typer.echo(markdown(read) if as_markdown else latex(read), nl=False)
    else:
        say(render(read, page or path.with_suffix(".html"), beside=path.parent), err)


def _verify(path: Path) -> None:
    from vldebias.evaluation.run import MANIFEST, verify
    from vldebias.files import digest

    differences = verify(path)
    for what, names in differences.items():
        for name in names:
            say(f"{what}: {name}")
    if any(differences.values()):
        raise typer.Exit(1)
    say(f"every file is unchanged if {MANIFEST} is: its SHA-256 is {digest(path.parent / MANIFEST)}", err)


def compare(
    a: Result,
    b: Result,
    page: Annotated[Path | None, typer.Option("--out", help="Also write an HTML page.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two results figure by figure, and warn of everything else that differs between them.

    [bold]Examples[/bold]

    \b
      vldebias eval compare rn50/result.json vit-l-14/result.json
      vldebias eval compare before after --out compare.html
      vldebias eval compare before after --json
    """
    first, second = _file_of(a), _file_of(b)
    from vldebias.evaluation.pages import write_comparison
    from vldebias.evaluation.report import compare, print_comparison
    from vldebias.evaluation.result import Result

    comparison = compare(Result.read(first), Result.read(second), (str(a), str(b)))
    if page is not None:
        say(write_comparison(comparison, page), err)
    if as_json:
        print_json(comparison.to_dict())
        return
    frame = comparison.to_pandas()
    if piped(tuple(map(str, frame)), frame.astype(object).where(frame.notna(), None).itertuples(index=False)):
        for text in comparison.warnings:
            tell("warning", "yellow", text)
    else:
        print_comparison(comparison, common.out)


def _file_of(given: Path) -> Path:
    """Return the file of a result; a wrong path is refused before anything heavy is imported."""
    path = given / "result.json" if given.is_dir() else given
    if not path.is_file():
        raise InvalidInputError(f"{path}: no such file; expected a result of `vldebias eval` or `vldebias quickstart`")
    return path


def data(
    name: Annotated[
        str,
        typer.Argument(
            help="waterbirds, celeba, fairface, manifest, huggingface, ...", autocompletion=complete.complete_data_sets
        ),
    ],
    root: Annotated[str | None, typer.Option(help="Its folder (a file for a manifest).")] = None,
    split: Annotated[str | None, typer.Option(help="train, val, test or all. Default: the one to measure on.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="name=value for the reader, such as image=path.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read every image and list those that cannot be read.")
    ] = False,
    sample: Annotated[int | None, typer.Option(min=1, help="With --check: read only so many, at random.")] = None,
    as_json: Json = False,
) -> None:
    """Count the images, labels and intersections of a data set, and check whether its images can be read.

    Exit code 1 where --check finds images that cannot be read.

    [bold]Examples[/bold]

    \b
      vldebias eval data waterbirds --root DIR
      vldebias eval data fairface --root DIR --split train --check --sample 1000
      vldebias eval data manifest --root my.csv --option image=path --option labels=gender
    """
    from vldebias.data import check_images, describe
    from vldebias.evaluation.session import open_split

    opened = open_split(name, root, split, dict(_option(text) for text in option or []))
    facts = describe(opened)
    if check:
        facts["unreadable"] = [{"id": one, "reason": why} for one, why in check_images(opened, sample=sample)]
    if as_json:
        print_json(facts)
    else:
        _print_data(facts)
    if facts.get("unreadable"):
        raise typer.Exit(1)


def _option(text: str) -> tuple[str, Any]:
    """Read name=value; the value is YAML, and a value of labels or columns may be a list with commas."""
    from vldebias.files import parse_yaml

    name, value = split_pair(text, "--option", "name=value (such as image=path)")
    if name in ("labels", "columns") and not value.startswith(("[", "{")):
        return name, value.split(",")
    return name, parse_yaml(value, f"--option {name}")


def _print_data(facts: dict[str, Any]) -> None:
    aside(f"{facts['name']} {facts['split']}: {facts['images']} images, {facts.get('captions', 0)} captions")
    rows = []
    for kind in ("columns", "intersections"):
        for name, column in facts.get(kind, {}).items():
            counts = {**column["counts"], **({"unknown": column["unknown"]} if column["unknown"] else {})}
            rows += [(kind[:-1], name, value, f"{n}") for value, n in counts.items()]
    bad = facts.get("unreadable")
    print_grid(
        ("kind", "name", "value", "images"), rows + [("unreadable", one["id"], one["reason"], "1") for one in bad or ()]
    )
    for name, value in (facts.get("about") or {}).items():
        aside(f"{name}: {shortened(str(value), 160)}")
    if bad is not None:
        aside(f"{len(bad)} images cannot be read")
