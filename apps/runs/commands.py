"""Define `vldebias eval runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.common import check_out, check_page, print_grid, print_json, print_message
from vldebias.cli.flags import Json


def runs(
    folder: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, metavar="FOLDER", help="Folder with results."),
    ],
    page: Annotated[
        Path | None,
        typer.Option("--out", help="HTML page to write. Default: FOLDER/runs.html."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the results in a folder on one page, with models, tasks, methods, results and dates.

    Includes results in subfolders. On the page, rows can be filtered and sorted, and two runs can
    be chosen to compare. Files that cannot be read are listed on the page, and the exit code is
    then 1.

    Examples:
      vldebias eval runs results/
      vldebias eval runs . --out overview.html
      vldebias eval runs results/ --json
    """
    check_page(page)
    if page is None:
        check_out(folder)
    from vldebias.report.page import short_date

    from .listing import render_runs

    written, listed = render_runs(folder, page)
    for file, reason in listed.unreadable.items():
        print_message(f"{file}: {reason}", "could not be read", "yellow")
    if as_json:
        rows = []
        for row in listed.rows:
            values = {measure: metric.value for measure, metric in row.metrics.items()}
            rows.append(row._asdict() | {"metrics": values})
        print_json({"runs": rows, "unreadable": listed.unreadable})
    else:
        head = ("run", "model", "task", "method", "measure", "value [95%]", "verdict", "date")
        cells = []
        for row in listed.rows:
            names = (row.run, row.model, row.task, row.method, row.measure)
            cells.append((*names, row.number, row.verdict, short_date(row.date)))
        print_grid(head, cells)
        print_message(f"page: {written}")
    if listed.unreadable:
        raise typer.Exit(1)
