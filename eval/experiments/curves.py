"""Curves of an experiment over a column, from its result alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.experiments.experiment import Curve, place_of
from vldebias.evaluation.result import Result

COLOURS = ("#d95f02", "#9ecae1", "#6baed6", "#3182bd", "#08306b", "#7570b3")


def draw_curves(result: Result, picture: Path, metric: str, panels: Sequence[Curve]) -> None:
    """A panel each, of one metric: the mean over seeds with its interval."""
    rows = [(place_of(row), row) for row in result.rows if row.metric == metric]
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _panel(axes, rows, panel)
        axes.set(xlabel=panel.x, ylabel=metric.replace("_", " "), title=panel.title)
    figure.savefig(picture, dpi=110, metadata={"Title": result.name})


def _panel(axes: Axes, rows: Sequence[tuple[dict[str, Any], Any]], panel: Curve) -> None:
    for (label, chosen), colour in zip(panel.lines.items(), COLOURS, strict=False):
        own = [(place[panel.x], row) for place, row in rows if panel.x in place and chosen.items() <= place.items()]
        x, values = [at for at, _ in own], [row.value for _, row in own]
        axes.plot(x, values, marker="o", ms=4, color=colour, label=label)
        low, high = zip(*(row.interval for _, row in own), strict=True)
        axes.fill_between(x, low, high, color=colour, alpha=0.15)
    axes.set_ylim(0, 1.02)
    if panel.logarithmic:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
