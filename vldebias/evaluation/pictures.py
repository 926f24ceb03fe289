"""Pictures of a result: contact sheets of images with the same seeds, bars with intervals."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, PngImagePlugin
from torch import Tensor

from vldebias.evaluation.result import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

__all__ = ["bars", "contact_sheet", "dumbbells", "save_png"]

INK = "#1f2933"
COLOURS = {"none": "#9aa5b1", "orth": "#7cc4b8", "cali": "#2b8a7e", "orth-cali": "#1d4e89"}


def contact_sheet(rows: Sequence[tuple[str, Tensor]], *, zoom: int = 2) -> Plot:
    """A plot with one labelled row of images (n, 3, h, w) in [0, 1] per entry; columns are seeds."""
    margin = 1.3
    plot, axes = _subplots(len(rows), 1, (0.36 * zoom * len(rows[0][1]) + margin, 0.37 * zoom * len(rows)))
    for axis, (label, images) in zip(axes, rows, strict=True):
        strip = images.permute(2, 0, 3, 1).reshape(images.shape[2], -1, 3).numpy()
        axis.imshow(strip, interpolation="nearest")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
        axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9, color=INK)
    plot.subplots_adjust(left=margin / plot.get_size_inches()[0], right=1, top=1, bottom=0, hspace=0.06)
    return plot


def bars(figures: Sequence[Figure], titles: Mapping[tuple[str, str], str]) -> Plot:
    """One panel of bars with 95 % intervals per (task, metric) of `titles`."""
    plot, axes = _subplots(1, len(titles), (3.2 * len(titles), 3.0))
    for axis, ((task, metric), title) in zip(axes, titles.items(), strict=True):
        chosen = [f for f in figures if (f.task, f.metric) == (task, metric)]
        values = np.array([f.value for f in chosen])
        low, high = np.array([f.interval for f in chosen]).T
        axis.bar(
            [f.method for f in chosen],
            values,
            yerr=np.maximum([values - low, high - values], 0),
            color=[COLOURS.get(f.method, "#d9a441") for f in chosen],
            ecolor=INK,
            capsize=4,
            width=0.65,
        )
        axis.set_title(f"{title}\n({chosen[0].better} is better)", fontsize=9.5, color=INK)
        axis.tick_params(labelsize=8, colors=INK)
        axis.spines[["top", "right"]].set_visible(False)
    plot.tight_layout()
    return plot


def dumbbells(names: Sequence[str], before: np.ndarray, after: np.ndarray, title: str) -> Plot:
    """One line per name from its share before to its share after, ordered by the share before; 0.5 is marked."""
    plot, (axis,) = _subplots(1, 1, (7.2, 0.24 * len(names) + 1.0))
    order = np.argsort(before)
    rows = np.arange(len(names))
    axis.axvline(0.5, color="#cbd2d9", linewidth=1, zorder=0)
    axis.hlines(rows, before[order], after[order], color="#cbd2d9", linewidth=2, zorder=1)
    for method, shares in (("none", before), ("cali", after)):
        axis.scatter(shares[order], rows, color=COLOURS[method], s=34, zorder=2, label=method)
    axis.set_yticks(rows, [names[i] for i in order], fontsize=8)
    axis.set_xlim(-0.03, 1.03)
    axis.set_title(title, fontsize=9.5, color=INK)
    axis.tick_params(labelsize=8, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    plot.tight_layout()
    return plot


def _subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Plot, list[Any]]:
    """Subplots without pyplot: no global state, no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Plot

    plot = Plot(figsize=size, dpi=120)
    FigureCanvasAgg(plot)
    return plot, list(plot.subplots(rows, columns, squeeze=False).flat)


def save_png(plot: Plot, path: Path, metadata: Mapping[str, Any]) -> Path:
    """Write `plot` with `metadata` as JSON in the PNG, so that a picture says how it was made."""
    buffer = io.BytesIO()
    plot.savefig(buffer, format="png")
    info = PngImagePlugin.PngInfo()
    info.add_itxt("vldebias", json.dumps(metadata, ensure_ascii=False))
    with Image.open(buffer) as image:
        image.save(path, pnginfo=info)
    return path
