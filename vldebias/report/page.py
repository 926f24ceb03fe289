"""Show a result as a page: what was found in sentences, the table and pictures that show it, and
the evidence folded.

Names of methods, groups and prompts may hold anything: jinja2 and `for_matplotlib` escape them.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vldebias.errors import InvalidInputError, need
from vldebias.measure.metric import CORRECTED, SHARE, get_metric
from vldebias.measure.rows import CHANCES, NONE, WORSE_STRIP, Strip, TaskProvenance
from vldebias.report.audited import (
    audited_prompts,
    commands_of_remedies,
    ends_of_ranges,
    ranges_of_prompts,
)
from vldebias.report.categories import category_tables
from vldebias.report.conclusion import LEADS, Conclusion, conclusions
from vldebias.report.phrases import capitalised, listed_words
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
from vldebias.utils.markup import html_table
from vldebias.utils.pictures import INK, encoded, for_matplotlib, read_png, subplots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image

    from vldebias.report.result import Result

# of charts: lines, and methods that were given labels
GRID = "#e4e7eb"
LABELLED = "#c9ccd1"
# models of which nothing is known, such as those of embeddings and of tables
UNNAMED = ("", "none", "not said", "unnamed model")
PLAIN = "#8a94a0"  # the model without a method
OTHERS = ("#d9a441", "#b4656f", "#7d6b91", "#5f7a4f")  # methods that have no colour of their own
MOST = 8  # rows of the first table of a result without conclusions
PROMPTS = 20  # rows of the first table of an audit; the file of prompts has the others
LABEL = 24  # letters of a line of a method's name in a plot
# What a diagnosis says in no sentence: brackets of margins hold quartiles, and a class that can be
# read is no finding.
FURTHER = ("margin", "gn_margin", "kv_margin", "kv_gn_margin", "k_variance")
CLASS_PROBE = "class_probe"
# Title of a measure -> what it is, for a reader who has never seen it.
MEANINGS = {
    "worst-group accuracy": (
        "the share of images that are classified right in the group where that is least"
    ),
    "MaxSkew": (
        "how far the value that is shown too often exceeds the share that it should have among the"
        " first k results, as a logarithm; 0 is no excess, 0.69 is twice that share"
    ),
    "gap from even shares": (
        "the distance between the shares of the values among images and even shares; 0 is even,"
        " 0.71 where all show the same of two values"
    ),
    "hits kept": (
        "the share of the first results inside each group that are still there with the method; an"
        " upper bound of the loss, since an equally good replacement counts as lost"
    ),
}


def plain(value: object) -> str:
    """Return a setting in readable form, without braces and quotes."""
    if isinstance(value, Mapping):
        parts = []
        for name, item in value.items():
            # Where nothing is set, the name says all.
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
    """Yield (caption, heads, rows of cells, or None, whether of parts): methods by measures, parts
    by methods."""
    titled = block.assign(title=block.title + block.hint.where(block.is_whole, ""))
    rows = cast("list[ReadableRow]", list(titled.itertuples()))
    layouts = ((False, "subset", "name", "title"), (True, "title", "subset", "name"))
    for is_parts, split, down, across in layouts:
        rows_of_caption: dict[str, list[ReadableRow]] = {}
        for row in rows:
            if row.is_whole != is_parts:
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


def render(result: Result, path: Path, *, beside: Path) -> Path:
    """Write the page of a result: one HTML file with tables, a plot and pictures inside, and the
    rows as CSV.

    beside: the folder with the run's pictures that cannot be drawn from rows, such as images of the
    same seeds.
    """
    frame = readable(result)
    found = conclusions(frame)
    front = front_rows(frame, found)
    pictures = _pictures(result.name, beside)
    are_miniature = [provenance.is_miniature for provenance in result.provenance]
    advice = advice_of(result)
    # A sentence for each measure of a conclusion.
    sentences: list[str] = []
    for conclusion in found:
        title, sign, _ = get_metric(conclusion.metric, strict=False).title.partition("@")
        title = title.removesuffix(CORRECTED)
        name = f"{title}@k" if sign else title
        if title in MEANINGS:
            sentences.append(f"{capitalised(name)}: {MEANINGS[title]}.")
        if "hits kept" in conclusion.cost:
            sentences.append(f"Hits kept@k: {MEANINGS['hits kept']}.")
    # Several conclusions are about one measure.
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
        "conclusions": found,
        "front": front_groups(front),
        "statements": [] if found or advice else _statements(frame),
        "categories": categories,
        "figures": [] if found or categories else _figures(frame, is_advised=bool(advice)),
        "prompts": prompts,
        "remedies": commands_of_remedies(prompts, result.provenance[0].prompts) if prompts else [],
        "ranges": ranges_of_prompts(frame),
        "ends": ends or ("0 %", "100 %"),
        "is_even": ends is not None,
        "explained": explained,
        "most_prompts": PROMPTS,
        "strips": _strips(result.name, beside),
        "blocks": _blocks(result, frame, pictures),
        "dots": _drawn(front, result.provenance) if found else [],
        "cartoons": bool(are_miniature) and all(are_miniature),
        "published": any(frame.published.notna()),
        "few": FEW_NOTE if (frame.few != "").any() else "",
        "labels": LABELS if frame.uses_labels.any() else "",
        "csv": result.to_csv(path.with_suffix(".csv")).name,
    }
    return write_page(path, "report", values)


def title_of(result: Result) -> str:
    """Return the heading of a page: what was measured, and on which models."""
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
        # A suite has a name and models; a table of images has neither. Its tasks are about the
        # same, such as "shares" and "shares corrected".
        title = title_of_task
    return title + ending if models else title


def model_in_words(name: str) -> str:
    """Write which model was measured: a name, what is known of one without a name, or "" where
    nothing is."""
    if name in UNNAMED:
        return ""
    if name == "miniature":
        return "the miniature CLIP"
    if name.startswith("miniature") and name.rstrip(")").endswith("Pipeline"):
        return "the miniature pipeline"
    # A pipeline that was not loaded by a name is known by its class alone.
    if name.isidentifier() and name.endswith("Pipeline"):
        return f"a {name}"
    return name


def task_title(provenance: TaskProvenance) -> str:
    """Return what the title of a task adds to its name, each part once: of the task "birds" with
    the title "Birds: Zero-shot group robustness" the words after the colon."""
    parts = dict.fromkeys(provenance.title.split(": "))
    added = [part for part in parts if part.casefold() != provenance.task.casefold()]
    return ": ".join(filter(None, added))


def day_of(date: str | None) -> str:
    """Write the date of a result for readers: "24 November 2026, 14:02 UTC"."""
    if not date:
        return "date not recorded"
    try:
        moment = datetime.fromisoformat(date).astimezone(UTC)
    except ValueError:
        return date
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def front_rows(frame: pd.DataFrame, found: Sequence[Conclusion]) -> pd.DataFrame:
    """Return the rows that conclusions rest on: each method at its own setting and at the paper's,
    and what they are compared with, none and chance.

    The method of a conclusion comes first, then the others in the order in which they were
    measured, whatever they achieved.
    """
    method_of_row = {}
    for conclusion in found:
        method_of_row[conclusion.task, conclusion.metric, conclusion.subset] = conclusion.method
    keys = list(zip(frame.task, frame.metric, frame.subset, strict=True))
    rows = frame.loc[[key in method_of_row for key in keys]]
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


def front_groups(front: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of `front_rows` by measure, each next to the value without a method.

    note: which way is better, and what chance gives. before: the value without a method. rows: of
    methods.
    """
    groups = []
    for (task, measure), rows in front.groupby(["task", "measure"], sort=False):
        methods = rows[~rows.method.isin([NONE, *CHANCES])]
        first = methods.iloc[0]
        unmitigated = rows[rows.method == NONE]
        form = form_of(first.value, first.low, first.high)
        before = f"{first.before:{form}}" if unmitigated.empty else unmitigated.number.iloc[0]
        notes = [first.hint.strip(" ()")]
        if not np.isnan(first.chance):
            notes.append(f"chance {first.chance:{form}}")
        group = {
            "task": task,
            "measure": measure,
            "note": ", ".join(filter(None, notes)),
            "before": before,
            "rows": list(methods.itertuples()),
        }
        groups.append(group)
    return groups


