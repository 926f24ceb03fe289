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
KEYS = ["task", "metric", "subset", "name"]  # the name of a method says lambda and strength where it has several
OUTSIDE = {"task", "title", "description", "fingerprint"}  # of a provenance: not compared by their text


@dataclass(frozen=True, eq=False, repr=False)
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
        counts = self.frame.verdict.value_counts().items()
        out = [f"Of {len(self.frame)} figures that both have, in B: {', '.join(f'{n} {name}' for name, n in counts)}."]
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
    sides = {f"A, {first}": told(a), f"B, {second}": told(b)}
    for called, side in sides.items():
        if len(twice := side[side.duplicated(KEYS)]):
            raise InvalidInputError(f"{called}: got the figure {tuple(twice[KEYS].iloc[0])} twice; expected it once")
    one, two = sides.values()
    t = two.merge(one, on=KEYS, suffixes=("_b", "_a"))
    if t.empty:
        raise InvalidInputError(
            f"got no figure in both: A has tasks {list(one.task.unique())}, B {list(two.task.unique())}; "
            "expected two results of the same suite"
        )
    t = t.rename(columns={"value_a": "a", "value_b": "b"})
    t = t.rename(columns={f"{name}_b": name for name in ("method", "lam", "better", "whole", "measure")})
    t["difference"] = t.b - t.a
    t["low"] = t.difference - np.hypot(t.b - t.low_b, t.high_a - t.a)
    t["high"] = t.difference + np.hypot(t.high_b - t.b, t.a - t.low_a)
    moved = list(zip(t.difference, t.low, t.high, strict=True))
    t["verdict"] = [verdict(by, better) for by, better in zip(moved, t.better, strict=True)]
    t["moved"] = ["{:+.3f} [{:+.3f}, {:+.3f}]".format(*by) for by in moved]
    equal = (t.a == t.b) & (t.low_a == t.low_b) & (t.high_a == t.high_b)
    t.loc[equal, ["verdict", "moved"]] = ["equal", ""]
    alone = {called: side.merge(t[KEYS], "left", KEYS, indicator="there") for called, side in sides.items()}
    alone = {called: side[side.there == "left_only"] for called, side in alone.items()}
    only = {called: [f"{r.task}: {r.measure}, {r.name}" for r in side.itertuples()] for called, side in alone.items()}
    notes = tuple(dict.fromkeys(_notes(a, b)))
    return Comparison(first, second, t, {called: some for called, some in only.items() if some}, notes)


def _notes(a: Result, b: Result) -> Iterator[str]:
    """Yield what differs between two runs beyond the numbers."""

    def differing(where: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
        for name in dict.fromkeys([*one, *two]):
            x, y = one.get(name), two.get(name)
            if isinstance(x, Mapping) and isinstance(y, Mapping):
                yield from differing(f"{where}, {name}", x, y)
            elif x != y:
                yield f"{where}: {name} differs: {shortened(plain(x), 90)} in A, {shortened(plain(y), 90)} in B"

    yield from differing("the run", *({"commit": one.commit, "versions": one.versions} for one in (a, b)))
    there = {one.task: one for one in a.provenance}
    for one, two in ((there[two.task], two) for two in b.provenance if two.task in there):
        yield from differing(two.task, one.model_dump(exclude=OUTSIDE), two.model_dump(exclude=OUTSIDE))
        mine, other = Fingerprint.of(one.fingerprint), Fingerprint.of(two.fingerprint)
        if mine is not None and not mine.matches(other):
            yield f"{two.task}: fingerprint of the weights differs"
