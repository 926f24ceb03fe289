"""List many results on one page: a row for each task and method of each run, sortable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from vldebias.errors import InvalidInputError
from vldebias.measure.metric import get_metric
from vldebias.measure.rows import CHANCES, NONE
from vldebias.report.conclusion import LEADS, conclusions
from vldebias.report.page import model_in_words, write_page
from vldebias.report.result import Result
from vldebias.report.table import at_settings, readable

if TYPE_CHECKING:
    import pandas as pd

PAGE = "runs.html"
_INDEX = "index.html"  # the page of a single run
_MOST_BYTES = 500_000_000


class RunRow(NamedTuple):
    """Hold one row of the list.

    Attributes:
        run: folder or file of the result, below the folder of the list.
        model: what was measured.
        task: of the run.
        method: what readers call it.
        measure: title of the figure, with the part that it is about.
        better: "higher", "lower" or "neither".
        value, low, high: the figure with its 95 % interval.
        number: the same, written.
        verdict: whether the method changed it, "" if nothing is compared.
        date: ISO 8601, "" if the result does not say.
        page: address of the run's own page, relative to the list; "" if there is none.
    """

    run: str
    model: str
    task: str
    method: str
    measure: str
    better: str
    value: float
    low: float
    high: float
    number: str
    verdict: str
    date: str
    page: str


class RunList(NamedTuple):
    """Hold the rows of all results below a folder. unreadable: file -> why it could not be read."""

    rows: list[RunRow]
    unreadable: dict[str, str]


def list_runs(folder: Path, beside: Path | None = None) -> RunList:
    """Return a row for each task and method of every result below a folder, the newest first.

    A task is represented by the measure that its conclusion is about; without a conclusion, by its
    measure of bias; of a task that measures parts alone, by the worst of them.

    Args:
        folder: where to look for JSON files that `Result.write` wrote.
        beside: folder of the page, from which the addresses of the runs' pages start; None: the
            same.

    Raises:
        InvalidInputError: no such folder, or no result in it.
    """
    if not folder.is_dir():
        raise InvalidInputError(
            f"{folder}: expected a folder with results, such as runs/*/result.json"
        )
    rows: list[RunRow] = []
    unreadable: dict[str, str] = {}
    for file in sorted(folder.rglob("*.json")):
        name = file.relative_to(folder).as_posix()
        try:
            if _is_result(file):
                rows += _rows_of(file, name, beside or folder)
        except (InvalidInputError, OSError) as error:
            unreadable[name] = str(error).removeprefix(f"{file}: ")
    if not rows and not unreadable:
        raise InvalidInputError(
            f"{folder}: no result below it; expected files that `vldebias eval` wrote, such as"
            " NAME/result.json"
        )
    # Stable: the order of names where dates are the same.
    return RunList(sorted(rows, key=lambda row: row.date, reverse=True), unreadable)


def _is_result(file: Path) -> bool:
    """Tell whether a JSON file is meant to be a result, by its name or its keys."""
    if file.name == "result.json":
        return True
    if file.stat().st_size > _MOST_BYTES:
        return False
    content = file.read_bytes()
    return b'"figures"' in content and b'"protocols"' in content


def _rows_of(file: Path, name: str, beside: Path) -> list[RunRow]:
    """Return the rows of one result."""
    result = Result.read(file)
    frame = readable(result)
    model_of_task = {part.task: model_in_words(part.model) for part in result.provenance}
    # "sd15/result.json" is the run sd15; "sd15.json" as well.
    run = name.removesuffix("result.json").removesuffix("/").removesuffix(".json")
    run = run or file.parent.resolve().name
    page = file.parent / _INDEX
    address = ""
    if page.is_file():
        address = quote(Path(os.path.relpath(page, beside)).as_posix())
    measure_of_task = {found.task: (found.metric, found.subset) for found in conclusions(frame)}
    rows = []
    for task, block in frame.groupby("task", sort=False):
        for row in _representatives(block, measure_of_task.get(str(task))):
            rows.append(
                RunRow(
                    run=run,
                    model=model_of_task.get(str(task), ""),
                    task=str(task),
                    method=row.name,
                    measure=row.measure,
                    better=row.better,
                    value=row.value,
                    low=row.low,
                    high=row.high,
                    number=row.number,
                    verdict=row.verdict,
                    date=result.date or "",
                    page=address,
                )
            )
    return rows


def _representatives(block: pd.DataFrame, measure: tuple[str, str] | None) -> Sequence[Any]:
    """Return the rows that represent a task, one for each method."""
    measured = block[~block.method.isin(CHANCES)]
    if measured.empty:
        return []
    if measure is None:
        measure = _leading_measure(measured)
    metric, subset = measure
    rows = measured[(measured.metric == metric) & (measured.subset == subset)]
    shown = rows[at_settings(rows) | (rows.method == NONE)]
    return list(shown.itertuples())


def _leading_measure(block: pd.DataFrame) -> tuple[str, str]:
    """Return metric and part of the figure that represents a task without a conclusion."""
    bias = block[block.kind == "bias"]
    wholes = bias[bias.subset == ""]
    for candidates in (wholes, bias, block):
        if candidates.empty:
            continue
        metrics = list(candidates.metric)
        metric = next((lead for lead in LEADS if lead in metrics), metrics[0])
        rows = candidates[candidates.metric == metric]
        better = get_metric(metric, strict=False).better
        if better == "neither":
            row = rows.iloc[0]
        else:
            row = rows.loc[rows.value.idxmin() if better == "higher" else rows.value.idxmax()]
        return str(metric), str(row.subset)
    raise InvalidInputError("expected rows with figures, got none")


def render_runs(folder: Path, path: Path | None = None) -> tuple[Path, RunList]:
    """Write the page of all results below a folder, and return it with its rows.

    Args:
        folder: see `list_runs`.
        path: of the page; None: runs.html in the folder.
    """
    path = folder / PAGE if path is None else path
    runs = list_runs(folder, path.parent)
    values = {
        "folder": folder.resolve().name,
        "rows": runs.rows,
        "results": len({row.run for row in runs.rows}),
        "unreadable": runs.unreadable,
    }
    return write_page(path, "runs", values), runs
