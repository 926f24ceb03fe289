"""What the benchmarks share: processor times of ours and of the plain alternative, and the table of their ratios.

Times are processor times on one thread, so that other work on the machine hardly counts; medians over repetitions in
turn, after one call of each that is not counted. They hold for one machine; the ratio of two times from one run is what
carries over: above 1, ours is so many times faster than the plain alternative.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from eval.experiments.records import write_records


def medians(calls: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median processor time of each call, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def compared(
    what: str, size: str, ours: Callable[[], object], plain: Callable[[], object], repetitions: int, **more: Any
) -> dict[str, Any]:
    """A row: what was timed at which size, both times, plain / ours, and whatever else belongs to it."""
    seconds = medians({"ours": ours, "plain": plain}, repetitions)
    return {"what": what, "size": size, **seconds, "ratio": seconds["plain"] / seconds["ours"], **more}


def arguments(description: str | None, *, repetitions: int = 5) -> argparse.Namespace:
    """The command line of a benchmark, which then runs on one thread."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--repetitions", type=int, default=repetitions, help="timed calls of each (%(default)s)")
    torch.set_num_threads(1)
    return parser.parse_args()


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of the same columns."""
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=140).print(table)


def report(name: str, rows: Sequence[Mapping[str, Any]], path: Path | None) -> None:
    """The rows as a table, and as a result with the machine."""
    table = Table("what", "size", "ours (ms)", "plain (ms)", "times faster", title=name)
    for row in rows:
        milliseconds = (f"{1e3 * row[side]:.2f}" for side in ("ours", "plain"))
        table.add_row(row["what"], row["size"], *milliseconds, f"{row['ratio']:.2f}")
    Console(width=140).print(table)
    if path:
        about = "Median processor times; ratio: plain / ours"
        settings = {"threads": torch.get_num_threads(), "machine": platform.machine()}
        write_records(path, about, rows, "what", ("size",), **settings)
