"""`vldebias eval`: run, list and show suites, and compute shares from a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from vldebias.cli import results
from vldebias.cli.checks import (
    check_data_of_suite,
    check_file,
    check_model,
    check_needs_no_data,
    check_suite,
)
from vldebias.cli.common import (
    App,
    check_out,
    device_of,
    echo,
    err,
    print_list,
    print_message,
    print_result,
    split_names,
    split_pair,
    write_run,
)
from vldebias.cli.flags import Json, flags_of_options, with_flags
from vldebias.errors import InvalidInputError
from vldebias.methods.declared import check_methods
from vldebias.utils.options import Options

if TYPE_CHECKING:
    from typer._click import Command, Context  # typer's copy of click


class SuiteGroup(TyperGroup):
    """Treat unknown subcommands as suites: `eval waterbirds` is `eval run waterbirds`."""

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Return the command of that name, or `run` with the name as its suite.

        Args:
            ctx: context of the group.
            args: the name, followed by further arguments.
        """
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = App(
    """
    Measure bias and utility before and after, with error bars: [bold]vldebias eval SUITE[/bold].

    Examples:
      vldebias eval list
      vldebias eval miniature
      vldebias eval waterbirds --model ViT-L-14 --pretrained openai \\
          --data-root DIR
      vldebias eval shares table.csv --prompt prompt --value gender --method model
    """,
    cls=SuiteGroup,
)
app.add("report")(results.report)
app.add("compare")(results.compare)
app.add("gate")(results.gate)
app.add("runs")(results.runs)
app.add("data")(results.data)
app.add("paper")(results.paper)

SuiteName = Annotated[
    str, typer.Argument(help="A suite name (vldebias eval list) or a YAML file.", metavar="SUITE")
]


