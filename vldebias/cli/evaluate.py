"""`vldebias eval`: run, list and show suites, and compute shares from a table of images."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias import programs
from vldebias.cli import results
from vldebias.cli.checks import check_data_of_suite, check_file, check_sets
from vldebias.cli.common import (
    App,
    Group,
    check_out,
    echo,
    err,
    print_list,
    print_message,
    print_result,
    split_names,
    split_pair,
    write_run,
)
from vldebias.cli.flags import AttributeSet, Flags, Json, flags_of_options, with_flags
from vldebias.errors import InvalidInputError
from vldebias.methods.declared import check_methods
from vldebias.utils.devices import device_of
from vldebias.utils.files import packaged
from vldebias.utils.names import check_model, suite_path
from vldebias.utils.options import Options

if TYPE_CHECKING:
    from typer._click import Command, Context  # typer's copy of click


class SuiteGroup(Group):
    """Treat unknown subcommands as suites: `eval waterbirds` is `eval run waterbirds`."""

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Return the command with the given name, or `run` if the name belongs to a suite.

        Args:
            ctx: group context.
            args: the name, followed by further arguments.
        """
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = App(
    f"""
    Measure bias and utility before and after debiasing, with error bars.

    To run a suite, use `vldebias eval SUITE`. Suites: {", ".join(packaged("suites"))}.

    Examples:
      vldebias eval list
      vldebias eval miniature
      vldebias eval waterbirds --model ViT-L-14 --pretrained openai \\
          --data-root DIR
      vldebias eval shares table.csv --prompt-column prompt --value-column gender
    """,
    cls=SuiteGroup,
)
app.add("report")(results.report)
app.add("compare")(results.compare)
app.add("gate")(results.gate)
app.add("data")(results.data)
for _name, _entry in programs.commands("eval").items():
    app.add(_name)(getattr(import_module(_entry.module), _entry.attribute))

SuiteName = Annotated[
    str,
    typer.Argument(help="Name of a suite (see vldebias eval list) or YAML file.", metavar="SUITE"),
]


