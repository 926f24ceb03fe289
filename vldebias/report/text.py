"""Format a result for the terminal: conclusions, followed by the rows they are based on."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Literal

import numpy as np

from vldebias.measure.rows import CHANCE, COLUMNS, NONE
from vldebias.report.conclusion import (
    AT_A_COST,
    BASELINES,
    Conclusion,
    conclusions,
    title_of_method,
    with_costs,
)
from vldebias.report.section import section_of
from vldebias.report.table import DAGGER, FEW_NOTE, Measures, at_settings, named, readable
from vldebias.utils.phrases import quantity_of

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.report.measurements import Measurements

LABELS = f"{DAGGER} used labels of other images; the other methods see prompts only."
NAME = 17  # width of the method column, chosen so that a row fits into 80 columns
MOST = 25  # maximum number of lines, unless the verdicts leave too little space
VERDICTS = 16  # if the verdicts need at most this many lines (four tasks), all are shown
ROWS = 14  # minimum number of lines for the rows below the conclusions
PART_ROWS = 4  # maximum number of rows per measure in a result without methods


def text(
    result: Measurements, measures: Measures = (), max_lines: int = MOST, width: int = 80
) -> str:
    """Format a result's conclusions and the rows they are based on.

    Args:
        result: the result to format.
        measures: the (task, metric) pairs to show. Default: all of them.
        max_lines: the maximum number of lines. The text may be longer if the verdicts leave too
            little space for the rows.
        width: the width of the text in columns.
    """
    frame = readable(result)
    if stored_sentences(result, "advice"):
        return _advised(result, frame, max_lines, width)
    concluded = conclusions(frame, measures)
    costed = with_costs(frame, concluded)
    summaries = named(costed[costed.is_summary], measures)
    if concluded:
        # Bias measures without a conclusion, such as distances between prompts, are only shown on
        # the page.
        tasks = [conclusion.task for conclusion in concluded]
        summaries = summaries[summaries.task.isin(tasks) | (summaries.kind != "bias")]
    notes = wrapped(LABELS, width) if summaries.uses_labels.any() else []
    notes += [line for note in stored_sentences(result, "notes") for line in wrapped(note, width)]
    findings = stored_sentences(result, "findings")
    shown = [line for sentence in findings for line in wrapped(sentence, width)]
    shown += _verdicts(concluded, width, max_lines - len(shown) - len(notes) - ROWS - 2)
    head = f"{result.name}: values and changes, with 95% intervals"
    if (summaries.few != "").any():
        head += ' (where "few": too narrow)'
    shown += wrapped(head, width)
    room = max_lines - len(shown) - len(notes) - 1
    rows = _rows(summaries, concluded, max(room, ROWS if concluded else 0))
    # Rows are indented by exactly two spaces, unlike measure names and continuation lines.
    shown_rows = [line for line in rows if line.startswith("  ") and line[2] != " "]
    remaining = len(frame) - len(shown_rows)
    if remaining > 0:
        notes.append(f"{remaining} more values are on the page and in to_pandas()")
    return "\n".join([*shown, *rows, *notes])


def stored_sentences(
    result: Measurements, kind: Literal["advice", "findings", "notes"]
) -> list[str]:
    """Return the sentences of one kind that the tasks of a result bring along.

    Args:
        result: the result.
        kind: "advice" from tasks that do not compare methods, such as audits; "findings" in
            addition to the measurements, for example from human labels; or "notes" that explain
            the results, such as which groups are compared.
    """
    texts: list[str] = []
    for provenance in result.provenance:
        texts += provenance.settings.get(kind, ())
    # Tasks that share a gallery may report the same findings about its files.
    return list(dict.fromkeys(texts))


def sentences(result: Measurements, measures: Measures = ()) -> list[str]:
    """Return a result's advice, or its findings and verdicts, followed by its notes.

    Args:
        result: the result to summarise.
        measures: the (task, metric) pairs to draw conclusions about. Default: all of them.
    """
    advice = stored_sentences(result, "advice")
    if advice:
        return [*advice, *stored_sentences(result, "notes")]
    concluded = [conclusion.short for conclusion in conclusions(readable(result), measures)]
    return [*stored_sentences(result, "findings"), *concluded, *stored_sentences(result, "notes")]


def _advised(result: Measurements, frame: pd.DataFrame, max_lines: int, width: int) -> str:
    """Format a result's advice, followed by its section, if any, or its measures."""
    advice = stored_sentences(result, "advice")
    lines = [line for sentence in advice for line in wrapped(sentence, width)]
    room = max_lines - len(lines) - 1
    section = section_of(result, frame)
    rest = _measure_lines(frame, room, width) if section is None else section.lines(room, width)
    return "\n".join([*lines, *rest])


