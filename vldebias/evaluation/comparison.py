"""Compare two results figure by figure, and say what else differs between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError, shortened
from vldebias.evaluation.report import plain, told, verdict
from vldebias.evaluation.result import Result

if TYPE_CHECKING:
    import pandas as pd

COMPARED = (
    "Each difference is B less A. The two runs are taken for independent: the half-width towards each side is the root "
    "of the sum of the squared half-widths (MOVER, Zou and Donner 2008), so where both used the same images the "
    "interval is wider than a paired one. “Equal” figures are the same number with the same interval."
)
CONVENTIONS = ("model", "prompts", "prompts_hash", "split", "n", "seeds", "data")
KEYS = ["task", "metric", "subset", "name"]  # the name of a method says lambda and strength where it has several


@dataclass(frozen=True, eq=False)
class Comparison:
    """Hold two results side by side.

    Attributes:
        a, b: what they are called.
        frame: a row for each figure that both have: its names, the values a and b with their intervals, difference,
            low, high and verdict.
        only: what one of them has alone, by "A, its name" and "B, its name".
        warnings: what differs beyond the figures.
    """

    a: str
    b: str
    frame: pd.DataFrame
    only: Mapping[str, list[str]]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Return how many figures changed, the first of the warnings, and the wholes of each task that moved."""
        counts, alone = self.frame.verdict.value_counts(), sum(map(len, self.only.values()))
        said = ", ".join(f"{n} {name}" for name, n in counts.items()) + (f"; {alone} in one alone" if alone else "")
        out = [f"Of {len(self.frame)} figures that both have, in B: {said}."]
        more = f" (and {len(self.warnings) - 1} more)" if len(self.warnings) > 1 else ""
        out += [f"The two differ in more than the figures: {one}{more}" for one in self.warnings[:1]]
        moved = self.frame[self.frame.verdict != "equal"]
        for task, rows in (moved[moved.whole] if moved.whole.any() else moved).groupby("task", sort=False):
            out += [f"\n{task}: A is {self.a}, B is {self.b}"]
            out += [f"  {r.measure}, {r.name}: A {r.number_a}, B {r.number_b}, {r.moved} {r.verdict}"
                    for r in rows.itertuples()]  # fmt: skip
        out += [f"\nonly in {name}: {shortened('; '.join(some), 600)}" for name, some in self.only.items()]
        return "\n".join([*out, f"\n{COMPARED}"] if len(moved) else out)

    def to_pandas(self) -> pd.DataFrame:
        """Return names, both values with their intervals, difference and verdict, a row per shared figure."""
        sides = ["a", "low_a", "high_a", "b", "low_b", "high_b"]
        return self.frame[["task", "metric", "method", "subset", "lam", *sides, "difference", "low", "high", "verdict"]]


def compare(a: Result, b: Result, names: tuple[str, str] | None = None) -> Comparison:
    """Match rows by task, metric, part and method, with lambda and strength where a method has several; B less A.

    Args:
        a, b: two results, such as of two models or before and after a change.
        names: what to call them; by default their own names.

    Raises:
        InvalidInputError: no row is in both, or one result has two rows of the same names.
    """
    first, second = names or (a.name, b.name)
    sides = [told(one) for one in (a, b)]
    for one, side in zip((a, b), sides, strict=True):
        if len(twice := side[side.duplicated(KEYS)]):
            raise InvalidInputError(f"{one.name}: got the figure {tuple(twice[KEYS].iloc[0])} twice; expected it once")
    t = sides[1].merge(sides[0], on=KEYS, suffixes=("_b", "_a"))
    if t.empty:
        tasks = [list(side.task.unique()) for side in sides]
        raise InvalidInputError(
            f"got no figure in both {first!r} and {second!r}, of tasks {tasks[0]} and {tasks[1]}; "
            "expected two results of the same suite"
        )
    t = t.rename(columns={"value_a": "a", "value_b": "b"})
    t = t.rename(columns={f"{one}_b": one for one in ("method", "lam", "better", "whole", "measure")})
    t["difference"] = t.b - t.a
    t["low"] = t.difference - np.hypot(t.b - t.low_b, t.high_a - t.a)
    t["high"] = t.difference + np.hypot(t.high_b - t.b, t.a - t.low_a)
    moved = list(zip(t.difference, t.low, t.high, strict=True))
    equal = (t.a == t.b) & (t.low_a == t.low_b) & (t.high_a == t.high_b)
    t["verdict"] = [verdict(by, better) for by, better in zip(moved, t.better, strict=True)]
    t["moved"] = ["{:+.3f} [{:+.3f}, {:+.3f}]".format(*by) for by in moved]
    t.loc[equal, ["verdict", "moved"]] = ["equal", ""]
    there, only = set(t[KEYS].itertuples(index=False, name=None)), {}
    for called, side in zip((f"A, {first}", f"B, {second}"), sides, strict=True):
        alone = side[[key not in there for key in side[KEYS].itertuples(index=False, name=None)]]
        if len(alone):
            only[called] = [f"{r.task}: {r.measure}, {r.name}" for r in alone.itertuples()]
    return Comparison(first, second, t, only, tuple(dict.fromkeys(_notes(a, b))))


def _notes(a: Result, b: Result) -> Iterator[str]:
    """Yield what differs between two runs beyond the numbers."""

    def differing(where: str, what: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
        for name in dict.fromkeys([*one, *two]):
            if one.get(name) != two.get(name):
                said = [shortened(plain(side.get(name)), 90) for side in (one, two)]
                yield f"{where}: {what}{name.replace('_', ' ')} differs: {said[0]} in A, {said[1]} in B"

    yield from differing("the run", "", {"commit": a.commit}, {"commit": b.commit})
    yield from differing("the run", "version of ", a.versions, b.versions)
    there = {one.task: one for one in a.provenance}
    for two in (one for one in b.provenance if one.task in there):
        one = there[two.task]
        yield from differing(two.task, "", *({name: getattr(x, name) for name in CONVENTIONS} for x in (one, two)))
        mine, other = Fingerprint.of(one.fingerprint), Fingerprint.of(two.fingerprint)
        if mine is not None and not mine.matches(other):
            yield f"{two.task}: fingerprint of the weights differs"
        yield from differing(two.task, "setting ", one.settings, two.settings)
        yield from differing(two.task, "method ", one.methods, two.methods)
