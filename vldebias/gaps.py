"""Predicted gaps: how differently texts score rows of two attribute values, with bootstrap draws, from no true label.

The rows (n, d) stand for images: unlabelled images with their zero-shot values, or prompts that state a value. The gap
of a text q between the values a and b is

    |<q, D_ab>| / std(<q, row>),    D_ab = sum_c w_c (mean_ca - mean_cb) / sum_c w_c,    w_c = n_ca n_cb / (n_ca + n_cb)

within the classes c (one class for all rows is allowed), and the largest over the pairs of values counts. With scores
that are normal in each group the share of a group among the first results depends on this number alone: it is the
skew without the noise of counting heads. It has no unit, so what a projection does to the length of texts cancels.

D is linear in the rows, so a resample of the rows needs D anew and nothing else: B draws of D serve every text and
every method.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError

__all__ = ["Pool", "draws"]

_BLOCK = 1 << 22  # weights of rows at once: bounds the memory


def draws(n: int, resamples: int, seed: int) -> Tensor:
    """How often each of n rows occurs: the sample itself, then its resamples, (1 + resamples, n) float64."""
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    return torch.from_numpy(np.concatenate([np.ones((1, n)), drawn]))


@dataclass(frozen=True, eq=False)
class Pool:
    """Differences (1 + b, p, d) of means over p pairs of values, of the sample and b resamples; rows (n, d) centred."""

    differences: Tensor
    centred: Tensor

    @classmethod
    def of(
        cls, rows: Tensor, values: Tensor, classes: Tensor | None = None, *, resamples: int = 500, seed: int = 0
    ) -> Pool:
        """From rows (n, d) of length 1 with codes (n,) of their value and of their class.

        Raises:
            InvalidInputError: no class has rows of two values.
        """
        label = torch.zeros_like(values) if classes is None else classes
        _, label = label.unique(return_inverse=True)
        a, c = int(values.max()) + 1, int(label.max()) + 1
        cell = label * a + values
        counts = torch.bincount(cell, minlength=c * a).view(c, a)
        if not ((counts > 0).sum(1) > 1).any():
            raise InvalidInputError(f"expected rows of two attribute values in a class, got {counts.tolist()}")
        wide = rows.double()
        block = max(1, _BLOCK // len(rows))
        parts = [_differences(wide, cell, c, a, w) for w in draws(len(rows), resamples, seed).split(block)]
        return cls(torch.cat(parts), wide - wide.mean(0))

    def gaps(self, texts: Tensor) -> Tensor:
        """The gap (1 + b, q) of every text (q, d): first of the sample, then of its resamples."""
        unit = normalize(texts.double(), dim=1)
        spread = (self.centred @ unit.T).std(0).clamp(min=torch.finfo(torch.float64).tiny)
        return (self.differences @ unit.T).abs().amax(1) / spread


def _differences(rows: Tensor, cell: Tensor, classes: int, values: int, weights: Tensor) -> Tensor:
    """D_ab (b, p, d) of rows (n, d) that occur weights (b, n) times; 0 where no class has both."""
    shape = (len(weights), classes, values)
    counts = torch.zeros(len(weights), classes * values, dtype=torch.float64).index_add_(1, cell, weights).view(shape)
    found = []
    for a, b in combinations(range(values), 2):
        n_a, n_b = counts[..., a], counts[..., b]
        precision = n_a * n_b / (n_a + n_b).clamp(min=1)
        share = precision / precision.sum(1, keepdim=True).clamp(min=0.5)  # a class with both has at least 1/2
        each = torch.zeros(shape, dtype=torch.float64)
        each[..., a], each[..., b] = share / n_a.clamp(min=1), -share / n_b.clamp(min=1)
        found.append((each.view(len(weights), -1)[:, cell] * weights) @ rows)
    return torch.stack(found, 1)