@app.add("run")
@with_flags(flags_of_options())
def run(
    suite: SuiteName,
    only: Annotated[
        list[str] | None, typer.Option(help="Only run this task; repeatable.", metavar="TASK")
    ] = None,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Run a suite, and write result.json, images and a page.

    Run it again to continue after an interruption. To list the values of --methods, run `vldebias
    methods`.

    Examples:
      vldebias eval run miniature
      vldebias eval waterbirds --model ViT-L-14 --pretrained openai \\
          --data-root DIR
      vldebias eval fairface --embeddings 'shards/*.npy' \\
          --table 'labels/*.parquet' --texts texts.npz
      vldebias eval generation --pipeline DIR --out sd15
      vldebias eval human --label-file anna.jsonl --image-dir sd15/images/gender
    """
    methods = split_names(flags.pop("methods", None))
    check_out(flags.get("out"))
    check_file("SUITE", suite_path(suite))
    check_methods(methods)
    check_model(flags.get("model"), flags.get("pretrained"))
    for option in ("data_root", "embeddings", "table", "texts", "reference"):
        check_file(f"--{option.replace('_', '-')}", flags.get(option))
    # No data is needed if features are passed instead of images.
    if "embeddings" not in flags:
        check_data_of_suite(
            suite, flags.get("data_root"), limit=flags.get("limit"), only=only or ()
        )
    if flags.get("prompts_file") is not None:
        from vldebias.wording.prompt_file import read_prompts

        print_message(f"{flags['prompts_file']}: read {read_prompts(flags['prompts_file'])}")
    from vldebias.methods import get_method
    from vldebias.study.run_files import PAGE
    from vldebias.study.running import run_suite
    from vldebias.study.suite import load_suite

    loaded = load_suite(suite)
    settings: dict[str, Any] = {"out": Path(f"vldebias-{loaded.name}")}
    for name, value in flags.items():
        settings[name] = value
        if isinstance(value, list):  # `Options` must be hashable, but Typer passes lists
            settings[name] = tuple(value)
    # Check the device last, since this imports torch.
    settings["device"] = device_of(flags.get("device"))
    # Without --methods, the suite uses its own list.
    settings["methods"] = tuple(get_method(name).name for name in methods) or None
    options = Options(**settings)
    result = run_suite(loaded, options, console=err(), only=only or ())
    print_result(result, loaded.headline, as_json=as_json, page=options.out / PAGE)


_IMAGE_COLUMNS = {
    "prompt": "Column with the prompts.",
    "value": "Column with the values that the images show; empty if unknown.",
    "method": ("Column with the methods that generated the images, to compare with --baseline."),
    "people": "Column with human labels, which correct --value-column; empty if unlabelled.",
    "weight": (
        "Column with image weights. With --people-column, a weight is one divided by the"
        " probability that the image was selected for labelling."
    ),
}


def _column_flags() -> Flags:
    """Yield the flags of `shares` that name a column."""
    for name, text in _IMAGE_COLUMNS.items():
        flag = typer.Option(
            f"--{name}-column", metavar="COLUMN", help=text, rich_help_panel="Columns"
        )
        yield name, Annotated[str | None, flag], None


@app.add("shares")
@with_flags(_column_flags())
def shares(
    table: Annotated[
        Path,
        typer.Argument(
            exists=True,
            metavar="TABLE",
            help="Table with one row per image: .csv, .tsv, .parquet or .jsonl.",
        ),
    ],
    rename: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A=B", help="Rename a value in the table, as in F=female; repeatable."
        ),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B|SET",
            help=(
                "Comma-separated list of all groups that could occur, or a prompt set that lists"
                " them (gender, race). Default: the groups that occur."
            ),
        ),
    ] = None,
    unknown: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE",
            help='Label that means unknown, besides "cannot tell", "N/A", ...; repeatable.',
        ),
    ] = None,
    baseline: Annotated[str, typer.Option(help="Method to compare the others with.")] = "none",
    faces: Annotated[
        bool,
        typer.Option("--faces", help="Treat several rows for an image as several faces in it."),
    ] = False,
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output folder.")] = Path(
        "vldebias-shares"
    ),
    as_json: Json = False,
    **columns: str,
) -> None:
    """Compute group shares and discrepancy from a table of labelled images.

    Prints means over prompts with intervals, compares methods, and writes a page. With
    --people-column, human labels for some of the images are used to correct a judge.

    Examples:
      vldebias eval shares table.csv --prompt-column prompt \\
          --value-column gender --groups female,male
      vldebias eval shares table.csv --prompt-column occupation \\
          --value-column gender --method-column model --baseline sd15
      vldebias eval shares table.csv --prompt-column occupation \\
          --value-column gender --rename F=female --rename M=male --unknown both
      vldebias eval shares judged.csv --prompt-column prompt \\
          --value-column judge --people-column label --weight-column weight
    """
    check_out(folder)
    missing = [f"--{name}-column COLUMN" for name in ("prompt", "value") if name not in columns]
    if missing:
        raise InvalidInputError(f"expected {', '.join(missing)}")
    from vldebias.report.result import Result
    from vldebias.study.shares.group_names import groups_named
    from vldebias.study.shares.task import SharesTask

    settings: dict[str, object] = {"baseline": baseline, "faces": faces, **columns}
    settings["rename"] = dict(split_pair(text, "--rename", "F=female") for text in rename or ())
    if groups:
        settings["values"] = groups_named(split_names(groups))
    if unknown:
        settings["unknown"] = tuple(unknown)
    task = SharesTask.build(settings)
    result = Result.from_tasks(task.name, task.measure(table), seconds=None)
    print_result(result, as_json=as_json, page=write_run(result, folder))


def _stated_flags(folder: str, *, asks: str = "", references: bool = True) -> Flags:
    """Yield the flags of commands that evaluate a table about images.

    Args:
        folder: default output folder.
        asks: what `--model` does, if there is this option.
        references: whether there is a separate table with labels.
    """
    table_of_references = typer.Option(
        exists=True,
        metavar="TABLE",
        help="Captions by people, or labels of the images, in a separate table.",
    )
    column = typer.Option(
        metavar="ROLE=NAME",
        help="Column that is not found by its name, as in caption=pred; repeatable.",
    )
    yield "attribute", AttributeSet, "gender"
    if references:
        yield "references", Annotated[Path | None, table_of_references], None
    if asks:
        model = typer.Option(
            help=f"Image-text model of transformers that {asks}: hub id or folder."
        )
        yield "model", Annotated[str | None, model], None
    yield "column", Annotated[list[str] | None, column], None
    yield "out", Annotated[Path, typer.Option(metavar="DIR", help="Output folder.")], Path(folder)
    yield "as_json", Json, False


def _stated_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Check the flags, and return the arguments for functions that evaluate texts about images."""
    check_out(flags["out"])
    check_sets([flags["attribute"]])
    pairs = [split_pair(text, "--column", "caption=pred") for text in flags.get("column", ())]
    settings = {"attribute": flags["attribute"], "columns": dict(pairs)}
    if "references" in flags:
        settings["references"] = flags["references"]
    if flags.get("model") is not None:
        from vldebias.judge.judges import VlmJudge
        from vldebias.prompts import load_prompts
        from vldebias.study.inputs import Inputs

        prompt_set = load_prompts(flags["attribute"])
        questions = {prompt_set.name: tuple(prompt_set.attributes)}
        options = Options(out=flags["out"], device=device_of(None))
        judge = VlmJudge(model=flags["model"], questions=questions)
        settings["judge"] = judge.ready(None, Inputs(options))
    return settings


@app.add("captions")
@with_flags(_stated_flags("vldebias-captions"))
def captions(
    tables: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            metavar="TABLE...",
            help="Captions of images, such as .csv, .jsonl, .parquet or COCO's .json. Several"
            " tables are compared with the first, image by image.",
        ),
    ],
    **flags: Any,
) -> None:
    """Measure which gender, age or race captions state about images, and how often it is wrong.

    Prints right, wrong and missing values by group, with intervals, and writes a page. Needs no
    model: the captions may come from any program. Columns are image, caption, and optionally label
    (a value or unclear), references, noun, confidence and model.

    Examples:
      vldebias eval captions captions.csv
      vldebias eval captions before.jsonl after.jsonl --column label=gender
      vldebias eval captions blip2.json --references captions_val2014.json
      vldebias eval captions batch_output.jsonl --references labels.csv
    """
    settings = _stated_settings(flags)
    from vldebias.study.stated.captions import evaluate_captions

    result = evaluate_captions(*tables, **settings)
    print_result(result, as_json=flags["as_json"], page=write_run(result, flags["out"]))


