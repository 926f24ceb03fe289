"""Render results as HTML pages with conclusions, tables, plots and collapsible details.

Method, group and prompt names may contain arbitrary text, which jinja2 escapes.
"""

from __future__ import annotations

import base64
import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict, cast

import numpy as np

from vldebias.errors import need
from vldebias.measure.metric import CORRECTED, SHARE, get_metric
from vldebias.measure.rows import ALWAYS_SHOWN, CHANCES, NONE, Strip, TaskProvenance
from vldebias.report.categories import category_tables
from vldebias.report.conclusion import LEADS, Conclusion, conclusions, title_of_method, with_costs
from vldebias.report.plots import dot_plots, group_plots, tradeoffs
from vldebias.report.section import section_of
from vldebias.report.strip import read_strip
from vldebias.report.table import (
    FEW_NOTE,
    METHODS,
    TEMPLATES,
    ReadableRow,
    at_settings,
    form_of,
    readable,
)
from vldebias.report.text import LABELS, stored_sentences
from vldebias.utils.files import spreadsheet_csv, write_atomically
from vldebias.utils.json_values import JSON
from vldebias.utils.markup import html_table
from vldebias.utils.phrases import capitalised, listed_words
from vldebias.utils.pictures import encoded, read_png

if TYPE_CHECKING:
    import jinja2
    import pandas as pd
    from PIL.Image import Image

    from vldebias.report.measurements import Measurements