@app.add("run")
@with_flags(flags_of_options())
def run(
    suite: SuiteName,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this task; repeatable.", metavar="TASK")
    ] = None,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Run a suite and write result.json, images and a page. Run it again to continue.

    `vldebias methods` lists the values of --methods.

    Examples:
      vldebias eval run miniature
      vldebias eval waterbirds --model ViT-L-14 --pretrained openai \\
          --data-root DIR
      vldebias eval fairface --embeddings 'shards/*.npy' \\
          --table 'labels/*.parquet' --texts texts.npz
      vldebias eval generation --pipeline DIR --out sd15
      vldebias eval human --labels anna.jsonl --drawn sd15/images/gender
    """
    methods = split_names(flags.pop("methods", None))
    check_out(flags.get("out"))
    check_suite(suite)
    # Features replace a data set's images.
    if flags.get("data_root") is None and "embeddings" not in flags:
        check_needs_no_data(suite)
    check_methods(methods)
    check_model(flags.get("model"), flags.get("pretrained"))
    for option in ("data_root", "embeddings", "table", "texts", "reference"):
        check_file(f"--{option.replace('_', '-')}", flags.get(option))
    if "embeddings" not in flags:
        check_data_of_suite(
            suite, flags.get("data_root"), limit=flags.get("limit"), only=only or ()
        )
    if flags.get("prompts_file") is not None:
        from vldebias.wording.prompt_file import read_prompts

        print_message(f"{flags['prompts_file']}: read {read_prompts(flags['prompts_file'])}")
    from vldebias.methods import get_method
    from vldebias.study.manifest import PAGE
    from vldebias.study.running import run_suite
    from vldebias.study.suite import load_suite

    loaded = load_suite(suite)
    settings: dict[str, Any] = {"out": Path(f"vldebias-{loaded.name}")}
    for name, value in flags.items():
        settings[name] = value
        if isinstance(value, list):  # options are hashable, but typer passes lists
            settings[name] = tuple(value)
    # This check imports torch, so it comes last.
    settings["device"] = device_of(flags.get("device"))
    # Without --methods, the suite uses its own list.
    settings["methods"] = tuple(get_method(name).name for name in methods) or None
    options = Options(**settings)
    result = run_suite(loaded, options, console=err.console, only=only or ())
    print_result(result, loaded.headline, as_json=as_json, page=options.out / PAGE)


_IMAGE_COLUMNS = ("prompt", "value", "method", "people", "weight")
_APPLICANT_COLUMNS = ("selected", "sex", "race")


@app.add("shares")
def shares(  # noqa: PLR0913  (each is an option of the command)
    table: Annotated[
        Path,
        typer.Argument(
            exists=True,
            metavar="TABLE",
            help="Table with one row per image: .csv, .tsv, .parquet or .jsonl.",
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The prompt of the image.")
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="What the image shows; empty if unknown."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Method that generated it, compared with --baseline."),
    ] = None,
    people: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Labels by people, empty if the image was not labelled; they correct --value.",
        ),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Weight of the image; with --people, the inverse of its probability of being"
            " labelled.",
        ),
    ] = None,
    selected: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="With --impact-ratio: whether the applicant was selected, yes or no.",
        ),
    ] = None,
    sex: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --impact-ratio: the applicant's sex."),
    ] = None,
    race: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="With --impact-ratio: the applicant's race or ethnicity."
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A=B", help="Rename a value of the table, such as F=female; repeatable."
        ),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B|SET",
            help=(
                "All groups that could occur, comma-separated, or a prompt set with them (gender,"
                " race). Default: those that occur."
            ),
        ),
    ] = None,
    unknown: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE",
            help='Label that names no group, besides "cannot tell", "N/A", ...; repeatable.',
        ),
    ] = None,
    baseline: Annotated[str, typer.Option(help="Method to compare the others with.")] = "none",
    faces: Annotated[
        bool, typer.Option("--faces", help="Several rows of one image are several faces in it.")
    ] = False,
    impact_ratio: Annotated[
        bool,
        typer.Option(
            "--impact-ratio",
            help=(
                "Selection rates and impact ratios of applicants by sex, race and both, as required"
                " by New York City's Local Law 144."
            ),
        ),
    ] = False,
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="For results.")] = Path(
        "vldebias-shares"
    ),
    as_json: Json = False,
) -> None:
    """Compute group shares and discrepancy from a table of labelled images.

    Prints means with intervals over prompts, compares methods, and writes a page. --people corrects
    a judge with human labels of some images. With --impact-ratio, the rows are applicants instead
    of images.

    Examples:
      vldebias eval shares table.csv --prompt prompt --value gender \\
          --groups female,male
      vldebias eval shares table.csv --prompt occupation --value gender \\
          --method model --baseline sd15
      vldebias eval shares table.csv --prompt occupation --value gender \\
          --rename F=female --rename M=male --unknown both
      vldebias eval shares judged.csv --prompt prompt --value judge \\
          --people label --weight weight --json
      vldebias eval shares applicants.csv --impact-ratio --selected hired \\
          --sex sex --race race
    """
    check_out(folder)
    passed = {
        "prompt": prompt,
        "value": value,
        "method": method,
        "people": people,
        "weight": weight,
        "selected": selected,
        "sex": sex,
        "race": race,
    }
    columns = {name: column for name, column in passed.items() if column is not None}
    _check_kind_of_columns(columns, is_impact=impact_ratio)
    if impact_ratio and (groups or faces or baseline != "none"):
        raise InvalidInputError(
            "--impact-ratio: got --groups, --faces or --baseline, which only apply to tables of"
            " images; remove them"
        )
    from vldebias.data.layouts import check_columns

    check_columns(table, columns.values())
    value_of_text = dict(split_pair(text, "--rename", "F=female") for text in rename or ())
    if impact_ratio:
        from vldebias.study.shares.impact import measure_impact

        result = measure_impact(table, **columns, rename=value_of_text, unknown=unknown or ())
        print_result(result, as_json=as_json, page=write_run(result, folder))
        return
    # torch takes seconds to import, so a wrong column is reported first.
    from vldebias.report.result import Result
    from vldebias.study.shares.group_names import groups_named
    from vldebias.study.shares.task import SharesTask

    settings: dict[str, object] = {
        "baseline": baseline,
        **columns,
        "rename": value_of_text,
        "faces": faces,
    }
    if groups:
        settings["values"] = groups_named(split_names(groups))
    if unknown:
        settings["unknown"] = tuple(unknown)
    task = SharesTask.build(settings)
    result = Result.from_tasks(task.name, task.measure(table), seconds=None)
    print_result(result, as_json=as_json, page=write_run(result, folder))


def _check_kind_of_columns(columns: Mapping[str, str], *, is_impact: bool) -> None:
    """Check that the required columns were passed, and none for the other kind of table.

    Raises:
        InvalidInputError: If a column is missing, or belongs to the other kind of table.
    """
    needed = _APPLICANT_COLUMNS if is_impact else _IMAGE_COLUMNS[:2]
    allowed = _APPLICANT_COLUMNS if is_impact else _IMAGE_COLUMNS
    missing = [f"--{name} COLUMN" for name in needed if name not in columns]
    unexpected = [f"--{name}" for name in columns if name not in allowed]
    if missing and is_impact:
        raise InvalidInputError(f"--impact-ratio: expected {', '.join(missing)}")
    if missing:
        raise InvalidInputError(
            f"expected {', '.join(missing)}; or --impact-ratio for a table of applicants"
        )
    if unexpected:
        kind = "with" if is_impact else "without"
        raise InvalidInputError(
            f"got {', '.join(unexpected)}, which does not apply {kind} --impact-ratio; remove it"
        )


@app.add("list")
def list_all(as_json: Json = False) -> None:
    """List the packaged suites and their requirements.

    Examples:
      vldebias eval list
      vldebias eval list --json
    """
    from vldebias.utils.files import packaged, read_yaml

    suites = []
    rows = []
    # Parse the suites without validation, which would import torch.
    for name, file in packaged("suites").items():
        content = read_yaml(file)
        suites.append(
            {
                "name": name,
                "title": content["title"],
                "description": content["description"],
                "source": content["source"],
                "needs": content["needs"],
                "tasks": [task["name"] for task in content["tasks"]],
            }
        )
        rows.append((name, f"{content['title']} ({content['source']})", content["needs"]))
    print_list(("name", "title", "needs"), rows, suites, as_json=as_json)


@app.add("show")
def show_suite(
    suite: SuiteName,
    texts: Annotated[
        bool,
        typer.Option("--texts", help="Print every prompt that the suite embeds, one per line."),
    ] = False,
) -> None:
    """Print a suite as YAML; save it under another name to edit and run it.

    --texts prints the prompts that a file of text embeddings must contain. Store the embeddings as
    `text` (n, d) and the prompts as `prompts` (n,), in the .npz of the image features or in another
    file.

    Examples:
      vldebias eval show fairface > mine.yaml
      vldebias eval show fairface --texts > prompts.txt
    """
    from vldebias.utils.files import packaged

    if texts and suite in packaged("suites"):
        from vldebias.study.suite_texts import texts_of_packaged_suite

        embedded = texts_of_packaged_suite(suite)
    else:
        # A file is validated, which imports torch.
        from vldebias.study.suite import load_suite, suite_path

        embedded = load_suite(suite).texts()
    if not texts:
        # Print it unchanged, so that `> mine.yaml` makes an exact copy.
        echo(suite_path(suite).read_text(encoding="utf-8"), end="")
    elif embedded:
        echo("\n".join(embedded))
    else:
        raise InvalidInputError(
            f"{suite}: this suite embeds no prompts; it generates images with a pipeline"
        )
