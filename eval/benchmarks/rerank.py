"""Compare the time for re-ranking with that for sorting the same scores.

python -m eval.benchmarks.rerank --json eval/results/bench_rerank.json

Labels are integers for two groups, one of which has higher scores. "expected" takes probabilities
in place of labels. Times are medians of repeated calls, in CPU time on a single thread. "all" ranks
every candidate, and "first 1,000" only the displayed results.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import vldebias
from eval.tables import parser, run
from vldebias.measure.metric import Metric
from vldebias.report.result import TaskProvenance, TaskResult

SIZES = (1_000, 10_000, 100_000, 1_000_000)
FIRST = 1_000
UNEVEN = {"0": 0.7, "1": 0.3}
TIME = Metric("milliseconds", "milliseconds, median", "fact", "lower")
RATIO = Metric("times_a_sort", "times a sort of the same scores", "fact", "lower")


def median_time(call: Callable[[], Any], least: float = 0.3) -> float:
    """Return the median CPU time in milliseconds over at least five calls."""
    call()
    times: list[float] = []
    while len(times) < 5 or sum(times) < least:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1000


def _sorted(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.argsort(-scores, kind="stable")


def measured() -> TaskResult:
    """Return the time for each size and method, and its ratio to the time that a sort takes."""
    result = TaskResult(
        TaskProvenance(
            task="re-ranking",
            title="Re-ranking beside a sort",
            description="One query, two groups, one thread; median of repeated calls.",
            settings={"first": FIRST, "uneven shares": UNEVEN},
        )
    )
    for size in SIZES:
        rng = np.random.default_rng(size)
        codes = rng.integers(2, size=size)
        scores = rng.normal(size=size) + 0.8 * codes
        n = {"candidates": size}
        sort = median_time(partial(_sorted, scores))
        result.add(TIME, "sort", sort, n=n, subset=f"{size:,}")
        settings: dict[str, dict[str, Any]] = {"quota, all": {}}
        for method in ("quota", "fair", "mopr"):
            settings[f"{method}, first 1,000"] = {"k": FIRST, "method": method}
        settings["quota 70 : 30, first 1,000"] = {"k": FIRST, "shares": UNEVEN}
        likely = 0.9 * codes + 0.05
        estimates = {"labels": None, "probabilities": {"0": 1 - likely, "1": likely}}
        settings["expected, first 1,000"] = {"k": FIRST, **estimates}
        for name, how in settings.items():
            if size == FIRST and name == "mopr, first 1,000":
                continue  # there is nothing to select
            call = partial(vldebias.rerank, scores, **({"labels": codes} | how))
            seconds = median_time(call)
            result.add(TIME, name, seconds, n=n, subset=f"{size:,}")
            result.add(RATIO, name, seconds / sort, n=n, subset=f"{size:,}")
    return result


def main() -> None:
    arguments = parser(__doc__).parse_args()
    run("bench_rerank", lambda: [measured()], arguments.json)


if __name__ == "__main__":
    main()
