"""Compare two results value by value, and list the settings that differ."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.errors import InvalidInputError, check_arguments, check_kind, shortened
from vldebias.measure.metric import get_metric
from vldebias.measure.rows import TaskProvenance
from vldebias.projection.fingerprint import Fingerprint
from vldebias.report.conclusion import (
    AT_A_COST,
    Conclusion,
    conclusions,
    with_costs,
)
from vldebias.report.page import plain, write_page
from vldebias.report.table import (
    FLOAT_NOISE,
    KEYS,
    TEMPLATES,
    form_of_figures,
    moved,
    number,
    readable,
    verdict,
)
from vldebias.report.text import MOST, NAME, wrapped
from vldebias.utils.json_values import JSON
from vldebias.utils.markup import html_table
from vldebias.utils.phrases import capitalised, listed_words, quantity

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.report.result import Result

COMPARED = (
    "Changes are B minus A. The runs are treated as independent, and half-widths are added in"
    " quadrature (MOVER, Zou and Donner 2008), so intervals are wider than paired ones. “Equal”"
    " means the same value and the same interval."
)
CLEAR = ("better", AT_A_COST, "worse", "changed")
SIDES = ["a", "low_a", "high_a", "b", "low_b", "high_b"]
WARNED = 3  # maximum number of differing settings to print
SHORT = 60  # the values of a setting are only printed if they are shorter together
CONCLUDED = 3  # maximum number of conclusions to print
HTML_ROWS = 8  # maximum number of rows to show in a notebook
# Smaller differences between two runs are ignored, because float32 sums depend on the order of
# summation, which varies with the machine and the number of threads.
RUN_NOISE = 1e-6
# Settings in order of importance. Differences in the first ones change what is being compared.
RANKED = (
    ("model", "dtype", "preprocessing"),
    ("k", "prior"),
    ("split", "n"),
    ("seed", "seeds", "images", "steps", "guidance", "resamples"),
    ("prompts", "methods", "lam", "strength"),
)
QUESTION = re.compile(rf", ({'|'.join([*RANKED[1], *RANKED[2]])})[,:] ")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """A comparison of two results, A and B.

    Attributes:
        names: the names of the two results.
        frame: one row for each measurement in both results, with the values `a` and `b`, their
            difference, the intervals and the verdict.
        only: measurements that appear in only one result, by "A, NAME" or "B, NAME".
        warnings: the settings that differ.
        conclusions: how each conclusion of the second result differs from the first.
    """

    names: tuple[str, str]
    frame: pd.DataFrame
    only: Mapping[str, list[str]]
    warnings: tuple[str, ...]
    conclusions: tuple[Conclusion, ...] = ()

    def __repr__(self) -> str:
        """Return a summary of changes and differing settings in at most 25 lines."""
        lines = wrapped(self._differences()) if self.warnings else []
        lines += wrapped(self.sentence)
        notes = []
        for name, values in self.only.items():
            counted = f"only in {name}: {quantity(len(values), 'value')}, such as"
            notes += wrapped(f"{counted} {shortened('; '.join(values[:2]), 120)}")
        if self.is_equal:
            return "\n".join([*lines, *notes])
        notes += wrapped(COMPARED)
        for conclusion in self.conclusions[:CONCLUDED]:
            if conclusion.verdict != "equal":
                lines += wrapped(conclusion.sentence)
        room = max(MOST - len(lines) - len(notes), 6)
        return "\n".join([*lines, *self._table(room), *notes])

    def _differences(self) -> str:
        """Return the number of differing settings and the most important ones."""
        count = len(self.warnings)
        listed = list(dict.fromkeys(map(_shortened_setting, self.warnings)))[:WARNED]
        words = "1 setting differs" if count == 1 else f"{count} settings differ"
        words += ", such as" if count > len(listed) else ":"
        # If the questions differ, so does the meaning of every verdict.
        is_other = any(QUESTION.search(warning) for warning in self.warnings)
        ending = ", so a change may come from them" if is_other else ""
        return f"{words} {listed_words(listed)}{ending}"

    def _repr_html_(self) -> str:
        """Return a summary for notebooks, with a collapsible list of differing settings."""
        listed = "".join(f"<li>{escape(change.sentence)}</li>" for change in self._changes())
        parts = [f"<p><b>{escape(self.sentence)}</b></p>"]
        if listed:
            parts.append(f"<ul>{listed}</ul>")
        if not self.is_equal:
            # Put clear changes first.
            changed = self._changed()
            is_unclear = ~changed.verdict.isin(CLEAR)
            ordered = changed.loc[is_unclear.sort_values(kind="stable").index]
            rows = []
            for row in ordered.head(HTML_ROWS).itertuples():
                changes = (*_sides_of(row), row.moved, row.cost, row.verdict)
                rows.append((row.task, row.measure, row.name, *changes))
            head = ("task", "measure", "method", *self.names, "change [95%]", "cost", "verdict")
            caption = f"{min(HTML_ROWS, len(ordered))} of {len(ordered)} values that changed"
            parts.append(html_table(caption, head, rows))
        if self.warnings:
            notes = "".join(f"<li>{escape(note)}</li>" for note in self.warnings)
            summary = f"<summary>{escape(self._differences())}</summary>"
            parts.append(f"<details>{summary}<ul>{notes}</ul></details>")
        return "\n".join(parts)

    @property
    def is_equal(self) -> bool:
        """Return whether no value changed by more than floating-point noise."""
        return set(self.frame.verdict) == {"equal"}

    @property
    def sentence(self) -> str:
        """Return a sentence with the number of changed values and the largest change."""
        name_a, name_b = self.names
        sides = f"A ({name_a}) to B ({name_b})"
        total = quantity(len(self.frame), "value")
        if self.is_equal:
            return f"equal: no change from {sides} in {total} that both contain"
        verdicts = self.frame.verdict.value_counts()
        counts = f"{total} in both: {_counted(verdicts)}"
        clear = self.frame[self.frame.verdict.isin(CLEAR)]
        if not clear.is_of_texts.all():
            clear = clear[~clear.is_of_texts]
        summaries = clear[clear.is_summary] if clear.is_summary.any() else clear
        if summaries.empty:
            return f"no clear change from {sides}; {counts}"
        # Exact values have intervals of width 0, so this ranks their changes first.
        width = np.maximum(summaries.high - summaries.low, FLOAT_NOISE)
        largest = summaries.loc[(summaries.difference.abs() / width).idxmax()]
        name = largest["name"]
        a, b = _sides_of(largest)
        return (
            f"{largest.verdict}: {largest.measure} of {largest.task} with {name} changes from"
            f" {a} in A ({name_a}) to {b} in B ({name_b}); {counts}"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per shared measurement, with values, difference, cost and verdict."""
        names = ["task", "metric", "method", "subset", "lam"]
        return self.frame[[*names, *SIDES, "difference", "low", "high", "cost", "verdict"]]

    def to_dict(self) -> dict[str, JSON]:
        """Return the comparison as JSON values, as printed by `vldebias eval compare --json`."""
        frame = self.to_pandas()
        figures = frame.astype(object).where(frame.notna(), None)
        return {
            "conclusions": [conclusion.model_dump(mode="json") for conclusion in self.conclusions],
            "sentence": self.sentence,
            "a": self.names[0],
            "b": self.names[1],
            "warnings": list(self.warnings),
            "only": dict(self.only),
            "figures": figures.to_dict("records"),
        }

    def write_page(self, path: str | os.PathLike[str]) -> Path:
        """Write the comparison as a single HTML page.

        Args:
            path: the HTML file to write.
        """
        changed = self._changed()
        parts = self.frame[(self.frame.verdict != "equal") & ~self.frame.index.isin(changed.index)]
        values = {
            "names": self.names,
            "sentence": self.sentence,
            "differences": self._differences(),
            "conclusions": self._changes(),
            "warnings": self.warnings,
            "only": self.only,
            "changed": _groups(changed),
            "parts": _groups(parts),
            "equal": int((self.frame.verdict == "equal").sum()),
            "about": COMPARED,
        }
        return write_page(Path(path), TEMPLATES / "compare.html.jinja", values)

    def _changes(self) -> list[Conclusion]:
        """Return the conclusions about a difference."""
        return [conclusion for conclusion in self.conclusions if conclusion.verdict != "equal"]

    def _changed(self) -> pd.DataFrame:
        """Return the rows that changed: those for entire tasks or, if there are none, all."""
        changed = self.frame[self.frame.verdict != "equal"]
        return changed[changed.is_summary] if changed.is_summary.any() else changed

    def _table(self, room: int) -> list[str]:
        """Format the changed rows with their values and verdicts in at most `room` lines."""
        changed = self._changed()
        lines = ["values, and changes with 95% intervals"]
        remaining = Counter(self.frame.verdict)
        del remaining["equal"]
        for (task, measure), rows in changed.groupby(["task", "measure"], sort=False):
            head = wrapped(f"{task}: {measure}{rows.hint.iloc[0]}")
            # Show entire blocks, unless the first one is too long.
            if len(lines) + len(head) + (len(rows) if len(lines) > 1 else 1) >= room:
                break
            lines += head
            for row in rows.head(room - len(lines) - 1).itertuples():
                a, b = _sides_of(row)
                sides = f"A {a:<6} B {b:<6}"
                lines.append(f"  {row.name:<{NAME}} {sides} {row.moved:<23} {row.verdict}")
                remaining[row.verdict] -= 1
                if row.verdict == AT_A_COST and len(lines) < room - 1:
                    lines.append(f"    cost: {row.cost}")
        counts = _counted(+remaining)
        return [*lines, f"more in to_pandas(): {counts}"] if counts else lines


