"""Charts of a result from its rows alone, and pictures that rows cannot give: images of the same seeds, shares.

Names of methods, groups and prompts go through `for_matplotlib`: they may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vldebias.evaluation.report.tables import blocks
from vldebias.evaluation.report.words import capitalised, label, metric_title
from vldebias.evaluation.result import CHANCE, Measurement, Result
from vldebias.methods import METHODS
from vldebias.pictures import INK, for_matplotlib, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from torch import Tensor

GRID, LINE = "#e4e7eb", "#cbd2d9"
LABELLED = "#c9ccd1"  # methods that were given labels
OTHERS = ("#d9a441", "#b4656f", "#7d6b91", "#5f7a4f")
MARKERS = "oDs^vPX"
MANY_PARTS = 6  # as in the tables: more are drawn as points, one line each
TOO_MANY = 45  # lines that a page can still show
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8, "ncols": 5, "loc": "lower center"}


def file_slug(text: str) -> str:
    """A file name: "fairface gender: lambda" -> "fairface-gender-lambda"."""
    return re.sub(r"[^a-z0-9@]+", "-", text.lower()).strip("-")


# ---- which charts a result has -----------------------------------------------------------------------------


class Chart(NamedTuple):
    """A plot of a task; detail: of its parts, such as queries."""

    task: str
    caption: str
    plot: Plot
    detail: bool


def charts(result: Result) -> dict[str, Chart]:
    """File stem -> chart, one per table.

    Of the tables of parts only the first measure of each kind is drawn, the others are read.
    """
    plots = {}
    for block in blocks(result):
        drawn = set()
        for table in block.tables:
            rows = table.cells
            kind = (tuple(rows[0].n), frozenset(row.subset for row in rows))
            if len(rows) < 2 or (table.detail and kind in drawn):
                continue
            drawn.add(kind)
            chart = _chart(rows, parts=table.detail)
            if chart is not None:
                plots[file_slug(f"{block.task} {table.caption}")] = Chart(block.task, *chart, table.detail)
    return plots


def _chart(rows: Sequence[Measurement], parts: bool) -> tuple[str, Plot] | None:
    """Caption and picture of a table; None of one with more parts than a picture shows."""
    if parts:
        count, title = len({row.subset for row in rows}), capitalised(metric_title(rows[0].metric))
        if count <= MANY_PARTS:
            return f"{title} by part, with 95 % intervals.", group_bars(rows, by="subset")
        if count <= TOO_MANY:
            return f"{title} one by one, with 95 % intervals, ordered by the model as it is.", points(rows)
        return None
    lams: dict[str, set[float]] = {}
    for row in rows:
        if row.lam is not None:
            lams.setdefault(row.method, set()).add(row.lam)
    if any(len(values) >= 3 for values in lams.values()):
        return "Each measure against λ, with 95 % bands; dashed: no projection.", lambda_curves(rows)
    about = f"{rows[0].subset}: " if rows[0].subset else ""
    grey = " Grey: given labels." if any(row.uses_labels for row in rows) else ""
    band = " Band: 95 % of random rankings." if any(row.method == CHANCE for row in rows) else ""
    return f"{about}Each method with its 95 % interval.{grey}{band}", group_bars(rows, by="metric")


def colour(method: str) -> str:
    """The method's own, the same in every chart; of other names (a variant, a saved edit) one that stays the same."""
    return METHODS[method].color if method in METHODS else OTHERS[sum(method.encode()) % len(OTHERS)]


def _shade(row: Measurement) -> str:
    return LABELLED if row.uses_labels else colour(row.method)


def _name(row: Measurement) -> str:
    return for_matplotlib(label(row, False, False))


# ---- charts ------------------------------------------------------------------------------------------------


