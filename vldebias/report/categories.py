"""Build the page tables that list values by category, such as "female"."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vldebias.measure.metric import SHARE, get_metric
from vldebias.measure.rows import NONE
from vldebias.report.table import number
from vldebias.utils.phrases import capitalised

if TYPE_CHECKING:
    from vldebias.measure.rows import Measurement
    from vldebias.report.measurements import Measurements


class CategoryRow(NamedTuple):
    """A table row for one category.

    Attributes:
        name: the name of the category, such as "female".
        counts: the counts, such as the number of captions.
        figures: a (heading, value with interval) pair for each measure. Missing values are "".
        bounds: the lower bound, value and upper bound of the last measure, which is drawn as a
            plot. None if there is no value.
    """

    name: str
    counts: tuple[str, ...]
    figures: tuple[tuple[str, str], ...]
    bounds: tuple[float, float, float] | None


class CategoryTable(NamedTuple):
    """A task's table of categories.

    Attributes:
        caption: the title of the table.
        counts: the headings of the count columns.
        figures: the headings of the measure columns.
        rows: one row per category.
        is_share: whether the last measure is a share, between 0 and 1.
    """

    caption: str
    counts: tuple[str, ...]
    figures: tuple[str, ...]
    rows: tuple[CategoryRow, ...]
    is_share: bool


def category_key(measurement: Measurement) -> str:
    """Return the key of a row's category, which is its subset unless there are methods."""
    if measurement.method == NONE:
        return measurement.subset
    return f"{measurement.method}: {measurement.subset}"


def category_tables(result: Measurements) -> list[CategoryTable]:
    """Return the tables for each task that measures values by category.

    Such tasks have a "by_category" setting, which maps metrics to column headings. A "tables"
    setting splits the categories into several tables: caption -> category -> its name there. The
    categories of a method other than "none" are keyed by `category_key`.
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
                row_of_metric = rows_of_category.setdefault(category_key(measurement), {})
                row_of_metric[measurement.metric] = measurement
                units |= dict.fromkeys(measurement.n)
        last = list(heads)[-1]
        rows: dict[str, CategoryRow] = {}
        for name, row_of_metric in rows_of_category.items():
            counts: dict[str, int] = {}
            for measurement in row_of_metric.values():
                counts = measurement.n | counts
            cells = [f"{counts[unit]:,}" if unit in counts else "" for unit in units]
            figures = []
            for metric, head in heads.items():
                row = row_of_metric.get(metric)
                figures.append((head, "" if row is None else number(row.value, *row.interval)))
            row = row_of_metric.get(last)
            bounds = None if row is None else (row.interval[0], row.value, row.interval[1])
            rows[name] = CategoryRow(name, tuple(cells), tuple(figures), bounds)
        is_share = get_metric(last, strict=False).bounds == SHARE
        one_table = {capitalised(provenance.task): {name: name or "all" for name in rows}}
        captions = provenance.settings.get("tables") or one_table
        for caption, names in captions.items():
            listed = tuple(rows[name]._replace(name=shown) for name, shown in names.items())
            tables.append(
                CategoryTable(caption, tuple(units), tuple(heads.values()), listed, is_share)
            )
    return tables
