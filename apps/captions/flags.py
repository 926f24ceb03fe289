"""Define the flags of commands that evaluate a table about images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.checks import check_sets
from vldebias.cli.common import check_out, print_result, split_pair, write_run
from vldebias.cli.flags import AttributeSet, Flags, Json
from vldebias.utils.devices import device_of
from vldebias.utils.files import only_writer
from vldebias.utils.options import Options

from .interrupts import page_after_interrupt

if TYPE_CHECKING:
    from vldebias.report.result import Result


def stated_flags(folder: str, *, asks: str = "") -> Flags:
    """Yield the flags of commands that evaluate a table about images.

    Args:
        folder: default output folder.
        asks: what `--model` does. If there is no such option, labels may be in a separate table.
    """
    column = typer.Option(
        metavar="ROLE=NAME",
        help="Column that is not found by its name, as in caption=pred; repeatable.",
    )
    yield "attribute", AttributeSet, "gender"
    if asks:
        model = typer.Option(
            help=f"Image-text model of transformers that {asks}: hub id or folder."
        )
        yield "model", Annotated[str | None, model], None
    else:
        references = typer.Option(
            exists=True,
            metavar="TABLE",
            help="Captions by people, or labels of the images, in a separate table.",
        )
        yield "references", Annotated[Path | None, references], None
    yield "column", Annotated[list[str] | None, column], None
    yield "out", Annotated[Path, typer.Option(metavar="DIR", help="Output folder.")], Path(folder)
    yield "as_json", Json, False


def evaluate_tables(
    evaluate: Callable[..., Result], name: str, tables: Sequence[Path], flags: Mapping[str, Any]
) -> None:
    """Evaluate tables, and write and print the result.

    After Ctrl-C, the page shows what was read, and the exit status is 130.

    Args:
        evaluate: function that evaluates the tables.
        name: name of its result.
        tables: the tables.
        flags: values of `stated_flags`.
    """
    check_out(flags["out"], name, tables)
    check_sets([flags["attribute"]])
    settings = dict(flags)
    as_json = settings.pop("as_json")
    pairs = [split_pair(text, "--column", "caption=pred") for text in settings.pop("column", ())]
    settings["columns"] = dict(pairs)
    model = settings.pop("model", None)
    if model is not None:
        from vldebias.judge.judges import VlmJudge
        from vldebias.prompts import load_prompts
        from vldebias.study.inputs import Inputs

        prompt_set = load_prompts(flags["attribute"])
        questions = {prompt_set.name: tuple(prompt_set.attributes)}
        options = Options(out=flags["out"], device=device_of(None))
        judge = VlmJudge(model=model, questions=questions)
        settings["judge"] = judge.ready(None, Inputs(options))
    with only_writer(flags["out"]), page_after_interrupt() as interrupts:
        result = evaluate(*tables, **settings)
        if interrupts and not result.rows:
            raise KeyboardInterrupt
        page = write_run(result, flags["out"])
        print_result(result, as_json=as_json, page=page)
        if interrupts:
            raise typer.Exit(130)