@app.add("vqa")
@with_flags(_stated_flags("vldebias-vqa", asks="answers"))
def vqa(
    tables: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            metavar="TABLE...",
            help="Answers about images, such as .csv, .jsonl or .parquet. With --model, paths of"
            " images relative to the table.",
        ),
    ],
    **flags: Any,
) -> None:
    """Measure which gender, age or race a model answers about images, and how often it is wrong.

    Prints right and wrong answers and "cannot tell" by group, and writes a page. With --model, the
    model is asked in every cyclic order of the options. Otherwise, the answers are in the table.
    Columns are image, label (a value or unclear), and answer; optionally question, options (or
    ans0, ans1, ans2), noun, confidence and model.

    Examples:
      vldebias eval vqa answers.jsonl
      vldebias eval vqa photos/labels.csv --model ./smolvlm
    """
    settings = _stated_settings(flags)
    from vldebias.study.stated.answers import evaluate_vqa

    result = evaluate_vqa(*tables, **settings)
    print_result(result, as_json=flags["as_json"], page=write_run(result, flags["out"]))


@app.add("edits")
@with_flags(_stated_flags("vldebias-edits", asks="labels images", references=False))
def edits(
    table: Annotated[
        Path,
        typer.Argument(exists=True, metavar="TABLE", help="Edits, with relative paths of images."),
    ],
    **flags: Any,
) -> None:
    """Measure what an image editor changed in people: labels, and the lightness of their skin.

    Prints shares of edits that change a label or make skin lighter, with intervals over people, and
    writes a page with the most lightened and darkened people. Columns are before, after (paths),
    and optionally person, group, instruction, before_label and after_label (or --model),
    before_people and after_people (labels by people, which correct the others), before_points and
    after_points (five points of the face; otherwise the extra "faces" finds them).

    Examples:
      vldebias eval edits edits.csv
      vldebias eval edits edits.csv --column person=photo --column group=race
      vldebias eval edits edits.csv --model ./smolvlm --out qwen-edit
      vldebias eval gate vldebias-edits --max-lighter 0.1
    """
    settings = _stated_settings(flags)
    from vldebias.study.edits import evaluate_edits

    result = evaluate_edits(table, **settings, out=flags["out"])
    print_result(result, as_json=flags["as_json"], page=write_run(result, flags["out"]))


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
        facts = {key: content[key] for key in ("title", "description", "source", "needs")}
        tasks = [task["name"] for task in content["tasks"]]
        suites.append({"name": name, **facts, "tasks": tasks})
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
    """Print a suite as YAML.

    To modify a suite, save it under a new name, edit the file and run it. With --texts, prints the
    prompts for which a file of text embeddings is needed. Store the embeddings as `text` (n, d) and
    the prompts as `prompts` (n,), either in the .npz file with the image features or in a separate
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
        # Suites in files are validated, which imports torch.
        from vldebias.study.suite import load_suite

        embedded = load_suite(suite).texts()
    if not texts:
        # Print the file unchanged, so that `> mine.yaml` creates an exact copy.
        echo(suite_path(suite).read_text(encoding="utf-8"), end="")
    elif embedded:
        echo("\n".join(embedded))
    else:
        raise InvalidInputError(
            f"{suite}: this suite does not embed any prompts, since it generates images with a"
            " pipeline; omit --texts"
        )