def _figures(frame: pd.DataFrame, *, is_advised: bool) -> list[dict[str, Any]]:
    """Return the first figures of a result that has no conclusions, such as a diagnosis: at most
    eight rows, by measure.

    note: which way is better. is_share: the values are between 0 and 1.
    """
    if is_advised:
        rows = _advised_rows(frame)
    else:
        # The row of each task that `_statements` is about, and the shares that it rests on.
        chosen: list[int] = []
        for _, block in frame.groupby("task", sort=False):
            row = _measured_bias(block)
            if row is None:
                continue
            prefix = "corrected_" if row.metric.startswith("corrected_") else ""
            # Shares of single prompts rest on fewer units than those of all.
            is_share = (block.metric == f"{prefix}share") & (block.n == row.n)
            chosen += [row.Index, *block.index[is_share & (block.method == NONE)]]
        rows = frame.loc[chosen[:MOST]]
    groups = []
    for (task, title), block in rows.groupby(["task", "title"], sort=False):
        group = {
            "task": task,
            "measure": title,
            "note": block.hint.iloc[0].strip(" ()"),
            "is_share": get_metric(block.metric.iloc[0], strict=False).bounds == SHARE,
            "rows": list(block.itertuples()),
        }
        groups.append(group)
    return groups


def _advised_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows that sentences of advice rest on, at most MOST: the first row of each measure but
    the probe of classes, then other rows of bias, then the rest."""
    is_left_out = frame.metric.isin([*FURTHER, "predicted_share"]) | frame.method.isin(CHANCES)
    # The worst groups are what a sentence is about.
    measured = frame[~is_left_out]
    is_utility = (measured.kind == "utility") & (measured.metric != CLASS_PROBE)
    ordered = measured.assign(worst=measured.value.where(is_utility, 0.0))
    place_of_metric = {name: place for place, name in enumerate(measured.metric.unique())}
    ordered = ordered.sort_values("worst", kind="stable").sort_values(
        "metric", key=lambda names: names.map(place_of_metric), kind="stable"
    )
    turn = ordered.groupby("metric").cumcount()
    is_first = (turn == 0) & (ordered.metric != CLASS_PROBE)
    rank = np.where(is_first, 0, np.where(ordered.kind == "bias", 1, 2))
    chosen = ordered.assign(rank=rank).sort_values("rank", kind="stable").head(MOST)
    return ordered[ordered.index.isin(chosen.index)]


def _statements(frame: pd.DataFrame) -> list[str]:
    """Return a sentence for each task of a result that compares no methods: what its bias is, and
    what chance gives."""
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
    """Return the row of a task's bias without a method; None where none was measured."""
    rows = block[block.is_whole & (block.kind == "bias") & (block.method == NONE)]
    measured = cast("list[ReadableRow]", list(rows.itertuples()))
    row_of_metric = {row.metric: row for row in reversed(measured)}
    for metric in (*LEADS, *rows.metric):
        if metric in row_of_metric:
            return row_of_metric[metric]
    return None


