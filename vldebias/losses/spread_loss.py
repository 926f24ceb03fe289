"""Compute the spread loss, in which items of the same class attract and repel each other."""

from __future__ import annotations

from typing import Any, Self, Unpack

import torch
from torch import Tensor

from vldebias.losses.catalog import SpreadSettings
from vldebias.losses.checks import check_interval, check_labels
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss, ModuleOptions
from vldebias.losses.sums import softplus


def spread(
    image_features: Tensor,
    text_features: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor,
    alpha: float = 0.5,
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return the spread loss alpha L_attract + (1 - alpha) L_repel, which avoids class collapse.

        L_attract = -1/|P| sum_{p in P} log e^{s_p} / (e^{s_p} + sum_{a in N} e^{s_a})
        L_repel   = -log e^{s+} / sum_{p in P} e^{s_p}

    Source: eq. 1-3 of Fu et al., The Details Matter (2022). P is the set of rows in the batch
    that share the anchor's class, including the anchor's other view s+ but not the anchor itself. N
    is the set of rows from other classes. By default, the batch contains both views. For images and
    captions, pass `within_view=False` to use only the opposite view. With alpha = 1, this is a
    supervised contrastive loss, which collapses each class to a point. With alpha = 0 and a single
    class, it is `info_nce`.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        labels: (n,) integers, the class of each row.
        alpha: weight of the attraction, in [0, 1]. The paper tunes it between 0.16 and 0.67.
        temperature: t > 0, a number or a tensor ().
        options: the other options of `info_nce`.

    Returns and Raises: see `info_nce`.

    >>> import torch
    >>> images = torch.eye(4)
    >>> spread(images, images, torch.tensor([0, 0, 1, 1]), alpha=0.5, temperature=0.5)
    tensor(0.7284)
    """
    check_interval("alpha", alpha, "[0, 1]")
    if isinstance(image_features, Tensor):
        check_labels("labels", labels, len(image_features))
    options.setdefault("within_view", True)
    batch = Contrast(image_features, text_features, temperature=temperature, **options)
    columns = batch.column_labels(labels)

    def row_loss(s: Tensor, rows: slice) -> Tensor:
        positive = batch.positive[rows]
        # The pair belongs to the same class, but its score in `s` is -inf, so it is added below.
        has_same_class = labels[rows, None] == columns
        log_negatives = torch.logsumexp(s.masked_fill(has_same_class, -torch.inf), dim=1)
        counted = has_same_class & (s > -torch.inf)
        # Infinite scores would make the gradient NaN, so replace them.
        finite = torch.where(counted, s, 0.0)
        rest = torch.where(counted, softplus(log_negatives[:, None] - finite), 0.0).sum(1)
        # Eq. 2 averages over the positives, which include the anchor's other view.
        attract = (softplus(log_negatives - positive) + rest) / (counted.sum(1) + 1)
        # Eq. 3 separates the pair from the other rows of its class.
        log_same_class = torch.logsumexp(s.masked_fill(~has_same_class, -torch.inf), dim=1)
        repel = softplus(log_same_class - positive)
        return alpha * attract + (1 - alpha) * repel

    return batch.reduce(batch.each_row(row_loss))


class SpreadLoss(ContrastiveLoss[SpreadSettings]):
    """Apply `spread`. Options: see `ContrastiveLoss`; `within_view` is True by default.

    >>> import torch
    >>> loss = SpreadLoss(alpha=0.5, temperature=0.5)
    >>> images = torch.eye(4)
    >>> loss(images, images, torch.tensor([0, 0, 1, 1]))
    tensor(0.7284)
    """

    function = staticmethod(spread)
    reads_labels = True
    alpha: float

    def __init__(self, *, within_view: bool = True, **settings: Any) -> None:
        super().__init__(within_view=within_view, **settings)

    @classmethod
    def from_settings(cls, settings: SpreadSettings, **options: Unpack[ModuleOptions]) -> Self:
        """Build the loss for a training run."""
        return cls(alpha=settings.spread_alpha, **options)
