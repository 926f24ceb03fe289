"""Compute the generalised cross-entropy, in which each distinct caption in a batch is a class."""

from __future__ import annotations

from typing import Self, Unpack

import torch
from torch import Tensor

from vldebias.losses.catalog import GCESettings
from vldebias.losses.checks import check_interval, check_labels
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss, ModuleOptions
from vldebias.losses.processes import gather_rows


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
    joint_captions = gather_rows(captions) if batch.gather else captions
    _, places, counts = torch.unique(joint_captions, return_inverse=True, return_counts=True)
    views = 2 if batch.within_view else 1
    with batch.precise():
        # A caption with k rows is represented by the mean of e^s, so each of its rows has weight
        # 1/k.
        log_weights = -(views * counts[places]).to(batch.positive.dtype).log()
        pair = batch.positive + log_weights[batch.rows]
        if len(counts) == len(places) and views == 1:
            # If all captions differ, all weights are 1, and the pair is its only row.
            log_negatives = batch.sums(1.0)[0]
            log_class = pair
        else:
            margin = -log_weights.expand(2, -1)
            log_negatives, log_same = batch.sums(1.0, margin=margin, labels=joint_captions)
            log_class = torch.logaddexp(log_same, pair)
        log_total = torch.logaddexp(log_negatives, pair)
        log_p = log_class - log_total
        # expm1 computes 1 - p^q accurately even if p is near 1.
        loss = -log_p if q == 0 else -torch.expm1(q * log_p) / q
        if smoothing:
            loss = (1 - smoothing) * loss + smoothing * _surprise(batch, log_total, log_weights)
        return batch.reduce(loss)


def _surprise(batch: Contrast, log_total: Tensor, log_weights: Tensor) -> Tensor:
    """Return the mean (2, n) of -log p over the captions in the batch.

    Args:
        batch: the features.
        log_total: (2, n), the logarithm of the weighted sum of e^s over all rows.
        log_weights: (N,), the logarithm of each joint row's weight.
    """
    weights = log_weights.exp()
    own_weights = weights[batch.rows]
    surprises = []
    for k, anchors in enumerate(batch.anchors):
        # The mean score of a caption's rows is the score of their mean, so no matrix is needed.
        views = batch.joint if batch.within_view else [batch.joint[1 - k]]
        # Autocast would round matrix products in the backward pass, but not these.
        means = torch.stack([(weights[:, None] * view).sum(0) for view in views])
        scores = (anchors * means.sum(0)).sum(1)
        captions = len(views) * weights.sum()  # the weights of a caption's rows add up to 1
        counted = captions
        if batch.within_view:
            # An anchor is not compared with itself.
            scores = scores - own_weights * (anchors * batch.joint[k][batch.rows]).sum(1)
            counted = captions - own_weights
        surprises.append((counted * log_total[k] - scores) / captions)
    return torch.stack(surprises)


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

    @classmethod
    def from_settings(cls, settings: GCESettings, **options: Unpack[ModuleOptions]) -> Self:
        """Build the loss for a training run."""
        return cls(q=settings.gce_q, smoothing=settings.smoothing, **options)
