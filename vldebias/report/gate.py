"""Check the figures of a result against limits, for continuous integration."""

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
DEFAULTS = ("default", "balanced-prompts")  # for models and for pipelines


@dataclass(frozen=True)
class GateCheck:
    """Store the result of checking a figure against its limit.

    Attributes:
        row: the figure with its interval.
        limit: the largest value that passes, or the smallest if higher values are better.
        outcome: "within" if the value and its interval satisfy the limit, "beyond" if the whole
            interval violates it, otherwise "undecided", meaning that there are too few images to
            tell.
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
    """Compare one method's figures with limits, based on their 95% intervals.

    Args:
        result: the result to check.
        limits: limits by metric, such as {"max_skew": 0.2}: the largest value that passes, or the
            smallest if higher values are better ({"worst_group": 0.7}). A metric is checked over
            all images of each task that measures it.
        method: the method to check. None: in each task, the default method, or the only method
            other than "none".

    Returns:
        A check for each figure; violated limits come first.

    Raises:
        InvalidInputError: If there are no limits, the result has no figure of a metric or method,
            or there are several methods and none of them is the default.
    """
    if not limits:
        raise InvalidInputError("limits: got none; expected one or more, such as max_skew=0.2")
    # Use figures for an entire task, not for individual queries, groups or professions.
    frame = readable(result)
    summaries = frame[frame.is_summary]
    checks = []
    for metric, limit in limits.items():
        # "max_skew" includes "max_skew@50".
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
            of_method = "" if method is None else f" of {method!r}"
            raise InvalidInputError(
                f"{metric}: the result does not contain this figure{of_method}; it contains {known}"
            )
    order = (BEYOND, UNDECIDED, WITHIN)
    return sorted(checks, key=lambda check: order.index(check.outcome))


def has_passed(checks: Sequence[GateCheck]) -> bool:
    """Return True unless a figure's entire interval violates its limit."""
    return all(check.outcome != BEYOND for check in checks)


def _method(rows: pd.DataFrame, task: str, method: str | None) -> str | None:
    """Return the method to check: the named one, the default, or the only one besides "none"."""
    if method is not None:
        return method
    # Rows without a change from "none", such as chance, are not methods.
    methods = sorted(set(rows.method[rows.change.notna()]) - {NONE})
    for default in DEFAULTS:
        if default in methods:
            return default
    if len(methods) > 1:
        raise InvalidInputError(
            f"{task}: expected a method, one of {', '.join(methods)}; name it (--method)"
        )
    return methods[0] if methods else NONE


def _outcome(row: Measurement, limit: float) -> str:
    """Return whether a figure and its interval satisfy a limit."""
    low, high = row.interval
    value = row.value
    if row.better == "higher":
        low, high, value, limit = -high, -low, -value, -limit
    if math.isnan(value):
        return UNDECIDED
    if low > limit:
        return BEYOND
    return WITHIN if value <= limit and high <= limit else UNDECIDED
