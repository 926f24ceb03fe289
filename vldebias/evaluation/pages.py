"""The page of a result: one screen with what came out, everything else folded below it; and its charts.

Names of methods, groups and prompts go through `for_matplotlib`: they may hold anything.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.errors import need
from vldebias.evaluation.report import (
    COMPARED,
    FRONT,
    LABELS,
    MEANING,
    PUBLISHED,
    TEMPLATES,
    Comparison,
    evidence,
    facts,
    grids,
    lines,
    opening,
    plain,
    told,
)
from vldebias.evaluation.result import CHANCE, NONE, Result
from vldebias.evaluation.session import WORLDS
from vldebias.files import write_atomically
from vldebias.methods import METHODS
from vldebias.metrics.metric import metric_of
from vldebias.pictures import INK, for_matplotlib, picture_metadata, subplots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot
    from torch import Tensor

GRID, LINE = "#e4e7eb", "#cbd2d9"
LABELLED = "#c9ccd1"  # methods that were given labels
OTHERS = ("#d9a441", "#b4656f", "#7d6b91", "#5f7a4f")
TOO_MANY = 45  # parts that a chart can still show
MINIATURE = (
    "Measured on cartoon people and birds of the miniature world: the figures show the method at work and say "
    "nothing about another model."
)

# ---- pages ---------------------------------------------------------------------------------------------------


def render(result: Result, path: Path, *, beside: Path) -> Path:
    """Write the page of a result: one HTML file with tables, charts and pictures inside, and the rows as CSV.

    beside: the folder with the pictures of the run that rows cannot give, such as images of the same seeds.
    """
    there = {one: picture_metadata(one) for one in sorted(beside.glob("*.png"))}
    pictures = [(about, p) for p, about in there.items() if about.get("run") == result.name and "caption" in about]
    pictures.sort(key=lambda one: "side-by-side" not in one[1].stem)  # images open the page, before plots about them
    t, about = told(result), {one.task: one for one in result.provenance}
    found = lines(t)
    blocks: list[dict[str, Any]] = []
    for task, block in t.groupby("task", sort=False):
        of = about.get(str(task))
        blocks.append(
            {
                "task": task,
                "title": (of.title if of else "") or task,
                "description": of.description if of else "",
                "advice": list(of.settings.get("advice", ())) if of else [],
                "grids": list(grids(block)),
                "charts": charts(block),
                "pictures": [
                    _shown(*one) for one in sorted(pictures[1:], key=itemgetter(1)) if one[0].get("task") == task
                ],
                "facts": facts(of) if of else [],
            }
        )
    first = [(one.row.task, one.row.metric, one.row.subset) for one in found]
    front = t[np.array([key in first for key in zip(t.task, t.metric, t.subset, strict=True)], dtype=bool)]
    values = {
        "result": result,
        "models": list(dict.fromkeys(one.model for one in result.provenance if one.model)),
        "opening": opening(t),
        "heads": FRONT,
        "lines": found,
        "lead": [_shown(*one) for one in pictures[:1]],
        "dots": _png(dots(front)) if found else "",
        "blocks": blocks,
        "evidence": evidence(result),
        "notes": [MEANING, *([LABELS] if t.uses_labels.any() else []), *([MINIATURE] if on_miniature(result) else [])],
        "published": PUBLISHED if t.published.notna().any() else "",
        "csv": result.to_csv(path.with_suffix(".csv")).name,
    }
    return write_atomically(path, _html("report.html.jinja", values))


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """Write one HTML file with both values and their difference; no network needed."""
    whole = comparison.frame.whole
    parts = ("Wholes", comparison.frame[whole], False), ("Parts", comparison.frame[~whole], True)
    tables = [(name, list(some.itertuples()), folded) for name, some, folded in parts if len(some)]
    return write_atomically(path, _html("compare.html.jinja", {"c": comparison, "tables": tables, "method": COMPARED}))


def write_paper(table: pd.DataFrame, runs: Sequence[Any], path: Path) -> Path:
    """Write the page of `vldebias.evaluation.paper`: published beside measured figures, and what is missing."""
    blocks = [(key, list(block.itertuples())) for key, block in table.groupby(["table", "data", "model"], sort=False)]
    return write_atomically(path, _html("paper.html.jinja", {"blocks": blocks, "runs": runs}))


def _png(plot: Any) -> str:
    buffer = io.BytesIO()
    plot.savefig(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()


def _shown(about: Mapping[str, Any], path: Path) -> tuple[str, str]:
    return str(about["caption"]), base64.b64encode(path.read_bytes()).decode()


def _html(template: str, values: Mapping[str, Any]) -> str:
    page: str = _templates(need("jinja2"), need("markupsafe")).get_template(template).render(values)
    return page


@cache
def _templates(jinja2: Any, markupsafe: Any) -> Any:
    """The environment, which keeps what it has compiled."""

    def soft(text: str) -> Any:
        """May break after a slash or an underscore: names of groups and columns are long on a telephone."""
        return markupsafe.Markup(str(markupsafe.escape(text)).replace("/", "/<wbr>").replace("_", "_<wbr>"))

    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": plain, "soft": soft}
    return environment


def on_miniature(result: Result) -> bool:
    """Tell whether every task was measured in the embedded world: on its renders, or on what its pipeline generated."""
    return bool(result.provenance) and all(
        one.split.split(" ")[0] in WORLDS
        or (one.model.split(" ")[0] == "miniature" and one.split.partition(",")[0] in ("generated", "texts"))
        for one in result.provenance
    )


# ---- charts --------------------------------------------------------------------------------------------------


def charts(block: pd.DataFrame) -> list[tuple[str, str]]:
    """Return caption and PNG of the charts of one task: its sweep, its wholes, the first measure of its parts."""
    wholes, of_parts = block[block.whole], block[~block.whole]
    counts = wholes.groupby(["metric", "method"]).lam.transform("nunique")
    sweep = wholes[wholes.metric.isin(wholes.metric[counts >= 3].unique()) & (wholes.method != CHANCE)]
    found = []
    if len(sweep):
        found.append(("Each measure against λ, with 95 % bands; dashed: no projection.", curves(sweep)))
    shown = wholes[wholes.kind.isin(("bias", "utility"))]
    if len(shown) > 1:
        found.append(("Each method with its 95 % interval; the band is chance.", dots(shown)))
    first = of_parts[of_parts.metric == of_parts.metric.iloc[0]] if len(of_parts) else of_parts
    if 1 < first.subset.nunique() <= TOO_MANY:
        found.append((f"{first.title.iloc[0]} by part, ordered by none.", parts(first)))
    return [(caption, _png(plot)) for caption, plot in found]


def dots(rows: pd.DataFrame) -> Plot:
    """Draw a panel per measure of wholes: a line per method, its value with its interval, and what chance gives.

    A measure has one scale, whatever the task: that of its bounds, else from 0 to the largest end of all its rows.
    """
    panels = list(rows.groupby(["task", "title", "subset"], sort=False))
    scales = {metric: _scale(str(metric), own) for metric, own in rows.groupby("metric")}
    across = min(len(panels), 3)
    down, high = -(-len(panels) // across), max(panel.name.nunique() for _, panel in panels)
    plot, axes = subplots(down, across, (1.4 + 3.1 * across, (0.8 + 0.24 * high) * down))
    for axis, ((task, _, _), panel) in zip(axes, panels, strict=False):
        names = [name for name in panel.name.unique() if name != "chance"]
        for row in panel.drop_duplicates("name", keep="last").itertuples():
            if row.name != "chance":
                _point(axis, row, names.index(row.name))
        for row in panel[panel.method == CHANCE].itertuples():
            axis.axvspan(row.low, row.high, color=GRID, zorder=0)
        for row in panel[panel.method == NONE].itertuples():
            axis.axvline(row.value, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
        axis.set_yticks(range(len(names)), list(map(for_matplotlib, names)))
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_xlim(*scales[panel.metric.iloc[0]])
        first = panel.iloc[0]
        hint = f"\n{first.better} is better" if first.better != "neither" else ""
        axis.set_title(for_matplotlib(f"{task}: {first.measure}") + hint, fontsize=8.5, color=INK)
    return _finished(plot, axes, len(panels))


def parts(rows: pd.DataFrame) -> Plot:
    """Draw one measure of parts (groups, queries): a line per part, ordered by none."""
    order = list(dict.fromkeys([*rows[rows.method == NONE].sort_values("value").subset, *rows.subset]))
    names = [name for name in rows.name.unique() if name != "chance"]
    plot, axes = subplots(1, 1, (7.2, max(0.3, 0.085 * len(names) + 0.08) * len(order) + 1.1))
    spread = np.linspace(-0.28, 0.28, len(names)) if len(names) > 1 else np.zeros(1)
    for off, name in zip(spread, names, strict=True):
        for row in rows[rows.name == name].itertuples():
            _point(axes[0], row, order.index(row.subset) + off, name if row.subset == order[0] else None)
    axes[0].set_yticks(range(len(order)), list(map(for_matplotlib, order)))
    axes[0].set_ylim(len(order) - 0.4, -0.6)
    axes[0].set_xlim(*_scale(rows.metric.iloc[0], rows))
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    return _finished(plot, axes, 1)


def curves(rows: pd.DataFrame) -> Plot:
    """Draw a panel per measure: value against lambda with its 95 % band; methods without lambda as level lines.

    The axis is logarithmic with a linear piece around zero, so that lambda = 0 (no calibration) is on it.
    """
    panels = list(rows.groupby("title", sort=False))
    across = min(len(panels), 2)
    plot, axes = subplots(-(-len(panels) // across), across, (3.9 * across, 2.9 * -(-len(panels) // across)))
    for axis, (title, panel) in zip(axes, panels, strict=False):
        for method, own in panel.groupby("method", sort=False):
            of, shade = own.dropna(subset="lam").sort_values("lam"), colour(str(method))
            if len(of) < 2:
                axis.axhline(own.value.iloc[0], color=shade, linestyle="--", linewidth=1.4, label=str(method))
                continue
            axis.fill_between(of.lam, of.low, of.high, color=shade, alpha=0.16, linewidth=0)
            axis.plot(of.lam, of.value, color=shade, marker="o", markersize=3.5, label=str(method))
        positive = panel.lam[panel.lam > 0]
        if len(positive) and positive.max() / positive.min() > 20:
            axis.set_xscale("symlog", linthresh=positive.min(), linscale=0.5)
        axis.set_xlabel("λ", fontsize=9, color=INK)
        axis.set_title(for_matplotlib(str(title)), fontsize=9, color=INK)
    axes[0].legend(frameon=False, fontsize=7.5, loc="lower right")
    return _finished(plot, axes, len(panels), grid="both")


def dumbbells(names: Sequence[str], before: np.ndarray, after: np.ndarray, title: str, method: str = "cali") -> Plot:
    """Draw a line per name from its share before to its share after, ordered by the share before; 0.5 is marked."""
    plot, (axis,) = subplots(1, 1, (7.2, 0.24 * len(names) + 1.0))
    order, rows = np.argsort(before), np.arange(len(names))
    axis.axvline(0.5, color=LINE, linewidth=1, zorder=0)
    axis.hlines(rows, before[order], after[order], color=LINE, linewidth=2, zorder=1)
    for name, shares, shade in (("none", before, colour("none")), (method, after, colour(method))):
        axis.scatter(shares[order], rows, color=shade, s=34, zorder=2, label=for_matplotlib(name))
    axis.set_yticks(rows, [for_matplotlib(names[i]) for i in order], fontsize=8)
    axis.set_xlim(-0.03, 1.03)
    axis.set_ylim(-0.8, len(names) - 0.2)
    axis.set_title(for_matplotlib(title), fontsize=9.5, color=INK)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    return _finished(plot, [axis], 1)


def contact_sheet(rows: Sequence[tuple[str, Tensor]], *, zoom: int = 2) -> Plot:
    """Draw one labelled row of images (n, 3, h, w) in [0, 1] per entry; columns are seeds."""
    margin = max(1.3, 0.08 * max(len(name) for name, _ in rows))  # inches, of letters of 9 points
    plot, axes = subplots(len(rows), 1, (0.36 * zoom * len(rows[0][1]) + margin, 0.37 * zoom * len(rows)))
    for axis, (name, images) in zip(axes, rows, strict=True):
        strip = images.permute(2, 0, 3, 1).reshape(images.shape[2], -1, 3).numpy()
        axis.imshow(strip, interpolation="nearest")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
        axis.set_ylabel(for_matplotlib(name), rotation=0, ha="right", va="center", fontsize=9, color=INK)
    plot.subplots_adjust(left=margin / plot.get_size_inches()[0], right=1, top=1, bottom=0, hspace=0.06)
    return plot


def colour(method: str) -> str:
    """Return the method's own colour, the same in every chart; of other names one that stays the same."""
    return METHODS[method].color if method in METHODS else OTHERS[sum(method.encode()) % len(OTHERS)]


def _scale(metric: str, rows: pd.DataFrame) -> tuple[float, float]:
    low, high = metric_of(metric).bounds
    low = low if np.isfinite(low) else min(0.0, float(rows.low.min()))
    high = high if np.isfinite(high) else max(0.0, float(rows.high.max()))
    room = 0.02 * ((high - low) or 1.0)
    return low - room, high + room


def _point(axis: Any, row: Any, place: float, label: str | None = None) -> None:
    shade = LABELLED if row.uses_labels else colour(row.method)
    ends = [[max(row.value - row.low, 0)], [max(row.high - row.value, 0)]]
    axis.errorbar(
        [row.value], [place], xerr=ends, fmt="o", markersize=4.5, color=shade, ecolor=shade, capsize=2.2,
        label=None if label is None else for_matplotlib(label),
    )  # fmt: skip


def _finished(plot: Plot, axes: Sequence[Any], used: int, grid: str = "x") -> Plot:
    for axis in axes[:used]:
        axis.grid(axis=grid, color=GRID, linewidth=0.7, zorder=0)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8, colors=INK, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.spines["bottom"].set_color(GRID)
    for axis in axes[used:]:
        axis.set_visible(False)
    plot.tight_layout()
    return plot
