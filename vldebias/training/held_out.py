"""Held-out images as a model sees them: cosines within and between classes, and who is taken for whom.

Source: Figures 4-5 (cosines of positive and negative pairs) and 4-6 (hardest negatives) of the thesis.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vldebias.data.suspects import THUMB, thumbnail
from vldebias.errors import need
from vldebias.pictures import INK, font, save_png, subplots, wrap_lines
from vldebias.training.monitor import Monitor, Seen

_COMPARED = 2000  # images whose cosines are drawn, all pairs of them
ANCHORS, NEGATIVES = 8, 6
_GAP, _CAPTION = 8, 34  # pixels
_SAME, _OTHER = "#1d4e89", "#c2572f"


def draw_held_out(monitor: Monitor, seen: Seen, folder: Path) -> dict[str, str]:
    """Writes cosines.png and hardest.png into `folder`, what they are -> name; {} without two classes of two images.

    seen: what `monitor.features` gives.
    """
    if monitor.labels is None:
        return {}
    places, features = seen
    known = (monitor.labels.cpu()[places] >= 0) & features.isfinite().all(1).cpu()
    places, features = places[known][:_COMPARED], features.cpu()[known][:_COMPARED]
    codes = monitor.labels.cpu()[places]
    if (torch.bincount(codes, minlength=1) > 1).sum() < 2:
        return {}
    cosines = features @ features.T
    return {
        "cosines within and between classes": draw_cosines(cosines, codes, folder / "cosines.png").name,
        "hardest negatives": draw_hardest(monitor, cosines, places, folder / "hardest.png").name,
    }


def draw_cosines(cosines: Tensor, codes: Tensor, path: Path) -> Path:
    """Densities of the cosines (n, n) of two images of one class and of two classes (n,) (Figure 4-5)."""
    upper = torch.ones_like(cosines, dtype=torch.bool).triu(1)
    same = codes[:, None] == codes
    groups = {"of one class": (cosines[upper & same], _SAME), "of two classes": (cosines[upper & ~same], _OTHER)}
    plot, (axis,) = subplots(1, 1, (6, 3.4))
    edges = np.linspace(float(cosines.min()), 1.0, 61)
    for name, (values, colour) in groups.items():
        axis.hist(values.numpy(), edges, density=True, color=colour, alpha=0.25)
        axis.hist(values.numpy(), edges, density=True, histtype="step", color=colour, linewidth=1.5, label=name)
        axis.axvline(float(values.mean()), color=colour, linewidth=1, linestyle=(0, (4, 3)))
    axis.set_xlabel("cosine of two held-out images", fontsize=9, color=INK)
    axis.set_yticks([])
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, labelcolor=INK)
    plot.tight_layout()
    return save_png(plot, path, {"kind": "cosines"} | {name: float(each.mean()) for name, (each, _) in groups.items()})


def draw_hardest(monitor: Monitor, cosines: Tensor, places: Tensor, path: Path) -> Path:
    """A sheet: images drawn at random, each with the nearest images of other classes (Figure 4-6).

    cosines: (m, m) of the images at `places` (m,) of the monitor's data.
    """
    assert monitor.labels is not None
    codes = monitor.labels.cpu()[places]
    others = cosines.masked_fill(codes[:, None] == codes, -torch.inf)
    anchors = np.sort(np.random.default_rng(0).permutation(len(codes))[:ANCHORS])
    shown = min(NEGATIVES, int((others[anchors] > -torch.inf).sum(1).min()))
    Image, ImageDraw = need("PIL.Image"), need("PIL.ImageDraw")
    width, height = THUMB + _GAP, THUMB + _CAPTION
    sheet = Image.new("RGB", (width * (1 + shown), height * len(anchors)), "white")
    pen, face, captions = ImageDraw.Draw(sheet), font(12), []
    for line, anchor in enumerate(anchors.tolist()):
        rows = [anchor, *others[anchor].topk(shown).indices.tolist()]
        captions.append([monitor.data.ids[int(places[row])] for row in rows])
        for column, row in enumerate(rows):
            text = monitor.class_texts[int(codes[row])][0]
            title = text if row == anchor else f"{text} {cosines[anchor, row]:.2f}"
            lines = "\n".join(wrap_lines(title, face, THUMB, 2))
            place, ink = (column * width, line * height + _CAPTION - 4), INK if row == anchor else _OTHER
            pen.multiline_text(place, lines, ink, face, anchor="ld")
            image = thumbnail(monitor.data.read, int(places[row]))
            sheet.paste(image, (column * width, line * height + _CAPTION))
    return save_png(sheet, path, {"kind": "hardest negatives", "ids": captions})
