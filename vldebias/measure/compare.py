"""Compare two results figure by figure, and say what else differs between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError, need, shortened
from vldebias.measure.page import plain
from vldebias.measure.table import FLOAT_NOISE, KEYS, readable, verdict
from vldebias.measure.text import wrapped

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.measure.result import Result

COMPARED = (
    "Differences are B less A, of two runs taken for independent: half-widths are added in squares"
    " (MOVER, Zou and Donner 2008), wider than a paired interval. “Equal” figures are the same"
    " number with the same interval."
)
SHOWN = 12  # figures that moved, in print


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Hold two results side by side.

    names: what they are called. frame: a row for each figure that both have: its names, the values
    a and b with their intervals, difference, low, high and verdict. only: what one of them has
    alone, by "A, its name" and "B, its name".
    warnings: what differs beyond the figures.
    """

    names: tuple[str, str]
    frame: pd.DataFrame
    only: Mapping[str, list[str]]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Return whether the two are equal or what moved, what was measured otherwise, and a table
        of the figures that moved."""
        moved = self.frame[self.frame.verdict != "equal"]
        moved = moved[moved.whole] if moved.whole.any() else moved
        lines = wrapped(self.sentence)
        for warning in self.warnings[:3]:
            lines += wrapped(f"measured otherwise: {warning}")
        if len(self.warnings) > 3:
            lines.append(f"measured otherwise: {len(self.warnings) - 3} more")
        if len(moved):
            lines.append("A is {}, B is {}".format(*self.names))
        for row in moved.head(SHOWN).itertuples():
            lines.append(f"{row.task}: {row.measure}, {row.name}: {row.verdict}")
            lines.append(f"  A {row.number_a}  B {row.number}  {row.moved}")
        if len(moved) > SHOWN:
            lines.append(f"{len(moved) - SHOWN} more: to_pandas()")
        for name, figures in self.only.items():
            lines += wrapped(f"only in {name}: {shortened('; '.join(figures), 600)}")
        if len(moved):
            lines += wrapped(COMPARED)
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """Return "equal", or how many figures moved and which one most, in a sentence."""
        verdicts = self.frame.verdict.value_counts()
        if set(verdicts.index) == {"equal"}:
            return f"equal: all {len(self.frame)} figures that both have"
        counts = ", ".join(f"{count} {name}" for name, count in verdicts.items())
        clear = self.frame[self.frame.verdict.isin(["better", "worse", "changed"])]
        wholes = clear[clear.whole] if clear.whole.any() else clear
        if wholes.empty:
            return f"no clear change from A to B: of {len(self.frame)} figures {counts}"
        most = wholes.loc[(wholes.difference.abs() / (wholes.high - wholes.low)).idxmax()]
        return (
            f"{most.verdict}: {most.measure} of {most.task}, {most['name']}, goes from"
            f" {most.a:.3f} to {most.b:.3f}; of {len(self.frame)} figures {counts} in B"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return names, both values with their intervals, difference and verdict, a row per shared
        figure."""
        sides = ["a", "low_a", "high_a", "b", "low_b", "high_b"]
        return self.frame[
            [
                "task",
                "metric",
                "method",
                "subset",
                "lam",
                *sides,
                "difference",
                "low",
                "high",
                "verdict",
            ]
        ]


def compare(a: Result, b: Result, names: tuple[str, str] | None = None) -> Comparison:
    """Match rows by task, metric, part and method, with lambda and strength where a method has
    several; B less A.

    a, b: two results, such as of two models or before and after a change. names: what to call them.
    Results without a shared row, and two rows of the same names in one of them, raise
    InvalidInputError.
    """
    names = names or (a.name, b.name)
    one, two = (readable(side).set_index([*KEYS, "name"], drop=False) for side in (a, b))
    sides = {f"A, {names[0]}": one, f"B, {names[1]}": two}
    for called, side in sides.items():
        if len(twice := side.index[side.index.duplicated()]):
            raise InvalidInputError(f"{called}: got the figure {twice[0]} twice; expected it once")
    shared = two.index.intersection(one.index, sort=False)
    if shared.empty:
        tasks = f"A has tasks {list(one.task.unique())}, B {list(two.task.unique())}"
        raise InvalidInputError(
            f"got no figure in both: {tasks}; expected two results of the same suite"
        )
    x, y = one.loc[shared], two.loc[shared]
    x = x.reset_index(drop=True)
    y = y.reset_index(drop=True)
    t = y.assign(
        a=x.value,
        low_a=x.low,
        high_a=x.high,
        number_a=x.number,
        b=y.value,
        low_b=y.low,
        high_b=y.high,
    )
    t = t.assign(difference=t.b - t.a).reset_index(drop=True)
    t["low"] = t.difference - np.hypot(t.b - t.low_b, t.high_a - t.a)
    t["high"] = t.difference + np.hypot(t.high_b - t.b, t.a - t.low_a)
    moved = list(zip(t.difference, t.low, t.high, strict=True))
    t["verdict"] = [verdict(by, better) for by, better in zip(moved, t.better, strict=True)]
    t["moved"] = ["{:+.3f} [{:+.3f}, {:+.3f}]".format(*by) for by in moved]
    apart = np.abs([t.a - t.b, t.low_a - t.low_b, t.high_a - t.high_b]).max(axis=0)
    t.loc[apart <= FLOAT_NOISE, ["verdict", "moved"]] = ["equal", ""]
    alone = {
        called: rest
        for called, side in sides.items()
        if len(rest := side[~side.index.isin(shared)])
    }
    only = {
        called: [f"{r.task}: {r.measure}, {r.name}" for r in rest.itertuples()]
        for called, rest in alone.items()
    }
    return Comparison(names, t, only, tuple(dict.fromkeys(_notes(a, b))))


def _notes(a: Result, b: Result) -> Iterator[str]:
    """Yield what differs between two runs beyond the numbers."""

    def differing(where: str, *settings: dict[str, Any]) -> Iterator[str]:
        x, y = (need("pandas").json_normalize(one, sep=", ").iloc[0].map(plain) for one in settings)
        for name in dict.fromkeys([*x.index, *y.index]):
            if (here := x.get(name, "none")) != (there := y.get(name, "none")):
                yield (
                    f"{where}, {name} differs: {shortened(here, 90)} in A, {shortened(there, 90)}"
                    " in B"
                )

    yield from differing(
        "the run", *(one.model_dump(include={"commit", "versions"}) for one in (a, b))
    )
    before, texts = (
        {one.task: one for one in a.provenance},
        {"task", "title", "description", "fingerprint"},
    )
    for two in (two for two in b.provenance if two.task in before):
        both = before[two.task], two
        yield from differing(two.task, *(one.model_dump(exclude=texts) for one in both))
        mine, other = (
            None if one.fingerprint is None else Fingerprint(**one.fingerprint) for one in both
        )
        if mine is not None and not mine.matches(other):
            yield f"{two.task}: fingerprint of the weights differs"
