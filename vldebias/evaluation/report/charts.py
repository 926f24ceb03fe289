"""Charts of a result, drawn from its figures alone: bars of groups, curves over lambda, points per query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.evaluation.report.pictures import COLOURS, INK, subplots
from vldebias.evaluation.report.tables import Block, blocks
from vldebias.evaluation.report.wording import label, metric_title, sentence
from vldebias.evaluation.result import Figure, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

__all__ = ["charts", "group_bars", "lambda_curves", "points"]

GRID = "#e4e7eb"
LABELLED = "#c9ccd1"  # methods that were given labels
OTHERS = ("#d9a441", "#b4656f", "#7d6b91", "#5f7a4f")
MARKERS = "oDs^vPX"
MANY_PARTS = 6  # as in the tables: more are drawn as points, one line each
TOO_MANY = 45  # lines that a page can still show


def charts(result: Result) -> dict[str, tuple[str, str, Plot]]:
    """File stem -> (task, caption, plot) for all that the figures of a result allow."""
    found = {}
    for block in blocks(result):
        for name, (caption, plot) in _of_task(block).items():
            found[slug(f"{block.task} {name}")] = (block.task, caption, plot)
    return found


def slug(text: str) -> str:
    """A file name: "fairface gender: lambda" -> "fairface-gender-lambda"."""
    return re.sub(r"[^a-z0-9@]+", "-", text.lower()).strip("-")


def _of_task(block: Block) -> dict[str, tuple[str, Plot]]:
    """One chart per table; of the tables of parts only the first measure of each kind, the others are read."""
    found: dict[str, tuple[str, Plot]] = {}
    drawn = set()
    for table in block.tables:
        figures = table.figures
        kind = (tuple(figures[0].n), frozenset(f.subset for f in figures))
        if len(figures) < 2 or (table.detail and kind in drawn):
            continue
        drawn.add(kind)
        chart = _of_parts(figures) if table.detail else _of_whole(figures)
        if chart is not None:
            found[table.caption] = chart
    return found


def _of_whole(figures: Sequence[Figure]) -> tuple[str, Plot]:
    if _swept(figures):
        return "Each measure against λ, with 95 % bands; dashed: no projection.", lambda_curves(figures)
    about = f"{figures[0].subset}: " if figures[0].subset else ""
    grey = " Grey: given labels." if any(f.uses_labels for f in figures) else ""
    return f"{about}Each method with its 95 % interval.{grey}", group_bars(figures, by="metric")


def _of_parts(figures: Sequence[Figure]) -> tuple[str, Plot] | None:
    count, title = len({f.subset for f in figures}), sentence(metric_title(figures[0].metric))
    if count <= MANY_PARTS:
        return f"{title} by part, with 95 % intervals.", group_bars(figures, by="subset")
    if count <= TOO_MANY:
        return f"{title} one by one, with 95 % intervals, ordered by the model as it is.", points(figures)
    return None


def _swept(figures: Sequence[Figure]) -> bool:
    """Whether one method stands there with three or more lambda."""
    lams: dict[str, set[float]] = {}
    for figure in figures:
        if figure.lam is not None:
            lams.setdefault(figure.method, set()).add(figure.lam)
    return any(len(values) >= 3 for values in lams.values())


def group_bars(figures: Sequence[Figure], *, by: str) -> Plot:
    """One panel per group (by="subset") or measure (by="metric"), one bar with its 95 % interval per method.

    Horizontal, so that names of methods are read; shared down the page, so that a method is one line.
    """
    keys = list(dict.fromkeys(getattr(f, by) for f in figures))
    names = list(dict.fromkeys(label(f, False, False) for f in figures))
    columns = 2 if len(keys) == 4 else min(len(keys), 3)
    rows = -(-len(keys) // columns)
    plot, axes = subplots(
        rows, columns, (1.3 + (3.4 if columns < 3 else 2.5) * columns, (0.9 + 0.27 * len(names)) * rows)
    )
    for i, (axis, key) in enumerate(zip(axes, keys, strict=False)):
        chosen = {label(f, False, False): f for f in figures if getattr(f, by) == key}
        _bars(axis, names, chosen)
        first = next(iter(chosen.values()))
        title = metric_title(first.metric) if by == "metric" else f"{key}{_n(chosen.values())}"
        axis.set_title(f"{title}\n{first.better} is better" if by == "metric" else title, fontsize=9, color=INK)
        axis.set_yticks(range(len(names)), names if i % columns == 0 else [""] * len(names), fontsize=8)
    if by == "subset":  # one measure, so one axis for all
        ends = np.array([axis.get_xlim() for axis in axes[: len(keys)]])
        for axis in axes[: len(keys)]:
            axis.set_xlim(ends[:, 0].min(), ends[:, 1].max())
    return _finished(plot, axes, len(keys))


def _finished(plot: Plot, axes: Sequence[Any], used: int) -> Plot:
    for axis in axes[used:]:
        axis.set_visible(False)
    plot.tight_layout()
    return plot


def _n(figures: Any) -> str:
    counts = {f.n.get("images") for f in figures}
    count = counts.pop() if len(counts) == 1 else None
    return "" if count is None else f"\nn = {count:,}"


def _bars(axis: Any, names: Sequence[str], chosen: dict[str, Figure]) -> None:
    rows = [i for i, name in enumerate(names) if name in chosen]
    shown = [chosen[names[i]] for i in rows]
    values = np.array([f.value for f in shown])
    axis.barh(rows, values, height=0.66, color=[_colour(f) for f in shown], zorder=2)
    _whiskers(axis, shown, rows)
    none = next((f for f in shown if f.method == "none"), None)
    if none is not None:
        axis.axvline(none.value, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.margins(x=0.06)
    if values.min() >= 0 and max(f.interval[1] for f in shown) <= 1 and min(f.interval[1] for f in shown) > 0.5:
        axis.set_xlim(0, 1.02)
    _plain(axis, grid="x")


def lambda_curves(figures: Sequence[Figure]) -> Plot:
    """One panel per measure: value against lambda with its 95 % band; methods without lambda as level lines.

    The axis is logarithmic with a linear piece around zero, so that lambda = 0 (no calibration) is on it.
    """
    metrics = list(dict.fromkeys(f.metric for f in figures))
    columns = min(len(metrics), 2)
    rows = -(-len(metrics) // columns)
    plot, axes = subplots(rows, columns, (3.9 * columns, 2.9 * rows))
    for axis, metric in zip(axes, metrics, strict=False):
        chosen = [f for f in figures if f.metric == metric]
        for method in dict.fromkeys(f.method for f in chosen):
            _curve(axis, [f for f in chosen if f.method == method])
        _lambda_axis(axis, sorted({f.lam for f in chosen if f.lam is not None}))
        axis.set_title(f"{metric_title(metric)}\n{chosen[0].better} is better", fontsize=9, color=INK)
        _plain(axis, grid="both")
    _finished(plot, axes, len(metrics))
    plot.subplots_adjust(bottom=0.85 / plot.get_size_inches()[1])
    plot.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, ncols=5, loc="lower center")
    return plot


def _curve(axis: Any, figures: Sequence[Figure]) -> None:
    swept = sorted((f for f in figures if f.lam is not None), key=lambda f: f.lam or 0.0)
    first = figures[0]
    if len(swept) < 2:
        style = "--" if first.method == "none" else ":"
        axis.axhline(first.value, color=_colour(first), linestyle=style, linewidth=1.4, label=first.method)
        return
    lams = [f.lam for f in swept]
    low, high = np.array([f.interval for f in swept]).T
    axis.fill_between(lams, low, high, color=_colour(first), alpha=0.16, linewidth=0)
    axis.plot(lams, [f.value for f in swept], color=_colour(first), marker="o", markersize=3.5, label=first.method)


def _lambda_axis(axis: Any, lams: Sequence[float]) -> None:
    positive = [lam for lam in lams if lam > 0]
    if positive and max(positive) / min(positive) > 20:
        axis.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
    axis.set_xticks(lams, _readable(lams, axis.transData.transform([(lam, 0) for lam in lams])[:, 0]))
    axis.minorticks_off()
    axis.set_xlabel("λ", fontsize=9, color=INK)


def _readable(lams: Sequence[float], places: np.ndarray) -> list[str]:
    """A label per tick, blank where it would touch the one before; the last, the preset, is always there."""
    names, apart = [f"{lam:g}" for lam in lams], 0.09 * np.ptp(places)
    kept = [len(lams) - 1]
    for i in range(len(lams) - 1):
        if places[kept[-1] if len(kept) > 1 else 0] + apart <= places[i] <= places[-1] - apart or i == 0:
            kept.append(i)
    return [name if i in kept else "" for i, name in enumerate(names)]


def points(figures: Sequence[Figure]) -> Plot:
    """One line per part (query, profession), one point with its 95 % interval per method, ordered by "none"."""
    names = list(dict.fromkeys(label(f, False, False) for f in figures))
    base = {f.subset: f.value for f in figures if f.method == "none"} or {f.subset: f.value for f in figures}
    subsets = sorted(dict.fromkeys(f.subset for f in figures), key=lambda s: base.get(s, 0.0))
    spread = np.linspace(-0.28, 0.28, len(names)) if len(names) > 1 else np.zeros(1)
    height = max(0.3, 0.085 * len(names) + 0.08)
    plot, (axis,) = subplots(1, 1, (7.2, height * len(subsets) + 1.1))
    for i, name in enumerate(names):
        chosen = [f for f in figures if label(f, False, False) == name]
        rows = [subsets.index(f.subset) - spread[i] for f in chosen]
        _whiskers(axis, chosen, rows, colour=_colour(chosen[0]), width=1.0)
        marker = MARKERS[i % len(MARKERS)]
        values = [f.value for f in chosen]
        axis.scatter(values, rows, color=_colour(chosen[0]), marker=marker, s=22, zorder=3, label=name)
    for i in range(len(subsets) - 1):
        axis.axhline(i + 0.5, color=GRID, linewidth=0.6, zorder=0)
    axis.set_yticks(range(len(subsets)), subsets, fontsize=8)
    axis.set_ylim(-0.6, len(subsets) - 0.4)
    axis.set_title(f"{metric_title(figures[0].metric)} ({figures[0].better} is better)", fontsize=9.5, color=INK)
    _plain(axis, grid="x")
    plot.tight_layout()
    plot.subplots_adjust(bottom=0.62 / plot.get_size_inches()[1])
    plot.legend(*axis.get_legend_handles_labels(), frameon=False, fontsize=8, ncols=5, loc="lower center")
    return plot


def _whiskers(
    axis: Any, figures: Sequence[Figure], rows: Sequence[float], *, colour: str = INK, width: float = 1.1
) -> None:
    values = np.array([f.value for f in figures])
    low, high = np.array([f.interval for f in figures]).T
    reach = np.maximum([values - low, high - values], 0)
    axis.errorbar(values, rows, xerr=reach, fmt="none", ecolor=colour, elinewidth=width, capsize=2.2, zorder=3)


def _colour(figure: Figure) -> str:
    """Sober and constant: the same method has the same colour in every chart."""
    name = figure.method.partition(",")[0]
    if figure.uses_labels:
        return LABELLED
    if name in COLOURS and name == figure.method:
        return COLOURS[name]
    return OTHERS[sum(figure.method.encode()) % len(OTHERS)]


def _plain(axis: Any, *, grid: str) -> None:
    axis.grid(axis=grid, color=GRID, linewidth=0.7, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK, length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(GRID)
