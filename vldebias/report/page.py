"""Render results as HTML pages with conclusions, tables, plots and collapsible details.

Method, group and prompt names may contain arbitrary text, which jinja2 and `for_matplotlib` escape.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Protocol, TypedDict, cast

import numpy as np

from vldebias.errors import InvalidInputError, need
from vldebias.measure.metric import CORRECTED, SHARE, get_metric
from vldebias.measure.rows import CHANCES, NONE, WORSE_STRIP, Strip, TaskProvenance
from vldebias.report.audited import (
    audited_prompts,
    commands_of_remedies,
    ends_of_ranges,
    ranges_of_prompts,
    share_heading,
)
from vldebias.report.categories import category_tables
from vldebias.report.conclusion import (
    LEADS,
    Conclusion,
    conclusions,
    shared_cost,
    with_costs,
)
from vldebias.report.phrases import METHODS, capitalised, listed_words
from vldebias.report.strip import read_strip
from vldebias.report.table import (
    FEW_NOTE,
    TEMPLATES,
    ReadableRow,
    at_settings,
    form_of,
    readable,
)
from vldebias.report.text import LABELS, advice_of, findings_of, notes_of
from vldebias.utils.files import write_atomically
from vldebias.utils.json_values import JSON
from vldebias.utils.markup import html_table
from vldebias.utils.pictures import INK, encoded, for_matplotlib, read_png, subplots

if TYPE_CHECKING:
    import jinja2
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image

    from vldebias.report.result import Result

# Plot colors of the grid lines and of methods that use labels.
GRID = "#e4e7eb"
LABELLED = "#c9ccd1"
# Model names that mean "unknown", for example in results computed from embeddings or tables.
UNNAMED = ("", "none", "not said", "unnamed model")
PLAIN = "#8a94a0"  # the model without a method
OTHERS = ("#d9a441", "#b4656f", "#7d6b91", "#5f7a4f")  # methods without a specific color
MOST = 8  # maximum number of rows in the first table of a result without conclusions
PROMPTS = 20  # maximum number of rows in an audit's first table; prompts.csv lists all prompts
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # of the methods in plots of bias against cost
LABEL = 24  # maximum line length for method names in plots
LEGEND = 38  # the same for the legends below plots of bias against cost
# Measures that are not shown in the first table of a diagnosis. Margins have quartiles instead of
# confidence intervals.
FURTHER = (
    *("margin", "sn_margin", "gn_margin", "tv_gn_margin", "kv_margin", "kv_gn_margin"),
    "k_variance",
)
# A class probe with high accuracy is not a problem, since classes are supposed to be decodable.
CLASS_PROBE = "class_probe"
# Explanations of measures for readers who do not know them.
MEANINGS = {
    "worst-group accuracy": ("the accuracy for the group with the lowest accuracy"),
    "MaxSkew": (
        "the logarithm of the ratio between the share of the most over-represented value among the"
        " first k results and its target share; 0 means no excess, and 0.69 means twice the target"
    ),
    "gap from even shares": (
        "the distance between the observed shares of the values and even shares; 0 means even, and"
        " 0.71 means that all images show the same one of two values"
    ),
    "hits kept": (
        "the share of each group's first results that the method retains; this overstates the loss,"
        " since equally good replacements count as lost"
    ),
}


class FrontRow(ReadableRow, Protocol):
    """A row of the first table, whose verdict takes the method's cost into account."""

    cost: str


class FrontGroup(TypedDict):
    """One measure in the first table of a page.

    Attributes:
        task: the task name.
        measure: the title of the measure.
        note: which direction is better, and the chance level.
        before: the value without a method.
        rows: one row per method.
    """

    task: str
    measure: str
    note: str
    before: str
    rows: list[FrontRow]


class FigureGroup(TypedDict):
    """One measure in the first table of a result without conclusions.

    Attributes:
        task: the task name.
        measure: the title of the measure.
        note: which direction is better.
        is_share: whether the values are shares, between 0 and 1.
        rows: the rows of the table.
    """

    task: str
    measure: str
    note: str
    is_share: bool
    rows: list[ReadableRow]


