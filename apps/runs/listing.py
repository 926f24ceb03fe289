"""List the results of many runs on one sortable page."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote

from vldebias.errors import InvalidInputError
from vldebias.measure.metric import get_metric
from vldebias.measure.rows import CHANCES, NONE
from vldebias.report.conclusion import LEADS, conclusions, cost_and_verdict
from vldebias.report.page import front_rows, model_in_words, write_page
from vldebias.report.plots import tradeoffs
from vldebias.report.result import Result
from vldebias.report.table import NAMES, ReadableRow, at_settings, form_of, readable
from vldebias.utils.files import read_json
from vldebias.utils.phrases import quantity

if TYPE_CHECKING:
    import pandas as pd

PAGE = "runs.html"
TEMPLATE = Path(__file__).with_name("page.html.jinja")
_INDEX = "index.html"  # page of an individual run
_MOST_BYTES = 500_000_000
COLUMNS = ("run", "method", "model", "cost", "verdict")  # hidden if no row has any
COLUMNS_SHOWN = 3  # metrics of each task that are shown until the reader chooses others
PLOTTED = 4  # maximum number of runs with plots, which take about 0.2 s for each task


class MeasuredValue(NamedTuple):
    """One metric of a run's method.

    Attributes:
        value: the measured value.
        number: the value and its interval as text.
        before: the value without a method as text, or "" for rows without one.
    """

    value: float
    number: str
    before: str


class RunRow(NamedTuple):
    """A row in a list of runs, for one run, task and method.

    Attributes:
        run: the result's folder or file, relative to the listed folder.
        model: the model that was measured.
        task: the task name.
        method: the readable name of the method.
        measure: the title of the measure, including the part of the task, if any.
        better: the better direction: "higher", "lower" or "neither".
        value: the measured value.
        low: the lower bound of its 95% interval.
        high: the upper bound of its 95% interval.
        number: the value and its interval as text.
        cost: the largest clear loss of utility, or "" if no utility was measured.
        verdict: how the method changed the value, including its cost, or "" if there is nothing to
            compare.
        date: the date of the run in ISO 8601 format, or "" if unknown.
        page: the URL of the run's page relative to the list, or "" if there is no page.
        path: the path of the result, as an argument for `vldebias eval compare`.
        metrics: maps the measures of the task, as titled in `measure`, to the method's values.
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
    cost: str
    verdict: str
    date: str
    page: str
    path: str
    metrics: dict[str, MeasuredValue]


class TaskTable(NamedTuple):
    """The runs that measured a task, with the metrics that a reader can choose.

    Attributes:
        task: the task name.
        measures: titles of the metrics, starting with that of the conclusions.
        rows: one row per run and method.
        n_runs: number of runs.
        columns: which of `COLUMNS` are not empty.
        has_methods: whether any row has a method.
    """

    task: str
    measures: list[str]
    rows: list[RunRow]
    n_runs: int
    columns: list[str]
    has_methods: bool


GENERATED = "generate.json"
# What the row of an audit contains, apart from the number of its prompts that lean.
_EMPTY: dict[str, Any] = {
    "method": NAMES[NONE],
    "measure": "prompts that lean",
    "better": "neither",
    "value": math.nan,
    "low": math.nan,
    "high": math.nan,
    "number": "",
    "cost": "",
    "verdict": "",
    "metrics": {},
}
# Columns of a readable row that are shown unchanged.
_FIGURE = ("measure", "better", "value", "low", "high", "number", "verdict")


class GeneratedFolder(NamedTuple):
    """A folder that `vldebias generate` wrote.

    Attributes:
        name: the folder, relative to the listed folder.
        prompt: the prompt.
        sentences: who was requested and seen, for each row of images.
        page: the URL of its page relative to the list.
    """

    name: str
    prompt: str
    sentences: str
    page: str


class RunList(NamedTuple):
    """A list of all results in a folder and its subfolders.

    Attributes:
        rows: one row per run, task and method.
        unreadable: maps each file that could not be loaded to the reason.
        generated: the folders that `vldebias generate` wrote.
    """

    rows: list[RunRow]
    unreadable: dict[str, str]
    generated: list[GeneratedFolder]


