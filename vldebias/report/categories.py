"""Lay out the figures of categories for a page: a row for each category, such as "female"."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vldebias.measure.metric import SHARE, get_metric
from vldebias.report.phrases import capitalised
from vldebias.report.table import number

if TYPE_CHECKING:
    from vldebias.measure.rows import Bounds, Measurement
    from vldebias.report.result import Result


class CategoryRow(NamedTuple):
    """Hold the cells of one category.

    counts: its numbers, such as applicants and selected. figures: (head, value with interval) of
    each measure, "" if there is none. bounds: low, value and high of the last measure, to draw;
    None if it has no value.
    """

    name: str
    counts: tuple[str, ...]
    figures: tuple[tuple[str, str], ...]
    bounds: tuple[float, float, float] | None


class CategoryTable(NamedTuple):
    """Hold the table of a task.

    counts: heads of the numbers. figures: heads of the measures. missing: what stands for a figure
    that a category does not have.
    """

    caption: str
    counts: tuple[str, ...]
    figures: tuple[str, ...]
    rows: tuple[CategoryRow, ...]
    is_share: bool
    missing: str


def category_tables(result: Result) -> list[CategoryTable]:
    """Return the table of each task whose provenance names measures by category.

    The setting "by_category" maps the metrics to their heads, in the order of the columns.
    """
    tables = []
    for provenance in result.provenance:
        heads: dict[str, str] = provenance.settings.get("by_category") or {}
        if not heads:
            continue
        rows_of_category: dict[str, dict[str, Measurement]] = {}
        units: dict[str, None] = {}
        for row in result.rows:
            if row.task == provenance.task and row.metric in heads:
                rows_of_category.setdefault(row.subset, {})[row.metric] = row
                units |= dict.fromkeys(row.n)
        last = list(heads)[-1]
        rows = []
        for name, row_of_metric in rows_of_category.items():
            counts: dict[str, int] = {}
            for row in row_of_metric.values():
                counts |= row.n
            cells = [f"{counts[unit]:,}" if unit in counts else "" for unit in units]
            figures = [
                (head, _written(row_of_metric.get(metric))) for metric, head in heads.items()
            ]
            bounds = _bounds(row_of_metric.get(last))
            rows.append(CategoryRow(name, tuple(cells), tuple(figures), bounds))
        is_share = get_metric(last, strict=False).bounds == SHARE
        tables.append(
            CategoryTable(
                capitalised(provenance.task),
                tuple(units),
                tuple(heads.values()),
                tuple(rows),
                is_share,
                provenance.settings.get("missing", ""),
            )
        )
    return tables


def _written(row: Measurement | None) -> str:
    """Write the value of a row with its interval; "" without a row."""
    return "" if row is None else number(row.value, *row.interval)


def _bounds(row: Measurement | None) -> tuple[float, float, float] | None:
    """Return low, value and high of a row; None without a row."""
    if row is None:
        return None
    ends: Bounds = row.interval
    return ends[0], row.value, ends[1]