def plain(value: object) -> str:
    """Format a setting for readers, without braces or quotes."""
    if isinstance(value, Mapping):
        parts = []
        for name, item in value.items():
            is_unset = item is None or item == {}
            parts.append(str(name) if is_unset else f"{name}: {plain(item)}")
        return "; ".join(parts)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    words: dict[object, str] = {None: "none", True: "yes", False: "no"}
    if value is None or isinstance(value, bool):
        return words[value]
    return str(value)


def grids(
    block: pd.DataFrame,
) -> Iterator[tuple[str, list[str], list[tuple[str, list[ReadableRow | None]]], bool]]:
    """Yield the tables for a task.

    Tables for the entire task have a row per method and a column per measure. Tables for its parts
    have a row per part and a column per method.

    Yields:
        The caption, the column headings, the named rows (with None for missing cells), and whether
        the table shows parts of the task.
    """
    titled = block.assign(title=block.title + block.hint.where(block.is_summary, ""))
    rows = cast("list[ReadableRow]", list(titled.itertuples()))
    layouts = ((False, "subset", "name", "title"), (True, "title", "subset", "name"))
    for is_parts, split, down, across in layouts:
        rows_of_caption: dict[str, list[ReadableRow]] = {}
        for row in rows:
            if row.is_summary != is_parts:
                rows_of_caption.setdefault(getattr(row, split), []).append(row)
        for caption, group in rows_of_caption.items():
            cells = {(getattr(row, down), getattr(row, across)): row for row in group}
            heads = list(dict.fromkeys(head for _, head in cells))
            lines = []
            for name in dict.fromkeys(name for name, _ in cells):
                lines.append((name, [cells.get((name, head)) for head in heads]))
            title = caption or "By method"
            if is_parts:
                title = f"{caption} by part"
            yield title, heads, lines, is_parts


def render(result: Result, path: Path, *, run_folder: Path) -> Path:
    """Write a result as a single HTML page, with its rows in a CSV file next to it.

    Args:
        result: the result to write.
        path: the HTML file to write. The CSV file has the same name with the suffix ".csv".
        run_folder: the folder with the run's pictures, such as generated images.
    """
    frame = readable(result)
    concluded = conclusions(frame)
    front = front_rows(frame, concluded)
    pictures = _pictures(result.name, run_folder)
    are_miniature = [provenance.is_miniature for provenance in result.provenance]
    advice = advice_of(result)
    # Explain the measures that the conclusions mention.
    sentences: list[str] = []
    for conclusion in concluded:
        title, sign, _ = get_metric(conclusion.metric, strict=False).title.partition("@")
        title = title.removesuffix(CORRECTED)
        name = f"{title}@k" if sign else title
        if title in MEANINGS:
            sentences.append(f"{capitalised(name)}: {MEANINGS[title]}.")
        if "hits kept" in conclusion.cost:
            sentences.append(f"Hits kept@k: {MEANINGS['hits kept']}.")
    # Several conclusions may share a measure.
    explained = list(dict.fromkeys(sentences))
    ends = ends_of_ranges(result, frame)
    categories = category_tables(result)
    prompts = audited_prompts(result, frame)
    values = {
        "result": result,
        "title": title_of(result),
        "day": day_of(result.date),
        "advice": advice,
        "notes": notes_of(result),
        "conclusions": concluded,
        "tradeoffs": tradeoffs(front, frame, result.provenance) if concluded else [],
        "group_plots": _group_plots(frame, concluded),
        "front": front_groups(front),
        "statements": [] if concluded or advice else _statements(frame),
        "categories": categories,
        "figures": [] if concluded or categories else _figures(frame, is_advised=bool(advice)),
        "prompts": prompts,
        "share_heading": share_heading(prompts),
        "remedies": commands_of_remedies(prompts, result.provenance[0].prompts) if prompts else [],
        "ranges": ranges_of_prompts(frame),
        "ends": ends or ("0%", "100%"),
        "is_even": ends is not None,
        "explained": explained,
        "methods": {name: METHODS[name] for name in front.name.unique() if name in METHODS},
        "most_prompts": PROMPTS,
        "strips": _strips(result.name, run_folder),
        "blocks": _blocks(result, frame, pictures),
        "dots": _drawn(front, result.provenance) if concluded else [],
        "cartoons": bool(are_miniature) and all(are_miniature),
        "published": any(frame.published.notna()),
        "few": FEW_NOTE if (frame.few != "").any() else "",
        "labels": LABELS if frame.uses_labels.any() else "",
        "csv": result.to_csv(path.with_suffix(".csv")).name,
    }
    return write_page(path, "report", values)