def unbroken(words: str) -> str:
    """Return words whose intervals no line break parts."""
    return re.sub(r"\[[^\[\]]*\]", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), words)


def notebook(result: Result) -> str:
    """Return what a notebook shows of a result: what was found, and the rows that it rests on."""
    frame = readable(result)
    found = conclusions(frame)
    advice = advice_of(result)
    concluded = [conclusion.sentence for conclusion in found]
    sentences = advice or [*findings_of(result), *concluded]
    listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    head: tuple[str, ...]
    rows: list[Sequence[Any]] = []
    if found and not advice:
        # Each method stands next to the value without one.
        head = ("task", "measure", "method", "before [95 %]", "after [95 %]", "change", "verdict")
        for group in front_groups(front_rows(frame, found)):
            for row in group["rows"]:
                after = ", ".join(filter(None, (row.number, row.few)))
                cells = (group["before"], after, row.moved, row.verdict)
                rows.append((group["task"], group["measure"], row.name, *cells))
    else:
        # No methods are compared; where there is advice, it rests on every figure.
        head = ("task", "measure", "method", "value [95 %]", "change [95 %]", "verdict")
        columns = ["task", "measure", "name", "number", "moved", "verdict"]
        shown = frame if advice else frame[frame.is_whole].head(MOST)
        rows += shown[columns].itertuples(index=False)
    table = html_table("", head, rows)
    return f"<h3>{escape(result.name)}</h3><ul>{listed}</ul>{table}"


