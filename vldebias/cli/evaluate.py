"""`vldebias eval`: run a suite by name, list what to embed for it, compare and render results, look at data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from vldebias.cli import complete
from vldebias.cli.common import (
    Json,
    aside,
    check_files,
    check_names,
    check_out,
    check_there,
    device_of,
    err,
    out,
    piped,
    print_grid,
    print_json,
    print_result,
    say,
    split_names,
    split_pair,
    tell,
)
from vldebias.cli.flags import flags_of_options, with_flags
from vldebias.errors import InvalidInputError, shortened
from vldebias.options import Options


class SuiteGroup(TyperGroup):
    """A group in which a name that is no command is a suite: `vldebias eval waterbirds` is `vldebias eval run ...`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # of click, or of the copy that typer brings
        """The command of that name, else `run` with the name as its suite."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Commands and suites."""
        item = type(super().shell_complete(ctx, "")[0])  # of click, or of the copy that typer brings
        return super().shell_complete(ctx, incomplete) + [item(name) for name in complete.complete_suites(incomplete)]


class RunCommand(TyperCommand):
    """`run`, whose help ends with the methods that there are, those of other packages among them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The registry is opened by whoever asks for this page, and by no other help."""
        super().format_help(ctx, formatter)
        from vldebias.methods import METHODS

        names = escape(", ".join(METHODS))
        out.print(f" [bold]Methods[/bold] (vldebias methods says what each needs): {names}", highlight=False)