def title_of(result: Result) -> str:
    """Return a page title that names the measurement and the models."""
    names = dict.fromkeys(provenance.model for provenance in result.provenance)
    models = listed_words(list(filter(None, map(model_in_words, names))))
    tasks = [provenance.task for provenance in result.provenance]
    title_of_task = result.provenance[0].title if tasks else ""
    title = result.name
    ending = f", measured on {models}"
    if advice_of(result) and len(tasks) == 1:
        title = title_of_task or title
        ending = f" ({models})"
    elif findings_of(result):
        title = "What people's labels show"
    elif title_of_task and not models and all(task.startswith(tasks[0]) for task in tasks):
        # Results computed from a table of images have no suite or model name. Their tasks are
        # variants of the first, such as "shares" and "shares corrected".
        title = title_of_task
    return title + ending if models else title


def model_in_words(name: str) -> str:
    """Return a readable name for a model, or "" if the model is unknown."""
    if name in UNNAMED:
        return ""
    if name == "miniature":
        return "the miniature CLIP"
    if name.startswith("miniature") and name.casefold().rstrip(")").endswith("pipeline"):
        return "the miniature pipeline"
    # If a pipeline was not loaded by name, only its class is known.
    if name.isidentifier() and name.endswith("Pipeline"):
        return f"a {name}"
    return name


def task_title(provenance: TaskProvenance) -> str:
    """Return a task's title without the task name.

    For the task "birds" with the title "Birds: Zero-shot group robustness", this is "Zero-shot
    group robustness".
    """
    parts = dict.fromkeys(provenance.title.split(": "))
    added = [part for part in parts if part.casefold() != provenance.task.casefold()]
    return ": ".join(filter(None, added))


def day_of(date: str | None) -> str:
    """Format a result's date for readers, such as "24 November 2026, 14:02 UTC"."""
    if not date:
        return "date not recorded"
    try:
        moment = datetime.fromisoformat(date).astimezone(UTC)
    except ValueError:
        return date
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def short_date(date: str) -> str:
    """Format a result's date for tables, such as "2026-11-24 14:02", in UTC."""
    try:
        return f"{datetime.fromisoformat(date).astimezone(UTC):%Y-%m-%d %H:%M}"
    except ValueError:
        return date or "not recorded"


def front_rows(frame: pd.DataFrame, concluded: Sequence[Conclusion]) -> pd.DataFrame:
    """Return the rows that conclusions are based on.

    For each measure with a conclusion, these are the rows for the unedited model, for chance, and
    for each method with its own and the paper's setting. The method that the conclusion is about
    comes before the other methods, which keep their order in the result. For the column `cost`, see
    `with_costs`.

    Args:
        frame: a result's rows from `readable`.
        concluded: the conclusions.
    """
    method_of_row = {}
    for conclusion in concluded:
        method_of_row[conclusion.task, conclusion.metric, conclusion.subset] = conclusion.method
    keys = list(zip(frame.task, frame.metric, frame.subset, strict=True))
    rows = with_costs(frame, concluded).loc[[key in method_of_row for key in keys]]
    rows = rows[at_settings(rows)]
    place_of_measure = {key: place for place, key in enumerate(method_of_row)}
    places = []
    for row in rows.itertuples():
        key = (row.task, row.metric, row.subset)
        is_concluded = row.name == method_of_row[key]
        is_reference = row.method in (NONE, *CHANCES)
        places.append((place_of_measure[key], not is_reference, not is_concluded))
    order = sorted(range(len(places)), key=places.__getitem__)
    return rows.iloc[order]


