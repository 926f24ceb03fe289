"""`vldebias eval`: run, list and show suites, and handle their results."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias import programs
from vldebias.cli import results
from vldebias.cli.checks import check_data_of_suite, check_file
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
    words_of_command,
)
from vldebias.cli.flags import Json, flags_of_options, with_flags
from vldebias.errors import REMOVED, InvalidInputError
from vldebias.methods.listing import check_methods
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
        is_removed = bool(args) and words_of_command(ctx, args[0]) in REMOVED
        if args and not args[0].startswith("-") and args[0] not in self.commands and not is_removed:
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
        from vldebias.data.prompt_file import read_prompts

        print_message(f"{flags['prompts_file']}: read {read_prompts(flags['prompts_file'])}")
    from vldebias.methods import get_method
    from vldebias.study.run_files import PAGE
    from vldebias.study.running import run_suite
    from vldebias.study.suite import load_suite

    loaded = load_suite(suite)
    settings: dict[str, Any] = {"out": Path(f"vldebias-{loaded.name}")}
    for name, value in flags.items():
        # `Options` must be hashable, but Typer passes lists.
        settings[name] = tuple(value) if isinstance(value, list) else value
    # Check the device last, since this imports torch.
    settings["device"] = device_of(flags.get("device"))
    # Without --methods, the suite uses its own list.
    settings["methods"] = tuple(get_method(name).name for name in methods) or None
    options = Options(**settings)
    result = run_suite(loaded, options, console=err(), only=only or ())
    print_result(result, loaded.headline, as_json=as_json, page=options.out / PAGE)


@app.add("list")
def list_all(as_json: Json = False) -> None:
    """List the packaged suites and their requirements.

    Examples:
      vldebias eval list
      vldebias eval list --json
    """
    from vldebias.utils.files import read_yaml

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
