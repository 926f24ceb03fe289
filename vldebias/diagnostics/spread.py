"""The shape of features: alignment and uniformity, how much varies within classes, how many directions are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vldebias.diagnostics.folds import BLOCK
from vldebias.diagnostics.labels import class_sums
from vldebias.diagnostics.probes import known_rows

_PAIRS = 200_000  # random pairs for what is a mean over all pairs


@dataclass(frozen=True)
class Geometry:
    """Figures of features at length 1; each is a mean over rows or pairs of rows.

    Attributes:
        alignment: mean squared distance of two rows of one class; 0 where classes are collapsed to points.
        uniformity: log mean exp(-2 |a - b|^2) over two rows; the lower the more evenly they are spread.
        within_variance: share of the variance that is within classes; 0 where classes are collapsed.
        effective_rank: effective number of directions, exp of the entropy of the covariance's eigenvalue shares.
        same_cosine, other_cosine: mean cosine of two rows of one class, and of two classes (Figure 4-5 of the thesis).
    """

    alignment: float
    uniformity: float
    within_variance: float
    effective_rank: float
    same_cosine: float
    other_cosine: float


def geometry(features: Any, labels: Any, *, seed: int = 0) -> Geometry:
    """Figures of the shape of features (n, d) with labels (n,); unknown labels are left out.

    Alignment and uniformity are those of Wang and Isola (2020), equations 1 and 2 with alpha 2 and t 2, where a
    positive pair is two rows of one class. Uniformity is estimated on 200,000 random pairs, all else
    is exact and linear in n.

    Raises:
        InvalidInputError: shapes that do not fit, fewer than two classes, or a class of one row.
    """
    rows, codes, classes = known_rows(features, labels)
    sums, sizes = class_sums(rows, codes, classes)
    n, counts = len(rows), sizes.double()
    ordered = (sums.square().sum(1) - counts).sum()  # of products over ordered pairs of one class
    same = ordered / (counts * (counts - 1)).sum()
    everything = sums.sum(0).square().sum() - n
    different = (everything - ordered) / (n * (n - 1) - (counts * (counts - 1)).sum())
    mean = sums.sum(0) / n
    total = n - n * mean.square().sum()
    scatter = n - (sums.square().sum(1) / counts).sum()
    covariance = -n * torch.outer(mean, mean)
    for block in rows.split(BLOCK):
        covariance.addmm_(block.double().T, block.double())
    shares = torch.linalg.eigvalsh(covariance).clamp(min=0)
    shares = shares[shares > 0] / shares.sum()
    rng = np.random.default_rng(seed)
    one = rng.integers(n, size=_PAIRS)
    other = (one + 1 + rng.integers(n - 1, size=_PAIRS)) % n
    if n * n <= _PAIRS:  # each product once
        products = (rows @ rows.T)[one, other].double()
    else:
        products = torch.cat(
            [(rows[a] * rows[b]).sum(1) for a, b in zip(np.split(one, 20), np.split(other, 20), strict=True)]
        ).double()
    return Geometry(
        alignment=float(2 - 2 * same),
        uniformity=float((-2 * (2 - 2 * products)).exp().mean().log()),
        within_variance=float(scatter / total) if total > 1e-9 * n else 0.0,
        effective_rank=float((-(shares * shares.log()).sum()).exp()),
        same_cosine=float(same),
        other_cosine=float(different),
    )