def _shortened_setting(warning: str) -> str:
    """Shorten "search, k: 100 in A, 150 in B" to "k (100, 150)", and long values to "k"."""
    setting, _, values = warning.partition(": ")
    a, _, rest = values.partition(" in A, ")
    if not rest.endswith(" in B"):
        return warning
    name, b = setting.rpartition(", ")[2], rest.removesuffix(" in B")
    return f"{name} ({a}, {b})" if len(a) + len(b) < SHORT else name


def _counted(count_of_verdict: Mapping[str, int]) -> str:
    """List the number of rows with each verdict, such as "3 equal, 1 better"."""
    return ", ".join(
        f"{count:,} {name.replace(',', '')}" for name, count in count_of_verdict.items()
    )


def _groups(frame: pd.DataFrame) -> list[list[Any]]:
    """Return the rows of each measure, with both values and their intervals as text."""
    numbers_a = map(number, frame.a, frame.low_a, frame.high_a)
    numbers_b = map(number, frame.b, frame.low_b, frame.high_b)
    shown = frame.assign(number_a=list(numbers_a), number_b=list(numbers_b))
    measures = shown.groupby(["task", "measure"], sort=False)
    return [list(rows.itertuples()) for _, rows in measures]


def _opened(result: Result | str | os.PathLike[str]) -> Result:
    """Return a result, which may be given as the path of its file or folder."""
    from vldebias.report.result import Result

    if isinstance(result, Result):
        return result
    check_kind("compare", result, str | os.PathLike, "two results or paths of results")
    path = Path(result)
    if path.is_dir():
        path /= "result.json"
    if not path.is_file():
        raise InvalidInputError(
            f"{path}: no such file; expected a result, which `vldebias eval run` writes, or its"
            " folder"
        )
    return Result.read(path)


