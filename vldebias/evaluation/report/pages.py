"""Render a result: tables in the terminal, a page in one file, Markdown. All of it from the figures alone."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from markupsafe import escape as html_escape
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from vldebias.evaluation.report.charts import charts
from vldebias.evaluation.report.pictures import read_metadata, save_png
from vldebias.evaluation.report.tables import Block, Table, blocks
from vldebias.evaluation.report.wording import change, label, metric_title, number, verdict
from vldebias.evaluation.result import Figure, Protocol, Result

__all__ = ["draw_charts", "markdown", "markdown_table", "pictures_beside", "print_table", "render", "write_page"]

Picture = tuple[str, Path]  # caption, PNG

MEANING = (
    "Values stand with 95 % intervals in brackets. Under each is its change from “none”, the model as it is, paired: "
    "the same images, queries and seeds. “Better” and “worse” are said only where the interval of the change "
    "excludes zero, “unclear” where it does not, “same” where nothing moved. The intervals are not corrected for "
    "how many there are."
)
LABELS = "† was given labels of training images; the other methods see prompts only."
MINIATURE = (
    "Measured on cartoon people and birds of the miniature world: the figures show the method at work and say "
    "nothing about another model."
)
HEAD = ("task", "measure", "method", "value [95 %]", "change from none [95 %]")


def print_table(result: Result, console: Console, measures: Sequence[tuple[str, str]] = ()) -> None:
    """The figures in the terminal: one small table per measure, narrow enough for 80 columns.

    Parts (groups, queries) are left to the page where there is a whole. measures: only these (task, metric).
    """
    console.print(f"[bold]{result.name}[/bold]: value, and change from none, with 95 % intervals", highlight=False)
    shown = [figure for block in blocks(result) for figure in block.headline]
    if measures:
        shown = [figure for figure in shown if (figure.task, figure.metric) in measures]
    for (task, metric, subset), found in groupby(_by_measure(shown), key=_measure):
        figures = list(found)
        grid = Grid(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        for width in (19, 23, 23, 7):
            grid.add_column(width=width)
        for figure in figures:
            style = {"better": "green", "worse": "red"}.get(verdict(figure))
            name = label(figure, strength=False)
            grid.add_row(name, number(figure), change(figure), verdict(figure), style=style)
        about = ", ".join(filter(None, (metric_title(metric), subset)))
        console.print(f"\n[bold]{escape(f'{task}: {about}')}[/bold] ({figures[0].better} is better)", highlight=False)
        console.print(grid)
    if any(f.uses_labels for f in result.figures):
        console.print(f"\n{LABELS}", highlight=False)
    if len(shown) < len(result.figures):
        more = len(result.figures) - len(shown)
        console.print(f"\n{more} more figures are in the page.", highlight=False)


def _measure(figure: Figure) -> tuple[str, str, str]:
    return figure.task, figure.metric, figure.subset


def _by_measure(figures: Sequence[Figure]) -> list[Figure]:
    """In the order in which measures first occur, methods together."""
    first = {key: i for i, key in reversed(list(enumerate(map(_measure, figures))))}
    return sorted(figures, key=lambda figure: first[_measure(figure)])


def markdown_table(result: Result, measures: Sequence[tuple[str, ...]]) -> str:
    """Chosen figures as one flat Markdown table: (task, metric) for a whole, (task, metric, subset) for a part."""
    chosen = {(task, metric, *subset) if subset else (task, metric, "") for task, metric, *subset in measures}
    wanted = [figure for figure in result.figures if _measure(figure) in chosen]
    return _markdown_grid(HEAD, [_row(figure) for figure in wanted])


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    about = ", ".join(filter(None, (metric_title(figure.metric), figure.subset)))
    return figure.task, f"{about} ({figure.better} is better)", figure.method, number(figure), change(figure)


def markdown(result: Result, pictures: Sequence[Picture] = (), folder: Path | None = None) -> str:
    """The whole result as Markdown, with pictures linked relative to `folder`."""
    found = blocks(result)
    lines = [f"# {result.name}", MEANING]
    lines += [MINIATURE] if on_miniature(result) else []
    for block in found:
        lines += [f"## {block.title}", block.protocol.description if block.protocol else ""]
        for table in block.tables:
            lines += [f"**{table.caption}**", markdown_pivot(table)]
            lines += [LABELS] if table.has_labelled else []
        lines += [f"![{caption}]({_link(path, folder)})" for caption, path in _of_task(pictures, block.task)]
        if block.protocol:
            lines.append(_markdown_grid(("protocol", ""), [(name, plain(v)) for name, v in facts(block.protocol)]))
    lines.append(_colophon(result))
    return "\n\n".join(line for line in lines if line) + "\n"


def markdown_pivot(table: Table) -> str:
    """One table of a result in Markdown; value, change and verdict share a cell."""
    head = [table.corner, *(f"{c.title} ({c.hint})" if c.hint else c.title for c in table.columns)]
    body = [[f"{row.title} ({row.hint})" if row.hint else row.title, *map(_cell, row.cells)] for row in table.rows]
    return _markdown_grid(head, body)


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    moved = f"<br>{change(figure)} {verdict(figure)}" if figure.change else ""
    return number(figure) + moved


def _markdown_grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(text.replace("|", r"\|") for text in line) + " |" for line in lines)


def draw_charts(result: Result, folder: Path) -> list[Picture]:
    """The charts that the figures allow, as PNGs in `folder` that say what they show."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for stem, (task, caption, plot) in charts(result).items():
        told = {"run": result.name, "task": task, "caption": caption, "chart": True}
        found.append((caption, save_png(plot, folder / f"{stem}.png", told)))
    return found


