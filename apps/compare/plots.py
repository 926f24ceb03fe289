"""The plots of the page as SVG inside it: sharp at every width, with a text for those who cannot see them."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from vldebias.pictures import INK, for_matplotlib, subplots

from .drawing import AFTER, BEFORE
from .inspect import Inspection
from .retrieve import Retrieval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

Charts = dict[str, tuple[str, Markup]]
"""title -> (caption, SVG)"""
SIZE = (4.1, 2.7)  # inches: legible when as wide as a telephone
GREY, TEAL = "#7b8794", "#2b8a7e"  # as in style.css
SIDES = {BEFORE: ("as the model is", GREY), AFTER: ("mitigated", TEAL)}
GROUPS = ("#1d4e89", "#d9822b", "#2b8a7e", "#8e4585", "#5c6b73", "#a63d40", "#6a994e", "#bc6c25")
WHICH = {"seen": "where it was fitted", "unseen": "where nothing was fitted"}
_drawing = threading.Lock()  # matplotlib shares its caches of fonts between threads


def retrieval(found: Retrieval) -> Charts:
    """Shares over k on both sides, MaxSkew over k of both in one."""
    charts: Charts = {}
    for side, (title, _) in SIDES.items():
        ends = ", ".join(f"{name} {found.shares[side][-1, i]:.0%}" for i, name in enumerate(found.groups))
        charts[f"Share per group, {title}"] = (
            f"Of the first k; dotted: balanced ({found.column}).",
            _svg(
                partial(_shares, found, side),
                "first k results (log)",
                f"share per group, {title}: {ends} of the first {found.ks[-1]}",
            ),
        )
    ends = ", ".join(f"{name} {found.max_skew[side][-1]:.2f}" for side, (name, _) in SIDES.items())
    charts["MaxSkew as k grows"] = (
        "Band: 95 % over resampled galleries. Dotted: the mean of random rankings, which is above 0 for small k.",
        _svg(partial(_skew, found), "first k results (log)", f"MaxSkew at k = {found.ks[-1]}: {ends}"),
    )
    return charts


def inspection(found: Inspection) -> Charts:
    """How far apart pairs are, what tells them apart, and what class prompts keep; in words that need no algebra."""
    charts: Charts = {}
    for part, values in found.distances.items():
        caption = (
            f"{len(values.before)} pairs of prompts, such as “a male doctor” and “a female doctor” for gender. Nearer "
            f"to 0: the text says less about it. Mean {values.mean_before} before, {values.mean_after} after."
        )
        charts[f"How far apart two values are, {WHICH[part]}"] = (
            caption,
            _svg(partial(_distances, values.before, values.after), "distance of the two prompts of a pair", caption),
        )
    shown = min(len(found.sigma), 30)
    charts["What tells the values apart"] = (
        "Each bar is one way in which the two prompts of a pair differ, the most common first; the line says how much "
        "of it is left. The first is the attribute and should go; the last are chance and may stay.",
        _svg(
            partial(_spectrum, found, shown),
            "ways to differ, the most common first",
            f"{found.left[0]:.1%} of the first is left, {found.left[shown - 1]:.0%} of the last of {shown} shown",
        ),
    )
    signal = "" if found.signal is None else f" {found.signal:.0%} of the distance between classes is left."
    mean = found.kept.mean()
    caption = f"How like itself each class prompt still is: 1 is unchanged, 0 is unlike. Mean {mean:.2f}.{signal}"
    edges = np.linspace(min(found.kept.min(), 0.0), 1, 31).tolist()
    charts["What it costs: what the class prompts keep"] = (
        caption,
        _svg(
            lambda axis: axis.hist(found.kept, bins=edges, color=TEAL, label="class prompts"),
            "likeness to itself (cosine; 1: nothing lost)",
            caption,
        ),
    )
    return charts


def _shares(found: Retrieval, side: str, axis: Any) -> None:
    for i, name in enumerate(found.groups):
        style = "-" if i < len(GROUPS) else "--"
        look = {"color": GROUPS[i % len(GROUPS)], "marker": "o", "markersize": 2.5, "label": for_matplotlib(name)}
        axis.plot(found.ks, found.shares[side][:, i], style, **look)
    axis.axhline(1 / len(found.groups), color=INK, linewidth=0.8, linestyle=":")
    _over_k(axis, found)
    axis.set_ylim(-0.03, 1.03)


def _skew(found: Retrieval, axis: Any) -> None:
    for side, (name, colour) in SIDES.items():
        axis.fill_between(found.ks, *found.skew_band[side], color=colour, alpha=0.18, linewidth=0)
        axis.plot(found.ks, found.max_skew[side], color=colour, marker="o", markersize=2.5, label=name)
    axis.plot(found.ks, found.random, color=INK, linewidth=0.9, linestyle=":", label="random")
    axis.set_ylim(bottom=0)
    _over_k(axis, found)


def _over_k(axis: Any, found: Retrieval) -> None:
    """A logarithmic axis of k, since the first few results are what people look at."""
    axis.set_xscale("log")
    ticks = [k for k in (1, 3, 10, 20, 50, 100) if k <= found.ks[-1]]
    axis.set_xticks(ticks, [str(k) for k in ticks])
    axis.minorticks_off()


def _distances(before: np.ndarray, after: np.ndarray, axis: Any) -> None:
    edges = np.linspace(0, max(before.max(), after.max()) * 1.02 + 1e-9, 31).tolist()
    for values, (name, colour) in zip((before, after), SIDES.values(), strict=True):
        axis.hist(values, bins=edges, color=colour, alpha=0.75, label=name)


def _spectrum(found: Inspection, shown: int, axis: Any) -> None:
    places = np.arange(1, shown + 1)
    axis.bar(places, found.sigma[:shown] / found.sigma[0], color=GREY, label="how common (1: the first)")
    axis.plot(places, found.left[:shown], color=TEAL, marker="o", markersize=3, label="how much is left")
    axis.set_ylim(0, 1.05)


def _svg(draw: Callable[[Any], Any], label: str, text: str) -> Markup:
    """A plot with plain axes, a legend below, and `text` for those who cannot see it."""
    buffer = io.StringIO()
    with _drawing:
        plot, (axis,) = subplots(1, 1, SIZE)
        draw(axis)
        axis.grid(axis="y", color="#e4e7eb", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8.5, colors=INK, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_xlabel(label, fontsize=9, color=INK)
        _legend(plot, axis)
        plot.savefig(buffer, format="svg", metadata={"Date": None})
    drawn = buffer.getvalue()
    opening, rest = drawn[drawn.index("<svg") :].split(">", 1)
    box = opening[opening.index('viewBox="') :].split('"')[1]
    start = Markup('<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{}" role="img" aria-label="{}">')
    return start.format(box, escape(text)) + Markup(rest)


def _legend(plot: Plot, axis: Any) -> None:
    plot.tight_layout()
    names = axis.get_legend_handles_labels()
    rows = -(-len(names[0]) // 3)
    height = SIZE[1] + 0.18 * rows
    plot.set_size_inches(SIZE[0], height)
    plot.subplots_adjust(bottom=(0.55 + 0.18 * rows) / height)
    plot.legend(*names, frameon=False, fontsize=8.5, ncols=3, loc="lower center", columnspacing=1.2)
