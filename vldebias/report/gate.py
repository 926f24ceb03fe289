"""Check the values in a result against limits, for use in continuous integration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.measure.metric import get_metric
from vldebias.report.conclusion import method_of_conclusion
from vldebias.report.table import ReadableRow, readable

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.measure.rows import Measurement
    from vldebias.report.result import Result

WITHIN, UNDECIDED, BEYOND = "within", "undecided", "beyond"
_ALIKE = 0.7  # similarity of a misspelt method; "nonsense" and "none" have 0.67


@dataclass(frozen=True)
class GateCheck:
    """Outcome of checking a value against its limit.

    Attributes:
        row: the value with its interval.
        method: the method, with its lambda if several were measured.
        limit: the largest value that passes, or the smallest if higher values are better.
        outcome: "within" if the value and its interval satisfy the limit, "beyond" if the entire
            interval violates it, and "undecided" otherwise, in which case more data is needed.
        few: "few prompts" or "narrow interval" if the interval is known to be too narrow,
            otherwise "".
    """

    row: Measurement
    method: str
    limit: float
    outcome: str
    few: str = ""

    def __str__(self) -> str:
        low, high = self.row.interval
        sign = "at least" if self.row.better == "higher" else "at most"
        few = f" ({self.few})" if self.few else ""
        part = f" ({self.row.subset})" if self.row.subset else ""
        everyday = get_metric(self.row.metric, strict=False).everyday
        metric = f"{everyday} ({self.row.metric})" if everyday else self.row.metric
        return (
            f"{self.outcome}: {self.row.task}{part}, {metric}, {self.method}:"
            f" {self.row.value:.3f} [{low:.3f}, {high:.3f}]{few}, {sign} {self.limit:g}"
        )


@dataclass(frozen=True)
class Gate:
    """Outcome of checking a result against limits.

    Attributes:
        checks: one check per value. Violated limits come first.
        not_checked: what could not be checked, and why.
    """

    checks: tuple[GateCheck, ...]
    not_checked: tuple[str, ...]

    @property
    def status(self) -> int:
        """Return 1 if a limit is violated, else 2 if something was not checked, else 0.

        A limit is violated if the value's entire interval is beyond the limit.
        """
        if any(check.outcome == BEYOND for check in self.checks):
            return 1
        return 2 if self.not_checked else 0


def check_limits(
    result: Result, limits: Mapping[str, float], *, method: str | Mapping[str, str] | None = None
) -> Gate:
    """Check one method's values per task against limits, using their 95% intervals.

    Args:
        result: the result to check.
        limits: the limit for each metric, such as {"max_skew": 0.2}. A limit is the largest value
            that passes, or the smallest if higher values are better, as in {"worst_group": 0.7}.
            Each metric is checked in every task that measures it, over all images of the task.
        method: the method to check, or a mapping from task to method. By default, and for other
            tasks than those in the mapping, the method that the task's conclusion is about.

    Returns:
        The checks, and what could not be checked because a metric or the method was not measured.

    Raises:
        InvalidInputError: If there are no limits, one is NaN, or a task or method is not in the
            result.
    """
    if not limits:
        raise InvalidInputError("no limits given; expected one or more, such as max_skew=0.2")
    frame = readable(result)
    method_of_task = _methods(frame, method)
    # Only check values for an entire task, not for individual queries, groups or professions.
    summaries = frame[frame.is_summary]
    checks = []
    not_checked = []
    for metric, limit in limits.items():
        # Every comparison with NaN is false, so no value would be beyond such a limit.
        if math.isnan(limit):
            raise InvalidInputError(f"{metric}: got the limit {limit}; expected a number")
        # A limit for "max_skew" also applies to "max_skew@50".
        is_named = (summaries.metric == metric) | summaries.metric.str.startswith(f"{metric}@")
        named = summaries[is_named]
        if named.empty:
            known = ", ".join(sorted(set(summaries.metric)))
            not_checked.append(f"{metric}, which the result does not contain; it contains {known}")
        for task, rows in named.groupby("task", sort=False):
            chosen = method_of_task[str(task)]
            measured = rows[(rows.method == chosen) | (rows.name == chosen)]
            for row in measured.itertuples():
                figure = result.rows[row.Index]
                outcome = _outcome(figure, limit)
                checks.append(GateCheck(figure, row.name, limit, outcome, row.few))
            if measured.empty:
                methods = ", ".join(dict.fromkeys(rows.name))
                not_checked.append(f"{task}, {metric}, {chosen}; it was measured for {methods}")
    order = (BEYOND, UNDECIDED, WITHIN)
    checks.sort(key=lambda check: order.index(check.outcome))
    return Gate(tuple(checks), tuple(not_checked))


def _methods(frame: pd.DataFrame, method: str | Mapping[str, str] | None) -> dict[str, str]:
    """Return the method to check for each task, from the `method` argument of `check_limits`."""
    rows = cast("list[ReadableRow]", list(frame.itertuples()))
    tasks = list(dict.fromkeys(row.task for row in rows))
    named = dict.fromkeys(tasks, method) if isinstance(method, str) else dict(method or {})
    measured = {row.method for row in rows} | {row.name for row in rows}
    for task, name in named.items():
        if task not in tasks:
            raise InvalidInputError(
                f"method: the result has no task {task!r}; {did_you_mean(task, tasks)} It has"
                f" {', '.join(tasks)}"
            )
        if name not in measured:
            raise InvalidInputError(
                f"method: the result has no method {name!r};"
                f" {did_you_mean(name, measured, cutoff=_ALIKE)} It has"
                f" {', '.join(sorted({row.method for row in rows}))}"
            )
    of_conclusions = {
        task: method_of_conclusion([row for row in rows if row.task == task]) for task in tasks
    }
    return of_conclusions | named


def _outcome(row: Measurement, limit: float) -> str:
    """Return whether a value is within its limit, beyond it, or undecided."""
    low, high = row.interval
    value = row.value
    if row.better == "higher":
        low, high, value, limit = -high, -low, -value, -limit
    if math.isnan(value):
        return UNDECIDED
    if low > limit:
        return BEYOND
    return WITHIN if value <= limit and high <= limit else UNDECIDED