app = typer.Typer(
    help="Measure bias and utility before and after, with error bars: [bold]vldebias eval SUITE[/bold].\n\n"
    "[bold]Examples[/bold]\n\n\b\n"
    "  vldebias eval list\n"
    "  vldebias eval miniature\n"
    "  vldebias eval waterbirds --model ViT-L-14 --pretrained openai --data-root DIR\n"
    "  vldebias eval fairface --embeddings images.npz --texts texts.npz --methods cali,equalise,auto\n"
    "  vldebias eval texts fairface > prompts.txt\n"
    "  vldebias eval shares table.csv --prompt prompt --value gender --method model\n"
    "  vldebias eval compare a/result.json b/result.json",
    cls=SuiteGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Results = Annotated[Path, typer.Argument(help="A result.json of `vldebias eval`, or the folder that holds one.")]


@app.command("run", cls=RunCommand)
@with_flags(flags_of_options())
def run(
    suite: Annotated[
        str,
        typer.Argument(
            help="A name (vldebias eval list) or a YAML file.", metavar="SUITE", autocompletion=complete.complete_suites
        ),
    ],
    only: Annotated[
        list[str] | None, typer.Option(help="Only this task. *", metavar="TASK", rich_help_panel="Run")
    ] = None,
    attributes: Annotated[
        list[str] | None,
        typer.Option(help="Of retrieval only these: gender,race. *", metavar="NAMES", rich_help_panel="Run"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON alone on stdout.", rich_help_panel="Run", show_default=False)
    ] = False,
    **given: Any,
) -> None:
    """Run a suite and write result.json, pictures and one page; a second run goes on where the first stopped.

    Options with * may be repeated.

    [bold]Examples[/bold]

    \b
      vldebias eval run miniature
      vldebias eval waterbirds --model ViT-L-14 --pretrained openai --data-root DIR
      vldebias eval fairface --embeddings images.npz --texts texts.npz
      vldebias eval fairface --embeddings 'shards/*.npy' --table 'labels/*.parquet' --texts texts.npz --ray local
      vldebias eval generation --pipeline DIR --out sd21
      vldebias eval human --labels anna.jsonl --drawn sd21/images/gender
    """
    keys = dict(
        split_pair(text, "--key", "ours=theirs (such as features=image_embeds)") for text in given.pop("keys", ())
    )
    _check_suite(suite)
    _check_root(suite, given.get("data_root"), images=given.get("embeddings") is None)
    check_out(given.get("out"))
    check_files(**{name: given.get(name) for name in ("embeddings", "table", "texts", "reference")})
    check_names(split_names(given.get("methods")))
    from vldebias.evaluation.run import run_suite
    from vldebias.evaluation.suite import load_suite
    from vldebias.methods import get_method

    loaded = load_suite(suite).of_attributes(split_names(attributes))
    chosen = tuple(get_method(name).name for name in split_names(given.pop("methods", None))) or None
    fields: dict[str, Any] = {"out": Path(f"vldebias-{loaded.name}"), "device": "auto", "keys": keys, **given}
    fields |= {"device": device_of(fields["device"]), "methods": chosen}
    fields = {name: tuple(one) if isinstance(one, list) else one for name, one in fields.items()}
    options = Options(**fields)
    _show(run_suite(loaded, options, console=err, only=only or ()), loaded, options.out, as_json)


def _check_suite(name: str) -> None:
    """A wrong name is told before anything heavy is imported."""
    from vldebias.files import suite_file

    if not (name.endswith((".yaml", ".yml")) or len(Path(name).parts) > 1):
        suite_file(name)


def _check_root(name: str, root: str | Path | None, *, images: bool) -> None:
    """A data set that is not given, or not there, is told before a model is loaded for it."""
    from vldebias.files import read_yaml, suite_file, suite_names

    if name not in suite_names() or not images:
        return
    needs = str(read_yaml(suite_file(name))["needs"])
    if root is None and "--data-root" in needs:
        raise InvalidInputError(f"{name}: this suite needs {needs}; or --embeddings, with features of these images")
    if root is not None and not Path(root).exists():
        raise InvalidInputError(f"--data-root {root}: expected a folder or a manifest file, there is none")


@app.command("shares")
def shares(
    table: Annotated[Path, typer.Argument(help="A row per image: .csv, .tsv, .parquet or .jsonl.")],
    prompt: Annotated[str, typer.Option(metavar="COLUMN", help="What was drawn.")],
    value: Annotated[str, typer.Option(metavar="COLUMN", help="What the image shows; empty where it cannot be told.")],
    method: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Who drew it: compared with the method none.")
    ] = None,
    weight: Annotated[str | None, typer.Option(metavar="COLUMN", help="What an image counts.")] = None,
    people: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="What people say, empty where nobody was asked: corrects --value."),
    ] = None,
    judge_confusion: Annotated[
        Path | None, typer.Option(metavar="FILE", help="How often --value is wrong: true, then a column per value.")
    ] = None,
    values: Annotated[str | None, typer.Option(help="Which there are: female,male. Default: what occurs.")] = None,
    same: Annotated[
        list[str] | None, typer.Option(metavar="A=B", help="A in the table means the value B: F=female. *")
    ] = None,
    unknown: Annotated[
        list[str] | None, typer.Option(metavar="VALUE", help="A text that means unknown. Default: unknown. *")
    ] = None,
    baseline: Annotated[str, typer.Option(help="The method that the others are compared with.")] = "none",
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="For results.")] = Path("vldebias-shares"),
    resamples: Annotated[int, typer.Option(min=1, help="Bootstrap resamples.")] = 2000,
    as_json: Json = False,
) -> None:
    """Shares and discrepancy of images and labels that you have: a table is all, from whatever drew and labelled them.

    Means and intervals over prompts, comparisons of methods, a page. --people corrects a judge by labels of some of the
    images; --weight is then one over the probability with which an image was chosen for that.

    [bold]Examples[/bold]

    \b
      vldebias eval shares table.csv --prompt prompt --value gender
      vldebias eval shares table.csv --prompt occupation --value gender --method model --baseline sd15
      vldebias eval shares table.csv --prompt occupation --value gender --same F=female --same M=male --unknown both
      vldebias eval shares judged.csv --prompt prompt --value judge --people label --weight weight --json
    """
    check_there(table, "a table with a row per image, .csv, .tsv, .parquet or .jsonl")
    from vldebias.evaluation.run import run_suite
    from vldebias.evaluation.shares import SharesTask
    from vldebias.evaluation.suite import Suite

    task = SharesTask.build(
        {
            "table": table,
            "prompt": prompt,
            "value": value,
            "method": method,
            "weight": weight,
            "people": people,
            "judge_confusion": judge_confusion,
            "values": tuple(split_names([values] if values else None)),
            "same": dict(split_pair(text, "--same", "TEXT=VALUE, such as F=female") for text in same or ()),
            "baseline": baseline,
            "resamples": resamples,
            **({"unknown": tuple(unknown)} if unknown else {}),
        }
    )
    suite = Suite.of_task(
        task,
        title=task.title,
        description=f"Shares and discrepancy of {table.name}.",
        source="eq. 7.2 of the thesis",
        needs="a table with a row per image",
    )
    _show(run_suite(suite, Options(out=folder), console=err), suite, folder, as_json)


