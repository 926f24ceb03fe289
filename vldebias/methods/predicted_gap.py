"""Predict, without labels, how much a text's scores differ between an attribute's values.

The gap is relative to the spread of the text's scores. It therefore grows if an edit removes most
of a query and leaves random directions, even if it moves the prompts of each pair closer together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from vldebias.measure.resampling import LEVEL, recentred_interval, resampled_counts
from vldebias.methods.equalise import UnusableReferenceError

RESAMPLES = 500
_BLOCK = 1 << 22  # maximum number of row weights in memory at once
_TINY = torch.finfo(torch.float64).tiny


class Change(NamedTuple):
    """Store the change in a gap with its 95% interval. A negative change shrinks the gap."""

    value: float
    low: float
    high: float

    @classmethod
    def from_resamples(cls, changes: Tensor) -> Change:
        """Build a change from its values (1 + b,) in the sample and in b resamples.

        The interval is centred on the value in the sample.
        """
        value = float(changes[0])
        low, high = recentred_interval(value, changes[1:].numpy(), level=LEVEL)
        return cls(value, low, high)

    def __str__(self) -> str:
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


class PredictedGap:
    """Predict a text's gap between two values, from image or text rows (n, d).

    The gap of text q between values a and b is

        |<q, D_ab>| / std(<q, row>)
        D_ab = sum_c w_c (mean_ca - mean_cb) / sum_c w_c
        w_c = n_ca n_cb / (n_ca + n_cb)

    within classes c (possibly one class for all rows), and the largest gap over pairs of values is
    used. If scores are normal in each group, a group's share of the top results depends only on
    this number. D is linear in the rows, so the same b resamples of D can be used for every text
    and method.

    Args:
        rows: rows (n, d) of norm 1.
        values: (n,) codes of their values.
        classes: (n,) codes of their classes. If None, all rows form one class.
        seed: resampling seed.
        resamples_classes: whether to resample classes with all their rows instead of individual
            rows. For prompts, individual rows would split a pair in six of ten resamples and make
            intervals a third too wide.

    Attributes:
        differences: D (1 + b, pairs, d), for the sample and then for its resamples.
        centred: (n, d), the rows minus their mean.

    Raises:
        UnusableReferenceError: If there are no rows, or no class has rows for two values.
    """

    def __init__(
        self,
        rows: Tensor,
        values: Tensor,
        classes: Tensor | None = None,
        *,
        seed: int = 0,
        resamples_classes: bool = False,
    ) -> None:
        if classes is None:
            labels = torch.zeros_like(values)
        else:
            labels = classes.unique(return_inverse=True)[1]
        if not len(values):
            raise UnusableReferenceError("expected images of two attribute values, got none")
        seen = torch.zeros(int(labels.max()) + 1, int(values.max()) + 1, dtype=torch.long)
        seen.index_put_((labels, values), torch.ones_like(values), accumulate=True)
        # `seen` has shape (classes, values). Means of two values are only compared within a class.
        if int((seen > 0).sum(1).max()) < 2:
            raise UnusableReferenceError(
                f"expected images of two attribute values, got the counts {seen.tolist()}"
            )
        rows = rows.double()
        if resamples_classes:
            # Resamples of n - 1 of the n classes have the variance of a sample mean, as in
            # `resampled_counts`.
            number = int(labels.max()) + 1
            drawn = draw_counts(number, seed, max(number - 1, 1))[:, labels]
        else:
            drawn = draw_counts(len(rows), seed)
        self.differences = _differences(rows, values, labels, drawn)
        self.centred = rows - rows.mean(0)

    def of_texts(self, texts: Tensor) -> Tensor:
        """Return the gap (1 + b, q) for texts (q, d), in the sample and its resamples."""
        unit = normalize(texts.double(), dim=1)
        # (q,) standard deviation of each text's scores over all rows.
        spread = (self.centred @ unit.T).std(0).clamp(min=_TINY)
        gaps = self.differences @ unit.T / spread  # (1 + b, pairs, q)
        # The sign only shows which value scores higher. The gap is the maximum over pairs.
        return gaps.abs().amax(1)


def draw_counts(n: int, seed: int = 0, size: int | None = None) -> Tensor:
    """Return how often each of n rows occurs in the sample and in each of its resamples.

    Args:
        n: number of rows.
        seed: resampling seed.
        size: number of rows in a resample. If None, a resample has n rows.

    Returns:
        Counts (1 + RESAMPLES, n), with the sample in row 0.
    """
    # Row 0 is the sample, so that it is computed with the same arithmetic as its resamples.
    sample = np.ones((1, n))
    resamples = resampled_counts(np.ones(n, dtype=np.int64), RESAMPLES, seed, size)
    return torch.from_numpy(np.concatenate([sample, *resamples]))


def _differences(rows: Tensor, values: Tensor, labels: Tensor, drawn: Tensor) -> Tensor:
    """Return differences (1 + b, pairs, d) between means, in the sample and in b resamples."""
    number_of_values = int(values.max()) + 1
    number_of_classes = int(labels.max()) + 1
    number_of_cells = number_of_classes * number_of_values
    # (n,) one number per combination of class and value.
    cells = labels * number_of_values + values
    first, second = torch.combinations(torch.arange(number_of_values)).T
    sign = one_hot(first, number_of_values) - one_hot(second, number_of_values)  # (pairs, values)
    differences = []
    for counts_of_rows in drawn.split(max(1, _BLOCK // (len(rows) * len(first)))):
        counts = torch.zeros(len(counts_of_rows), number_of_cells, dtype=torch.float64)
        counts = counts.index_add_(1, cells, counts_of_rows)
        counts = counts.view(-1, number_of_classes, number_of_values)
        n_first = counts[..., first]  # (b, classes, pairs)
        n_second = counts[..., second]
        precision = n_first * n_second / (n_first + n_second).clamp(min=_TINY)
        # A class with rows of both values has a precision of at least 1/2.
        share_of_class = precision / precision.sum(1, keepdim=True).clamp(min=0.5)
        weights_of_cells = share_of_class[..., None] * sign / counts[:, :, None].clamp(min=1)
        weights_of_cells = weights_of_cells.transpose(1, 2).flatten(2)  # (b, pairs, cells)
        # The weight of each row in each pair's difference, (b, pairs, n). A row that occurs twice
        # in a resample counts twice.
        weights = weights_of_cells[:, :, cells] * counts_of_rows[:, None]
        differences.append(weights @ rows)
    return torch.cat(differences)