def front_groups(front: pd.DataFrame) -> list[FrontGroup]:
    """Group the rows from `front_rows` by measure, and add each measure's unmitigated value."""
    groups: list[FrontGroup] = []
    for (task, measure), rows in front.groupby(["task", "measure"], sort=False):
        methods = rows[~rows.method.isin([NONE, *CHANCES])]
        first = methods.iloc[0]
        unmitigated = rows[rows.method == NONE]
        form = form_of(first.value, first.low, first.high)
        before = f"{first.before:{form}}" if unmitigated.empty else unmitigated.number.iloc[0]
        notes = [first.hint.strip(" ()")]
        if not np.isnan(first.chance):
            notes.append(f"chance {first.chance:{form}}")
        groups.append(
            {
                "task": str(task),
                "measure": str(measure),
                "note": ", ".join(filter(None, notes)),
                "before": before,
                "rows": cast("list[FrontRow]", list(methods.itertuples())),
            }
        )
    return groups


def _figures(frame: pd.DataFrame, *, is_advised: bool) -> list[FigureGroup]:
    """Return the main figures of a result without conclusions, such as a diagnosis.

    The figures are grouped by measure, with at most `MOST` rows in total.
    """
    if is_advised:
        rows = _advised_rows(frame)
    else:
        # Use the rows that `_statements` describes, and the shares that they are computed from.
        chosen: list[int] = []
        for _, block in frame.groupby("task", sort=False):
            row = _measured_bias(block)
            if row is None:
                continue
            prefix = "corrected_" if row.metric.startswith("corrected_") else ""
            # Shares for individual prompts have a smaller n and are left out.
            is_share = (block.metric == f"{prefix}share") & (block.n == row.n)
            chosen += [row.Index, *block.index[is_share & (block.method == NONE)]]
        rows = frame.loc[chosen[:MOST]]
    groups: list[FigureGroup] = []
    for (task, title), block in rows.groupby(["task", "title"], sort=False):
        groups.append(
            {
                "task": str(task),
                "measure": str(title),
                "note": block.hint.iloc[0].strip(" ()"),
                "is_share": get_metric(block.metric.iloc[0], strict=False).bounds == SHARE,
                "rows": cast("list[ReadableRow]", list(block.itertuples())),
            }
        )
    return groups


def _advised_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the most important rows behind a result's advice, at most `MOST`.

    The first row of each measure has priority (except for the class probe), followed by the
    remaining bias rows and then all other rows.
    """
    is_left_out = frame.metric.isin([*FURTHER, "predicted_share"]) | frame.method.isin(CHANCES)
    # The advice is about the worst groups, so list the lowest utilities first.
    measured = frame[~is_left_out]
    is_utility = (measured.kind == "utility") & (measured.metric != CLASS_PROBE)
    ordered = measured.assign(worst=measured.value.where(is_utility, 0.0))
    place_of_metric = {name: place for place, name in enumerate(measured.metric.unique())}
    ordered = ordered.sort_values("worst", kind="stable").sort_values(
        "metric", key=lambda names: names.map(place_of_metric), kind="stable"
    )
    position = ordered.groupby("metric").cumcount()
    is_first = (position == 0) & (ordered.metric != CLASS_PROBE)
    rank = np.where(is_first, 0, np.where(ordered.kind == "bias", 1, 2))
    chosen = ordered.assign(rank=rank).sort_values("rank", kind="stable").head(MOST)
    return ordered[ordered.index.isin(chosen.index)]


def _statements(frame: pd.DataFrame) -> list[str]:
    """Return a sentence about bias and chance for each task in a result without methods."""
    sentences = []
    for task, block in frame.groupby("task", sort=False):
        row = _measured_bias(block)
        if row is None:
            continue
        sentence = f"{task}: the {row.measure} is {row.number}"
        if not np.isnan(row.chance):
            form = form_of(row.value, row.low, row.high)
            sentence += f"; chance alone gives {row.chance:{form}}"
        sentences.append(f"{sentence}.")
    return sentences[:MOST]


def _measured_bias(block: pd.DataFrame) -> ReadableRow | None:
    """Return the row with a task's bias without a method, or None if it was not measured."""
    rows = block[block.is_summary & (block.kind == "bias") & (block.method == NONE)]
    measured = cast("list[ReadableRow]", list(rows.itertuples()))
    row_of_metric = {row.metric: row for row in reversed(measured)}
    for metric in (*LEADS, *rows.metric):
        if metric in row_of_metric:
            return row_of_metric[metric]
    return None


