"""Tables of a result as the paper prints them, pivots of its frame: a block per task, methods down, measures across."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vldebias.evaluation.report.words import capitalised, change, direction, label, metric_title, verdict
from vldebias.evaluation.result import CHANCE, NONE, Measurement, Result, TaskProvenance
from vldebias.metrics.metric import METRICS, Kind, metric_of

if TYPE_CHECKING:
    import pandas as pd

WIDE = 5  # more measures than this are split into bias and utility
FEW = 3  # parts with several measures that have a table each
MANY = 6  # more parts (groups, queries) than this run down the table


@dataclass(frozen=True)
class Column:
    """A heading; hint: which direction is better, what was counted."""

    title: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.title} ({self.hint})" if self.hint else self.title


@dataclass(frozen=True)
class Row:
    """A heading and one measurement per column, None where there is none."""

    title: str
    cells: tuple[Measurement | None, ...]
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under a caption; corner is the heading of the row headings. detail: a part of the whole, such as queries."""

    caption: str
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    detail: bool = False

    @property
    def cells(self) -> tuple[Measurement, ...]:
        """What stands in it, row by row."""
        return tuple(cell for row in self.rows for cell in row.cells if cell is not None)

    @property
    def has_labelled(self) -> bool:
        """Whether a method in it was given labels, so that the dagger needs its footnote."""
        return any(cell.uses_labels for cell in self.cells)


@dataclass(frozen=True)
class Block:
    """One task: its provenance (None for a task without one), its tables and its measurements."""

    task: str
    provenance: TaskProvenance | None
    tables: tuple[Table, ...]
    rows: tuple[Measurement, ...]

    @property
    def title(self) -> str:
        """What a reader calls the task."""
        return (self.provenance.title if self.provenance else "") or self.task

    @property
    def advice(self) -> list[str]:
        """Sentences that say what to do, which a page begins with; none of most tasks."""
        return list(self.provenance.settings.get("advice", ())) if self.provenance else []

    @property
    def headline(self) -> tuple[Measurement, ...]:
        """The measurements about the whole; those about parts only where there are no others.

        What people corrected comes first: it holds, whatever the judge said beside it.
        """
        chosen = [table for table in self.tables if not table.detail] or self.tables
        cells = (cell for table in chosen for cell in table.cells)
        return tuple(sorted(cells, key=lambda cell: not cell.metric.startswith("corrected_")))

    @property
    def at_chance(self) -> dict[str, Measurement]:
        """Measure -> its row of random rankings, where none lies within them or is less biased: nothing to remove."""
        wholes = [row for row in self.rows if not row.subset]
        none = {row.metric: row.value for row in wholes if row.method == NONE}
        intervals = {}
        for row in wholes:
            if row.method == CHANCE and row.metric in none:
                low, high = row.interval
                if none[row.metric] >= low if row.better == "higher" else none[row.metric] <= high:
                    intervals[row.metric] = row
        return intervals

    def verdict(self, row: Measurement) -> str:
        """That on the change of a row; "" of a whole where there is nothing to remove."""
        return "" if not row.subset and row.metric in self.at_chance else verdict(row)

    def moved(self, kind: Kind) -> list[dict[str, Measurement]]:
        """Method -> its row, for every measure of bias (or utility, in the order of `METRICS`) that has a change.

        Not of a measure in which there is nothing to remove (`at_chance`).
        Of methods without labels; of a sweep over lambda its last point; of "train" and "unseen" the last. Where there
        is an average weighted as the training images are, it is the cost: one that counts all groups alike rises with
        the groups that were mended.
        """
        compared = [r for r in self.headline if r.change is not None and not r.uses_labels]
        rows = [r for r in compared if metric_of(r.metric).kind == kind and r.metric not in self.at_chance]
        if any(r.metric == "average_reweighted" for r in rows):
            rows = [r for r in rows if r.metric != "average"]
        subsets = {r.metric: r.subset for r in rows}  # the last of each measure
        if kind == "utility":
            order = {name: place for place, name in enumerate(METRICS)}
            subsets = dict(sorted(subsets.items(), key=lambda one: order.get(one[0].partition("@")[0], 0)))
        return [
            {r.method: r for r in rows if (r.metric, r.subset) == (metric, subset)}
            for metric, subset in subsets.items()
        ]

    @property
    def worst(self) -> tuple[Measurement, int, int] | None:
        """The part that lost most beyond its interval, how many did, and how many there are; None where none did.

        Parts are groups, queries or prompts; of the measure of the one that lost most, under the same method.
        """
        worse = [r for r in self.rows if r.subset and verdict(r) == "worse" and not r.uses_labels]
        if not worse:
            return None
        row = max(worse, key=lambda r: abs(r.change[0]) if r.change else 0.0)

        def alike(rows: list[Measurement]) -> int:
            return sum((r.metric, r.method, r.lam, *r.n) == (row.metric, row.method, row.lam, *row.n) for r in rows)

        return row, alike(worse), alike([r for r in self.rows if r.subset and r.change is not None])

    @property
    def worst_part(self) -> str:
        """`worst` as a sentence; "" where there is none."""
        if self.worst is None:
            return ""
        row, lost, whole = self.worst
        name, measure = label(row, False, False), capitalised(metric_title(row.metric))
        return f"{measure} got worse for {lost} of {whole} parts under {name}, most {row.subset}: {change(row)}."


