"""Pictures of what the training experiments gave: a score over a setting, a line per arm, with its interval."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#d95f02", "#9ecae1", "#6baed6", "#3182bd", "#08306b", "#7570b3")


@dataclass(frozen=True)
class Curve:
    """One panel: the column on its x axis, and for every line the columns that choose its rows."""

    title: str
    x: str
    lines: Mapping[str, Mapping[str, Any]]
    logarithmic: bool = False


def draw(result: Path, picture: Path, metric: str, panels: Sequence[Curve], title: str) -> None:
    """The picture of a result file, from nothing else."""
    rows = [row for row in json.loads(result.read_text())["rows"] if row["metric"] == metric]
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _panel(axes, rows, panel, metric)
    figure.savefig(picture, dpi=110, metadata={"Title": title})


def _panel(axes: Axes, rows: Sequence[dict[str, Any]], panel: Curve, metric: str) -> None:
    for (label, chosen), colour in zip(panel.lines.items(), COLOURS, strict=False):
        own = [r for r in rows if panel.x in r and all(r.get(name) == value for name, value in chosen.items())]
        x = [row[panel.x] for row in own]
        axes.plot(x, [row["value"] for row in own], marker="o", ms=4, color=colour, label=label)
        axes.fill_between(x, [r["low"] for r in own], [r["high"] for r in own], color=colour, alpha=0.15)
    axes.set(xlabel=panel.x, ylabel=metric.replace("_", " "), title=panel.title)
    axes.set_ylim(0, 1.02)
    if panel.logarithmic:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
