"""The command line of the experiments that give a `Result`: measure, print, write."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eval.metrics import register_metrics
from vldebias.evaluation.result import Result, TaskResult

RESULTS = Path(__file__).parents[1] / "results"
MANY = 100  # rows from which on a result is kept compact


def parser(description: str | None) -> argparse.ArgumentParser:
    """With --json; an experiment adds its own options."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="also write the result here, with many rows as parquet beside it")
    return made


def run(name: str, measure: Callable[[], Iterable[TaskResult]], path: Path | None) -> Result:
    """Measure, print the wholes of every task, write where asked to."""
    register_metrics()
    started = time.monotonic()
    parts = list(measure())
    result = Result.of(name, parts, seconds=round(time.monotonic() - started, 1))
    show(result)
    if path:
        result.write(path, compact=len(result.rows) > MANY)
    return result


def show(result: Result) -> None:
    """Every row with its interval and its change to "none"."""
    table = Table("task", "metric", "method", "subset", "value", "95 % interval", "change to none", title=result.name)
    for row in result.rows:
        interval = "" if row.interval[0] == row.interval[1] else "[{:.3f}, {:.3f}]".format(*row.interval)
        change = "" if row.change is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row.change)
        method = row.method if row.lam is None else f"{row.method}, lam {row.lam:g}"
        table.add_row(row.task, row.metric, method, row.subset, f"{row.value:.3f}", interval, change)
    Console(width=180).print(table)


def skip(path: Path) -> None:
    """Say that a part is left out since its file is not there."""
    message = f"SKIPPED: {path} is missing; set VLDEBIAS_REAL to its folder"
    Console(stderr=True).print(message, style="yellow", highlight=False, soft_wrap=True)
