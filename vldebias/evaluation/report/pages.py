"""Render a result: tables in the terminal, a page in one file, Markdown. All of it from its rows alone."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.errors import need
from vldebias.evaluation.report.charts import charts
from vldebias.evaluation.report.front import conclusion, evidence, forest, nothing_to_remove, opening
from vldebias.evaluation.report.published import HEAD as PUBLISHED_HEAD
from vldebias.evaluation.report.published import SOURCE, published
from vldebias.evaluation.report.tables import Block, Column, Table, blocks
from vldebias.evaluation.report.words import change, label, metric_title, number, verdict
from vldebias.evaluation.result import CHANCE, Measurement, Result, TaskProvenance
from vldebias.files import write_atomically
from vldebias.pictures import picture_metadata, save_png

if TYPE_CHECKING:
    from rich.console import Console

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


# ---- terminal ----------------------------------------------------------------------------------------------


def print_table(result: Result, console: Console, measures: Sequence[tuple[str, str]] = ()) -> None:
    """The rows in the terminal: one small table per measure, narrow enough for 80 columns.

    Parts (groups, queries) are left to the page where there is a whole. measures: only these (task, metric).
    """
    from rich.markup import escape
    from rich.table import Table as Grid

    console.print(f"[bold]{escape(result.name)}[/bold]: value, and change from none, with 95 % intervals")
    tasks = {block.task: block for block in blocks(result)}
    shown = _shown(tasks, measures)
    lams: dict[str, set[float | None]] = {}
    for row in shown:
        lams.setdefault(f"{row.task} {row.method}", set()).add(row.lam)
    first = {key: i for i, key in reversed(list(enumerate(map(_measure, shown))))}  # in their order, methods together
    for (task, metric, subset), rows in groupby(sorted(shown, key=lambda row: first[_measure(row)]), key=_measure):
        grid = Grid(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        for width in (19, 23, 23, 7):
            grid.add_column(width=width, overflow="fold")
        for row in rows:
            verdict = tasks[task].verdict(row)
            style = {"better": "green", "worse": "red"}.get(verdict)
            name = label(row, len(lams[f"{row.task} {row.method}"]) > 1, strength=False)
            grid.add_row(escape(name), number(row), change(row), verdict, style=style)
        about = ", ".join(filter(None, (metric_title(metric), subset)))
        console.print(f"\n[bold]{escape(f'{task}: {about}')}[/bold] ({row.better} is better)", highlight=False)
        console.print(grid)
        if not subset and metric in tasks[task].at_chance:
            console.print(nothing_to_remove(tasks[task], metric), highlight=False)
    if any(row.uses_labels for row in result.rows):
        console.print(f"\n{LABELS}", highlight=False)
    if beside := published(result):
        grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=SOURCE, title_justify="left")
        for title in PUBLISHED_HEAD:
            grid.add_column(title, overflow="fold")
        for one in beside:
            grid.add_row(*map(escape, one.cells()))
        console.print("", grid, sep="\n")
    if len(shown) < len(result.rows):
        console.print(f"\n{len(result.rows) - len(shown)} more figures are in the page.", highlight=False)


def tab_rows(
    result: Result, measures: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """The head and the rows of `print_table` with whole numbers, for programs that read them."""
    tasks = {block.task: block for block in blocks(result)}
    head = ("task", "measure", "part", "method", "lam", "value", "low", "high", "change", "change_low", "change_high",
            "better", "verdict")  # fmt: skip
    named = {CHANCE: "chance"}
    return head, [
        (row.task, row.metric, row.subset, named.get(row.method, row.method), row.lam, row.value, *row.interval,
         *(row.change or (None,) * 3), row.better, tasks[row.task].verdict(row))
        for row in _shown(tasks, measures)
    ]  # fmt: skip


def _shown(tasks: Mapping[str, Block], measures: Sequence[tuple[str, str]]) -> list[Measurement]:
    rows = [row for block in tasks.values() for row in block.headline]
    return [row for row in rows if (row.task, row.metric) in measures] if measures else rows


def _measure(row: Measurement) -> tuple[str, str, str]:
    return row.task, row.metric, row.subset


# ---- Markdown ----------------------------------------------------------------------------------------------


def markdown_table(result: Result, measures: Sequence[tuple[str, ...]]) -> str:
    """Chosen rows as one flat Markdown table: (task, metric) for a whole, (task, metric, subset) for a part."""
    chosen = {(task, metric, *subset) if subset else (task, metric, "") for task, metric, *subset in measures}
    lines = []
    for row in result.rows:
        if _measure(row) in chosen:
            about = ", ".join(filter(None, (metric_title(row.metric), row.subset)))
            lines.append((row.task, f"{about} ({row.better} is better)", row.method, number(row), change(row)))
    return _markdown_grid(HEAD, lines)


def markdown(result: Result, pictures: Sequence[Picture] = (), folder: Path | None = None) -> str:
    """The whole result as Markdown, with pictures linked relative to `folder`."""
    tasks = blocks(result)
    lines = [f"# {result.name}", _markdown_grid(("how it was made", ""), evidence(result, tasks)), MEANING]
    lines += [MINIATURE] if on_miniature(result) else []
    conclusions = ((block, f"{conclusion(block)} {block.worst_part}".strip()) for block in tasks)
    lines.append("\n".join(f"- **{block.task}**: {text}" for block, text in conclusions if text))
    if beside := published(result):
        lines += [
            f"## Published and measured\n\n{SOURCE}.",
            _markdown_grid(PUBLISHED_HEAD, [one.cells() for one in beside]),
        ]
    for block in tasks:
        lines += [f"## {block.title}", block.provenance.description if block.provenance else ""]
        for table in block.tables:
            lines += [f"**{table.caption}**", _markdown_pivot(table, block)]
            lines += [LABELS] if table.has_labelled else []
        for caption, path in _of_task(pictures, block.task):
            link = path.relative_to(folder) if folder is not None and path.is_relative_to(folder) else path
            lines.append(f"![{caption}]({link.as_posix()})")
        if block.provenance:
            lines.append(_markdown_grid(("protocol", ""), [(name, plain(v)) for name, v in facts(block.provenance)]))
    return "\n\n".join(line for line in lines if line) + "\n"


def _markdown_pivot(table: Table, block: Block) -> str:
    """One table of a result; value, change and verdict share a cell."""

    def cell(row: Measurement | None) -> str:
        if row is None:
            return ""
        return number(row) + (f"<br>{change(row)} {block.verdict(row)}" if row.change else "")

    body = [[str(Column(row.title, row.hint)), *map(cell, row.cells)] for row in table.rows]
    return _markdown_grid([table.corner, *map(str, table.columns)], body)


def _markdown_grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(text.replace("|", r"\|") for text in line) + " |" for line in lines)


# ---- the page ----------------------------------------------------------------------------------------------


def draw_charts(result: Result, folder: Path) -> list[Picture]:
    """The charts that the rows allow, as PNGs in `folder` that say what they show.

    The first chart of a task stands open on the page; the others are details, to be opened.
    """
    pictures, tasks = [], set[str]()
    for stem, chart in charts(result).items():
        about = {"run": result.name, "task": chart.task, "caption": chart.caption, "chart": True}
        detail = chart.detail or chart.task in tasks
        tasks.add(chart.task)
        pictures.append((chart.caption, save_png(chart.plot, folder / f"{stem}.png", about | {"detail": detail})))
    return pictures


def pictures_beside(result: Result, folder: Path) -> list[Picture]:
    """The pictures of a run in `folder` that cannot be drawn from rows (image strips), by what the PNGs say."""
    about = {path: picture_metadata(path) for path in sorted(folder.glob("*.png"))}
    return [
        (str(one["caption"]), path)
        for path, one in about.items()
        if one.get("run") == result.name and "caption" in one and not one.get("chart")
    ]


def write_page(result: Result, pictures: Sequence[Picture], path: Path) -> Path:
    """One HTML file with tables, protocols and the pictures inside, no network needed; the rows as CSV beside it.

    A picture stands with the task that its PNG metadata names (`save_png`), or on top where it names none.
    """
    tasks = blocks(result)
    named = {block.task for block in tasks}
    lead = _lead(pictures)
    rest = [one for one in pictures if one not in lead]
    top = [(caption, png) for caption, png in rest if picture_metadata(png).get("task") not in named]
    text = html(
        "report.html.jinja",
        result=result,
        blocks=tasks,
        opening=opening(tasks),
        lead=_embedded(lead),
        compared=any(row.change is not None for row in result.rows),
        evidence=evidence(result, tasks),
        facts={one.task: facts(one) for one in result.provenance},
        top=_embedded(top),
        pictures={block.task: _embedded(_of_task(rest, block.task)) for block in tasks},
        meaning=MEANING,
        labels=LABELS,
        miniature=MINIATURE if on_miniature(result) else "",
        published={"head": PUBLISHED_HEAD, "lines": [one.cells() for one in published(result)], "source": SOURCE},
        csv=result.to_csv(path.with_suffix(".csv")).name,
    )
    return write_atomically(path, text)


def _lead(pictures: Sequence[Picture]) -> list[Picture]:
    """The picture that a page opens with: images that were drawn, else the first chart of a whole; none of parts."""
    about = [(one, picture_metadata(one[1])) for one in pictures]
    whole = [(one, kind) for one, kind in about if not kind.get("detail")]
    drawn = [one for one, kind in whole if not kind.get("chart")]
    drawn.sort(key=lambda one: "side-by-side" not in one[1].stem)  # images themselves, before plots about them
    return (drawn or [one for one, _ in whole])[:1]


def render(result: Result, path: Path, *, beside: Path) -> Path:
    """The page of a result: charts drawn anew from its rows, and the other pictures of the run from `beside`."""
    with tempfile.TemporaryDirectory() as folder:
        return write_page(result, draw_charts(result, Path(folder)) + pictures_beside(result, beside), path)


def html(template: str, **values: Any) -> str:
    """A template of this folder, filled in."""
    page: str = _templates(need("jinja2"), need("markupsafe")).get_template(template).render(**values)
    return page


@cache
def _templates(jinja2: Any, markupsafe: Any) -> Any:
    """The folder's environment, which keeps what it has compiled."""

    def soft(text: str) -> Any:
        """May break after a slash or an underscore: names of groups and columns are long on a telephone."""
        return markupsafe.Markup(str(markupsafe.escape(text)).replace("/", "/<wbr>").replace("_", "_<wbr>"))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vldebias.evaluation.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": plain, "number": number, "change": change, "verdict": verdict, "soft": soft}
    environment.filters |= {"conclusion": conclusion, "forest": forest}
    return environment