def _pictures(name: str, folder: Path) -> list[tuple[dict[str, object], bytes]]:
    """Return the pictures of a run with what they say of themselves; generated images come
    first."""
    files = sorted(folder.glob("*.png"), key=lambda file: ("side-by-side" not in file.stem, file))
    found = []
    for file in files:
        with contextlib.suppress(OSError):  # a file of somebody else that is no PNG
            metadata = read_png(file, pixels=False)[1]
            is_sheet = "caption" in metadata and "strip" not in metadata
            if metadata.get("run") == name and is_sheet:
                found.append((metadata, file.read_bytes()))
    return found


def _strips(name: str, folder: Path) -> list[Strip]:
    """Return the rows of images that a page shows of a run: the first of those that show what
    became of a leaning, and all that show who got worse."""
    leaning: list[Strip] = []
    worse: list[Strip] = []
    for file in sorted(folder.glob("*-strip.png")):
        with contextlib.suppress(OSError, KeyError, ValueError):  # a file of somebody else
            sheet, metadata = read_png(file)
            if metadata.get("run") == name:
                strips = worse if file.stem.endswith(WORSE_STRIP) else leaning
                strips.append(read_strip(sheet, metadata))
    return [*leaning[:1], *worse]


def _blocks(
    result: Result, frame: pd.DataFrame, pictures: Sequence[tuple[dict[str, object], bytes]]
) -> list[dict[str, object]]:
    """Return the evidence of each task: its protocol, its pictures and its tables."""
    known = {provenance.task: provenance for provenance in result.provenance}
    blocks = []
    for task, block in frame.groupby("task", sort=False):
        provenance = known.get(str(task)) or TaskProvenance(task=str(task), description="")
        shown = [picture for picture in pictures if picture[0].get("task") == task]
        evidence = {"about": provenance, "pictures": shown, "grids": list(grids(block))}
        blocks.append({**evidence, "title": task_title(provenance)})
    return blocks