def _measure_lines(frame: pd.DataFrame, room: int, width: int) -> list[str]:
    """Format the first rows of each measure in `room` lines, and report how many are left."""
    notes = wrapped(FEW_NOTE, width) if frame.few.str.match("few|narrow").any() else []
    room -= len(notes)
    blocks = [block for _, block in frame.groupby("title", sort=False)]
    # If there are only one or two measures, they may use all lines.
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
            rows = block.sort_values("value", kind="stable")  # show the worst parts first
        for row in rows.head(count).itertuples():
            names = [row.subset, "" if row.method == NONE else row.name]
            part = ", ".join(filter(None, names))
            size = quantity_of(row.n, next(iter(row.units), ""))
            words = "; ".join(filter(None, (size, row.few)))
            lines.append(f"  {row.number:<21} {part}{': ' if part else ''}{words}"[:width])
        shown += count
    if shown < len(frame):
        notes.append(f"{len(frame) - shown} more values are on the page and in to_pandas()")
    return [*lines, *notes]


def _verdicts(concluded: list[Conclusion], width: int, room: int) -> list[str]:
    """Format as many verdicts as fit into `room` lines, and report how many are left."""
    verdicts = [wrapped(conclusion.short, width) for conclusion in concluded]
    if sum(map(len, verdicts)) <= VERDICTS:
        room = VERDICTS + 1
    lines: list[str] = []
    for place, verdict in enumerate(verdicts):
        if lines and len(lines) + len(verdict) >= room:
            return [*lines, f"{len(verdicts) - place} more: conclusions()"]
        lines += verdict
    return lines


def wrapped(sentence: str, width: int = 80) -> list[str]:
    """Wrap a sentence, without breaking words.

    Args:
        sentence: the sentence to wrap.
        width: the maximum line length.
    """
    broken = fill(
        sentence, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return broken.split("\n")


def _rows(summaries: pd.DataFrame, concluded: list[Conclusion], room: int) -> list[str]:
    """Format each measure's name and rows in at most `room` lines.

    Measures with conclusions come first, followed by the first measure of every task, the second
    measure of every task, and so on.
    """
    methods = {(conclusion.task, conclusion.measure): conclusion.method for conclusion in concluded}
    # Leave space for at least two rows per conclusion.
    row_limit = max(room // max(len(concluded), 1) - 1, 2)
    keys = list(zip(summaries.task, summaries.measure, strict=True))
    # Sort key: 0 for measures with conclusions, otherwise the position of the measure in its task.
    places = (
        summaries.groupby("task").measure.transform(lambda measures: measures.factorize()[0]) + 1
    )
    places = places.where([key not in methods for key in keys], 0)
    ordered = summaries.assign(place=places).sort_values("place", kind="stable")
    lines: list[str] = []
    for (_, task, measure), rows in ordered.groupby(["place", "task", "measure"], sort=False):
        end_of_block = len(lines)
        lines += wrapped(f"{task}: {measure}{rows.hint.iloc[0]}")
        # If there are too many rows, "none" and the conclusion's method have priority, followed by
        # the paper's setting and the baseline. Other lambdas in a sweep have the lowest priority.
        is_concluded = (rows.method == NONE) | (rows["name"] == methods.get((task, measure), ""))
        is_compared = (rows.paper != "") | rows.method.isin(BASELINES)
        ranks = np.select([is_concluded, is_compared, at_settings(rows)], [0, 1, 2], default=3)
        chosen = rows.index[np.argsort(ranks, kind="stable")[:row_limit]]
        shown = rows[rows.index.isin(chosen)]
        width = shown.number.str.len().max()
        for row in shown.itertuples():
            # A name that is too long for its column gets a separate line.
            title = title_of_method(row)
            name = title if len(title) <= NAME else f"{title}\n{'':{NAME + 2}}"
            # All methods share the same units, so rows with a change omit the warning.
            change = row.moved or row.few
            line = f"  {name:<{NAME}} {row.number:<{width}} {change:<23} {row.verdict}".rstrip()
            lines += line.split("\n")
            # The sentences above contain the cost of the methods that conclusions are about, and
            # the cost is the same for all measures.
            is_costly = row.verdict == AT_A_COST and (task, measure) in methods
            if is_costly and row.name != methods[task, measure]:
                lines.append(f"    cost: {row.cost}")
            if not np.isnan(row.published):
                lines.append(f"  published: {row.name} {row.published:.3f}")
            if row.square_moved:
                lines.append(f"    squared, without the noise of few images: {row.square_moved}")
        if len(lines) > room:
            return lines[: end_of_block or room]
    return lines


def tab_rows(
    result: Measurements, measures: Measures = ()
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return column names and unrounded summary rows for tab-separated output.

    Args:
        result: the result to print.
        measures: the (task, metric) pairs to include. Default: all of them.
    """
    frame = readable(result)
    columns = (*COLUMNS[:4], "lam", *COLUMNS[4:10], "better", "verdict")
    if not stored_sentences(result, "advice"):
        costed = with_costs(frame, conclusions(frame, measures))
        frame = costed[costed.is_summary]
    summaries = named(frame, measures).replace({"method": {CHANCE: "chance"}})
    values = summaries[list(columns)].astype(object)
    return columns, list(values.where(values.notna(), None).itertuples(index=False, name=None))
