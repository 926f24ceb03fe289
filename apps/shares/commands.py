"""Define `vldebias eval shares`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.common import check_out, print_result, split_names, split_pair, write_run
from vldebias.cli.flags import Flags, Json, with_flags
from vldebias.errors import InvalidInputError

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


@with_flags(_column_flags())
def shares(
    table: Annotated[
        Path,
        typer.Argument(
            exists=True,
            metavar="TABLE",
            help="Table (.csv, .tsv, .parquet, .jsonl) with one row per image, or answers.jsonl.",
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

    from .group_names import groups_named
    from .task import SharesTask

    settings: dict[str, object] = {"baseline": baseline, "faces": faces, **columns}
    settings["rename"] = dict(split_pair(text, "--rename", "F=female") for text in rename or ())
    if groups:
        settings["values"] = groups_named(split_names(groups))
    if unknown:
        settings["unknown"] = tuple(unknown)
    task = SharesTask.build(settings)
    result = Result.from_tasks(task.name, task.measure(table), seconds=None)
    print_result(result, as_json=as_json, page=write_run(result, folder))