def blocks(result: Result) -> list[Block]:
    """The tasks of a result in their order.

    The whole comes first, then its parts. Parts that were counted alike belong together: a few of them with several
    measures (train and unseen professions) are a table each, of measures across; else each measure is a table of all
    parts (groups, queries).
    """
    frame = result.to_pandas()
    frame["cell"] = result.rows
    frame["units"] = [tuple(row.n) for row in result.rows]
    frame["counted"] = [", ".join(f"{count:,} {unit}" for unit, count in row.n.items()) for row in result.rows]
    provenance = {one.task: one for one in result.provenance}
    return [
        Block(str(task), provenance.get(str(task)), tuple(_tables(part)), tuple(part.cell))
        for task, part in frame.groupby("task", sort=False)
    ]


def _tables(frame: pd.DataFrame) -> Iterator[Table]:
    yield from _wholes(frame[frame.subset == ""], "By method")
    for _, alike in frame[frame.subset != ""].groupby("units", sort=False):
        if alike.metric.nunique() > 1 and alike.subset.nunique() <= FEW:
            for subset, part in alike.groupby("subset", sort=False):
                yield from _wholes(part, str(subset))
            continue
        for metric, part in alike.groupby("metric", sort=False):
            hint = direction(part.cell.iloc[0])
            caption = f"{capitalised(metric_title(str(metric)))} by part" + (f" ({hint})" if hint else "")
            yield _pivot(part, caption, "subset", turned=part.subset.nunique() > MANY)


def _wholes(frame: pd.DataFrame, caption: str) -> Iterator[Table]:
    """One table, or several by kind, where there are more measures than can be printed side by side."""
    metrics = [str(metric) for metric in frame.metric.unique()]
    kinds: dict[str, list[str]] = {}
    for metric in metrics:
        title = caption if len(metrics) <= WIDE else f"{caption}: {metric_of(metric).kind}"
        kinds.setdefault(title, []).append(metric)
    for title, chosen in sorted(kinds.items()):
        for start in range(0, len(chosen), WIDE):
            yield _pivot(frame[frame.metric.isin(chosen[start : start + WIDE])], title, "metric")


def _pivot(frame: pd.DataFrame, caption: str, across: str, *, turned: bool = False) -> Table:
    """Methods down, `across` in the columns; turned: the other way round.

    Lambda and strength are said only where a method has several.
    """
    several = frame.groupby("method")[["lam", "strength"]].transform(lambda c: c.nunique(dropna=False) > 1)
    names = [label(row, a, b) for row, a, b in zip(frame.cell, several.lam, several.strength, strict=True)]
    grid = frame.assign(name=names).pivot_table("cell", "name", across, aggfunc="last", sort=False)
    counts = {key: part.counted.iloc[0] if part.counted.nunique() == 1 else "" for key, part in frame.groupby(across)}

    def rows(table: pd.DataFrame) -> Iterator[tuple[str, tuple[Measurement | None, ...]]]:
        for name, cells in zip(table.index, table.to_numpy(), strict=True):
            yield str(name), tuple(cell if isinstance(cell, Measurement) else None for cell in cells)

    if turned:
        parts = tuple(Row(name, cells, counts[name]) for name, cells in rows(grid.T))
        return Table(caption, "part", tuple(Column(str(name)) for name in grid.index), parts, detail=True)
    columns = []
    for key in grid:
        first = frame.cell[frame[across] == key].iloc[0]
        title, hint = (metric_title(str(key)), direction(first)) if across == "metric" else (str(key), "")
        columns.append(Column(title, "; ".join(filter(None, (hint, counts[key])))))
    body = tuple(Row(name, cells) for name, cells in rows(grid))
    return Table(caption, "method", tuple(columns), body, detail=across == "subset")
