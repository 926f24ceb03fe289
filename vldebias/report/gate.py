"""Check the figures in a result against limits, for use in continuous integration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError
from vldebias.report.table import readable

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.measure.rows import Measurement
    from vldebias.report.result import Result

WITHIN, UNDECIDED, BEYOND = "within", "undecided", "beyond"
NONE = "none"
DEFAULTS = ("default", "balanced-prompts")  # default methods for models and pipelines


@dataclass(frozen=True)
class GateCheck:
    """Outcome of checking a figure against its limit.

    Attributes:
        row: the figure with its interval.
        limit: the largest value that passes, or the smallest if higher values are better.
        outcome: "within" if the value and its interval satisfy the limit, "beyond" if the entire
            interval violates it, and "undecided" otherwise, in which case more data is needed.
        few: "few prompts" or "narrow interval" if the interval is known to be too narrow,
            otherwise "".
    """

    row: Measurement
    limit: float
    outcome: str
    few: str = ""

    def __str__(self) -> str:
        low, high = self.row.interval
        sign = "at least" if self.row.better == "higher" else "at most"
        few = f" ({self.few})" if self.few else ""
        return (
            f"{self.outcome}: {self.row.task}, {self.row.metric}, {self.row.method}:"
            f" {self.row.value:.3f} [{low:.3f}, {high:.3f}]{few}, {sign} {self.limit:g}"
        )


def check_limits(
    result: Result, limits: Mapping[str, float], *, method: str | None = None
) -> list[GateCheck]:
    """Check one method's figures against limits, using their 95% intervals.

    Args:
        result: the result to check.
        limits: the limit for each metric, such as {"max_skew": 0.2}. A limit is the largest value
            that passes, or the smallest if higher values are better, as in {"worst_group": 0.7}.
            Each metric is checked in every task that measures it, over all images of the task.
        method: the method to check. If None, use each task's default method, or its only method
            other than "none".

    Returns:
        One check per figure. Violated limits come first.

    Raises:
        InvalidInputError: If there are no limits, if the result does not contain a metric or the
            method, or if there are several methods and none of them is the default.
    """
    if not limits:
        raise InvalidInputError("no limits given; expected one or more, such as max_skew=0.2")
    # Only check figures for an entire task, not for individual queries, groups or professions.
    frame = readable(result)
    summaries = frame[frame.is_summary]
    checks = []
    for metric, limit in limits.items():
        # A limit for "max_skew" also applies to "max_skew@50".
        is_named = (summaries.metric == metric) | summaries.metric.str.startswith(f"{metric}@")
        named = summaries[is_named]
        for task, rows in named.groupby("task", sort=False):
            chosen = _method(rows, str(task), method)
            for row in rows[rows.method == chosen].itertuples():
                figure = result.row(row.task, row.metric, row.method, subset=row.subset)
                checks.append(GateCheck(figure, limit, _outcome(figure, limit), row.few))
        is_checked = any(check.row.metric.startswith(metric) for check in checks)
        if not is_checked:
            known = ", ".join(sorted(set(summaries.metric)))
            for_method = "" if method is None else f" for method {method!r}"
            raise InvalidInputError(
                f"{metric}: the result does not contain this metric{for_method}; it contains"
                f" {known}"
            )
    order = (BEYOND, UNDECIDED, WITHIN)
    return sorted(checks, key=lambda check: order.index(check.outcome))


def has_passed(checks: Sequence[GateCheck]) -> bool:
    """Return True unless a figure's entire interval violates its limit."""
    return all(check.outcome != BEYOND for check in checks)


def _method(rows: pd.DataFrame, task: str, method: str | None) -> str | None:
    """Return the given method or, if it is None, the task's default or only method."""
    if method is not None:
        return method
    # Rows that are not compared with "none", such as chance, do not belong to a method.
    methods = sorted(set(rows.method[rows.change.notna()]) - {NONE})
    for default in DEFAULTS:
        if default in methods:
            return default
    if len(methods) > 1:
        raise InvalidInputError(
            f"{task}: the result contains several methods; choose one of {', '.join(methods)}"
            " with --method"
        )
    return methods[0] if methods else NONE


def _outcome(row: Measurement, limit: float) -> str:
    """Return whether a figure is within its limit, beyond it, or undecided."""
    low, high = row.interval
    value = row.value
    if row.better == "higher":
        low, high, value, limit = -high, -low, -value, -limit
    if math.isnan(value):
        return UNDECIDED
    if low > limit:
        return BEYOND
    return WITHIN if value <= limit and high <= limit else UNDECIDED