def group_bars(rows: Sequence[Measurement], *, by: str) -> Plot:
    """One panel per group (by="subset") or measure (by="metric"), one bar with its 95 % interval per method.

    Horizontal, so that names of methods are read; shared down the page, so that a method is one line.
    """
    keys = list(dict.fromkeys(getattr(row, by) for row in rows))
    names = list(dict.fromkeys(map(_name, rows)))
    columns = 2 if len(keys) == 4 else min(len(keys), 3)
    lines = -(-len(keys) // columns)
    size = (1.3 + (3.4 if columns < 3 else 2.5) * columns, (0.9 + 0.27 * len(names)) * lines)
    plot, axes = subplots(lines, columns, size)
    for i, (axis, key) in enumerate(zip(axes, keys, strict=False)):
        chosen = {_name(row): row for row in rows if getattr(row, by) == key}
        _bars(axis, names, chosen)
        first = next(iter(chosen.values()))
        title = f"{metric_title(key)}\n{first.better} is better" if by == "metric" else key
        images = {row.n.get("images") for row in chosen.values()}
        count = images.pop() if by == "subset" and len(images) == 1 else None
        title += "" if count is None else f"\nn = {count:,}"
        axis.set_title("\n".join(map(for_matplotlib, title.split("\n"))), fontsize=9, color=INK)
        axis.set_yticks(range(len(names)), names if i % columns == 0 else [""] * len(names), fontsize=8)
    if by == "subset":  # one measure, so one axis for all
        ends = np.array([axis.get_xlim() for axis in axes[: len(keys)]])
        for axis in axes[: len(keys)]:
            axis.set_xlim(ends[:, 0].min(), ends[:, 1].max())
    return _finished(plot, axes, len(keys))


def _bars(axis: Any, names: Sequence[str], chosen: dict[str, Measurement]) -> None:
    places = [i for i, name in enumerate(names) if name in chosen]
    shown = [chosen[names[i]] for i in places]
    values = np.array([row.value for row in shown])
    axis.barh(places, values, height=0.66, color=[_shade(row) for row in shown], zorder=2)
    _whiskers(axis, shown, places)
    none = next((row for row in shown if row.method == "none"), None)
    if none is not None:
        axis.axvline(none.value, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    chance = next((row for row in shown if row.method == CHANCE), None)
    if chance is not None:
        axis.axvspan(*chance.interval, color=GRID, zorder=0)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.margins(x=0.06)
    highs = [row.interval[1] for row in shown]
    if values.min() >= 0 and max(highs) <= 1 and min(highs) > 0.5:
        axis.set_xlim(0, 1.02)
    _plain(axis, grid="x")


def lambda_curves(rows: Sequence[Measurement]) -> Plot:
    """One panel per measure: value against lambda with its 95 % band; methods without lambda as level lines.

    The axis is logarithmic with a linear piece around zero, so that lambda = 0 (no calibration) is on it.
    """
    metrics = list(dict.fromkeys(row.metric for row in rows))
    columns = min(len(metrics), 2)
    lines = -(-len(metrics) // columns)
    plot, axes = subplots(lines, columns, (3.9 * columns, 2.9 * lines))
    for axis, metric in zip(axes, metrics, strict=False):
        chosen = [row for row in rows if row.metric == metric]
        for method in dict.fromkeys(row.method for row in chosen):
            _curve(axis, [row for row in chosen if row.method == method])
        lams = sorted({row.lam for row in chosen if row.lam is not None})
        if (positive := [lam for lam in lams if lam > 0]) and max(positive) / min(positive) > 20:
            axis.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
        axis.set_xticks(lams, _readable(lams, axis.transData.transform([(lam, 0) for lam in lams])[:, 0]))
        axis.minorticks_off()
        axis.set_xlabel("λ", fontsize=9, color=INK)
        title = f"{for_matplotlib(metric_title(metric))}\n{chosen[0].better} is better"
        axis.set_title(title, fontsize=9, color=INK)
        _plain(axis, grid="both")
    _finished(plot, axes, len(metrics))
    plot.subplots_adjust(bottom=0.85 / plot.get_size_inches()[1])
    plot.legend(*axes[0].get_legend_handles_labels(), **LEGEND)
    return plot


def _curve(axis: Any, rows: Sequence[Measurement]) -> None:
    swept = sorted((row for row in rows if row.lam is not None), key=lambda row: row.lam or 0.0)
    name, shade = for_matplotlib(rows[0].method), _shade(rows[0])
    if len(swept) < 2:
        style = "--" if rows[0].method == "none" else ":"
        axis.axhline(rows[0].value, color=shade, linestyle=style, linewidth=1.4, label=name)
        return
    lams = [row.lam for row in swept]
    low, high = np.array([row.interval for row in swept]).T
    axis.fill_between(lams, low, high, color=shade, alpha=0.16, linewidth=0)
    axis.plot(lams, [row.value for row in swept], color=shade, marker="o", markersize=3.5, label=name)


def _readable(lams: Sequence[float], places: np.ndarray) -> list[str]:
    """A label per tick, blank where it would touch the one before; the last, the preset, is always there."""
    apart = 0.09 * np.ptp(places)
    kept = [len(lams) - 1]
    for i in range(len(lams) - 1):
        if places[kept[-1] if len(kept) > 1 else 0] + apart <= places[i] <= places[-1] - apart or i == 0:
            kept.append(i)
    return [f"{lam:g}" if i in kept else "" for i, lam in enumerate(lams)]


def points(rows: Sequence[Measurement]) -> Plot:
    """One line per part (query, profession), one point with its 95 % interval per method, ordered by "none"."""
    names = list(dict.fromkeys(map(_name, rows)))
    base = {r.subset: r.value for r in rows if r.method == "none"} or {r.subset: r.value for r in rows}
    subsets = sorted(dict.fromkeys(row.subset for row in rows), key=lambda subset: base.get(subset, 0.0))
    spread = np.linspace(-0.28, 0.28, len(names)) if len(names) > 1 else np.zeros(1)
    height = max(0.3, 0.085 * len(names) + 0.08)
    plot, (axis,) = subplots(1, 1, (7.2, height * len(subsets) + 1.1))
    for i, name in enumerate(names):
        chosen = [row for row in rows if _name(row) == name]
        places = [subsets.index(row.subset) - spread[i] for row in chosen]
        shade, marker = _shade(chosen[0]), MARKERS[i % len(MARKERS)]
        _whiskers(axis, chosen, places, shade=shade, width=1.0)
        axis.scatter([row.value for row in chosen], places, color=shade, marker=marker, s=22, zorder=3, label=name)
    for i in range(len(subsets) - 1):
        axis.axhline(i + 0.5, color=GRID, linewidth=0.6, zorder=0)
    axis.set_yticks(range(len(subsets)), list(map(for_matplotlib, subsets)), fontsize=8)
    axis.set_ylim(-0.6, len(subsets) - 0.4)
    title = f"{metric_title(rows[0].metric)} ({rows[0].better} is better)"
    axis.set_title(for_matplotlib(title), fontsize=9.5, color=INK)
    _plain(axis, grid="x")
    plot.tight_layout()
    plot.subplots_adjust(bottom=0.62 / plot.get_size_inches()[1])
    plot.legend(*axis.get_legend_handles_labels(), **LEGEND)
    return plot


def dumbbells(names: Sequence[str], before: np.ndarray, after: np.ndarray, title: str, method: str = "cali") -> Plot:
    """One line per name from its share before to its share after, ordered by the share before; 0.5 is marked."""
    plot, (axis,) = subplots(1, 1, (7.2, 0.24 * len(names) + 1.0))
    order = np.argsort(before)
    rows = np.arange(len(names))
    axis.axvline(0.5, color=LINE, linewidth=1, zorder=0)
    axis.hlines(rows, before[order], after[order], color=LINE, linewidth=2, zorder=1)
    for name, shares, shade in (("none", before, colour("none")), (method, after, colour(method))):
        axis.scatter(shares[order], rows, color=shade, s=34, zorder=2, label=for_matplotlib(name))
    axis.set_yticks(rows, [for_matplotlib(names[i]) for i in order], fontsize=8)
    axis.set_xlim(-0.03, 1.03)
    axis.set_ylim(-0.8, len(names) - 0.2)
    axis.set_title(for_matplotlib(title), fontsize=9.5, color=INK)
    axis.tick_params(labelsize=8, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    plot.tight_layout()
    return plot


def _finished(plot: Plot, axes: Sequence[Any], used: int) -> Plot:
    for axis in axes[used:]:
        axis.set_visible(False)
    plot.tight_layout()
    return plot


def _whiskers(
    axis: Any, rows: Sequence[Measurement], places: Sequence[float], *, shade: str = INK, width: float = 1.1
) -> None:
    values = np.array([row.value for row in rows])
    low, high = np.array([row.interval for row in rows]).T
    reach = np.maximum([values - low, high - values], 0)
    axis.errorbar(values, places, xerr=reach, fmt="none", ecolor=shade, elinewidth=width, capsize=2.2, zorder=3)


def _plain(axis: Any, *, grid: str) -> None:
    axis.grid(axis=grid, color=GRID, linewidth=0.7, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK, length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(GRID)


# ---- images ------------------------------------------------------------------------------------------------


def contact_sheet(rows: Sequence[tuple[str, Tensor]], *, zoom: int = 2) -> Plot:
    """A plot with one labelled row of images (n, 3, h, w) in [0, 1] per entry; columns are seeds."""
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