# Model names that mean "unknown", for example in results computed from embeddings or tables.
UNNAMED = ("", "none", "not said", "unnamed model")
MOST = 8  # maximum number of rows in the first table of a result without conclusions
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
    "retained hits": (
        "the share of each group's own first hits that are among the results; changes overstate the"
        " loss, since equally good replacements count as lost"
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
        return "; ".join(
            str(name) if item is None or item == {} else f"{name}: {plain(item)}"
            for name, item in value.items()
        )
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


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
                line = [cells.get((name, head)) for head in heads]
                sizes = {row.n for row in line if row is not None}
                size = f" (n = {sizes.pop():,})" if is_parts and len(sizes) == 1 else ""
                lines.append((f"{name}{size}", line))
            title = f"{caption} by part" if is_parts else caption or "By method"
            yield title, heads, lines, is_parts


def render(result: Measurements, path: Path, *, run_folder: Path) -> Path:
    """Write a result as a single HTML page, with its rows in a CSV file next to it.

    If the result compares queries, another CSV file has a row per query.

    Args:
        result: the result to write.
        path: the HTML file to write. The CSV file has the same name with the suffix ".csv".
        run_folder: the folder with the run's images and plots.
    """
    frame = readable(result)
    concluded = conclusions(frame)
    frame = with_costs(frame, concluded)
    front = front_rows(frame, concluded)
    pictures = _pictures(result.name, run_folder)
    are_miniature = [provenance.is_miniature for provenance in result.provenance]
    advice = stored_sentences(result, "advice")
    # Explain the measures that the conclusions mention.
    sentences: list[str] = []
    for conclusion in concluded:
        title, sign, _ = get_metric(conclusion.metric, strict=False).title.partition("@")
        title = title.removesuffix(CORRECTED)
        name = f"{title}@k" if sign else title
        if title in MEANINGS:
            sentences.append(f"{capitalised(name)}: {MEANINGS[title]}.")
        if "retained hits" in conclusion.cost:
            sentences.append(f"Retained hits@k: {MEANINGS['retained hits']}.")
    # Explain each measure once, since several conclusions may share it.
    explained = list(dict.fromkeys(sentences))
    categories = category_tables(result)
    # A table may compare models, of which the first takes the place of "no method".
    models = result.provenance[0].settings.get("models", []) if result.provenance else []
    models = models if len(models) > 1 else []
    has_plots = bool(concluded) and not models
    values = {
        "result": result,
        "title": title_of(result),
        "day": day_of(result.date),
        "advice": advice,
        "notes": stored_sentences(result, "notes"),
        "conclusions": concluded,
        "tradeoffs": tradeoffs(front, frame, result.provenance) if has_plots else [],
        "group_plots": group_plots(frame, concluded),
        "front": front_groups(front),
        "statements": [] if concluded or advice else _statements(frame),
        "categories": categories,
        "leaning": _leaning(result, path),
        "figures": [] if concluded or categories else _figures(frame, is_advised=bool(advice)),
        "section": section_of(result, frame),
        "folder": run_folder,
        "explained": explained,
        "methods": {name: METHODS[name] for name in front.name.unique() if name in METHODS},
        "strips": _strips(result.name, run_folder),
        "examples": _examples(result, run_folder),
        "blocks": _blocks(result, frame, pictures),
        "dots": dot_plots(front, result.provenance) if has_plots else [],
        "models": models,
        "cartoons": bool(are_miniature) and all(are_miniature),
        "published": any(frame.published.notna()),
        "has_changes": any(row.change for row in result.rows),
        "few": FEW_NOTE if frame.few.str.match("few|narrow").any() else "",
        "labels": LABELS if frame.uses_labels.any() else "",
        "csv": result.to_csv(path.with_suffix(".csv")).name,
    }
    return write_page(path, TEMPLATES / "report.html.jinja", values)


def title_of(result: Measurements) -> str:
    """Return a page title that names the measurement and the models."""
    names = dict.fromkeys(provenance.model for provenance in result.provenance)
    models = listed_words(list(filter(None, map(model_in_words, names))))
    tasks = [provenance.task for provenance in result.provenance]
    title_of_task = result.provenance[0].title if tasks else ""
    title = result.name
    ending = f", measured on {models}"
    if stored_sentences(result, "advice") and len(tasks) == 1:
        title = title_of_task or title
        ending = f" ({models})"
    elif stored_sentences(result, "findings"):
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
    comes before the other methods, which keep their order in the result. The column `cost` is
    added by `with_costs`.

    Args:
        frame: a result's rows from `readable`.
        concluded: the conclusions that were drawn from these rows.
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
    """Group the rows from `front_rows` by measure, and add its value without a method."""
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


def _leaning(result: Measurements, page: Path) -> list[dict[str, object]]:
    """Return each task's queries that lean most, and write them as CSV next to the page."""
    import pandas as pd

    tables: list[dict[str, object]] = []
    for provenance in result.provenance:
        queries: list[dict[str, object]] = provenance.settings.get("leaning") or []
        if queries:
            file = page.with_name(f"{page.stem}-queries{len(tables) or ''}.csv")
            write_atomically(file, spreadsheet_csv(pd.json_normalize(queries, sep=" ")))
            k = provenance.settings["k"][0]
            worse: dict[str, int] = {}
            for query in queries:
                for name, is_worse in cast("dict[str, bool]", query.get("worse", {})).items():
                    worse[name] = worse.get(name, 0) + is_worse
            tables.append({"queries": queries, "k": k, "csv": file.name, "worse": worse})
    return tables


def _figures(frame: pd.DataFrame, *, is_advised: bool) -> list[FigureGroup]:
    """Return the main values of a result without conclusions, such as a diagnosis.

    The values are grouped by measure, with at most `MOST` rows in total.
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
    is_left_out = frame.method.isin(CHANCES)
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
    metrics = filter(row_of_metric.__contains__, (*LEADS, *rows.metric))
    return row_of_metric.get(next(metrics, ""))


def unbroken(words: str) -> str:
    """Make the spaces inside intervals non-breaking."""
    return re.sub(r"\[[^\[\]]*\]", lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), words)


def notebook(result: Measurements) -> str:
    """Return a result's conclusions and main values as HTML for a notebook."""
    frame = readable(result)
    concluded = conclusions(frame)
    advice = stored_sentences(result, "advice")
    sentences = advice or [
        *stored_sentences(result, "findings"),
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
        # Without conclusions, there is no method to compare, so list the values themselves.
        head = ("task", "measure", "method", "value [95%]", "change [95%]", "verdict")
        columns = ["task", "measure", "name", "number", "moved", "verdict"]
        shown = frame if advice else frame[frame.is_summary].head(MOST)
        rows += shown[columns].itertuples(index=False)
    table = html_table("", head, rows)
    return f"<h3>{escape(result.name)}</h3><ul>{listed}</ul>{table}"


def _pictures(name: str, folder: Path) -> list[tuple[dict[str, JSON], bytes]]:
    """Load a run's images and plots with their metadata, starting with generated images."""
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

    The page shows every strip about groups that got worse or about edited images, but only the
    first strip that shows how images of a biased prompt changed.
    """
    leaning: list[Strip] = []
    shown: list[Strip] = []
    for file in sorted(folder.glob("*-strip.png")):
        with contextlib.suppress(OSError, KeyError, ValueError):  # not written by vldebias
            sheet, metadata = read_png(file)
            if metadata.get("run") == name:
                strips = shown if file.stem.endswith(ALWAYS_SHOWN) else leaning
                strips.append(read_strip(sheet, metadata))
    return [*leaning[:1], *shown]


def _examples(result: Measurements, folder: Path) -> list[dict[str, object]]:
    """Return the wrong texts that a task shows, each with its image if there is one."""
    blocks: list[dict[str, object]] = []
    for provenance in result.provenance:
        examples = provenance.settings.get("examples")
        if not examples or not examples["rows"]:
            continue
        rows = examples["rows"]
        images: Sequence[Image | None] = [None] * len(rows)
        file = folder / f"{examples['kind']}-examples.png"
        with contextlib.suppress(OSError, KeyError, ValueError):  # there are no images
            strip = read_strip(*read_png(file))
            if list(strip.columns) == [row["image"] for row in rows]:
                images = strip.rows[0][1]
        blocks.append({**examples, "pairs": list(zip(rows, images, strict=True))})
    return blocks


def _blocks(
    result: Measurements, frame: pd.DataFrame, pictures: Sequence[tuple[dict[str, JSON], bytes]]
) -> list[dict[str, object]]:
    """Return each task's provenance, images and tables for the page."""
    known = {provenance.task: provenance for provenance in result.provenance}
    blocks = []
    for task, block in frame.groupby("task", sort=False):
        provenance = known.get(str(task)) or TaskProvenance(task=str(task), description="")
        shown = [picture for picture in pictures if picture[0].get("task") == task]
        evidence = {"about": provenance, "pictures": shown, "grids": list(grids(block))}
        blocks.append({**evidence, "title": task_title(provenance)})
    return blocks


def write_page(path: Path, template: Path, values: Mapping[str, object]) -> Path:
    """Render a template to a single self-contained HTML file.

    Args:
        path: the file to write.
        template: the template's file. It may include the files in `TEMPLATES`.
        values: the template's variables by name.
    """
    return write_atomically(
        path, page_templates().from_string(template.read_text(encoding="utf-8")).render(values)
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
        "slug": lambda verdict: verdict.replace(",", "").replace(" ", "-"),
        "unbroken": unbroken,
        "title_of_method": title_of_method,
        "markup": lambda svg: need("markupsafe").Markup(svg.decode()),
    }
    return environment


def _embedded(image: Image) -> str:
    """Encode an image as a data URL."""
    content = encoded(image)
    kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