def unbroken(words: str) -> str:
    """Make the spaces inside intervals non-breaking."""
    return re.sub(r"\[[^\[\]]*\]", lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), words)


def notebook(result: Result) -> str:
    """Return a result's conclusions and main figures as HTML for a notebook."""
    frame = readable(result)
    concluded = conclusions(frame)
    advice = advice_of(result)
    sentences = advice or [
        *findings_of(result),
        *(conclusion.sentence for conclusion in concluded),
    ]
    listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    head: tuple[str, ...]
    rows: list[Sequence[object]] = []
    if concluded and not advice:
        # Show each method's value next to the value without a method.
        head = (
            *("task", "measure", "method", "before [95%]", "after [95%]", "change", "cost"),
            "verdict",
        )
        for group in front_groups(front_rows(frame, concluded)):
            for row in group["rows"]:
                after = ", ".join(filter(None, (row.number, row.few)))
                cells = (group["before"], after, row.moved, row.cost, row.verdict)
                rows.append((group["task"], group["measure"], row.name, *cells))
    else:
        # Without conclusions, there is no method to compare, so list the figures themselves.
        head = ("task", "measure", "method", "value [95%]", "change [95%]", "verdict")
        columns = ["task", "measure", "name", "number", "moved", "verdict"]
        shown = frame if advice else frame[frame.is_summary].head(MOST)
        rows += shown[columns].itertuples(index=False)
    table = html_table("", head, rows)
    return f"<h3>{escape(result.name)}</h3><ul>{listed}</ul>{table}"


def _pictures(name: str, folder: Path) -> list[tuple[dict[str, JSON], bytes]]:
    """Load a run's pictures and their metadata, starting with generated images."""
    files = sorted(folder.glob("*.png"), key=lambda file: ("side-by-side" not in file.stem, file))
    pictures = []
    for file in files:
        with contextlib.suppress(OSError):  # written by a different program
            metadata = read_png(file, pixels=False)[1]
            is_sheet = "caption" in metadata and "strip" not in metadata
            if metadata.get("run") == name and is_sheet:
                pictures.append((metadata, file.read_bytes()))
    return pictures


def _strips(name: str, folder: Path) -> list[Strip]:
    """Return the image strips for a run's page.

    The page shows every strip about groups that got worse, but only the first strip that shows how
    images of a biased prompt changed.
    """
    leaning: list[Strip] = []
    worse: list[Strip] = []
    for file in sorted(folder.glob("*-strip.png")):
        with contextlib.suppress(OSError, KeyError, ValueError):  # not written by vldebias
            sheet, metadata = read_png(file)
            if metadata.get("run") == name:
                strips = worse if file.stem.endswith(WORSE_STRIP) else leaning
                strips.append(read_strip(sheet, metadata))
    return [*leaning[:1], *worse]


def _blocks(
    result: Result, frame: pd.DataFrame, pictures: Sequence[tuple[dict[str, JSON], bytes]]
) -> list[dict[str, object]]:
    """Return each task's protocol, pictures and tables."""
    known = {provenance.task: provenance for provenance in result.provenance}
    blocks = []
    for task, block in frame.groupby("task", sort=False):
        provenance = known.get(str(task)) or TaskProvenance(task=str(task), description="")
        shown = [picture for picture in pictures if picture[0].get("task") == task]
        evidence = {"about": provenance, "pictures": shown, "grids": list(grids(block))}
        blocks.append({**evidence, "title": task_title(provenance)})
    return blocks