def list_runs(folder: Path, page_folder: Path | None = None) -> RunList:
    """List the results in a folder with one row per run, task and method, newest first.

    Each row shows the measure that the task's conclusion is about, or its bias measure if there is
    no conclusion. If the task was only measured in parts, the row shows the worst part.

    Args:
        folder: the folder to search, including subfolders, for JSON files written by
            `Result.write`.
        page_folder: the folder that links to pages are relative to. Default: `folder`.

    Raises:
        InvalidInputError: If the folder does not exist or contains no results.
    """
    if not folder.is_dir():
        raise InvalidInputError(
            f"{folder}: expected a folder with results, such as runs/*/result.json"
        )
    rows: list[RunRow] = []
    unreadable: dict[str, str] = {}
    generated: list[GeneratedFolder] = []
    for file in sorted(folder.rglob("*.json")):
        name = file.relative_to(folder).as_posix()
        try:
            if file.name == GENERATED and not _is_part(file, folder):
                generated.append(_generated(file, folder, page_folder or folder))
            elif _is_result(file):
                rows += _rows_of(file, name, page_folder or folder)
        except (InvalidInputError, OSError) as error:
            unreadable[name] = str(error).removeprefix(f"{file}: ")
    if not rows and not unreadable and not generated:
        raise InvalidInputError(
            f"{folder}: contains no results; expected files written by `vldebias eval`, such as"
            " NAME/result.json"
        )
    # The sort is stable, so runs with the same date stay ordered by name.
    return RunList(sorted(rows, key=lambda row: row.date, reverse=True), unreadable, generated)


def _generated(file: Path, folder: Path, page_folder: Path) -> GeneratedFolder:
    """Read what `vldebias generate` wrote about its images."""
    facts = read_json(file)
    if not isinstance(facts, dict) or "sentences" not in facts:
        raise InvalidInputError(f"{file}: expected the facts that `vldebias generate` writes")
    return GeneratedFolder(
        file.parent.relative_to(folder).as_posix(),
        str(facts.get("prompt", "")),
        " ".join(map(str, facts["sentences"])),
        _address(file.parent / _INDEX, page_folder),
    )


def _is_part(file: Path, folder: Path) -> bool:
    """Return whether a file is about one of several pipelines, which are listed as one folder."""
    parent = file.parent.parent / GENERATED
    is_listed = file.parent != folder and parent.is_file()
    return is_listed and b'"pipelines"' in parent.read_bytes()


def _address(page: Path, page_folder: Path) -> str:
    """Return the URL of a page relative to the list, or "" if the page does not exist."""
    if not page.is_file():
        return ""
    return quote(Path(os.path.relpath(page, page_folder)).as_posix())


def _is_result(file: Path) -> bool:
    """Return whether a JSON file looks like a result, based on its name and keys."""
    if file.name == "result.json":
        return True
    if file.stat().st_size > _MOST_BYTES:
        return False
    content = file.read_bytes()
    return b'"figures"' in content and b'"protocols"' in content


def _rows_of(file: Path, name: str, page_folder: Path) -> list[RunRow]:
    """Load a result and return its rows for the list of runs."""
    result = Result.read(file)
    frame = readable(result)
    model_of_task = {part.task: model_in_words(part.model) for part in result.provenance}
    # Both "sd15/result.json" and "sd15.json" are listed as the run "sd15".
    run = name.removesuffix("result.json").removesuffix("/").removesuffix(".json")
    run = run or file.parent.resolve().name
    address = _address(file.parent / _INDEX, page_folder)
    advice_of_task = {part.task: part.settings.get("prompts") for part in result.provenance}
    measure_of_task = {}
    for conclusion in conclusions(frame):
        measure_of_task[conclusion.task] = (conclusion.metric, conclusion.subset)
    rows = []
    for task, block in frame.groupby("task", sort=False):
        rows_of_task = cast("list[ReadableRow]", list(block.itertuples()))
        model = model_of_task.get(str(task), "")
        about: dict[str, Any] = {"date": result.date or "", "page": address, "path": str(file)}
        advice = advice_of_task.get(str(task))
        if isinstance(advice, Mapping):
            rows.append(_row_of_audit(advice, RunRow(run, model, str(task), **about, **_EMPTY)))
            continue
        for row in _representatives(block, measure_of_task.get(str(task))):
            cost, verdict = cost_and_verdict(rows_of_task, row)
            figure = {name: getattr(row, name) for name in _FIGURE} | {"verdict": verdict}
            about |= {"cost": cost, "metrics": _metrics(block, row)}
            rows.append(RunRow(run, model, str(task), row.name, **about, **figure))
    return rows


