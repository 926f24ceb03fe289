"""Tables of a result, pivoted as the paper prints them: one block per task, methods down, measures across."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vldebias.evaluation.report.wording import direction, is_utility, label, metric_title, sentence, verdict
from vldebias.evaluation.result import Figure, Protocol, Result

__all__ = ["Block", "Column", "Row", "Table", "blocks", "tables"]

WIDE = 5  # more measures than this are split into bias and utility
FEW = 3  # parts with several measures that have a table each
MANY = 6  # more parts (groups, queries) than this run down the table


@dataclass(frozen=True)
class Column:
    """A heading; hint: which direction is better, what was counted."""

    title: str
    hint: str = ""


@dataclass(frozen=True)
class Row:
    """A heading and one figure per column, None where there is none."""

    title: str
    cells: tuple[Figure | None, ...]
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
    def figures(self) -> tuple[Figure, ...]:
        """What stands in it, row by row."""
        return tuple(cell for row in self.rows for cell in row.cells if cell is not None)

    @property
    def has_labelled(self) -> bool:
        """Whether a method in it was given labels, so that the dagger needs its footnote."""
        return any(figure.uses_labels for figure in self.figures)


@dataclass(frozen=True)
class Block:
    """One task: its protocol (None for a task without one), its tables and its figures."""

    task: str
    protocol: Protocol | None
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]

    @property
    def title(self) -> str:
        """What a reader calls the task."""
        return (self.protocol.title if self.protocol else "") or self.task

    @property
    def headline(self) -> tuple[Figure, ...]:
        """The figures about the whole; those about parts only where there are no others."""
        chosen = [table for table in self.tables if not table.detail] or self.tables
        return tuple(figure for table in chosen for figure in table.figures)

    def verdicts(self, *, utility: bool) -> dict[str, int]:
        """How many headline figures of the bias measures (or of utility) are better, worse, unclear or the same.

        Of methods that see prompts only.
        """
        chosen = [f for f in self.headline if is_utility(f.metric) == utility and not f.uses_labels]
        found = [verdict(figure) for figure in chosen]
        return {word: found.count(word) for word in ("better", "worse", "changed", "unclear", "same") if word in found}


def blocks(result: Result) -> list[Block]:
    """The tasks of a result in their order."""
    protocols = {protocol.task: protocol for protocol in result.protocols}
    found = []
    for task in _distinct(figure.task for figure in result.figures):
        figures = tuple(figure for figure in result.figures if figure.task == task)
        found.append(Block(task, protocols.get(task), tuple(tables(figures)), figures))
    return found


def tables(figures: Sequence[Figure]) -> list[Table]:
    """The tables of one task: the whole first, then its parts.

    Parts that were counted alike belong together: a few of them with several measures (train and unseen professions)
    are a table each, of measures across; else each measure is a table of all parts (groups, queries).
    """
    found = _wholes([figure for figure in figures if not figure.subset], "By method")
    parts = [figure for figure in figures if figure.subset]
    for units in dict.fromkeys(tuple(figure.n) for figure in parts):
        alike = [figure for figure in parts if tuple(figure.n) == units]
        metrics, subsets = _distinct(f.metric for f in alike), _distinct(f.subset for f in alike)
        if len(metrics) > 1 and len(subsets) <= FEW:
            for subset in subsets:
                found += _wholes([f for f in alike if f.subset == subset], subset)
        else:
            found += [_parts([f for f in alike if f.metric == metric]) for metric in metrics]
    return found


def _wholes(figures: Sequence[Figure], caption: str) -> list[Table]:
    """One table, or several where there are too many measures for one."""

    def title(kind: str) -> str:
        return f"{caption}: {kind}" if kind else caption

    return [_whole(figures, chosen, title(kind)) for kind, chosen in _shares(_distinct(f.metric for f in figures))]


def _shares(metrics: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """All measures in one table where they fit; else bias and utility apart."""
    if len(metrics) <= WIDE:
        return [("", metrics)] if metrics else []
    split = (("bias", [m for m in metrics if not is_utility(m)]), ("utility", [m for m in metrics if is_utility(m)]))
    return [
        (name, chosen[i : i + WIDE])
        for name, chosen in split
        for i in range(0, len(chosen), WIDE)  # narrow enough to print
    ]


def _whole(figures: Sequence[Figure], metrics: Sequence[str], caption: str) -> Table:
    inside = [figure for figure in figures if figure.metric in metrics]
    return _pivot(inside, caption, "method", lambda f: f.metric, metrics, _metric_column, _names(inside))


def _parts(figures: Sequence[Figure]) -> Table:
    """Methods down and parts across while there are few parts; else the other way round."""
    subsets, names = _distinct(figure.subset for figure in figures), _names(figures)
    caption = f"{sentence(metric_title(figures[0].metric))} by part"
    caption += f" ({direction(figures[0])})" if direction(figures[0]) else ""
    if len(subsets) <= MANY:
        return _pivot(figures, caption, "method", lambda f: f.subset, subsets, _part_column, names, detail=True)
    methods = _distinct(names[_key(figure)] for figure in figures)
    rows = []
    for subset in subsets:
        there = {names[_key(f)]: f for f in figures if f.subset == subset}
        rows.append(Row(subset, tuple(there.get(method) for method in methods), _counts([*there.values()])))
    return Table(caption, "part", tuple(Column(method) for method in methods), tuple(rows), detail=True)


def _pivot(
    figures: Sequence[Figure],
    caption: str,
    corner: str,
    across: Callable[[Figure], str],
    keys: Sequence[str],
    column: Callable[[str, list[Figure]], Column],
    names: dict[Any, str],
    *,
    detail: bool = False,
) -> Table:
    """Methods down, `keys` across; a column is headed from the figures in it."""
    columns = tuple(column(key, [f for f in figures if across(f) == key]) for key in keys)
    rows = []
    for name in _distinct(names[_key(figure)] for figure in figures):
        there = {across(figure): figure for figure in figures if names[_key(figure)] == name}
        rows.append(Row(name, tuple(there.get(key) for key in keys)))
    return Table(caption, corner, columns, tuple(rows), detail)


def _metric_column(metric: str, figures: list[Figure]) -> Column:
    return Column(metric_title(metric), "; ".join(filter(None, (direction(figures[0]), _counts(figures)))))


def _part_column(subset: str, figures: list[Figure]) -> Column:
    return Column(subset, _counts(figures))


def _counts(figures: list[Figure]) -> str:
    """ "642 images" where all figures are of the same counts, else nothing."""
    counts = {", ".join(f"{count:,} {unit}" for unit, count in figure.n.items()) for figure in figures}
    return counts.pop() if len(counts) == 1 else ""


def _key(figure: Figure) -> tuple[str, float | None, float | None]:
    return figure.method, figure.lam, figure.strength


def _names(figures: Sequence[Figure]) -> dict[Any, str]:
    """What each (method, lam, strength) is called: lambda and strength are said only where a method has several."""
    keys = {_key(figure): figure for figure in figures}
    lams = {(method, lam) for method, lam, _ in keys}
    strengths = {(method, strength) for method, _, strength in keys}
    several = {
        method: (sum(m == method for m, _ in lams) > 1, sum(m == method for m, _ in strengths) > 1)
        for method, _, _ in keys
    }
    return {key: label(figure, *several[key[0]]) for key, figure in keys.items()}


def _distinct(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