def _drawn(rows: pd.DataFrame, provenance: Sequence[TaskProvenance]) -> list[dict[str, object]]:
    """Draw a plot for each measure as SVG, using the page's font.

    The task, the measure and the better direction are shown as text on the page instead.
    """
    colors = _colors(rows, provenance)
    drawn = []
    with need("matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": "vldebias"}):
        for panel in _panels(rows):
            names = panel[~panel.method.isin(CHANCES)].name.unique()
            lines = max(_label(name).count("\n") + 1 for name in names)
            plot, (axis,) = subplots(1, 1, (3.6, 0.4 + (0.12 + 0.14 * lines) * len(names)))
            _draw_panel(axis, panel, rows, colors)
            axis.tick_params(labelsize=9)
            plot.tight_layout(pad=0.8)
            first = panel.iloc[0]
            drawn.append(
                {
                    "task": first.task,
                    "measure": first.measure,
                    "note": first.hint.strip(" ()"),
                    "svg": _svg(plot),
                }
            )
    return drawn


def _svg(plot: Plot) -> bytes:
    """Return a plot as SVG for a page, without metadata or namespaces."""
    content = io.BytesIO()
    no_dates = {"Date": None, "Creator": None}
    plot.savefig(content, format="svg", transparent=True, metadata=no_dates)
    unneeded = rb"<metadata>.*?</metadata>|\sxmlns[:\w]*=\"[^\"]*\""
    svg = re.sub(unneeded, b"", content.getvalue(), flags=re.DOTALL)
    return svg[svg.find(b"<svg") :]


def tradeoffs(
    front: pd.DataFrame, frame: pd.DataFrame, provenance: Sequence[TaskProvenance]
) -> list[dict[str, object]]:
    """Draw each measure's change against the change of the utility that fell the most.

    Args:
        front: the rows of the first table, see `front_rows`.
        frame: all rows of the result.
        provenance: the provenance of the tasks, which may define colors for methods.

    Returns:
        For each measure, the names of the task, the measure and the utility, the plot as SVG and
        its content in words.
    """
    colors = _colors(front, provenance)
    drawn = []
    with need("matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": "vldebias"}):
        for (task, measure), rows in front.groupby(["task", "measure"], sort=False):
            methods = rows[~rows.method.isin([NONE, *CHANCES])]
            block = cast("list[ReadableRow]", list(frame[frame.task == task].itertuples()))
            pairs = shared_cost(block, cast("list[ReadableRow]", list(methods.itertuples())))
            if not pairs:
                continue
            names = [fill(for_matplotlib(bias.name), LEGEND) for bias, _ in pairs]
            lines = 1 + sum(name.count("\n") + 1 for name in names)
            high = 2.85 + 0.0625 * len(names) + 0.15 * lines
            plot, (axis,) = subplots(1, 1, (3.6, high))
            # The axes keep their size, however long the legend below them is.
            axis.set_position((0.22, 1 - 2.15 / high, 0.75, 2.05 / high))
            words = []
            for (bias, cost), name, marker in zip(pairs, names, cycle(MARKERS), strict=False):
                _draw_point(axis, bias, cost, name, colors[bias.method], marker)
                words.append(f"{bias.name}: {bias.moved}, {cost.title} {cost.moved}")
            bias, cost = pairs[0]
            _finish_tradeoff(axis, bias, cost)
            plot.legend(
                fontsize=9,
                labelcolor=INK,
                handletextpad=0.3,
                loc="upper left",
                bbox_to_anchor=(0, 1 - 2.65 / high),
                frameon=False,
            )
            drawn.append(
                {
                    "task": task,
                    "measure": measure,
                    "cost": cost.title,
                    "words": "; ".join(words),
                    "svg": _svg(plot),
                }
            )
    return drawn


