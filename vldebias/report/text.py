"""Show a result in a terminal: the conclusions, then the rows that they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from vldebias.measure.rows import CHANCE, COLUMNS, NONE
from vldebias.report.audited import AuditedPrompt, audited_prompts
from vldebias.report.conclusion import BASELINES, Conclusion, conclusions
from vldebias.report.phrases import quantity_of
from vldebias.report.table import DAGGER, FEW_NOTE, Measures, at_settings, named, readable

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.report.result import Result

LABELS = f"{DAGGER} used labels of other images; the other methods see prompts only."
NAME = 16  # columns of the name of a method, so that a row fits in 80
MOST = 25  # lines, unless sentences are long
SENTENCES = 34  # lines of sentences, above which conclusions are shortened
ROWS = 14  # lines that the rows below conclusions have at least
PART_ROWS = 4  # rows of a measure of a result without methods
AUDIT_HEAD = ("verdict", "predicted share [95 %]", "prompt")
MODELS_HEAD = ("verdict", "share over models", "prompt")


def text(result: Result, measures: Measures = (), max_lines: int = MOST, width: int = 80) -> str:
    """Return the conclusions and the rows that they rest on, as text of at most `max_lines` lines;
    more if the sentences of up to `SENTENCES` lines would leave too little room for the rows.

    measures: (task, metric) to show; all of them where none is named. width: columns.
    """
    frame = readable(result)
    if advice_of(result):
        return _advised(result, frame, max_lines, width)
    found = conclusions(frame, measures)
    wholes = named(frame[frame.is_whole], measures)
    if found:
        # Distances between texts are no answer, and stand in the page.
        tasks = [conclusion.task for conclusion in found]
        wholes = wholes[wholes.task.isin(tasks) | (wholes.kind != "bias")]
    notes = wrapped(LABELS, width) if wholes.uses_labels.any() else []
    for note in notes_of(result):
        notes += wrapped(note, width)
    shown: list[str] = []
    for sentence in findings_of(result):
        shown += wrapped(sentence, width)
    full: list[str] = []
    for conclusion in found:
        full += wrapped(_with_losses(conclusion), width)
    are_full = len(full) <= SENTENCES
    if are_full:
        shown += full
    else:
        shown += _shortened(found, width, max_lines - len(shown) - len(notes) - ROWS)
    head = f"{result.name}: values and changes, with 95 % intervals"
    if (wholes.few != "").any():
        head += " (few, narrow: under 92 %)"
    shown += wrapped(head, width)
    room = max_lines - len(shown) - len(notes) - 1
    rows = _rows(wholes, found, max(room, ROWS if full and are_full else 0))
    # A row has a margin of two; further lines of it, and names of measures, have another one.
    shown_rows = [line for line in rows if line.startswith("  ") and line[2] != " "]
    remaining = len(frame) - len(shown_rows)
    if remaining > 0:
        notes.append(f"{remaining} more figures are on the page and in to_pandas()")
    return "\n".join([*shown, *rows, *notes])


def advice_of(result: Result) -> list[str]:
    """Return what tasks that compare no methods found, such as an audit, in sentences."""
    sentences: list[str] = []
    for provenance in result.provenance:
        sentences += provenance.settings.get("advice", ())
    return sentences


def findings_of(result: Result) -> list[str]:
    """Return what tasks found in addition to their figures, such as by people's labels, in
    sentences."""
    found: list[str] = []
    for provenance in result.provenance:
        found += provenance.settings.get("findings", ())
    # Two blocks of one gallery say the same of its files.
    return list(dict.fromkeys(found))


def notes_of(result: Result) -> list[str]:
    """Return what a reader has to know to understand the figures, such as the groups that shares
    are compared over, in sentences."""
    notes: list[str] = []
    for provenance in result.provenance:
        notes += provenance.settings.get("notes", ())
    return list(dict.fromkeys(notes))


def sentences(result: Result, measures: Measures = ()) -> list[str]:
    """Return everything that was found, a sentence each, and the notes about it."""
    advice = advice_of(result)
    if advice:
        return [*advice, *notes_of(result)]
    concluded = [_with_losses(conclusion) for conclusion in result.conclusions(measures)]
    return [*findings_of(result), *concluded, *notes_of(result)]


def _with_losses(conclusion: Conclusion) -> str:
    """Return the sentence of a conclusion, and what got worse under its method."""
    if not conclusion.worse:
        return conclusion.sentence
    return f"{conclusion.sentence} What got worse: {conclusion.worse}."


def _advised(result: Result, frame: pd.DataFrame, max_lines: int, width: int) -> str:
    """Return the advice of a result and the rows that it rests on: of an audit its prompts, else
    rows of each measure, the worst parts first."""
    lines: list[str] = []
    for sentence in advice_of(result):
        lines += wrapped(sentence, width)
    room = max_lines - len(lines) - 1
    prompts = audited_prompts(result, frame)
    if prompts:
        lines += _prompt_lines(prompts, room, width)
    else:
        lines += _measure_lines(frame, room, width)
    return "\n".join(lines)


def _prompt_lines(prompts: Sequence[AuditedPrompt], room: int, width: int) -> list[str]:
    """Return at most `room` lines with verdict, share and text of prompts, and one that counts the
    others."""
    # The head takes a line.
    shown = prompts[: max(room - 1, 0)]
    rows = [AUDIT_HEAD]
    if any(row.models for row in prompts):
        rows = [MODELS_HEAD]
    for row in shown:
        rows.append((row.verdict, row.share, row.prompt))
    verdict_width = max(len(verdict) for verdict, _, _ in rows)
    share_width = max(len(share) for _, share, _ in rows)
    lines = []
    for verdict, share, prompt in rows:
        line = f"  {verdict:<{verdict_width}}  {share:<{share_width}}  {' '.join(prompt.split())}"
        # A prompt that is too long for its line ends with dots.
        lines.append(line if len(line) <= width else f"{line[: width - 3]}...")
    if len(shown) < len(prompts):
        lines.append(f"{len(prompts) - len(shown)} more prompts are on the page")
    return lines


def _measure_lines(frame: pd.DataFrame, room: int, width: int) -> list[str]:
    """Return at most `room` lines with the first rows of each measure below its name, notes, and a
    line that counts the others."""
    notes = wrapped(FEW_NOTE, width) if (frame.few != "").any() else []
    room -= len(notes)
    blocks = [block for _, block in frame.groupby("title", sort=False)]
    # One or two measures have all of the room.
    rows_of_block = PART_ROWS if len(blocks) > 2 else room
    lines: list[str] = []
    shown = 0
    for block in blocks:
        count = min(len(block), rows_of_block, room - len(lines) - 1)
        if count <= 0:
            continue
        lines.append(f"{block.title.iloc[0]}{block.hint.iloc[0]}"[:width])
        rows = block
        if block.better.iloc[0] == "higher" and (block.method == NONE).all():
            rows = block.sort_values("value", kind="stable")  # the worst parts first
        for row in rows.head(count).itertuples():
            names = [row.subset, "" if row.method == NONE else row.name]
            part = ", ".join(filter(None, names))
            size = quantity_of(row.n, next(iter(row.units), ""))
            words = "; ".join(filter(None, (size, row.few)))
            lines.append(f"  {row.number:<21} {part}{': ' if part else ''}{words}"[:width])
        shown += count
    if shown < len(frame):
        notes.append(f"{len(frame) - shown} more figures are on the page and in to_pandas()")
    return [*lines, *notes]


def _shortened(found: list[Conclusion], width: int, room: int) -> list[str]:
    """Return the conclusions without their evidence in at most `room` lines; the last one counts
    those that did not fit."""
    blocks = [wrapped(conclusion.short, width) for conclusion in found]
    lines: list[str] = []
    for place, block in enumerate(blocks):
        if len(lines) + len(block) >= room:
            return [*lines, f"{len(blocks) - place} more: conclusions()"]
        lines += block
    return lines


def wrapped(sentence: str, width: int = 80) -> list[str]:
    """Return a sentence as lines, without breaking a word."""
    broken = fill(
        sentence, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return broken.split("\n")


def _rows(wholes: pd.DataFrame, found: list[Conclusion], room: int) -> list[str]:
    """Return at most `room` lines with the rows of each measure under its name: the measures of
    conclusions first, then the first measure of every task, and so on."""
    methods = {(conclusion.task, conclusion.measure): conclusion.method for conclusion in found}
    # Every conclusion has its rows, if few of them.
    row_limit = max(room // max(len(found), 1) - 1, 2)
    keys = list(zip(wholes.task, wholes.measure, strict=True))
    # Measures that a conclusion is about have the place 0, the others of a task 1, 2, ...: sorted
    # by place, each task shows its first measure before any task shows its second.
    places = wholes.groupby("task").measure.transform(lambda measures: measures.factorize()[0]) + 1
    places = places.where([key not in methods for key in keys], 0)
    ordered = wholes.assign(place=places).sort_values("place", kind="stable")
    lines: list[str] = []
    for (_, task, measure), rows in ordered.groupby(["place", "task", "measure"], sort=False):
        if len(lines) >= room:
            break
        lines += wrapped(f"{task}: {measure}{rows.hint.iloc[0]}")
        # If rows are too many, none and the method that a conclusion is about come first, then the
        # paper's setting and the baseline without an edit, and further lambdas of a sweep last.
        is_concluded = (rows.method == NONE) | (rows["name"] == methods.get((task, measure), ""))
        is_compared = (rows.paper != "") | rows.method.isin(BASELINES)
        ranks = np.select([is_concluded, is_compared, at_settings(rows)], [0, 1, 2], default=3)
        chosen = rows.index[np.argsort(ranks, kind="stable")[:row_limit]]
        for row in rows[rows.index.isin(chosen)].itertuples():
            # A long name has a line of its own.
            name = row.name if len(row.name) <= NAME else f"{row.name}\n{'':{NAME + 2}}"
            # Methods are measured on as many units as the model without one, which has no change.
            change = row.moved or row.few
            line = f"  {name:<{NAME}} {row.number:<20} {change:<23} {row.verdict}".rstrip()
            lines += line.split("\n")
            # Below the row what belongs to it.
            if not np.isnan(row.published):
                lines.append(f"  published: {row.name} {row.published:.3f}")
            if row.square_moved:
                lines.append(f"    squared, without the noise of few images: {row.square_moved}")
    return lines[:room]


def tab_rows(
    result: Result, measures: Measures = ()
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the head and the summary rows with all digits, for programs that read them."""
    frame = readable(result)
    columns = (*COLUMNS[:4], "lam", *COLUMNS[4:10], "better", "verdict")
    if not advice_of(result):
        frame = frame[frame.is_whole]
    wholes = named(frame, measures).replace({"method": {CHANCE: "chance"}})
    values = wholes[list(columns)].astype(object)
    return columns, list(values.where(values.notna(), None).itertuples(index=False, name=None))
