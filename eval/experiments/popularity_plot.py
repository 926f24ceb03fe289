"""The picture of popularity.py, drawn from its result alone: Figures 2 and 6 of the NUCLR paper, and one more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from scipy.interpolate import RBFInterpolator

from eval.experiments.popularity_toy import EXACT
from vldebias.evaluation.result import Measurement
from vldebias.methods import METHODS
from vldebias.pictures import INK, save_png, subplots

SHADES = {EXACT: INK, "estimate": METHODS["cali"].color, "uniform": "#b4656f"}
DASHES = {"": "-", "by maxima": ":", "best constant": "--"}
LABELS = {EXACT: "exact partition (MLE)", "estimate": "estimated q (NUCLR)", "uniform": "uniform q (GCL)"}
CURVES = {
    "risk_error": "Generalisation error",
    "error_term": "Error term of theorem 1",
    "to_exact": "Distance to the exact risk",
}
AXES = {
    "risk_error": "|empirical risk - true risk|",
    "error_term": "error term",
    "to_exact": "|empirical risk - exact|",
}
GRID, LEVELS, MAP = 120, 14, "cividis"


def draw(result: Any, path: Path) -> Path:
    """Spaces and heatmaps above, errors over n below."""
    plot, axes = subplots(2, 3, (12.6, 7.8))
    example = SimpleNamespace(**result.provenance[0].settings["example"])
    _spaces(axes[0], example)
    maps = _heatmaps(axes[1:3], example)
    for axis, (metric, title) in zip(axes[3:], CURVES.items(), strict=True):
        _curves(axis, [f for f in result.rows if f.metric == metric], metric)
        _title(axis, title)
    bar = plot.colorbar(maps, cax=axes[2].inset_axes((1.05, 0, 0.05, 1)), label="q")
    bar.ax.tick_params(labelsize=8, colors=INK)
    plot.tight_layout(h_pad=1.6, w_pad=2.0, rect=(0, 0.07, 1, 1))
    shown = {label: line for axis in axes[3:] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    plot.legend(shown.values(), shown.keys(), frameon=False, fontsize=8.5, ncols=4, loc="lower center")
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_png(plot, path, {"result": result.name, "commit": result.commit, "versions": result.versions})


def _title(axis: Any, text: str) -> None:
    axis.set_title(text, fontsize=9.5, color=INK)
    axis.tick_params(labelsize=8, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)


def _spaces(axis: Any, example: Any) -> None:
    angle = np.linspace(0, np.pi, 200)
    axis.fill(np.cos(angle), np.sin(angle), color="#dfe7ef", zorder=0)
    axis.fill([0, 1, 1, 0], [0, 0, 1, 1], facecolor="none", edgecolor=SHADES["uniform"], linewidth=1.4, zorder=1)
    axis.scatter(*np.array(example.x).T, s=11, color=METHODS["orth-cali"].color, label="x, half disc")
    axis.scatter(*np.array(example.y).T, s=11, color=SHADES["uniform"], marker="^", label="y, square")
    axis.set_aspect("equal")
    axis.set_xlim(-1.05, 1.05)
    axis.set_ylim(-0.05, 1.35)
    axis.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    _title(axis, f"Spaces, with n = {len(example.x)} pairs")


def _heatmaps(axes: Sequence[Any], example: Any) -> Any:
    """True and estimated popularity over the square, interpolated between the items, on one scale."""
    y = np.array(example.y)
    ends = np.linspace(0, 1, GRID)
    grid = np.stack(np.meshgrid(ends, ends), -1).reshape(-1, 2)
    maps = {"True q": np.array(example.true), "Estimated q": np.array(example.estimate)}
    surfaces = {name: np.exp(RBFInterpolator(y, np.log(q))(grid)).reshape(GRID, GRID) for name, q in maps.items()}
    every = np.concatenate([*maps.values(), *(surface.ravel() for surface in surfaces.values())])
    levels = MaxNLocator(LEVELS).tick_values(every.min(), every.max())
    for axis, (name, surface) in zip(axes, surfaces.items(), strict=True):
        image = axis.contourf(ends, ends, surface, levels=levels, cmap=MAP)
        axis.scatter(*y.T, s=5, color="white", linewidths=0)
        axis.set_aspect("equal")
        _title(axis, f"{name}, n = {len(y)}")
    return image


def _curves(axis: Any, figures: Sequence[Measurement], metric: str) -> None:
    for method in dict.fromkeys(f.method for f in figures if f.method != "true"):
        name, _, constant = method.partition(", ")
        line = [f for f in figures if f.method == method]
        n, value = [f.n["pairs"] for f in line], [f.value for f in line]
        low, high = zip(*(f.interval for f in line), strict=True)
        label = LABELS[name] + (f", {constant}" if constant else "")
        axis.plot(n, value, DASHES[constant], color=SHADES[name], marker=".", linewidth=1.5, label=label)
        axis.fill_between(n, low, high, color=SHADES[name], alpha=0.15, linewidth=0)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("n", fontsize=8.5, color=INK)
    axis.set_ylabel(AXES[metric], fontsize=8.5, color=INK)
