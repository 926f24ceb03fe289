"""The curves of eval/pareto.py, drawn from the figures of its result alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vldebias.evaluation.report.pictures import COLOURS, INK, save_png, subplots
from vldebias.evaluation.result import Figure, Result

__all__ = ["draw"]

SHADES = {**COLOURS, "equalise": "#d9a441", "cali+equalise": "#b4656f", "difference": "#7d6b91"}
LINES = {"cali": "cali", "orth-cali": "orth-cali", "equalise": "equalise", "cali+equalise": "cali+equalise"}
BOUNDED = "orth-cali, loss at most"
AUTO = {"auto, texts": "P", "auto, texts and images": "*"}


def draw(result: Result, panels: Sequence[tuple[str, str, str, str]], path: Path) -> Path:
    """One panel per (task, title, bias metric, utility metric): lines over lambda with 95 % bands, stars for auto."""
    columns = 3
    plot, axes = subplots(-(-len(panels) // columns), columns, (4.1 * columns, 3.3 * -(-len(panels) // columns)))
    for axis, (task, title, bias, utility) in zip(axes, panels, strict=False):
        _panel(axis, [f for f in result.figures if f.task == task], bias, utility)
        axis.set_title(title, fontsize=9, color=INK)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    plot.tight_layout()
    plot.subplots_adjust(bottom=1.25 / plot.get_size_inches()[1])
    shown = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    plot.legend(shown.values(), shown.keys(), frameon=False, fontsize=8, ncols=5, loc="lower center")
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_png(plot, path, {"result": result.name, "commit": result.commit, "versions": result.versions})


def _panel(axis: Any, figures: Sequence[Figure], bias: str, utility: str) -> None:
    y = {(f.method, f.lam): f for f in figures if f.metric == bias}
    x = {(f.method, f.lam): f.value for f in figures if f.metric == utility}
    for method in LINES:
        _line(axis, [(x[key], y[key]) for key in y if key[0] == method], SHADES[method], method)
    bounded = [(x[key], y[key]) for key in y if key[0].startswith(BOUNDED)]
    _line(axis, bounded, SHADES["orth-cali"], "orth-cali, loss bounded", style=":")
    for method, marker in {"none": "o", "difference": "D", **AUTO}.items():
        if (method, None) in y:
            colour, size = SHADES.get(method, INK), 130 if marker == "*" else 45
            one = y[method, None]
            axis.vlines(x[method, None], *one.interval, color=colour, linewidth=1, zorder=3)
            axis.scatter(x[method, None], one.value, marker=marker, s=size, color=colour, zorder=4, label=method)
    axis.set_xlabel(utility.replace("_", " "), fontsize=8, color=INK)
    axis.set_ylabel(bias.replace("_", " "), fontsize=8, color=INK)
    axis.tick_params(labelsize=8, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)


def _line(axis: Any, points: Sequence[tuple[float, Figure]], colour: str, label: str, style: str = "-") -> None:
    """In the order of lambda, or of the bound, which is that of the figures."""
    if not points:
        return
    along = [x for x, _ in points]
    low, high = zip(*(f.interval for _, f in points), strict=True)
    axis.fill_between(along, low, high, color=colour, alpha=0.13, linewidth=0)
    axis.plot(along, [f.value for _, f in points], style, color=colour, marker=".", linewidth=1.4, label=label)