def _show(result: Any, suite: Any, folder: Path, as_json: bool) -> None:
    """A result on stdout, and where its page is."""
    from vldebias.evaluation.run import PAGE

    if as_json:
        print_json(result.to_dict())
        return
    print_result(result, suite.headline)
    aside(f"\npage: {folder / PAGE}")


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List the suites that come with the package, and what each needs.

    [bold]Examples[/bold]

    \b
      vldebias eval list
      vldebias eval list --json
    """
    from vldebias.files import read_yaml, suite_file, suite_names

    suites = []
    for name in suite_names():  # read, not validated, which would take torch; a test does that
        written = read_yaml(suite_file(name))
        entry = {"name": name, **{key: written[key] for key in ("title", "description", "source", "needs")}}
        suites.append(entry | {"tasks": [task["name"] for task in written["tasks"]]})
    if as_json:
        print_json(suites)
        return
    rows = [(s["name"], s["title"], s["source"], s["needs"], ", ".join(s["tasks"])) for s in suites]
    if not piped(("name", "title", "source", "needs", "tasks"), rows):
        lines = [(name, f"{title}: {by}\nneeds {needs}\ntasks: {tasks}\n") for name, title, by, needs, tasks in rows]
        print_grid(("", ""), lines)
        say("vldebias eval show NAME prints one, to be changed into your own")


@app.command("show")
def show_suite(
    suite: Annotated[
        str, typer.Argument(help="Name of a suite or path of a YAML file.", autocompletion=complete.complete_suites)
    ],
    as_json: Json = False,
) -> None:
    """Print a suite as YAML, to be read or changed: save it under another name and run that.

    --json prints it with every default filled in.

    [bold]Examples[/bold]

    \b
      vldebias eval show waterbirds
      vldebias eval show fairface > mine.yaml
      vldebias eval show miniature --json
    """
    _check_suite(suite)
    from vldebias.evaluation.suite import load_suite, suite_path

    loaded = load_suite(suite)
    if as_json:
        print_json(loaded.model_dump(mode="json"))
        return
    typer.echo(suite_path(suite).read_text(encoding="utf-8"), nl=False)


@app.command("texts")
def texts(
    suite: Annotated[
        str, typer.Argument(help="Name of a suite or path of a YAML file.", autocompletion=complete.complete_suites)
    ],
    only: Annotated[list[str] | None, typer.Option(help="Only this task; several by repeating it.")] = None,
    attributes: Annotated[list[str] | None, typer.Option(help="Of retrieval only these: gender,race.")] = None,
    as_json: Json = False,
) -> None:
    """Print every prompt that a suite embeds, one a line: what a file of text embeddings must have.

    Store their embeddings as `text` (n, d) with the prompts as `prompts` (n,), in the .npz of the image features or in
    one of its own; rows are compared with image features of the same model.

    [bold]Examples[/bold]

    \b
      vldebias eval texts fairface > prompts.txt
      vldebias eval texts fairface --attributes gender
      vldebias eval texts celeba --json
      vldebias eval fairface --embeddings images.npz --texts texts.npz
    """
    _check_suite(suite)
    from vldebias.evaluation.suite import load_suite

    prompts = load_suite(suite).only(only or ()).of_attributes(split_names(attributes)).texts()
    if not prompts:
        raise InvalidInputError(f"{suite}: embeds no prompts with an image-text model; its figures need a pipeline")
    if as_json:
        print_json(list(prompts))
    else:
        typer.echo("\n".join(prompts))


@app.command("report")
def report(
    result: Results,
    page: Annotated[Path | None, typer.Option("--out", help="HTML page to write. Default: beside the result.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown on stdout instead.")] = False,
    as_card: Annotated[bool, typer.Option("--model-card", help="Print a model card for the hub instead.")] = False,
    as_json_ld: Annotated[bool, typer.Option("--json-ld", help="Print linked data (schema.org) instead.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print the tables for a paper instead.")] = False,
) -> None:
    """Render a result again: tables and charts from its figures, with the pictures that lie beside it.

    [bold]Examples[/bold]

    \b
      vldebias eval report vldebias-miniature --out page.html
      vldebias eval report result.json --markdown > result.md
      vldebias eval report vldebias-miniature --model-card > README.md
      vldebias eval report vldebias-miniature --latex > tables.tex
    """
    path = _file_of(result)
    from vldebias.evaluation.exports import json_ld, latex, model_card
    from vldebias.evaluation.report.pages import markdown, render

    forms: dict[str, Any] = {"--markdown": markdown, "--model-card": model_card, "--json-ld": json_ld, "--latex": latex}
    chosen = [name for name, given in zip(forms, (as_markdown, as_card, as_json_ld, as_latex), strict=True) if given]
    if len(chosen) > 1:
        raise InvalidInputError(f"expected one of {', '.join(forms)}, got {' and '.join(chosen)}")
    read = _read(path)
    if chosen:
        typer.echo(forms[chosen[0]](read), nl=False)
        return
    say(render(read, page or path.with_suffix(".html"), beside=path.parent), err)


@app.command("verify")
def verify_run(
    result: Annotated[Path, typer.Argument(help="The folder of a run, or its result.json.")],
    as_json: Json = False,
) -> None:
    """Check that the files of a run are those that it left: figures, page, pictures, drawn images.

    Compares the SHA-256 of each with manifest.json; exits with 1 where one differs, is missing or was added. Whoever
    can change a file can change the manifest: compare its own SHA-256, which is printed, with one kept elsewhere.

    [bold]Examples[/bold]

    \b
      vldebias eval verify vldebias-miniature
      vldebias eval verify sd21/result.json --json
    """
    from vldebias.evaluation.run import MANIFEST
    from vldebias.evaluation.run import verify as verify_files
    from vldebias.files import digest

    differences = verify_files(result)
    if as_json:
        print_json(differences)
    for what, names in () if as_json else differences.items():
        for name in names:
            say(f"{what}: {name}")
    if any(differences.values()):
        raise typer.Exit(1)
    folder = result if result.is_dir() else result.parent
    say(f"every file is as the run left it, if {MANIFEST} is: its SHA-256 is {digest(folder / MANIFEST)}", err)


@app.command("compare")
def compare_results(
    a: Results,
    b: Results,
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
    first, second = _read(a), _read(b)
    from vldebias.evaluation.report.comparison import compare as compare_results
    from vldebias.evaluation.report.comparison import print_comparison, write_comparison

    comparison = compare_results(first, second, (str(a), str(b)))
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
        print_comparison(comparison, out)


def _file_of(given: Path) -> Path:
    """The file of a result; a wrong path is told before anything heavy is imported."""
    path = given / "result.json" if given.is_dir() else given
    if not path.is_file():
        raise InvalidInputError(f"{path}: no such file; expected a result of `vldebias eval` or `vldebias quickstart`")
    return path


def _read(given: Path) -> Any:
    path = _file_of(given)
    from vldebias.evaluation.result import Result

    return Result.read(path)


@app.command("data")
def data(
    name: Annotated[
        str,
        typer.Argument(
            help="waterbirds, celeba, fairface, utkface, manifest, huggingface, ...",
            autocompletion=complete.complete_data_sets,
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
    """What is in a data set: images, labels and their intersections; whether its images can be read.

    Exit code 1 where --check finds images that cannot be read.

    [bold]Examples[/bold]

    \b
      vldebias eval data waterbirds --root DIR
      vldebias eval data fairface --root DIR --split train --check --sample 1000
      vldebias eval data birds
      vldebias eval data manifest --root my.csv --option image=path --option labels=gender
    """
    from vldebias.data.summary import check_images, describe
    from vldebias.evaluation.task import open_split

    opened = open_split(name, root, split, dict(_option(text) for text in option or []))
    facts = describe(opened)
    bad = check_images(opened, sample=sample) if check else None
    if bad is not None:
        facts["unreadable"] = [{"id": one, "reason": reason} for one, reason in bad]
    if as_json:
        print_json(facts)
    else:
        _print_data(facts)
    if bad:
        raise typer.Exit(1)


def _option(text: str) -> tuple[str, Any]:
    """name=value; a value with commas is a list, digits are a number, true and false are what they say."""
    from vldebias.files import parse_yaml

    name, value = split_pair(text, "--option", "name=value (such as image=path)")
    if name in ("labels", "columns") and not value.startswith(("[", "{")):
        return name, value.split(",")
    return name, parse_yaml(value, f"--option {name}")


def _print_data(facts: dict[str, Any]) -> None:
    aside(f"{facts['name']} {facts['split']}: {facts['images']} images, {facts.get('captions', 0)} captions")
    counted = [
        (kind[:-1], name, {**column["counts"], **({"unknown": column["unknown"]} if column["unknown"] else {})})
        for kind in ("columns", "intersections")
        for name, column in facts.get(kind, {}).items()
    ]
    head = ("kind", "name", "value", "images")
    bad = facts.get("unreadable")
    lines = [(kind, name, value, n) for kind, name, counts in counted for value, n in counts.items()]
    if not piped(head, [*lines, *(("unreadable", one["id"], one["reason"], 1) for one in bad or ())]):
        rows = []
        for _, name, counts in counted:
            shown = [f"{value} {n:,}" for value, n in counts.items()]
            more = [f"and {len(shown) - 12} more"] if len(shown) > 12 else []
            rows.append((name, ", ".join(shown[:12] + more)))
        if rows:
            print_grid(("column", "images"), rows)
    for name, value in (facts.get("about") or {}).items():
        aside(f"{name}: {shortened(str(value), 160)}")
    if bad is not None:
        aside(f"{len(bad)} images cannot be read")
        for one in bad[:20] if out.is_terminal else ():
            aside(f"  {one['id']}: {one['reason']}")