def pictures_beside(result: Result, folder: Path) -> list[Picture]:
    """The pictures of a run in `folder` that cannot be drawn from figures (image strips), by what the PNGs say."""
    told = {path: read_metadata(path) for path in sorted(folder.glob("*.png"))}
    return [
        (str(said["caption"]), path)
        for path, said in told.items()
        if said.get("run") == result.name and "caption" in said and not said.get("chart")
    ]


def write_page(result: Result, pictures: Sequence[Picture], path: Path) -> Path:
    """One HTML file with tables, protocols and the pictures inside; no network needed.

    A picture stands with the task that its PNG metadata names (`save_png`), or on top where it names none.
    """
    environment = Environment(
        loader=PackageLoader("vldebias.evaluation.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"plain": plain, "number": number, "change": change, "verdict": verdict, "soft": _soft}
    found = blocks(result)
    shown = {block.task: _embedded(_of_task(pictures, block.task)) for block in found}
    page = environment.get_template("report.html.jinja").render(
        result=result,
        blocks=found,
        facts={p.task: facts(p) for p in result.protocols},
        top=_embedded(_of_no_task(pictures, found)),
        pictures=shown,
        meaning=MEANING,
        labels=LABELS,
        miniature=MINIATURE if on_miniature(result) else "",
        colophon=_colophon(result),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def render(result: Result, path: Path, *, beside: Path) -> Path:
    """The page of a result: charts drawn anew from its figures, and the other pictures of the run from `beside`."""
    with tempfile.TemporaryDirectory() as folder:
        return write_page(result, draw_charts(result, Path(folder)) + pictures_beside(result, beside), path)


def on_miniature(result: Result) -> bool:
    """Whether all tasks were measured in the embedded world."""
    return bool(result.protocols) and all("miniature" in p.model.lower() for p in result.protocols)


def facts(protocol: Protocol) -> list[tuple[str, Any]]:
    """What a reader needs to repeat a task, by name; settings come one by one."""
    fingerprint = protocol.fingerprint or {}
    return [
        ("model", protocol.model),
        ("weights fingerprint", fingerprint.get("structure", "not known")),
        ("prompts", f"{protocol.prompts}, hash {protocol.prompts_hash[:12]}"),
        ("split", protocol.split),
        ("counts", protocol.n),
        ("methods", protocol.methods),
        ("seeds", protocol.seeds),
        *((name.replace("_", " "), value) for name, value in protocol.settings.items()),
    ]


def plain(value: Any) -> str:
    """A setting as a reader would write it: no braces, no quotes."""
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {plain(v)}" if v not in ({}, None) else str(k) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def _soft(text: str) -> Markup:
    """Text that may break after a slash or an underscore: names of groups and columns are long on a telephone."""
    return Markup(str(html_escape(text)).replace("/", "/<wbr>").replace("_", "_<wbr>"))


def _of_task(pictures: Sequence[Picture], task: str) -> list[Picture]:
    return [(caption, path) for caption, path in pictures if read_metadata(path).get("task") == task]


def _of_no_task(pictures: Sequence[Picture], found: Sequence[Block]) -> list[Picture]:
    tasks = {block.task for block in found}
    return [(caption, path) for caption, path in pictures if read_metadata(path).get("task") not in tasks]


def _embedded(pictures: Sequence[Picture]) -> list[tuple[str, str]]:
    return [(caption, base64.b64encode(path.read_bytes()).decode()) for caption, path in pictures]


def _link(path: Path, folder: Path | None) -> str:
    try:
        return path.relative_to(folder or Path()).as_posix()
    except ValueError:
        return path.as_posix()


def _colophon(result: Result) -> str:
    found = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return f"{round(result.seconds)} s; {found}" + (f"; commit {result.commit}." if result.commit else ".")
