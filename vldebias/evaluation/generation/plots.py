"""Pictures of drawn images: the same seeds under every variant, and where the share of each prompt moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vldebias.data import Labels
from vldebias.evaluation.drawing.drawn import DrawnSet
from vldebias.evaluation.drawing.plan import NONE
from vldebias.evaluation.generation.discrepancies import Counts
from vldebias.evaluation.generation.sheets import Sheet
from vldebias.evaluation.report.pictures import contact_sheet, dumbbells

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

__all__ = ["share_plots", "side_by_side"]

SIDE = 128  # pixels to which larger images are scaled: a page holds hundreds
COLUMNS, ROWS = 10, 4


def side_by_side(drawn: DrawnSet, sheet: Sheet, labels: Labels) -> Plot:
    """Some prompts, from those with the smallest share of the first value to the largest; columns share a seed."""
    counts = Counts.of(labels.codes[sheet.rows[NONE]], len(labels.names))
    order = np.argsort(np.nan_to_num(counts.shares[:, 0], nan=0.5), kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(ROWS, len(order))).round().astype(int)]
    rows = []
    for i in chosen:
        for name, places in sheet.rows.items():
            label = sheet.concepts[i] if name == NONE else name
            rows.append((label, torch.stack([_pixels(drawn, place) for place in places[i][:COLUMNS]])))
    return contact_sheet(rows)


def _pixels(drawn: DrawnSet, place: int) -> Tensor:
    """(3, h, w) in [0, 1], at most SIDE high and wide."""
    image = drawn.read(drawn.images[place])
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def share_plots(sheet: Sheet, labels: Labels, title: str) -> dict[str, Plot]:
    """Variant -> a plot of the share of the first of two values of every prompt, without and with the variant.

    Empty where there are not two values. Prompts of which nothing is known on one side are left out.
    """
    if len(labels.names) != 2:
        return {}
    shares = {name: Counts.of(labels.codes[rows], 2).shares[:, 0] for name, rows in sheet.rows.items()}
    found = {}
    for name in shares:
        told = np.isfinite(shares[NONE]) & np.isfinite(shares[name])
        if name != NONE and told.any():
            concepts = [concept for concept, known in zip(sheet.concepts, told, strict=True) if known]
            found[name] = dumbbells(concepts, shares[NONE][told], shares[name][told], f"{title}, {name}")
    return found
