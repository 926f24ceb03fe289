"""Compare the time for re-ranking with that for sorting the same scores.

python -m eval.benchmarks.rerank --json eval/results/bench_rerank.json

Labels are integers or text for two groups, one of which has higher scores. "expected" takes
probabilities in place of labels. Times are medians of repeated calls, in CPU time on a single
thread. "all" ranks every candidate, and "first 1,000" only the displayed results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import vldebias
from eval.tables import medians, parser, run
from vldebias.measure.metric import Metric
from vldebias.measure.rows import TaskProvenance, TaskResult

SIZES = (1_000, 10_000, 100_000, 1_000_000)
FIRST = 1_000
REPETITIONS = 9
UNEVEN = {"0": 0.7, "1": 0.3}
TIME = Metric("milliseconds", "milliseconds, median", "fact", "lower")
RATIO = Metric("times_a_sort", "times a sort of the same scores", "fact", "lower")


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
        rerank = partial(vldebias.rerank, scores, labels=codes)
        calls: dict[str, Callable[[], Any]] = {
            "sort": partial(_sorted, scores),
            "quota, all": rerank,
            "quota, all, text labels": partial(rerank, labels=np.array(["f", "m"])[codes]),
            "quota 70 : 30, first 1,000": partial(rerank, k=FIRST, shares=UNEVEN),
        }
        for method in ("quota", "fair", "mopr"):
            # With 1,000 candidates, there is nothing for mopr to select.
            if size > FIRST or method != "mopr":
                calls[f"{method}, first 1,000"] = partial(rerank, k=FIRST, method=method)
        likely = 0.9 * codes + 0.05
        calls["expected, first 1,000"] = partial(
            vldebias.rerank, scores, k=FIRST, probabilities={"0": 1 - likely, "1": likely}
        )
        seconds = medians(calls, REPETITIONS)
        for name, value in seconds.items():
            result.add(TIME, name, 1000 * value, n=n, subset=f"{size:,}")
            if name != "sort":
                result.add(RATIO, name, value / seconds["sort"], n=n, subset=f"{size:,}")
    return result


def main() -> None:
    arguments = parser(__doc__).parse_args()
    run("bench_rerank", lambda: [measured()], arguments.json)


if __name__ == "__main__":
    main()