def _group_plots(frame: pd.DataFrame, concluded: Sequence[Conclusion]) -> list[dict[str, object]]:
    """Return the accuracy of each group before and after, for conclusions about the worst group.

    The group with the lowest accuracy without a method comes first.
    """
    plots: list[dict[str, object]] = []
    for conclusion in concluded:
        block = frame[frame.task == conclusion.task]
        is_concluded = (block.metric == conclusion.metric) & (block["name"] == conclusion.method)
        # Names only contain lambda if several were measured, which may differ between the metrics.
        settings = block[["method", "lam", "strength"]].fillna(-1)
        is_same = settings.eq(settings.loc[is_concluded.idxmax()]).all(axis=1)
        rows = block[is_same & (block.metric == "accuracy") & ~block.is_summary]
        if conclusion.metric != "worst_group" or rows.empty:
            continue
        worst_before = rows.before.idxmin()
        worst_after = rows.value.idxmin()
        groups = []
        for row in rows.sort_values("before", kind="stable").itertuples():
            times = []
            if row.Index == worst_before:
                times.append("before")
            if row.Index == worst_after:
                times.append("after")
            groups.append(
                {
                    "name": row.subset,
                    "before": f"{row.before:{form_of(row.value, row.low, row.high)}}",
                    "after": row.number,
                    "ends": (round(100 * row.before, 1), round(100 * row.value, 1)),
                    "worst": f"worst {listed_words(times)}" if times else "",
                }
            )
        plots.append({"task": conclusion.task, "method": conclusion.method, "groups": groups})
    return plots


def _draw_point(
    axis: Axes, bias: ReadableRow, cost: ReadableRow, name: str, color: str, marker: str
) -> None:
    """Draw a method's change of bias against its change of utility, with both intervals."""
    across = (cost.change, cost.change_low, cost.change_high)
    up = (bias.change, bias.change_low, bias.change_high)
    ends = []
    for value, low, high in (across, up):
        # matplotlib rejects negative error bars, which can result from rounding.
        ends.append(np.maximum([[value - low], [high - value]], 0))
    axis.errorbar(
        [cost.change],
        [bias.change],
        xerr=ends[0],
        yerr=ends[1],
        fmt=marker,
        markersize=5,
        capsize=2,
        color=LABELLED if bias.uses_labels else color,
        label=name,
    )


def _finish_tradeoff(axis: Axes, bias: ReadableRow, cost: ReadableRow) -> None:
    """Add the model without a method and the titles of the axes."""
    for draw_line in (axis.axhline, axis.axvline):
        draw_line(0, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    if cost.better == "lower":
        axis.invert_xaxis()  # a larger loss is further left for every utility
    arrow = "\N{RIGHTWARDS ARROW}" if bias.better == "higher" else "\N{LEFTWARDS ARROW}"
    axis.plot([0], [0], "o", color=PLAIN, markersize=5, zorder=1, label="no method")
    axis.set_ylabel(_label(f"{arrow} change of {bias.title}"), fontsize=9, color=INK)
    axis.set_xlabel(for_matplotlib(f"change of {cost.title}"), fontsize=9, color=INK)
    axis.locator_params(axis="x", nbins=4)
    axis.grid(color=GRID, linewidth=0.7, zorder=0)
    axis.set_axisbelow(True)
    axis.margins(0.12)
    axis.tick_params(labelsize=9, colors=INK, length=0)
    axis.spines[:].set_visible(False)


def _label(name: str) -> str:
    """Wrap a method's name to fit into the margin of a plot."""
    return fill(for_matplotlib(name), LABEL, break_long_words=False)


def write_page(path: Path, template: str, values: Mapping[str, object]) -> Path:
    """Render a template to a single self-contained HTML file.

    Args:
        path: the file to write.
        template: the template name ("report", "runs" or "paper").
        values: the template variables.
    """
    return write_atomically(
        path, page_templates().get_template(f"{template}.html.jinja").render(values)
    )


@cache
def page_templates() -> jinja2.Environment:
    """Return the environment with the page templates, cached for the process."""
    library = need("jinja2")
    environment: jinja2.Environment = library.Environment(
        loader=library.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "plain": plain,
        "inline": lambda png: base64.b64encode(png).decode(),
        "embedded": _embedded,
        "quoted": shlex.quote,
        "short_date": short_date,
        "unbroken": unbroken,
        "markup": lambda svg: need("markupsafe").Markup(svg.decode()),
    }
    return environment


def _embedded(image: Image) -> str:
    """Encode an image as a data URL."""
    content = encoded(image)
    kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def dots(rows: pd.DataFrame, provenance: Sequence[TaskProvenance] = ()) -> Plot:
    """Draw one panel per measure, with the value and interval of each method and of chance.

    A measure has the same axis limits in all tasks: its bounds if it has any, otherwise 0 and the
    largest value.

    Args:
        rows: the rows to draw, from `readable`.
        provenance: the provenance of the tasks, which may define colors for methods.

    Raises:
        InvalidInputError: If there are no rows.
    """
    panels = _panels(rows)
    if not panels:
        raise InvalidInputError("cannot draw a plot because the result has no rows")
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    high = max(panel.name.nunique() for panel in panels)
    plot, axes = subplots(down, across, (1.4 + 3.1 * across, (0.8 + 0.24 * high) * down))
    colors = _colors(rows, provenance)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel, rows, colors)
        # Show which direction is better below the task and measure.
        first = panel.iloc[0]
        title = fill(for_matplotlib(f"{first.task}: {first.measure}"), 44)
        title = f"{title}\n{first.hint.strip(' ()')}".rstrip()
        axis.set_title(title, fontsize=8.5, color=INK)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    plot.tight_layout()
    return plot