def on_miniature(result: Result) -> bool:
    """Whether every task was measured in the embedded world: on its renders, or on what its pipeline drew or reads."""
    abouts = [(one.split, about) for one in result.provenance for about in one.settings.values()]
    sources = [(split, about.get("source")) for split, about in abouts if isinstance(about, Mapping)]
    rendered = {split for split, source in sources if isinstance(source, Mapping) and "world" in source}
    return bool(result.provenance) and all(
        one.split in rendered
        or (one.model.split(" ")[0] == "miniature" and one.split.partition(",")[0] in ("generated", "texts"))
        for one in result.provenance
    )


def facts(provenance: TaskProvenance) -> list[tuple[str, Any]]:
    """What a reader needs to repeat a task, by name; settings come one by one."""
    fingerprint = provenance.fingerprint or {}
    return [
        ("model", provenance.model),
        ("weights fingerprint", fingerprint.get("structure", "not known")),
        ("prompts", f"{provenance.prompts}, hash {provenance.prompts_hash[:12]}"),
        ("split", provenance.split),
        *([("data", provenance.data)] if provenance.data else []),
        ("counts", provenance.n),
        ("methods", provenance.methods),
        ("seeds", provenance.seeds),
        *((name.replace("_", " "), value) for name, value in provenance.settings.items() if name != "advice"),
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


def _of_task(pictures: Sequence[Picture], task: str) -> list[Picture]:
    return [(caption, path) for caption, path in pictures if picture_metadata(path).get("task") == task]


def _embedded(pictures: Sequence[Picture]) -> list[tuple[str, str, bool]]:
    """Caption, PNG in base64, and whether it is about parts."""
    return [
        (caption, base64.b64encode(path.read_bytes()).decode(), bool(picture_metadata(path).get("detail")))
        for caption, path in pictures
    ]
