"""Hold figures of a result to limits, as a step of continuous integration does."""

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
DEFAULTS = ("default", "balanced-prompts")  # of models, and of pipelines


@dataclass(frozen=True)
class GateCheck:
    """Hold a figure and its limit.

    Attributes:
        row: the figure with its interval.
        limit: the largest value that passes, or for metrics of which more is better the least.
        outcome: "within" where value and interval lie on the good side of the limit, "beyond"
            where the whole interval lies on the other, and else "undecided": there are too few
            images to tell.
        few: "few prompts" or "narrow interval" where the interval is known to be too narrow, else
            "".
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
    """Compare the figures of one method with limits, by their 95 % intervals.

    Args:
        result: of a measurement.
        limits: metric -> limit, {"max_skew": 0.2}: the largest value that passes, or the least
            where more is better ({"worst_group": 0.7}). A metric is checked in every task that
            has it, over all images of the task.
        method: whose figures. None: in each task the default, or the only one other than "none".

    Returns:
        A check for each figure, those beyond their limits first.

    Raises:
        InvalidInputError: no limits, a metric or method that the result has no figures of, or
            several methods of which none is the default.
    """
    if not limits:
        raise InvalidInputError("limits: got none; expected one or more, such as max_skew=0.2")
    # Figures of a whole task, and not of a single query, group or profession.
    frame = readable(result)
    wholes = frame[frame.is_whole]
    checks = []
    for metric, limit in limits.items():
        # "max_skew" names "max_skew@50" too.
        is_named = (wholes.metric == metric) | wholes.metric.str.startswith(f"{metric}@")
        named = wholes[is_named]
        for task, rows in named.groupby("task", sort=False):
            chosen = _method(rows, str(task), method)
            for row in rows[rows.method == chosen].itertuples():
                figure = result.row(row.task, row.metric, row.method, subset=row.subset)
                checks.append(GateCheck(figure, limit, _outcome(figure, limit), row.few))
        is_checked = any(check.row.metric.startswith(metric) for check in checks)
        if not is_checked:
            known = ", ".join(sorted(set(wholes.metric)))
            of_method = "" if method is None else f" of {method!r}"
            raise InvalidInputError(
                f"{metric}: the result has no such figure{of_method}; it has {known}"
            )
    order = (BEYOND, UNDECIDED, WITHIN)
    return sorted(checks, key=lambda check: order.index(check.outcome))


def has_passed(checks: Sequence[GateCheck]) -> bool:
    """Return whether no figure lies beyond its limit with its whole interval."""
    return all(check.outcome != BEYOND for check in checks)


def _method(rows: pd.DataFrame, task: str, method: str | None) -> str | None:
    """Return the method whose figures are checked in a task: the one that is named, the default,
    or the only one other than "none"."""
    if method is not None:
        return method
    # Rows of chance and the like are no methods: they have no change to "none".
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
    """Return on which side of a limit a figure lies with its interval."""
    low, high = row.interval
    value = row.value
    if row.better == "higher":
        low, high, value, limit = -high, -low, -value, -limit
    if math.isnan(value):
        return UNDECIDED
    if low > limit:
        return BEYOND
    return WITHIN if value <= limit and high <= limit else UNDECIDED
