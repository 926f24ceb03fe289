"""Compare two results figure by figure, and say what else differs between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.errors import InvalidInputError, shortened
from vldebias.measure.metric import get_metric
from vldebias.measure.rows import TaskProvenance
from vldebias.projection.edit import Fingerprint
from vldebias.report.conclusion import Conclusion, article_of_method, conclusions
from vldebias.report.page import plain
from vldebias.report.phrases import capitalised, quantity
from vldebias.report.table import FLOAT_NOISE, KEYS, form_of_figures, moved, readable, verdict
from vldebias.report.text import MOST, NAME, wrapped
from vldebias.utils.markup import html_table

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.report.result import Result

COMPARED = (
    "Changes are B less A, of two runs taken for independent: half-widths are added in squares"
    " (MOVER, Zou and Donner 2008), wider than a paired interval. “Equal” figures are the same"
    " number with the same interval."
)
CLEAR = ("better", "worse", "changed")
SIDES = ["a", "low_a", "high_a", "b", "low_b", "high_b"]
WARNED = 3  # differences of the runs, in print
CONCLUDED = 3  # conclusions, in print
HTML_ROWS = 8  # figures that a notebook shows
# Values of two runs that differ by less are equal: they are sums of float32, whose order another
# machine or number of threads changes.
RUN_NOISE = 1e-6
# Settings by what a difference in them means, first those that ask something else.
RANKED = (
    ("model", "dtype", "preprocessing"),
    ("k", "prior"),
    ("split", "n"),
    ("seed", "seeds", "images", "steps", "guidance", "resamples"),
    ("prompts", "methods", "lam", "strength"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Hold two results side by side.

    names: what they are called. frame: a row for each figure that both have: its names, the values
    a and b with their intervals, difference, low, high and verdict. only: what one of them has
    alone, by "A, its name" and "B, its name". warnings: what differs beyond the figures.
    conclusions: what moved in each question that the second result answers.
    """

    names: tuple[str, str]
    frame: pd.DataFrame
    only: Mapping[str, list[str]]
    warnings: tuple[str, ...]
    conclusions: tuple[Conclusion, ...] = ()

    def __repr__(self) -> str:
        """Return whether the two are equal or what moved, what was measured otherwise, and a table
        of the figures that moved, as text of at most 25 lines."""
        lines = wrapped(self.sentence)
        if self.warnings:
            lines += wrapped(self._differences())
        notes = []
        for name, figures in self.only.items():
            counted = f"only in {name}: {quantity(len(figures), 'figure')}, such as"
            notes += wrapped(f"{counted} {shortened('; '.join(figures[:2]), 120)}")
        if self.is_equal:
            return "\n".join([*lines, *notes])
        notes += wrapped(COMPARED)
        for conclusion in self.conclusions[:CONCLUDED]:
            if conclusion.verdict != "equal":
                lines += wrapped(conclusion.sentence)
        room = max(MOST - len(lines) - len(notes), 6)
        return "\n".join([*lines, *self._table(room), *notes])

    def _differences(self) -> str:
        """Write how many settings differ, and the first of them, which change what was asked."""
        count = len(self.warnings)
        listed = "; ".join(self.warnings[:WARNED])
        if count == 1:
            return f"1 setting differs: {listed}"
        words = f"{count} settings differ, so read this with care: {listed}"
        if count > WARNED:
            words += f"; {count - WARNED} more"
        return words

    def _repr_html_(self) -> str:
        """Return what a notebook shows: whether the two are equal or what moved, the figures that
        moved, and what was measured otherwise, folded."""
        found = [found.sentence for found in self.conclusions if found.verdict != "equal"]
        listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in found)
        parts = [f"<p><b>{escape(self.sentence)}</b></p>"]
        if listed:
            parts.append(f"<ul>{listed}</ul>")
        if not self.is_equal:
            # The figures that moved, those with a clear change first.
            changed = self.frame[self.frame.verdict != "equal"]
            changed = changed[changed.is_whole] if changed.is_whole.any() else changed
            is_unclear = ~changed.verdict.isin(CLEAR)
            ordered = changed.loc[is_unclear.sort_values(kind="stable").index]
            rows = []
            for row in ordered.head(HTML_ROWS).itertuples():
                sides = _sides_of(row)
                rows.append((row.task, row.measure, row.name, *sides, row.moved, row.verdict))
            head = ("task", "measure", "method", *self.names, "change [95 %]", "verdict")
            caption = f"{min(HTML_ROWS, len(ordered))} of {len(ordered)} figures that moved"
            parts.append(html_table(caption, head, rows))
        if self.warnings:
            notes = "".join(f"<li>{escape(note)}</li>" for note in self.warnings)
            count = len(self.warnings)
            summary = "1 setting differs" if count == 1 else f"{count} settings differ"
            parts.append(f"<details><summary>{summary}</summary><ul>{notes}</ul></details>")
        return "\n".join(parts)

    @property
    def is_equal(self) -> bool:
        """Return whether no figure moved beyond float noise."""
        return set(self.frame.verdict) == {"equal"}

    @property
    def sentence(self) -> str:
        """Return "equal", or how many figures moved and which one most, in a sentence."""
        name_a, name_b = self.names
        sides = f"A ({name_a}) to B ({name_b})"
        total = quantity(len(self.frame), "figure")
        if self.is_equal:
            return f"equal: nothing moved from {sides} in {total} that both have"
        verdicts = self.frame.verdict.value_counts()
        listed = ", ".join(f"{count} {name}" for name, count in verdicts.items())
        counts = f"{total} in both: {listed}"
        clear = self.frame[self.frame.verdict.isin(CLEAR)]
        of_images = clear[~clear.is_of_texts]
        if len(of_images):
            clear = of_images
        wholes = clear[clear.is_whole] if clear.is_whole.any() else clear
        if wholes.empty:
            return f"no clear change from {sides}; {counts}"
        # An exact value has no interval, and moved as far as any.
        width = np.maximum(wholes.high - wholes.low, FLOAT_NOISE)
        furthest = wholes.loc[(wholes.difference.abs() / width).idxmax()]
        name = furthest["name"]
        a, b = _sides_of(furthest)
        return (
            f"{furthest.verdict}: {furthest.measure} of {furthest.task} with {name} goes from"
            f" {a} in A ({name_a}) to {b} in B ({name_b}); {counts}"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return names, both values with their intervals, difference and verdict, a row per shared
        figure."""
        names = ["task", "metric", "method", "subset", "lam"]
        return self.frame[[*names, *SIDES, "difference", "low", "high", "verdict"]]

    def to_dict(self) -> dict[str, Any]:
        """Return what `vldebias eval compare --json` prints."""
        frame = self.to_pandas()
        figures = frame.astype(object).where(frame.notna(), None)
        return {
            "conclusions": [found.model_dump(mode="json") for found in self.conclusions],
            "sentence": self.sentence,
            "a": self.names[0],
            "b": self.names[1],
            "warnings": list(self.warnings),
            "only": dict(self.only),
            "figures": figures.to_dict("records"),
        }

    def _table(self, room: int) -> list[str]:
        """Return at most `room` lines with what moved: both values, the change and the verdict."""
        changed = self.frame[self.frame.verdict != "equal"]
        changed = changed[changed.is_whole] if changed.is_whole.any() else changed
        lines = ["values, and changes with 95 % intervals"]
        remaining = Counter(self.frame.verdict)
        del remaining["equal"]
        for (task, measure), rows in changed.groupby(["task", "measure"], sort=False):
            head = wrapped(f"{task}: {measure}{rows.hint.iloc[0]}")
            if len(lines) + len(head) + 1 >= room:
                break
            lines += head
            for row in rows.head(room - len(lines) - 1).itertuples():
                a, b = _sides_of(row)
                sides = f"A {a:<8} B {b:<8}"
                lines.append(f"  {row.name:<{NAME}} {sides} {row.moved:<23} {row.verdict}")
                remaining[row.verdict] -= 1
        counts = [f"{count} {name}" for name, count in remaining.items() if count]
        return [*lines, f"more in to_pandas(): {', '.join(counts)}"] if counts else lines


def compare(a: Result, b: Result, names: tuple[str, str] | None = None) -> Comparison:
    """Match rows by task, metric, part and method, with lambda and strength where a method has
    several; B less A.

    a, b: two results, such as of two models or before and after a change. names: what to call them.

    Raises:
        InvalidInputError: no row is in both, or two rows of one of them have the same names.

    >>> before = vldebias.evaluate(model, images, prompts="gender")  # doctest: +SKIP
    >>> after = vldebias.evaluate(tuned, images, prompts="gender")  # doctest: +SKIP
    >>> print(compare(before, after, names=("before", "after")))  # doctest: +SKIP
    """
    names = names or (a.name, b.name)
    sides = (f"A, {names[0]}", f"B, {names[1]}")
    first = _keyed(readable(a), sides[0])
    frame_b = readable(b)
    second = _keyed(frame_b, sides[1])
    shared = second.index.intersection(first.index, sort=False)
    if shared.empty:
        raise InvalidInputError(
            f"got no figure in both: A has tasks {list(first.task.unique())}, B"
            f" {list(second.task.unique())}; expected two results of the same suite"
        )
    frame = _joined(first.loc[shared], second.loc[shared])
    only = {}
    for name, side in zip(sides, (first, second), strict=True):
        # Never dropped in silence: a method that one run lacks may be the one that got worse.
        rest = side[~side.index.isin(shared)]
        if len(rest):
            only[name] = [f"{row.task}: {row.measure}, {row.name}" for row in rest.itertuples()]
    warnings = tuple(dict.fromkeys(_notes(a, b)))
    found = conclusions(frame_b)
    return Comparison(names, frame, only, warnings, tuple(_concluded(frame, found)))


def _keyed(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a readable frame by the names of its rows."""
    keyed = frame.set_index([*KEYS, "name"], drop=False)
    repeated = keyed.index[keyed.index.duplicated()]
    if len(repeated):
        raise InvalidInputError(f"{name}: got the figure {repeated[0]} twice; expected it once")
    return keyed


def _joined(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the second with the values of both, their difference and its verdict."""
    first = first.reset_index(drop=True)
    frame = second.reset_index(drop=True)
    frame = frame.assign(a=first.value, low_a=first.low, high_a=first.high)
    frame = frame.assign(b=frame.value, low_b=frame.low, high_b=frame.high)
    # The difference is lowest where B is low and A is high: half-widths of these two sides are
    # added in squares.
    frame["difference"] = frame.b - frame.a
    frame["low"] = frame.difference - np.hypot(frame.b - frame.low_b, frame.high_a - frame.a)
    frame["high"] = frame.difference + np.hypot(frame.high_b - frame.b, frame.a - frame.low_a)
    changes = list(zip(frame.difference, frame.low, frame.high, strict=True))
    frame["verdict"] = list(map(verdict, changes, frame.better))
    frame["moved"] = [moved(change) for change in changes]
    differences = [frame.a - frame.b, frame.low_a - frame.low_b, frame.high_a - frame.high_b]
    # Value and both ends: the same value from other images is not the same figure.
    is_equal = np.abs(differences).max(axis=0) <= RUN_NOISE
    frame.loc[is_equal, ["verdict", "moved"]] = ["equal", ""]
    # Distances between texts search, classify and generate nothing: they come last.
    metrics = {name: get_metric(name, strict=False) for name in frame.metric.unique()}
    frame["is_of_texts"] = [metrics[name].reads == "texts" for name in frame.metric]
    return frame.sort_values("is_of_texts", kind="stable", ignore_index=True)


def _sides_of(row: Any) -> tuple[str, str]:
    """Write both values of a row of `_joined` with the digits of their difference."""
    form = form_of_figures(row.b, (row.difference, row.low, row.high))
    return f"{row.a:{form}}", f"{row.b:{form}}"


def _concluded(frame: pd.DataFrame, conclusions_of_b: Sequence[Conclusion]) -> Iterator[Conclusion]:
    """Yield what moved in each question that the second run answers, where both answer it."""
    rows = list(frame.itertuples())
    for found in conclusions_of_b:
        block = [row for row in rows if (row.task, row.name) == (found.task, found.method)]
        measured = (found.metric, found.subset)
        answers = [row for row in block if (row.metric, row.subset) == measured]
        if not answers:
            continue
        row = answers[0]
        costs = []
        for paid in block:
            if paid.kind == "utility" and paid.is_whole and paid.verdict in CLEAR:
                costs.append(f"{paid.title} {paid.verdict}, {paid.moved}")
        facts: dict[str, Any] = {
            "question": f"What moved in the {found.measure} of {found.task} with {found.method}?",
            "before": row.a,
            "after": row.b,
            "interval": (row.low_b, row.high_b),
            "change": (row.difference, row.low, row.high),
            "cost": "; ".join(costs) or "no clear change of any utility",
            "paper": "",
            "on_val": "",
            "baseline": "",
            "worse": "",
            "enough": None,
            "verdict": row.verdict,
        }
        value_a, value_b = _sides_of(row)
        facts["sentence"] = (
            f"{found.task}: {row.verdict}. {capitalised(found.measure)} with"
            f" {article_of_method(found.method)} is {value_a} in A and {value_b} in B"
            f" ({moved(facts['change'])})."
            f" Cost: {facts['cost']}."
        )
        yield found.model_copy(update=facts)


def _notes(a: Result, b: Result) -> list[str]:
    """Return what differs between two runs beyond the numbers, first what changes the question."""
    notes: list[tuple[int, str]] = []
    provenance_of_task = {provenance.task: provenance for provenance in a.provenance}
    for provenance in b.provenance:
        before = provenance_of_task.get(provenance.task)
        if before is None:
            continue
        notes += _differing((provenance.task,), _settings_of(before), _settings_of(provenance))
        if not before.fingerprint or not provenance.fingerprint:
            continue
        # By `matches`, which allows for rounding: the same weights in half precision are no other
        # model.
        weights = Fingerprint(**before.fingerprint)
        if not weights.matches(Fingerprint(**provenance.fingerprint)):
            notes.append((0, f"{provenance.task}: fingerprint of the weights differs"))
    first, second = (side.model_dump(include={"commit", "versions"}) for side in (a, b))
    notes += _differing(("the run",), first, second)
    return [note for _, note in sorted(notes, key=lambda ranked: ranked[0])]


def _settings_of(provenance: TaskProvenance) -> dict[str, Any]:
    """Return what a task was measured with, without its words and looks."""
    left_out: Any = dict.fromkeys(("task", "title", "description", "fingerprint"), True)
    left_out["methods"] = {"__all__": {"title", "color"}}
    return provenance.model_dump(exclude=left_out)


def _differing(path: tuple[str, ...], a: object, b: object) -> Iterator[tuple[int, str]]:
    """Yield rank and words of each setting in which two differ.

    path: the task and the names of the settings around. A whole branch that one of them lacks is
    one note; a method that one of them lacks is none, since its figures are named by themselves.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in dict.fromkeys([*a, *b]):
            is_of_one = name not in a or name not in b
            if not (is_of_one and path[-1] == "methods"):
                yield from _differing((*path, str(name)), a.get(name), b.get(name))
        return
    # A setting that one version did not have is not recorded there.
    words_a = _in_words(a)
    words_b = _in_words(b)
    if words_a != words_b:
        # Long ones, such as lists of queries, are shown from shortly before they differ.
        place = 0
        while words_a[place : place + 1] == words_b[place : place + 1]:
            place += 1
        start = place - 20 if place > 60 else 0
        dots = "..." if start else ""
        shown_a = dots + shortened(words_a[start:], 90)
        shown_b = dots + shortened(words_b[start:], 90)
        yield _rank(path[1:]), f"{', '.join(path)}: {shown_a} in A, {shown_b} in B"


def _in_words(value: object) -> str:
    """Write a setting in words; of nested ones only whether there are some."""
    if value is None:
        return "not recorded"
    if isinstance(value, Mapping):
        return "settings" if value else "no settings"
    return plain(value)


def _rank(names: Sequence[str]) -> int:
    """Return the place of a setting in the list of differences: those that change the question
    come first."""
    last = names[-1]
    if re.search(r"hash|fingerprint|sha256|tensors|structure", ", ".join(names)):
        return 9
    if names[0] in ("commit", "versions"):
        return 8
    for rank, leading in enumerate(RANKED):
        if last in leading or names[0] in leading:
            return rank
    return 7
