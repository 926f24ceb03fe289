"""Arrange figures by category, such as "female", in a table for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vldebias.measure.metric import SHARE, get_metric
from vldebias.report.phrases import capitalised
from vldebias.report.table import number

if TYPE_CHECKING:
    from vldebias.measure.rows import Measurement
    from vldebias.report.result import Result


class CategoryRow(NamedTuple):
    """Store the cells of one category.

    Attributes:
        name: the category.
        counts: numbers such as applicants and selected applicants.
        figures: pairs (heading, value with interval) for each measure; the value may be "".
        bounds: low, value and high of the last measure, for the drawing; None without a value.
    """

    name: str
    counts: tuple[str, ...]
    figures: tuple[tuple[str, str], ...]
    bounds: tuple[float, float, float] | None


class CategoryTable(NamedTuple):
    """Store a task's table.

    Attributes:
        caption: title of the table.
        counts: headings of the counts.
        figures: headings of the measures.
        rows: one row per category.
        is_share: whether the last measure is a share, from 0 to 1.
        missing: text shown instead of a missing figure.
    """

    caption: str
    counts: tuple[str, ...]
    figures: tuple[str, ...]
    rows: tuple[CategoryRow, ...]
    is_share: bool
    missing: str


def category_tables(result: Result) -> list[CategoryTable]:
    """Return a table for each task whose provenance lists measures by category.

    The setting "by_category" maps metrics to headings, in the order of the columns.
    """
    tables = []
    for provenance in result.provenance:
        heads: dict[str, str] = provenance.settings.get("by_category") or {}
        if not heads:
            continue
        rows_of_category: dict[str, dict[str, Measurement]] = {}
        units: dict[str, None] = {}
        for measurement in result.rows:
            if measurement.task == provenance.task and measurement.metric in heads:
                row_of_metric = rows_of_category.setdefault(measurement.subset, {})
                row_of_metric[measurement.metric] = measurement
                units |= dict.fromkeys(measurement.n)
        last = list(heads)[-1]
        rows = []
        for name, row_of_metric in rows_of_category.items():
            counts: dict[str, int] = {}
            for measurement in row_of_metric.values():
                counts |= measurement.n
            cells = [f"{counts[unit]:,}" if unit in counts else "" for unit in units]
            figures = []
            for metric, head in heads.items():
                row = row_of_metric.get(metric)
                figures.append((head, "" if row is None else number(row.value, *row.interval)))
            row = row_of_metric.get(last)
            bounds = None if row is None else (row.interval[0], row.value, row.interval[1])
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
