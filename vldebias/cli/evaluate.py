"""`vldebias eval`: run a suite by name, list and show suites, compute shares from a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vldebias.cli import complete, results
from vldebias.cli.common import (
    Json,
    aside,
    check_files,
    check_names,
    check_out,
    check_there,
    device_of,
    err,
    make_app,
    piped,
    print_grid,
    print_json,
    print_result,
    say,
    split_names,
    split_pair,
)
from vldebias.cli.flags import flags_of_options, with_flags
from vldebias.cli.paper import paper_command
from vldebias.errors import InvalidInputError
from vldebias.options import Options


class SuiteGroup(TyperGroup):
    """A group in which a name that is no command is a suite: `vldebias eval waterbirds` is `vldebias eval run ...`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # of click, or of the copy that typer brings
        """Return the command of that name, else `run` with the name as its suite."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete commands and suites."""
        item = type(super().shell_complete(ctx, "")[0])  # of click, or of the copy that typer brings
        return super().shell_complete(ctx, incomplete) + [item(name) for name in complete.complete_suites(incomplete)]


app = make_app(
    "Measure bias and utility before and after, with error bars: [bold]vldebias eval SUITE[/bold].\n\n"
    "[bold]Examples[/bold]\n\n\b\n"
    "  vldebias eval list\n"
    "  vldebias eval miniature\n"
    "  vldebias eval waterbirds --model ViT-L-14 --pretrained openai --data-root DIR\n"
    "  vldebias eval fairface --embeddings images.npz --texts texts.npz --methods cali,equalise,auto\n"
    "  vldebias eval paper --data-root DIR --estimate\n"
    "  vldebias eval shares table.csv --prompt prompt --value gender --method model\n"
    "  vldebias eval compare a/result.json b/result.json",
    cls=SuiteGroup,
)
app.command("report")(results.report)
app.command("compare")(results.compare)
app.command("data")(results.data)
app.command("paper")(paper_command)

SuiteName = Annotated[
    str,
    typer.Argument(
        help="A name (vldebias eval list) or a YAML file.", metavar="SUITE", autocompletion=complete.complete_suites
    ),
]
Only = Annotated[list[str] | None, typer.Option(help="Only this task. *", metavar="TASK", rich_help_panel="Run")]
Attributes = Annotated[
    list[str] | None,
    typer.Option(help="Of retrieval only these: gender,race. *", metavar="NAMES", rich_help_panel="Run"),
]


@app.command("run")
@with_flags(flags_of_options())
def run(
    suite: SuiteName, only: Only = None, attributes: Attributes = None, as_json: Json = False, **given: Any
) -> None:
    """Run a suite and write result.json, pictures and one page; a second run goes on where the first stopped.

    Options with * may be repeated. `vldebias methods` lists what --methods takes.

    [bold]Examples[/bold]

    \b
      vldebias eval run miniature
      vldebias eval waterbirds --model ViT-L-14 --pretrained openai --data-root DIR
      vldebias eval fairface --embeddings 'shards/*.npy' --table 'labels/*.parquet' --texts texts.npz
      vldebias eval generation --pipeline DIR --out sd15
      vldebias eval human --labels anna.jsonl --drawn sd15/images/gender
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
    from vldebias.evaluation.task import load_suite
    from vldebias.methods import get_method

    loaded = load_suite(suite).of_attributes(split_names(attributes))
    chosen = tuple(get_method(name).name for name in split_names(given.pop("methods", None))) or None
    fields: dict[str, Any] = {"out": Path(f"vldebias-{loaded.name}"), "device": "auto", "keys": keys, **given}
    fields |= {"device": device_of(fields["device"]), "methods": chosen}
    fields = {name: tuple(one) if isinstance(one, list) else one for name, one in fields.items()}
    options = Options(**fields)
    _show(run_suite(loaded, options, console=err, only=only or ()), loaded, options.out, as_json)


def _check_suite(name: str) -> None:
    """Refuse a wrong name before anything heavy is imported."""
    from vldebias.files import suite_file

    if not (name.endswith((".yaml", ".yml")) or len(Path(name).parts) > 1):
        suite_file(name)


def _check_root(name: str, root: str | Path | None, *, images: bool) -> None:
    """Refuse a data set that is not given, or not there, before a model is loaded for it."""
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
    prompt: Annotated[str, typer.Option(metavar="COLUMN", help="The prompt of the image.")],
    value: Annotated[str, typer.Option(metavar="COLUMN", help="What the image shows; empty where nobody can tell.")],
    method: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What generated it: compared with the method none.")
    ] = None,
    weight: Annotated[str | None, typer.Option(metavar="COLUMN", help="Weight of the image.")] = None,
    people: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Labels by people, empty where nobody was asked: they correct --value."),
    ] = None,
    values: Annotated[str | None, typer.Option(help="All values: female,male. Default: those that occur.")] = None,
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
    """Compute group shares and discrepancy from a table of labelled images.

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
    from vldebias.evaluation.task import Suite

    columns = {"prompt": prompt, "value": value, "method": method, "weight": weight, "people": people}
    means = {
        "values": tuple(split_names([values] if values else None)),
        "same": dict(split_pair(text, "--same", "TEXT=VALUE, such as F=female") for text in same or ()),
        **({"unknown": tuple(unknown)} if unknown else {}),
    }
    task = SharesTask.build({"table": table, **columns, **means, "baseline": baseline, "resamples": resamples})
    suite = Suite.of_task(
        task,
        title=task.title,
        description=f"Shares and discrepancy of {table.name}.",
        source="eq. 7.2 of the thesis",
        needs="a table with a row per image",
    )
    _show(run_suite(suite, Options(out=folder), console=err), suite, folder, as_json)


def _show(result: Any, suite: Any, folder: Path, as_json: bool) -> None:
    """Print a result, and where its page is."""
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
    suite: SuiteName,
    texts: Annotated[bool, typer.Option("--texts", help="Print every prompt that it embeds, one a line.")] = False,
    attributes: Attributes = None,
    as_json: Json = False,
) -> None:
    """Print a suite as YAML, to be read or changed: save it under another name and run that.

    --texts prints what a file of text embeddings must have: store the embeddings as `text` (n, d) with the prompts as
    `prompts` (n,), in the .npz of the image features or in one of its own. --json fills in every default.

    [bold]Examples[/bold]

    \b
      vldebias eval show fairface > mine.yaml
      vldebias eval show miniature --json
      vldebias eval show fairface --texts > prompts.txt
    """
    _check_suite(suite)
    from vldebias.evaluation.task import load_suite, suite_path

    loaded = load_suite(suite).of_attributes(split_names(attributes))
    if texts:
        prompts = loaded.texts()
        if not prompts:
            raise InvalidInputError(f"{suite}: embeds no prompts with an image-text model; its figures need a pipeline")
        typer.echo("\n".join(prompts)) if not as_json else print_json(list(prompts))
    elif as_json:
        print_json(loaded.model_dump(mode="json"))
    else:
        typer.echo(suite_path(suite).read_text(encoding="utf-8"), nl=False)
