"""Compute the generalised cross-entropy, in which each distinct caption in a batch is a class."""

from __future__ import annotations

from typing import Self, Unpack

import torch
from torch import Tensor

from vldebias.losses.catalog import GCESettings
from vldebias.losses.checks import check_interval, check_labels
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss, ModuleOptions


def gce(
    image_features: Tensor,
    text_features: Tensor,
    captions: Tensor,
    *,
    temperature: float | Tensor,
    q: float = 0.7,
    smoothing: float = 0.0,
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return the generalised cross-entropy (GCE), averaged over both directions.

        (1 - p_i^q) / q
        p_i = a_i(c_i) / sum_c a_i(c),   a_i(c) = mean of e^{s_ij} over the rows j with caption c

    Source: Zhang and Sabuncu (2018), eq. 6. Rows with the same caption form one class, represented
    by their mean, so no image is pushed away from its own caption. With q = 0, the loss is the
    cross-entropy -log p, which equals `info_nce` if all captions differ. With q = 1, it is the mean
    absolute error 1 - p, which is the least sensitive to wrong captions. At any temperature, the
    loss is at most 1 / q.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        captions: (n,) integers, equal for rows with the same caption.
        q: exponent in [0, 1]; the paper uses 0.7.
        smoothing: label smoothing in [0, 1): the weight of the cross-entropy with a uniform
            distribution over the captions in the batch.
        temperature: t > 0, a number or a tensor ().
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    Returns:
        The loss (), or one loss per pair (n,) with reduction "none".

    Raises:
        InvalidInputError: If the features, an argument or an option is invalid.

    >>> import torch
    >>> images = torch.eye(2)
    >>> captions = torch.tensor([0, 1])  # each row's caption ID
    >>> gce(images, images, captions, q=0.7, temperature=0.5)
    tensor(0.1215)
    """
    check_interval("q", q, "[0, 1]")
    check_interval("smoothing", smoothing, "[0, 1)")
    if isinstance(image_features, Tensor):
        check_labels("captions", captions, len(image_features))
    batch = Contrast(image_features, text_features, temperature=temperature, **options)
    columns = batch.column_labels(captions)
    _, place, counts = torch.unique(columns, return_inverse=True, return_counts=True)
    # A caption with k rows is represented by the mean of e^s, so each of its rows has weight 1/k.
    weight = -counts[place].to(batch.positive.dtype).log()
    positions = torch.arange(len(columns), device=columns.device)
    pairs = positions[batch.rows]

    def row_loss(s: Tensor, rows: slice) -> Tensor:
        # `s` is -inf for the pairs, so insert their similarities.
        s = torch.where(positions == pairs[rows, None], batch.positive[rows, None], s)
        is_class = captions[rows, None] == columns
        weighted = s + weight
        total = weighted.logsumexp(1)
        log_p = weighted.masked_fill(~is_class, -torch.inf).logsumexp(1) - total
        if q == 0:
            loss = -log_p
        else:
            # expm1 computes 1 - p^q accurately even if p is near 1.
            loss = -torch.expm1(q * log_p) / q
        if not smoothing:
            return loss
        counted = s > -torch.inf
        # Infinite scores would make the gradient NaN, so replace them.
        finite = torch.where(counted, s, 0.0)
        surprise = torch.where(counted, total[:, None] - finite, 0.0) * weight.exp()
        return (1 - smoothing) * loss + smoothing * surprise.sum(1) / len(counts)

    return batch.reduce(batch.each_row(row_loss))


class GCE(ContrastiveLoss[GCESettings]):
    """Apply `gce` with stored settings and the options of `ContrastiveLoss`.

    >>> import torch
    >>> loss = GCE(q=0.7, temperature=0.5)
    >>> images = torch.eye(2)
    >>> loss(images, images, torch.tensor([0, 1]))
    tensor(0.1215)
    """

    function = staticmethod(gce)
    reads_labels = True
    q: float
    smoothing: float

    @classmethod
    def from_settings(cls, settings: GCESettings, **options: Unpack[ModuleOptions]) -> Self:
        """Build the loss for a training run."""
        return cls(q=settings.gce_q, smoothing=settings.smoothing, **options)