@check_arguments()
def compare(
    a: Result | str | os.PathLike[str],
    b: Result | str | os.PathLike[str],
    names: tuple[str, str] | None = None,
) -> Comparison:
    """Compare two results, for example from two models, or before and after a change.

    Rows are matched by task, metric, subset and method, and also by lambda and strength if a
    method was measured with several values. Differences are B minus A.

    See also docs/how-to/runs.md.

    Args:
        a: the first result, or the path of its `result.json` or folder.
        b: the second result.
        names: the names to show for the two results. Default: the results' own names.

    Returns:
        The comparison. Printing it shows its conclusions, and `to_pandas` returns a row for each
        measurement that both results contain.

    Raises:
        InvalidInputError: If a path contains no result, the results have no measurement in common,
            or one of them contains the same measurement twice.

    >>> import vldebias
    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> def measure(lam):
    ...     return vldebias.evaluate(model, attribute="gender", task="texts", method="cali",
    ...         lam=lam, tokenizer=tokenizer)
    >>> comparison = compare(measure(10.0), measure(1000.0), names=("10", "1000"))
    >>> table = comparison.to_pandas().query("method == 'cali'")
    >>> table[["subset", "a", "b"]].round(2).values.tolist()
    [['train', 0.14, 0.02], ['unseen', 0.14, 0.02]]
    """
    a, b = _opened(a), _opened(b)
    names = names or (a.name, b.name)
    sides = (f"A, {names[0]}", f"B, {names[1]}")
    first = _keyed(readable(a), sides[0])
    frame_b = readable(b)
    second = _keyed(frame_b, sides[1])
    shared = second.index.intersection(first.index, sort=False)
    if shared.empty:
        raise InvalidInputError(
            "cannot compare results without a common measurement: A contains the tasks"
            f" {list(first.task.unique())}, and B contains {list(second.task.unique())}. Compare"
            " two results of the same suite"
        )
    conclusions_of_b = conclusions(frame_b)
    frame = with_costs(_joined(first.loc[shared], second.loc[shared]), conclusions_of_b)
    only = {}
    for name, side in zip(sides, (first, second), strict=True):
        # Report these rows, because a method that is missing from one run may have got worse.
        rest = side[~side.index.isin(shared)]
        if len(rest):
            only[name] = [f"{row.task}: {row.measure}, {row.name}" for row in rest.itertuples()]
    warnings = tuple(dict.fromkeys(_notes(a, b)))
    changes = tuple(_concluded(frame, conclusions_of_b))
    return Comparison(names, frame, only, warnings, changes)


