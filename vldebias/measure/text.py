"""Show a result in a terminal: the conclusions, then the rows that they rest on."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from vldebias.measure.conclusion import Conclusion, conclusions
from vldebias.measure.rows import CHANCE, COLUMNS
from vldebias.measure.table import DAGGER, Measures, named, readable

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.measure.result import Result

LABELS = f"{DAGGER} was given labels of training images; the other methods see prompts only."
NAME = 16  # columns of the name of a method, so that a row fits in 80
MOST = 25  # lines


def text(result: Result, measures: Measures = (), most: int = MOST, width: int = 80) -> str:
    """Return the conclusions and the rows that they rest on, as text of at most `most` lines.

    measures: (task, metric) to show; all of them where none is named. width: columns.
    """
    frame = readable(result)
    found = conclusions(frame, result.provenance, measures)
    shown = [f"{result.name}: values and changes from none, with 95 % intervals"]
    for conclusion in found:
        shown += wrapped(conclusion.sentence, width)
    wholes = named(frame[frame.whole], measures)
    notes = [LABELS] if wholes.uses_labels.any() else []
    shown = shown[: most - 1 - len(notes)]
    room = most - len(shown) - len(notes) - 1
    rows = _rows(wholes, found, max(room, 0))
    left = len(frame) - sum(line.startswith("  ") for line in rows)
    if left > 0:
        notes.append(f"{left} more figures: to_pandas(), plot(), write()")
    return "\n".join([*shown, *rows, *notes])


def wrapped(sentence: str, width: int = 80) -> list[str]:
    """Return a sentence as lines, without breaking a word."""
    broken = fill(
        sentence, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return broken.split("\n")


def _rows(wholes: pd.DataFrame, found: list[Conclusion], room: int) -> list[str]:
    """Return at most `room` lines with the rows of each measure under its name: those of the
    conclusions first, then the first measure of every task, and so on."""
    concluded = {(conclusion.task, conclusion.measure) for conclusion in found}
    # Every conclusion has its rows, if few of them.
    most = max(room // max(len(found), 1) - 1, 2)
    keys = list(zip(wholes.task, wholes.measure, strict=True))
    places = wholes.groupby("task").measure.transform(lambda measures: measures.factorize()[0]) + 1
    places = places.where([key not in concluded for key in keys], 0)
    ordered = wholes.assign(place=places).sort_values("place", kind="stable")
    lines: list[str] = []
    for (_, task, measure), rows in ordered.groupby(["place", "task", "measure"], sort=False):
        lines.append(f"{task}: {measure}{rows.hint.iloc[0]}")
        for row in rows.head(most).itertuples():
            name = row.name if len(row.name) <= NAME else f"{row.name}\n{'':{NAME + 2}}"
            line = f"  {name:<{NAME}} {row.number:<20} {row.moved:<23} {row.verdict}".rstrip()
            lines += line.split("\n")
            if row.published == row.published:
                lines.append(f"  published: {row.name} {row.published:.3f}")
    return lines[:room]


def tab_rows(
    result: Result, measures: Measures = ()
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the head and the summary rows with all digits, for programs that read them."""
    frame = readable(result)
    columns = (*COLUMNS[:4], "lam", *COLUMNS[4:10], "better", "verdict")
    wholes = named(frame[frame.whole], measures).replace({"method": {CHANCE: "chance"}})
    values = wholes[list(columns)].astype(object)
    return columns, list(values.where(values.notna(), None).itertuples(index=False, name=None))