def _panels(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Split rows by task and measure, in order of appearance."""
    groups = rows.groupby(["task", "title", "subset"], sort=False)
    return [panel for _, panel in groups]


def _colors(rows: pd.DataFrame, provenance: Sequence[TaskProvenance]) -> dict[str, str]:
    """Return a color for each method.

    The color in a method's provenance has priority. Other methods get the next color from `OTHERS`,
    and "none" is grey.
    """
    color_of_method: dict[str, str] = {}
    for task_provenance in provenance:
        for method, facts in task_provenance.methods.items():
            if facts.get("color"):
                color_of_method[method] = facts["color"]
    colors: dict[str, str] = {}
    for method in rows.method.unique():
        colors[method] = color_of_method.get(method) or OTHERS[len(colors) % len(OTHERS)]
    return colors | {NONE: PLAIN}


def _draw_panel(
    axis: Axes, panel: pd.DataFrame, rows: pd.DataFrame, colors: Mapping[str, str]
) -> None:
    """Draw a measure's values and intervals, one method per line.

    Args:
        axis: the axes to draw on.
        panel: the measure's rows.
        rows: the rows of all panels, which determine the axis limits.
        colors: a color for each method.
    """
    points = panel[~panel.method.isin(CHANCES)].drop_duplicates("name")
    for row in panel[panel.method.isin(CHANCES)].itertuples():
        axis.axvspan(row.low, row.high, color=GRID, zorder=0)
    for row in points[points.method == NONE].itertuples():
        axis.axvline(row.value, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    for place, row in enumerate(points.itertuples()):
        shade = colors[row.method]
        # matplotlib rejects negative error bars, which can result from rounding.
        ends = np.maximum([[row.value - row.low], [row.high - row.value]], 0)
        axis.errorbar(
            [row.value],
            [place],
            xerr=ends,
            fmt="o",
            markersize=4.5,
            color=LABELLED if row.uses_labels else shade,
            capsize=2,
        )
    axis.set_yticks(range(len(points)), list(map(_label, points.name)))
    # Show the first method at the top, as in the tables.
    axis.set_ylim(len(points) - 0.5, -0.5)
    # Without bounds, the axis includes 0 and all values of the measure.
    metric = panel.metric.iloc[0]
    rows_of_metric = rows[rows.metric == metric]
    low, high = get_metric(metric, strict=False).bounds
    low = low if np.isfinite(low) else min(0.0, rows_of_metric.low.min())
    high = high if np.isfinite(high) else max(0.0, rows_of_metric.high.max())
    margin = 0.02 * ((high - low) or 1)
    axis.set_xlim(low - margin, high + margin)
    axis.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK, length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(GRID)