def _keyed(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Index a readable frame by the columns that identify a row."""
    keyed = frame.set_index([*KEYS, "name"], drop=False)
    repeated = keyed.index[keyed.index.duplicated()]
    if len(repeated):
        raise InvalidInputError(
            f"{name} contains the measurement {repeated[0]} twice; remove one of the rows"
        )
    return keyed


def _joined(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Combine matching rows, and add the difference of their values and its verdict."""
    first = first.reset_index(drop=True)
    frame = second.reset_index(drop=True)
    frame = frame.assign(a=first.value, low_a=first.low, high_a=first.high)
    frame = frame.assign(b=frame.value, low_b=frame.low, high_b=frame.high)
    # The lower bound of B - A depends on the lower bound of B and the upper bound of A, whose
    # distances from the values are added in quadrature.
    frame["difference"] = frame.b - frame.a
    frame["low"] = frame.difference - np.hypot(frame.b - frame.low_b, frame.high_a - frame.a)
    frame["high"] = frame.difference + np.hypot(frame.high_b - frame.b, frame.a - frame.low_a)
    changes = list(zip(frame.difference, frame.low, frame.high, strict=True))
    # The cost of a method is also the change from A to B, not the change from no method.
    frame[["change", "change_low", "change_high"]] = changes
    frame["verdict"] = list(map(verdict, changes, frame.better))
    frame["moved"] = [moved(change) for change in changes]
    differences = [frame.a - frame.b, frame.low_a - frame.low_b, frame.high_a - frame.high_b]
    # Also compare the intervals, because different images may have the same value by coincidence.
    is_equal = np.abs(differences).max(axis=0) <= RUN_NOISE
    frame.loc[is_equal, ["verdict", "moved"]] = ["equal", ""]
    # List distances between prompts last, since they do not measure a search, classifier or image.
    metrics = {name: get_metric(name, strict=False) for name in frame.metric.unique()}
    frame["is_of_texts"] = [metrics[name].reads == "texts" for name in frame.metric]
    return frame.sort_values("is_of_texts", kind="stable", ignore_index=True)


def _sides_of(row: Any) -> tuple[str, str]:
    """Format both values in a row from `_joined` with as many digits as their difference."""
    form = form_of_figures(row.b, (row.difference, row.low, row.high))
    return f"{row.a:z{form}}", f"{row.b:z{form}}"  # z: no negative zero


def _concluded(frame: pd.DataFrame, conclusions_of_b: Sequence[Conclusion]) -> Iterator[Conclusion]:
    """Yield a conclusion about the change for each question that both results answer."""
    rows = list(frame.itertuples())
    for conclusion in conclusions_of_b:
        task, method, measure = conclusion.task, conclusion.method, conclusion.measure
        block = [row for row in rows if (row.task, row.name) == (task, method)]
        measured = (conclusion.metric, conclusion.subset)
        answers = [row for row in block if (row.metric, row.subset) == measured]
        if not answers:
            continue
        row = answers[0]
        change = (row.difference, row.low, row.high)
        costs = []
        for utility in block:
            if utility.kind == "utility" and utility.is_summary and utility.verdict in CLEAR:
                costs.append(f"{utility.title} {utility.verdict}, {utility.moved}")
        cost = "; ".join(costs) or "no clear change of any utility"
        value_a, value_b = _sides_of(row)
        title = f"{conclusion.everyday} ({measure})" if conclusion.everyday else measure
        sentence = (
            f"{task}: {row.verdict}. {capitalised(title)} with {conclusion.words} is"
            f" {value_a} in A and {value_b} in B ({moved(change)}). Cost: {cost}."
        )
        yield conclusion.model_copy(
            update={
                "question": f"How did the {measure} of {task} with {method} change?",
                "before": row.a,
                "after": row.b,
                "interval": (row.low_b, row.high_b),
                "change": change,
                "cost": cost,
                **dict.fromkeys(("paper", "on_val", "baseline", "worse"), ""),
                "enough": None,
                "verdict": row.verdict,
                "sentence": sentence,
            }
        )


def _notes(a: Result, b: Result) -> list[str]:
    """Describe the settings that differ between two runs, most important first."""
    notes: list[tuple[int, str]] = []
    provenance_of_task = {provenance.task: provenance for provenance in a.provenance}
    for provenance in b.provenance:
        before = provenance_of_task.get(provenance.task)
        if before is None:
            continue
        notes += _differing((provenance.task,), _settings_of(before), _settings_of(provenance))
        if not before.fingerprint or not provenance.fingerprint:
            continue
        # `matches` tolerates rounding, so weights stored in half precision match the originals.
        weights = Fingerprint(**before.fingerprint)
        if not weights.matches(Fingerprint(**provenance.fingerprint)):
            notes.append((0, f"{provenance.task}: fingerprint of the weights differs"))
    first, second = (side.model_dump(include={"commit", "versions"}) for side in (a, b))
    notes += _differing(("the run",), first, second)
    return [note for _, note in sorted(notes, key=lambda ranked: ranked[0])]


def _settings_of(provenance: TaskProvenance) -> dict[str, object]:
    """Return a task's settings without descriptive fields such as titles and colours."""
    return provenance.model_dump(
        exclude={
            "task": True,
            "title": True,
            "description": True,
            "fingerprint": True,
            "methods": {"__all__": {"title", "color"}},
        }
    )


def _differing(path: tuple[str, ...], a: object, b: object) -> Iterator[tuple[int, str]]:
    """Yield the rank and a description of each setting that differs.

    If only one run contains a group of settings, the group is described in one line. Methods that
    are missing from one of the runs are skipped, since their values are listed separately.

    Args:
        path: the names of the task and the enclosing settings.
        a: the value in the first run, or a mapping of nested settings.
        b: the corresponding value or mapping in the second run.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in dict.fromkeys([*a, *b]):
            is_in_one = name not in a or name not in b
            if not (is_in_one and path[-1] == "methods"):
                yield from _differing((*path, str(name)), a.get(name), b.get(name))
        return
    words_a = _in_words(a)
    words_b = _in_words(b)
    if words_a != words_b:
        # Truncate long values, such as query lists, so that the first difference remains visible.
        place = 0
        while words_a[place : place + 1] == words_b[place : place + 1]:
            place += 1
        start = place - 20 if place > 60 else 0
        dots = "..." if start else ""
        shown_a, shown_b = (dots + shortened(words[start:], 90) for words in (words_a, words_b))
        yield _rank(path[1:]), f"{', '.join(path)}: {shown_a} in A, {shown_b} in B"


def _in_words(value: object) -> str:
    """Format a setting, without listing nested settings."""
    if value is None:  # the setting does not exist in one of the versions
        return "not recorded"
    if isinstance(value, Mapping):
        return "settings" if value else "no settings"
    return plain(value)


def _rank(names: Sequence[str]) -> int:
    """Return a setting's rank. Differences in settings with a lower rank are more important."""
    last = names[-1]
    if re.search(r"hash|fingerprint|sha256|tensors|structure", ", ".join(names)):
        return 9
    if names[0] in ("commit", "versions"):
        return 8
    for rank, leading in enumerate(RANKED):
        if last in leading or names[0] in leading:
            return rank
    return 7
