"""Define `vldebias eval captions` and `vldebias eval vqa`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.flags import with_flags

from .flags import evaluate_tables, stated_flags


@with_flags(stated_flags("vldebias-captions"))
def captions(
    tables: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            metavar="TABLE...",
            help="Captions of images, such as .csv, .jsonl, .parquet, COCO's .json, or a folder of"
            " images with text files. Several"
            " tables are compared with the first, image by image.",
        ),
    ],
    **flags: Any,
) -> None:
    """Measure which gender, age or race captions state about images, and how often it is wrong.

    Prints right, wrong and missing values by group, with intervals, and writes a page. Needs no
    model: the captions may come from any program. Columns are image, caption, and optionally label
    (a value or unclear), references, noun and model. The page shows the first wrong
    captions; mark those that were misread, and run the command again.

    Examples:
      vldebias eval captions captions.csv
      vldebias eval captions before.jsonl after.jsonl --column label=gender
      vldebias eval captions blip2.json --references captions_val2014.json
      vldebias eval captions batch_output.jsonl --references labels.csv
    """
    from .captions import evaluate_captions

    evaluate_tables(evaluate_captions, "captions", tables, flags)


@with_flags(stated_flags("vldebias-vqa", asks="answers"))
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

    Prints right, wrong and missing answers by group, and writes a page. With --model, the
    model is asked in every cyclic order of the options. Otherwise, the answers are in the table.
    Columns are image, label (a value or unclear), and answer; optionally question, options (or
    ans0, ans1, ans2, or A to E), noun and model.

    Examples:
      vldebias eval vqa answers.jsonl
      vldebias eval vqa photos/labels.csv --model ./smolvlm
    """
    from .answers import evaluate_vqa

    evaluate_tables(evaluate_vqa, "vqa", tables, flags)
