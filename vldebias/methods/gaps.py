"""How differently texts score rows of two attribute values, from no true label, with bootstrap draws."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.methods.equalise import UnusableReferenceError
from vldebias.metrics.bootstrap import resampled_counts

_BLOCK = 1 << 22  # weights of rows at once: bounds the memory


def draws(n: int, resamples: int, seed: int, size: int | None = None) -> Tensor:
    """Return how often each of n rows occurs: the sample itself, then its resamples, (1 + resamples, n) float64."""
    drawn = resampled_counts(np.ones(n, dtype=np.int64), resamples, seed, size)
    return torch.from_numpy(np.concatenate([np.ones((1, n)), *drawn]))


@dataclass(frozen=True, eq=False)
class PredictedGap:
    """Predict the gap of a text between two values of an attribute from rows (n, d) that stand for images.

    The gap of a text q between the values a and b is

        |<q, D_ab>| / std(<q, row>),  D_ab = sum_c w_c (mean_ca - mean_cb) / sum_c w_c,  w_c = n_ca n_cb / (n_ca + n_cb)

    within the classes c (one class for all rows is allowed), and the largest over the pairs of values counts. With
    scores that are normal in each group the share of a group among the first results depends on this number alone. D is
    linear in the rows, so B draws of D serve every text and every method.

    Attributes:
        differences: (1 + b, p, d) of means over p pairs of values, of the sample and b resamples.
        centred: (n, d) rows minus their mean.
    """

    differences: Tensor
    centred: Tensor

    @classmethod
    def of(
        cls,
        rows: Tensor,
        values: Tensor,
        classes: Tensor | None = None,
        *,
        resamples: int = 500,
        seed: int = 0,
        whole: bool = False,
    ) -> PredictedGap:
        """Return the gap of rows (n, d) of length 1 with codes (n,) of their value and of their class.

        whole: classes are drawn, each with all its rows; else rows are. A concept's prompts are not drawn one by one:
        where they were, a pair would be torn apart in six resamples of ten, and intervals a third too wide.

        Raises:
            UnusableReferenceError: no rows, or no class has rows of two values.
        """
        if not len(rows):
            raise UnusableReferenceError("expected rows of two attribute values, got none")
        label = torch.zeros_like(values) if classes is None else classes
        _, label = label.unique(return_inverse=True)
        a, c = int(values.max()) + 1, int(label.max()) + 1
        cell = label * a + values
        counts = torch.bincount(cell, minlength=c * a).view(c, a)
        if not ((counts > 0).sum(1) > 1).any():
            raise UnusableReferenceError(f"expected rows of two attribute values in a class, got {counts.tolist()}")
        wide = rows.double()
        block = max(1, _BLOCK // len(rows))
        weights = draws(c, resamples, seed, max(c - 1, 1))[:, label] if whole else draws(len(rows), resamples, seed)
        parts = [_differences(wide, cell, c, a, w) for w in weights.split(block)]
        return cls(torch.cat(parts), wide - wide.mean(0))

    def of_texts(self, texts: Tensor) -> Tensor:
        """Return the gap (1 + b, q) of every text (q, d): first of the sample, then of its resamples."""
        return self._of_pairs(texts).abs().amax(1)

    def squares(self, texts: Tensor) -> Tensor:
        """Return the gap's square (1 + b, q) of every text (q, d), mean over the pairs of values, without its noise.

        That is E[x^2] - var x, with the variance of the resamples; it may be negative.
        """
        each = self._of_pairs(texts)
        return (each.square() - each[1:].var(0)).mean(1)

    def _of_pairs(self, texts: Tensor) -> Tensor:
        """Differences (1 + b, p, q) of the scores of every pair of values, in deviations of the scores."""
        unit = normalize(texts.double(), dim=1)
        spread = (self.centred @ unit.T).std(0).clamp(min=torch.finfo(torch.float64).tiny)
        return self.differences @ unit.T / spread


def _differences(rows: Tensor, cell: Tensor, classes: int, values: int, weights: Tensor) -> Tensor:
    """D_ab (b, p, d) of rows (n, d) that occur weights (b, n) times; 0 where no class has both."""
    shape = (len(weights), classes, values)
    counts = torch.zeros(len(weights), classes * values, dtype=torch.float64).index_add_(1, cell, weights).view(shape)
    differences = []
    for a, b in combinations(range(values), 2):
        n_a, n_b = counts[..., a], counts[..., b]
        precision = n_a * n_b / (n_a + n_b).clamp(min=1)
        share = precision / precision.sum(1, keepdim=True).clamp(min=0.5)  # a class with both has at least 1/2
        each = torch.zeros(shape, dtype=torch.float64)
        each[..., a], each[..., b] = share / n_a.clamp(min=1), -share / n_b.clamp(min=1)
        differences.append((each.view(len(weights), -1)[:, cell] * weights) @ rows)
    return torch.stack(differences, 1)
