"""Pictures that figures alone cannot give: images of the same seeds, shares that move; how they are saved and read."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

__all__ = ["contact_sheet", "dumbbells", "read_metadata", "save_png", "strength_strips", "subplots"]

INK = "#1f2933"
_FEW_COLOURS = 4096
COLOURS = {"none": "#9aa5b1", "orth": "#7cc4b8", "cali": "#2b8a7e", "orth-cali": "#1d4e89"}


def contact_sheet(rows: Sequence[tuple[str, Tensor]], *, zoom: int = 2) -> Plot:
    """A plot with one labelled row of images (n, 3, h, w) in [0, 1] per entry; columns are seeds."""
    margin = 1.3
    plot, axes = subplots(len(rows), 1, (0.36 * zoom * len(rows[0][1]) + margin, 0.37 * zoom * len(rows)))
    for axis, (label, images) in zip(axes, rows, strict=True):
        strip = images.permute(2, 0, 3, 1).reshape(images.shape[2], -1, 3).numpy()
        axis.imshow(strip, interpolation="nearest")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
        axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9, color=INK)
    plot.subplots_adjust(left=margin / plot.get_size_inches()[0], right=1, top=1, bottom=0, hspace=0.06)
    return plot


def strength_strips(rows: Sequence[tuple[str, Tensor]], strengths: Sequence[float], *, zoom: int = 2) -> Plot:
    """One labelled row per prompt and seed, one column per strength: images (strengths, 3, h, w) in [0, 1] a row.

    Raises:
        InvalidInputError: no rows, or a row with another number of images than strengths.
    """
    wrong = {label: len(images) for label, images in rows if len(images) != len(strengths)}
    if wrong or not rows:
        raise InvalidInputError(f"strips: expected rows of {len(strengths)} images, one per strength, got {wrong}")
    gap = 2  # white pixels, so that a column is seen as one
    plot = contact_sheet([(label, torch.nn.functional.pad(images, (0, gap, 0, 0), value=1)) for label, images in rows])
    plot.set_size_inches(1.3 + 0.42 * zoom * len(strengths), 0.38 * zoom * len(rows) + 0.35)
    plot.subplots_adjust(left=1.3 / plot.get_size_inches()[0], top=1 - 0.33 / plot.get_size_inches()[1])
    top, width = plot.axes[0], rows[0][1].shape[-1] + gap
    centres = [width * i + (width - gap) / 2 for i in range(len(strengths))]
    names = ["as it is" if s == 0 else f"strength {s:g}" for s in strengths]
    top.set_xticks(centres, names, fontsize=8, color=INK)
    top.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    return plot


def dumbbells(names: Sequence[str], before: np.ndarray, after: np.ndarray, title: str) -> Plot:
    """One line per name from its share before to its share after, ordered by the share before; 0.5 is marked."""
    plot, (axis,) = subplots(1, 1, (7.2, 0.24 * len(names) + 1.0))
    order = np.argsort(before)
    rows = np.arange(len(names))
    axis.axvline(0.5, color="#cbd2d9", linewidth=1, zorder=0)
    axis.hlines(rows, before[order], after[order], color="#cbd2d9", linewidth=2, zorder=1)
    for method, shares in (("none", before), ("cali", after)):
        axis.scatter(shares[order], rows, color=COLOURS[method], s=34, zorder=2, label=method)
    axis.set_yticks(rows, [names[i] for i in order], fontsize=8)
    axis.set_xlim(-0.03, 1.03)
    axis.set_ylim(-0.8, len(names) - 0.2)
    axis.set_title(title, fontsize=9.5, color=INK)
    axis.tick_params(labelsize=8, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    plot.tight_layout()
    return plot


def subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Plot, list[Any]]:
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
        _with_palette(image.convert("RGB")).save(path, pnginfo=info, optimize=True)
    return path


def _with_palette(image: Image.Image) -> Image.Image:
    """A chart has few colours, and with a palette a third of the size; photographs stay as they are."""
    if image.getcolors(_FEW_COLOURS) is None:
        return image
    return image.quantize(256, dither=Image.Dither.NONE)


def read_metadata(path: Path) -> dict[str, Any]:
    """What `save_png` wrote into a picture; empty for any other file."""
    try:
        with Image.open(path) as image:
            told = json.loads(getattr(image, "text", {}).get("vldebias", "{}"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