def _drawn(rows: pd.DataFrame, provenance: Sequence[TaskProvenance]) -> list[dict[str, object]]:
    """Return a plot for each measure as SVG, whose letters are text in the page's type.

    task, measure and note, which says which way is better, are words above it: the page's own text.
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
            content = io.BytesIO()
            no_dates = {"Date": None, "Creator": None}
            plot.savefig(content, format="svg", transparent=True, metadata=no_dates)
            # Inside a page it needs no names of other places.
            places = rb"<metadata>.*?</metadata>|\sxmlns[:\w]*=\"[^\"]*\""
            svg = re.sub(places, b"", content.getvalue(), flags=re.DOTALL)
            first = panel.iloc[0]
            words = {"task": first.task, "measure": first.measure, "note": first.hint.strip(" ()")}
            drawn.append({**words, "svg": svg[svg.find(b"<svg") :]})
    return drawn


def _label(name: str) -> str:
    """Return the name of a method in lines, for the margin of a plot."""
    return fill(for_matplotlib(name), LABEL, break_long_words=False)


def write_page(path: Path, template: str, values: Mapping[str, object]) -> Path:
    """Fill a template (report or paper) and write it as one HTML file; no network needed."""
    return write_atomically(
        path, page_templates().get_template(f"{template}.html.jinja").render(values)
    )


@cache
def page_templates() -> Any:
    """Return the templates of pages, which are compiled once in a process."""
    jinja2 = need("jinja2")
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "plain": plain,
        "inline": lambda png: base64.b64encode(png).decode(),
        "embedded": _embedded,
        "unbroken": unbroken,
        "markup": lambda svg: need("markupsafe").Markup(svg.decode()),
    }
    return environment


def _embedded(image: Image) -> str:
    """Return an image as an address that holds it."""
    content = encoded(image)
    kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def dots(rows: pd.DataFrame, provenance: Sequence[TaskProvenance] = ()) -> Plot:
    """Draw a panel per summary measure: a line per method, its value with its interval, and the
    value at chance.

    A measure has one scale in all tasks: its bounds, else from 0 to the largest end
    of all its rows.
    """
    panels = _panels(rows)
    if not panels:
        raise InvalidInputError("plot: the result has no rows; expected one or more to draw")
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    high = max(panel.name.nunique() for panel in panels)
    plot, axes = subplots(down, across, (1.4 + 3.1 * across, (0.8 + 0.24 * high) * down))
    colors = _colors(rows, provenance)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel, rows, colors)
        # Task and measure, and below which way is better.
        first = panel.iloc[0]
        title = fill(for_matplotlib(f"{first.task}: {first.measure}"), 44)
        title = f"{title}\n{first.hint.strip(' ()')}".rstrip()
        axis.set_title(title, fontsize=8.5, color=INK)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    plot.tight_layout()
    return plot


def _panels(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of each measure of each task, in their order."""
    groups = rows.groupby(["task", "title", "subset"], sort=False)
    return [panel for _, panel in groups]


def _colors(rows: pd.DataFrame, provenance: Sequence[TaskProvenance]) -> dict[str, str]:
    """Return the colour of each method: the method's own, grey for none, else the next of the
    others."""
    facts_of_method: dict[str, dict[str, Any]] = {}
    for task_provenance in provenance:
        facts_of_method |= task_provenance.methods
    colors: dict[str, str] = {}
    for method in rows.method.unique():
        color = facts_of_method.get(method, {}).get("color")
        colors[method] = color or OTHERS[len(colors) % len(OTHERS)]
    return colors | {NONE: PLAIN}


def _draw_panel(
    axis: Any, panel: pd.DataFrame, rows: pd.DataFrame, colors: Mapping[str, str]
) -> None:
    """Draw the methods of one measure.

    rows: of all panels, which share the scale of a measure.
    """
    points = panel[~panel.method.isin(CHANCES)].drop_duplicates("name")
    for row in panel[panel.method.isin(CHANCES)].itertuples():
        axis.axvspan(row.low, row.high, color=GRID, zorder=0)
    for row in points[points.method == NONE].itertuples():
        axis.axvline(row.value, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    for place, row in enumerate(points.itertuples()):
        shade = colors[row.method]
        # Rounding may put an end beyond the value by a last digit, which matplotlib refuses.
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
    # The first method on top, as in the tables.
    axis.set_ylim(len(points) - 0.5, -0.5)
    # A measure without bounds has those of all its rows, and 0.
    metric = panel.metric.iloc[0]
    alike = rows[rows.metric == metric]
    low, high = get_metric(metric, strict=False).bounds
    low = low if np.isfinite(low) else min(0.0, alike.low.min())
    high = high if np.isfinite(high) else max(0.0, alike.high.max())
    margin = 0.02 * ((high - low) or 1)
    axis.set_xlim(low - margin, high + margin)
    axis.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK, length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(GRID)
