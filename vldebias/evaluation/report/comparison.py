"""Compare two results row by row, and say what differs between their provenance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError, need, shortened
from vldebias.evaluation.report.pages import html
from vldebias.evaluation.report.tables import Column, Row, Table
from vldebias.evaluation.report.words import change, direction, label, metric_title, number, verdict, verdict_on
from vldebias.evaluation.result import Measurement, Result, TaskProvenance
from vldebias.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

METHOD = (
    "Each difference is B less A. The two runs are not paired here, so its interval is put together from the two "
    "95 % intervals: the half-width towards each side is the root of the sum of the squared half-widths (a normal "
    "approximation; MOVER, Zou and Donner 2008). It takes the runs for independent: where both used the same images "
    "it is wider than a paired interval would be. “Equal” figures are the same number with the same interval; nothing "
    "is said of their difference."
)
CONVENTIONS = ("model", "prompts", "prompts_hash", "split", "n", "seeds", "data")
KEYS = ("task", "metric", "method", "subset", "lam", "strength")


@dataclass(frozen=True)
class Pair:
    """The same row of both results."""

    a: Measurement
    b: Measurement

    @property
    def difference(self) -> tuple[float, float, float]:
        """B less A with its interval for independent runs."""
        return independent_difference(self.a, self.b)

    @property
    def verdict(self) -> str:
        """Whether B is equal, better, worse, unclear or the same."""
        equal = (self.a.value, self.a.interval) == (self.b.value, self.b.interval)
        return "equal" if equal else verdict_on(self.difference, self.b.better)

    @property
    def cells(self) -> tuple[Measurement, Measurement]:
        """Both as a table shows them: A alone, B with the difference as its change, unless they are equal."""
        change = None if self.verdict == "equal" else self.difference
        return self.a.model_copy(update={"change": None}), self.b.model_copy(update={"change": change})


@dataclass(frozen=True)
class Comparison:
    """Two results side by side: rows that both have, rows that one has; warnings: what differs beyond the numbers."""

    a: str
    b: str
    pairs: tuple[Pair, ...]
    only_a: tuple[Measurement, ...]
    only_b: tuple[Measurement, ...]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Comparison({self.a!r}, {self.b!r}: {len(self.pairs)} rows that both have; to_pandas())"

    @property
    def same(self) -> bool:
        """Whether both have the same figures, every one the same number with the same interval."""
        return not self.only_a and not self.only_b and all(pair.verdict == "equal" for pair in self.pairs)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "same": self.same,
            "a": self.a,
            "b": self.b,
            "method": METHOD,
            "warnings": list(self.warnings),
            "figures": [
                {**pair.b.model_dump(include={*KEYS, "better"}), "difference": pair.difference, "verdict": pair.verdict}
                | {side: getattr(pair, side).model_dump(include={"value", "interval"}) for side in ("a", "b")}
                for pair in self.pairs
            ],
            "only_a": [_names(row) for row in self.only_a],
            "only_b": [_names(row) for row in self.only_b],
        }

    def to_pandas(self) -> pd.DataFrame:
        """A row for each that both have: its names, the values a and b, their difference and the verdict."""
        pd = need("pandas")

        return pd.DataFrame(
            {
                **_names(pair.b),
                "a": pair.a.value,
                "b": pair.b.value,
                **dict(zip(("difference", "low", "high"), pair.difference, strict=True)),
                "verdict": pair.verdict,
            }
            for pair in self.pairs
        )

    def _repr_html_(self) -> str:
        """What differs beyond the numbers, then the frame."""
        from html import escape

        warned = "".join(f"<li>{escape(text)}</li>" for text in self.warnings)
        return f"<ul>{warned}</ul>{self.to_pandas().to_html(index=False, na_rep='', float_format='{:.3f}'.format)}"


def compare(a: Result, b: Result, names: tuple[str, str] | None = None) -> Comparison:
    """Match rows by task, metric, method, subset, lambda and strength, and subtract A from B.

    Rows left over are matched without lambda and strength where that leaves no choice; a warning says so.

    Args:
        a, b: two results, such as of two models or before and after a change.
        names: what to call them; by default their own names.

    Raises:
        InvalidInputError: no row is in both, or one result has two rows of the same names.
    """
    for result in (a, b):
        key, count = Counter(map(_full, result.rows)).most_common(1)[0] if result.rows else ((), 0)
        if count > 1:
            raise InvalidInputError(f"{result.name}: the figure {key} is there {count} times; expected one")
    exact, rest_a, rest_b = _match(a.rows, b.rows, _full)
    loose, rest_a, rest_b = _match(rest_a, rest_b, lambda row: _full(row)[:4])
    place = {_full(row): i for i, row in enumerate(b.rows)}
    pairs = sorted(exact + loose, key=lambda pair: place[_full(pair[1])])
    if not pairs:
        tasks = [list(dict.fromkeys(row.task for row in result.rows)) for result in (a, b)]
        raise InvalidInputError(
            f"no figure is in both {a.name!r} and {b.name!r}: tasks are {tasks[0]} and {tasks[1]}; "
            "expected two results of the same suite"
        )
    notes = [*_about_runs(a, b)]
    for x, y in loose:
        notes += [*_differs(y.task, f"lam of {y.method}", x.lam, y.lam)]
        notes += [*_differs(y.task, f"strength of {y.method}", x.strength, y.strength)]
    for x, y in pairs:
        notes += [*_differs(y.task, f"which {metric_title(y.metric)} is better", x.better, y.better)]
    matched = tuple(Pair(x, y) for x, y in pairs)
    return Comparison(*(names or (a.name, b.name)), matched, tuple(rest_a), tuple(rest_b), tuple(dict.fromkeys(notes)))


def independent_difference(a: Measurement, b: Measurement) -> tuple[float, float, float]:
    """b - a with an interval from the two intervals, as if the runs were independent.

    Zou and Donner, "Construction of confidence limits about effect measures" (2008), eq. 2: each limit takes the
    half-widths that face it, which keeps intervals asymmetric that are so.
    """
    value = b.value - a.value
    below = math.hypot(b.value - b.interval[0], a.interval[1] - a.value)
    above = math.hypot(b.interval[1] - b.value, a.value - a.interval[0])
    return value, value - below, value + above


def _names(row: Measurement) -> dict[str, Any]:
    return {key: getattr(row, key) for key in KEYS}


def _full(row: Measurement) -> tuple[Any, ...]:
    return tuple(_names(row).values())


def _match(
    a: Sequence[Measurement], b: Sequence[Measurement], key: Callable[[Measurement], Hashable]
) -> tuple[list[tuple[Measurement, Measurement]], list[Measurement], list[Measurement]]:
    """Pairs of the same key that is unique on both sides, and what is left of each side."""
    counts_a, counts_b = Counter(map(key, a)), Counter(map(key, b))
    there = {key(row): row for row in a}
    shared = {k for k in there if counts_a[k] == counts_b[k] == 1}
    pairs = [(there[key(row)], row) for row in b if key(row) in shared]
    return pairs, [row for row in a if key(row) not in shared], [row for row in b if key(row) not in shared]


# ---- what differs beyond the numbers -----------------------------------------------------------------------


def _differs(where: str, what: str, a: Any, b: Any) -> Iterator[str]:
    if a != b:
        yield f"{where}: {what} differs: {_short(a)} in A, {_short(b)} in B"


def _short(value: Any) -> str:
    text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
    return shortened(text, 90)


def _about_runs(a: Result, b: Result) -> Iterator[str]:
    for name in dict.fromkeys([*a.versions, *b.versions]):
        yield from _differs("the run", f"version of {name}", a.versions.get(name), b.versions.get(name))
    yield from _differs("the run", "commit", a.commit, b.commit)
    there = {one.task: one for one in a.provenance}
    for one in b.provenance:
        if one.task in there:
            yield from _about_task(there[one.task], one)


def _about_task(a: TaskProvenance, b: TaskProvenance) -> Iterator[str]:
    for what in CONVENTIONS:
        yield from _differs(b.task, what.replace("_", " "), getattr(a, what), getattr(b, what))
    mine, other = Fingerprint.of(a.fingerprint), Fingerprint.of(b.fingerprint)
    if mine is not None and not mine.matches(other):
        texts = [_short((one.fingerprint or {}).get("structure")) for one in (a, b)]
        yield f"{b.task}: fingerprint of the weights differs: {texts[0]} in A, {texts[1]} in B"
    for what, first, second in (("setting", a.settings, b.settings), ("method", a.methods, b.methods)):
        for name in dict.fromkeys([*first, *second]):
            yield from _differs(b.task, f"{what} {name}", first.get(name), second.get(name))


# ---- to read -----------------------------------------------------------------------------------------------


def _title(row: Measurement) -> str:
    """What a row is about, beyond its task."""
    return ", ".join(filter(None, (metric_title(row.metric), row.subset, label(row))))


def _tables(comparison: Comparison) -> list[Table]:
    """One for each task, a row for each figure: A, and B with its difference to A."""
    columns = Column("A", comparison.a), Column("B", f"{comparison.b}; below it B less A, of independent runs")
    tasks: dict[str, list[Row]] = {}
    for pair in comparison.pairs:
        tasks.setdefault(pair.b.task, []).append(Row(_title(pair.b), pair.cells, direction(pair.b)))
    return [Table(task, "figure", columns, tuple(rows)) for task, rows in tasks.items()]


def _only(comparison: Comparison) -> dict[str, list[str]]:
    """What one side has alone, by the name of the side."""
    sides = (f"A, {comparison.a}", comparison.only_a), (f"B, {comparison.b}", comparison.only_b)
    return {name: [f"{row.task}: {_title(row)}" for row in rows] for name, rows in sides if rows}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Warnings first, then one table per task, unless all figures are the same."""
    from rich.markup import escape
    from rich.table import Table as Grid

    for text in comparison.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(text)}", highlight=False)
    if comparison.same:
        console.print(f"same: all {len(comparison.pairs)} figures are equal", highlight=False)
        return
    for table in _tables(comparison):
        grid = Grid(
            title=escape(table.caption), title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
        )
        for head in ("", f"A: {comparison.a}", f"B: {comparison.b}", "B less A", ""):
            grid.add_column(escape(head), overflow="fold")
        for row in table.rows:
            a, b = (cell for cell in row.cells if cell is not None)
            word = verdict(b) or "equal"
            style = {"better": "green", "worse": "red"}.get(word)
            grid.add_row(escape(row.title), number(a), number(b), change(b), word, style=style)
        console.print()
        console.print(grid)
    for name, rows in _only(comparison).items():
        more = f"; and {len(rows) - 8} more" if len(rows) > 8 else ""
        console.print(f"\nonly in {escape(name)}: {escape('; '.join(rows[:8]))}{more}", highlight=False)
    console.print(f"\n{METHOD}", highlight=False)


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """One HTML file with warnings, both values and their difference; no network needed."""
    tables = _tables(comparison)
    return write_atomically(
        path,
        html("compare.html.jinja", c=comparison, tables=tables, only=_only(comparison), method=METHOD, said=verdict),
    )
