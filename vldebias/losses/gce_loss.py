"""Compute generalised cross-entropy over the distinct captions of a batch: equal captions are one
class."""

from __future__ import annotations

from typing import Any, Self, Unpack

import torch
from torch import Tensor

from vldebias.losses.catalog import GCESettings
from vldebias.losses.checks import check_interval, check_labels
from vldebias.losses.contrast import Contrast, ContrastiveLoss, LossOptions
from vldebias.losses.processes import gather_rows


def generalized_cross_entropy(
    image_features: Tensor,
    text_features: Tensor,
    captions: Tensor,
    *,
    q: float = 0.7,
    smoothing: float = 0.0,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Return (1 - p^q) / q of the right caption's probability p, eq. 6 of Zhang and Sabuncu (2018),
    both directions.

        p_i = a_i(c_i) / sum_c a_i(c)  a_i(c) = mean of e^{s_ij} over the rows j whose caption is c

    Rows of the same caption form one class, with the mean of its rows, so no image is pushed away
    from its own words. q = 0 is the cross-entropy -log p, which on captions that all differ is
    `info_nce`; q = 1 is 1 - p, the mean absolute error, which wrong captions pull on least. Its
    value is at most 1 / q at every temperature.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        captions: (n,) integers, equal where two rows have the same caption.
        q: in [0, 1]; .7 in the paper.
        smoothing: in [0, 1), epsilon of label smoothing: this share of the target is spread evenly
            over the captions of the batch, as cross-entropy.
        options: temperature and the other options of `info_nce`.

    Returns and Raises: see `info_nce`.

    >>> import torch
    >>> images = torch.eye(2)
    >>> captions = torch.tensor([0, 1])  # the caption of each row, by its number
    >>> generalized_cross_entropy(images, images, captions, q=0.7, temperature=0.5)
    tensor(0.1215)
    """
    check_interval("q", q, "[0, 1]")
    check_interval("smoothing", smoothing, "[0, 1)")
    if isinstance(image_features, Tensor):
        check_labels("captions", captions, len(image_features))
    batch = Contrast(image_features, text_features, **options)
    columns = gather_rows(captions) if batch.gather else captions
    if batch.within_view:
        columns = torch.cat([columns, columns])
    _, place, counts = torch.unique(columns, return_inverse=True, return_counts=True)
    # A caption of k rows is the mean of their e^s: each counts 1/k.
    weight = -counts[place].to(batch.positive.dtype).log()
    positions = torch.arange(len(columns), device=columns.device)
    pairs = positions[batch.rows]

    def row_loss(s: Tensor, rows: slice) -> Tensor:
        # The scores have -inf where the pair stands.
        s = torch.where(positions == pairs[rows, None], batch.positive[rows, None], s)
        is_class = captions[rows, None] == columns
        weighted = s + weight
        total = weighted.logsumexp(1)
        log_p = weighted.masked_fill(~is_class, -torch.inf).logsumexp(1) - total
        if q == 0:
            loss = -log_p
        else:
            # (1 - p^q) / q, without losing digits where p is near 1.
            loss = -torch.expm1(q * log_p) / q
        if not smoothing:
            return loss
        counted = s > -torch.inf
        # The replaced score keeps the infinite ones out of the gradient.
        finite = torch.where(counted, s, 0.0)
        surprise = torch.where(counted, total[:, None] - finite, 0.0) * weight.exp()
        return (1 - smoothing) * loss + smoothing * surprise.sum(1) / len(counts)

    return batch.reduce(batch.each_row(row_loss))


class GCELoss(ContrastiveLoss[GCESettings]):
    """Apply `generalized_cross_entropy` with its settings. Options: see `ContrastiveLoss`.

    >>> import torch
    >>> loss = GCELoss(q=0.7, temperature=0.5)
    >>> images = torch.eye(2)
    >>> loss(images, images, torch.tensor([0, 1]))
    tensor(0.1215)
    """

    function = staticmethod(generalized_cross_entropy)
    reads_labels = True
    q: float
    smoothing: float

    @classmethod
    def from_settings(cls, settings: GCESettings, **options: Any) -> Self:
        """Build the loss of a training run."""
        return cls(q=settings.gce_q, smoothing=settings.smoothing, **options)