def _row_of_audit(advice: Mapping[str, str], row: RunRow) -> RunRow:
    """Return the row of an audit, which has advice on each prompt: how many of them lean."""
    leaning = sum(text.startswith("leans ") for text in advice.values())
    number = f"{leaning:,} of {quantity(len(advice), 'prompt')} lean"
    few = sum(text.startswith("too few images") for text in advice.values())
    if few:
        number += f" ({few:,} {'has' if few == 1 else 'have'} too few images)"
    value = leaning / max(len(advice), 1)
    metrics = {row.measure: MeasuredValue(value, number, "")}
    return row._replace(value=value, number=number, metrics=metrics)


def _metrics(block: pd.DataFrame, row: ReadableRow) -> dict[str, MeasuredValue]:
    """Return the values of a row's method, starting with the row's own measure.

    Measures of the entire task are listed, and measures of the row's part if it has one. Rows of
    chance levels and of groups are not.
    """
    is_same = (block.name == row.name) & block.subset.isin(["", row.subset])
    shown = block[is_same & (at_settings(block) | (block.method == NONE))]
    values = {row.measure: _measured_value(row)}
    for other in cast("list[ReadableRow]", list(shown.itertuples())):
        values.setdefault(other.measure, _measured_value(other))
    return values


def _measured_value(row: ReadableRow) -> MeasuredValue:
    """Return a row's value with the value before the method."""
    has_before = row.method != NONE and not math.isnan(row.before)
    before = f"{row.before:{form_of(row.value, row.low, row.high)}}" if has_before else ""
    return MeasuredValue(row.value, row.number, before)


def _tables(rows: Sequence[RunRow]) -> list[TaskTable]:
    """Group the rows by task, first those with a verdict, and those that most runs measured."""
    rows_of_task: dict[str, list[RunRow]] = {}
    for row in rows:
        rows_of_task.setdefault(row.task, []).append(row)
    tables = []
    for task, listed in rows_of_task.items():
        leads = [row.measure for row in listed]
        other_measures = [measure for row in listed for measure in row.metrics]
        measures = list(dict.fromkeys([*leads, *other_measures]))
        n_runs = len({row.path for row in listed})
        has_methods = any(row.method != NAMES[NONE] for row in listed)
        columns = [name for name in COLUMNS if any(getattr(row, name) for row in listed)]
        tables.append(TaskTable(task, measures, listed, n_runs, columns, has_methods))
    return sorted(tables, key=lambda table: ("verdict" not in table.columns, -table.n_runs))


def _representatives(block: pd.DataFrame, measure: tuple[str, str] | None) -> list[ReadableRow]:
    """Select the row of a task that the list shows for each method."""
    measured = block[~block.method.isin(CHANCES)]
    if measured.empty:
        return []
    if measure is None:
        measure = _leading_measure(measured)
    metric, subset = measure
    rows = measured[(measured.metric == metric) & (measured.subset == subset)]
    shown = rows[at_settings(rows) | (rows.method == NONE)]
    return cast("list[ReadableRow]", list(shown.itertuples()))


def _leading_measure(block: pd.DataFrame) -> tuple[str, str]:
    """Return the metric and subset that represent a task without a conclusion."""
    bias = block[block.kind == "bias"]
    summaries = bias[bias.subset == ""]
    for candidates in (summaries, bias, block):
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
    raise InvalidInputError("the result contains no values to list")


def render_runs(folder: Path, path: Path | None = None) -> tuple[Path, RunList]:
    """Write a page that lists all results in a folder.

    Args:
        folder: the folder with the results, including its subfolders.
        path: the HTML file to write. Default: runs.html in the folder.

    Returns:
        The path of the page, and the list of runs.
    """
    path = folder / PAGE if path is None else path
    runs = list_runs(folder, path.parent)
    name_of_path = {row.path: row.run for row in runs.rows}
    values = {
        "folder": folder.resolve().name,
        "tables": _tables(runs.rows),
        "no_method": NAMES[NONE],
        "most_columns": COLUMNS_SHOWN,
        "runs": name_of_path,
        "plots_of_path": _plots(list(name_of_path)),
        "unreadable": runs.unreadable,
        "generated": runs.generated,
    }
    return write_page(path, TEMPLATE, values), runs


def _plots(paths: Sequence[str]) -> dict[str, list[dict[str, object]]]:
    """Return the plots of bias against cost by path, for the first runs that have any."""
    plots_of_path: dict[str, list[dict[str, object]]] = {}
    for path in paths:
        if len(plots_of_path) == PLOTTED:
            break
        result = Result.read(path)
        frame = readable(result)
        concluded = conclusions(frame)
        plots = tradeoffs(front_rows(frame, concluded), frame, result.provenance)
        if plots:
            plots_of_path[path] = plots
    return plots_of_path
