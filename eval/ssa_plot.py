"""The picture of eval/ssa.py, drawn from its result file alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["draw"]

PLAIN, OTHER = "#08306b", "#d95f02"
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("accuracy of a linear classifier", {"accuracy": PLAIN}),
    ("accuracy under FGSM, 2/255", {"robust_accuracy@2/255": PLAIN}),
    ("shift gap: original views, mixed views", {"gap, original": PLAIN, "gap, mixed": OTHER}),
)


def draw(result: Path, picture: Path) -> None:
    """One panel per measure: the mean over seeds with its 95 % interval, and every seed as a small dot."""
    told = json.loads(result.read_text())
    arms = list(dict.fromkeys(row["arm"] for row in told["rows"]))
    figure = Figure(figsize=(4.2 * len(PANELS), 0.36 * len(arms) + 1.1), layout="constrained")
    for axes, (title, metrics) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        for number, (metric, colour) in enumerate(metrics.items()):
            _column(axes, told, metric, arms, colour, (number - (len(metrics) - 1) / 2) * 0.3)
        axes.set_title(title, fontsize=9)
        axes.set_yticks(range(len(arms)), arms)
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3, axis="x")
    figure.savefig(picture, dpi=110, metadata={"Title": "SSA-CLR on miniature birds"})


def _column(axes: Axes, told: Mapping[str, Any], metric: str, arms: Sequence[str], colour: str, offset: float) -> None:
    """Arms from top to bottom; a dotted line marks where "none" is."""
    for row in (row for row in told["rows"] if row["metric"] == metric):
        place = arms.index(row["arm"]) + offset
        seeds = [cell["figures"][metric] for cell in told["cells"] if cell["arm"] == row["arm"]]
        axes.scatter(seeds, [place] * len(seeds), s=8, color=colour, alpha=0.35, linewidths=0)
        axes.hlines(place, row["low"], row["high"], color=colour, linewidth=1.5)
        axes.scatter(row["value"], place, s=28, color=colour, zorder=3)
        if row["arm"] == "none":
            axes.axvline(row["value"], color=colour, linewidth=0.8, linestyle=":", zorder=0)
