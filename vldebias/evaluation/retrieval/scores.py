"""Scores of texts against the images of a gallery: in float64, without a float64 copy of the gallery."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["scores"]

_ROWS = 1 << 14


def scores(texts: Tensor, images: Tensor) -> NDArray[np.float64]:
    """Inner products (q, n) of texts (q, d) and images (n, d).

    They are rounded far below their meaning, so that equal images tie on every machine whatever the order of summation.
    """
    rows = [texts.double() @ block.double().T for block in images.split(_ROWS)]
    return torch.cat(rows, dim=1).numpy().round(12)
