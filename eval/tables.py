"""Read committed results, and print and write them as Markdown.

`python -m eval.readme` writes the tables in the documentation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import textwrap
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vldebias.measure.resampling import percentile_interval, wilson_interval
from vldebias.measure.rows import CHANCES, Measurement, TaskProvenance, TaskResult
from vldebias.metrics import Metric
from vldebias.report.result import Result

RESULTS = Path(__file__).parent / "results"
MANY = 100  # number of rows above which a result is stored in a parquet file


def read(name: str) -> Result:
    """Read a committed result."""
    return Result.read(RESULTS / f"{name}.json")


def rows_in(result: Result, task: str, subset: str = "") -> dict[tuple[str, str], Measurement]:
    """Return a mapping from (method, metric) to the rows of one task."""
    return {
        (row.method, row.metric): row
        for row in result.rows
        if (row.task, row.subset) == (task, subset)
    }


def subset(place: Mapping[str, Any]) -> str:
    """Format the columns of a row except the method, as in "eta = 0.4; lam = 0.01"."""
    return "; ".join(
        f"{name} = {v if isinstance(v, str) else json.dumps(v)}" for name, v in place.items()
    )


def place_of(row: Measurement) -> dict[str, Any]:
    """Return the columns that `subset` has formatted, with the task, method and metric."""
    place: dict[str, Any] = {"task": row.task, "metric": row.metric, "method": row.method}
    for part in row.subset.split("; ") if row.subset else ():
        name, _, text = part.partition(" = ")
        try:
            place[name] = json.loads(text)
        except ValueError:
            place[name] = text
    return place


class Rivals:
    """The rows of a task in `rivals.py` by metric (without k) and method, best methods first."""

    def __init__(self, result: Result, task: str) -> None:
        (self.about,) = (p for p in result.provenance if p.task == task)
        rows = [
            row
            for row in result.rows
            if row.task == task and "," not in row.metric and row.method not in CHANCES
        ]
        self.rows = {(row.metric.partition("@")[0], row.method): row for row in rows}
        self.main = "max_skew" if ("max_skew", "none") in self.rows else "worst_group"
        self.sign = -1 if self.main == "max_skew" else 1
        there = [method for metric, method in self.rows if metric == self.main]
        self.methods = sorted(
            there, key=lambda method: -self.sign * self.rows[self.main, method].value
        )

    def fact(self, method: str, name: str) -> Any:
        """Return a fact about a method from the description in the result."""
        return self.about.methods.get(method, {}).get(name)


# ---- Markdown
# -------------------------------------------------------------------------------------------------


def table(*rows: Sequence[str], note: str = "") -> str:
    """Format a table, whose first row is the header, with an optional note below."""
    head, *rest = rows
    lines = "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rest])
    return f"\n{lines}\n\n" + (f"{note}\n\n" if note else "")


Cell = Callable[[Measurement], str]


def line_of(row: Measurement) -> Hashable:
    """Return the key shared by the numbers on one line: task, subset and method."""
    return row.task, row.subset, row.method


def metric_of(row: Measurement) -> Hashable:
    """Return the metric of a row."""
    return row.metric


def crossed(
    rows: Iterable[Measurement],
    start: Mapping[str, Cell],
    columns: Mapping[Any, str],
    *,
    line: Callable[[Measurement], Hashable] = line_of,
    column: Callable[[Measurement], Hashable] = metric_of,
    cell: Cell | None = None,
    note: str = "",
) -> str:
    """Format a table in which each line contains several rows, one per column.

    Args:
        rows: The rows to show.
        start: A mapping from the titles of the first columns to functions that format their cells
            for the first row on a line.
        columns: A mapping from the keys of further columns to their titles. Rows with other keys
            are left out.
        line: A function that returns a key, which is the same for all rows on a line.
        column: A function that returns the key of a row's column.
        cell: A function that formats a row, by default its value and interval.
        note: The text below the table.
    """
    write = cell or span
    rows_of_line: dict[Hashable, dict[Hashable, Measurement]] = {}
    for row in rows:
        if column(row) in columns:
            rows_of_line.setdefault(line(row), {})[column(row)] = row
    lines = [[*start, *columns.values()]]
    for row_of_column in rows_of_line.values():
        first = next(iter(row_of_column.values()))
        cells = [write_start(first) for write_start in start.values()]
        for name in columns:
            cells.append(write(row_of_column[name]) if name in row_of_column else "")
        lines.append(cells)
    return table(*lines, note=note)


def paragraph(*parts: str) -> str:
    """Join and wrap the parts of a paragraph."""
    return (
        textwrap.fill(" ".join(parts), 130, break_long_words=False, break_on_hyphens=False) + "\n"
    )


def span(row: Measurement | None, form: str = ".3f") -> str:
    """Format the value and interval of a row, or return "" if there is no row."""
    return (
        ""
        if row is None
        else f"{row.value:{form}} [{row.interval[0]:{form}}, {row.interval[1]:{form}}]"
    )


def moved(row: Measurement) -> str:
    """Format the change and its interval, or return "" if there is none."""
    return "" if row.change is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row.change)


def half(row: Measurement) -> str:
    """Format a value and half of its interval, with a star if the change is significant."""
    beyond = row.change is not None and not row.change[1] <= 0 <= row.change[2]
    return f"{row.value:.3f} ± {row.value - row.interval[0]:.3f}{'*' if beyond else ''}"


# ---- rows and commands of experiments
# ---------------------------------------------------------------------------------


def add_share(
    part: TaskResult,
    metric: str | Metric,
    method: str,
    hits: int,
    n: Mapping[str, int],
    subset: str = "",
) -> None:
    """Add a proportion of hits with a Wilson interval."""
    count = next(iter(n.values()))
    ends = wilson_interval(hits, count)
    part.add(metric, method, hits / count, ends, n=n, subset=subset)


def resampled_ratio(
    sums: NDArray[np.floating], resamples: int
) -> tuple[float, tuple[float, float]]:
    """Return the ratio of two totals, with its 95% interval over resampled rows of sums (n, 2)."""
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(0, len(sums), size=(resamples, len(sums)))].sum(axis=1)
    total, of = sums.sum(axis=0)
    return float(total / of), percentile_interval(drawn[:, 0] / drawn[:, 1])


def plain_parser(description: str | None) -> argparse.ArgumentParser:
    """Return an argument parser that shows the docstring of a module as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return an argument parser with --json, to which an experiment can add options."""
    made = plain_parser(description)
    made.add_argument(
        "--json",
        type=Path,
        help="also write the result here; many rows are stored in a parquet file next to it",
    )
    return made


def stored(path: Path | None, measure: Callable[[], TaskResult]) -> TaskResult:
    """Return a part of a result, which is measured only once if there is a path to store it."""
    if path is not None and path.is_file():
        kept = Result.read(path)
        return TaskResult(kept.provenance[0], kept.rows)
    part = measure()
    if path is not None:
        Result.from_tasks(path.stem, [part], seconds=None).write(path)
    return part


def run(name: str, measure: Callable[[], Iterable[TaskResult]], path: Path | None) -> Result:
    """Run an experiment, print its rows, and write them to `path` if given."""
    started = time.monotonic()
    parts = list(measure())
    result = Result.from_tasks(name, parts, seconds=round(time.monotonic() - started, 1))
    show(result)
    if path:
        result.write(path, compact=len(result.rows) > MANY)
    return result


def records(
    name: str,
    about: str,
    rows: Sequence[Mapping[str, Any]],
    method: str,
    columns: Sequence[str] = (),
    /,
    **more: Any,
) -> Result:
    """Return a result with plain rows, which `method` and `columns` identify."""
    part = TaskResult(TaskProvenance(task=name, description=about, settings=more))
    for row in rows:
        place = {column: row[column] for column in columns if row.get(column) is not None}
        for metric in (key for key in row if key not in (method, *columns)):
            part.add(
                Metric(metric, metric),
                str(row[method]),
                float(row[metric]),
                n={"measured": 1},
                subset=subset(place),
            )
    return Result.from_tasks(name, [part], seconds=None)


def read_records(result: Result) -> dict[tuple[str, str], dict[str, float]]:
    """Return the numbers in a result from `records`, by method and subset."""
    numbers: dict[tuple[str, str], dict[str, float]] = {}
    for row in result.rows:
        numbers.setdefault((row.method, row.subset), {})[row.metric] = row.value
    return numbers


Clock = Callable[[], float]


def times(
    calls: Mapping[str, Callable[[], Any]], repetitions: int, clock: Clock = time.process_time
) -> dict[str, list[float]]:
    """Call each function in turn, and return the times of all calls in seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            start = clock()
            call()
            seconds[name].append(clock() - start)
    return seconds


def medians(
    calls: Mapping[str, Callable[[], Any]], repetitions: int, clock: Clock = time.process_time
) -> dict[str, float]:
    """Call each function in turn, after one warm-up call, and return its median time in seconds."""
    for call in calls.values():
        call()
    seconds = times(calls, repetitions, clock)
    return {name: statistics.median(values) for name, values in seconds.items()}


def show(result: Result) -> None:
    """Print every row with its interval and its change relative to "none"."""
    lines = Table(
        "task", "metric", "method", "subset", "value", "change to none", title=result.name
    )
    for row in result.rows:
        lines.add_row(row.task, row.metric, row.method, row.subset, span(row), moved(row))
    Console(width=180).print(lines)
