"""Compute the supervised contrastive loss, in which all items of a class attract each other."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from vldebias.losses.catalog import NoSettings
from vldebias.losses.checks import check_labels
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss
from vldebias.losses.processes import gather_rows


def supcon(
    image_features: Tensor,
    text_features: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor,
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return the supervised contrastive loss, L_out of eq. 2 of Khosla et al. (2020).

        -1/|P| sum_{p in P} log e^{s_p} / sum_{a in A} e^{s_a}

    A is the set of all rows in the batch except the anchor. P is the subset that shares the
    anchor's class, including the anchor's other view. If no two items share a class, this is
    `info_nce`. Unlike in the attraction term of `spread`, the denominator includes the other
    positives. By default, the batch contains both views. Pass `within_view=False` for images and
    captions.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        labels: (n,) integers, the class of each row.
        temperature: t > 0, a number or a tensor ().
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    Returns:
        The loss (), or one loss per pair (n,) with reduction "none".

    Raises:
        InvalidInputError: If the features, an argument or an option is invalid.

    >>> import torch
    >>> images = torch.eye(4)
    >>> supcon(images, images, torch.tensor([0, 0, 1, 1]), temperature=0.5)
    tensor(1.9278)
    """
    if isinstance(image_features, Tensor):
        check_labels("labels", labels, len(image_features))
    options.setdefault("within_view", True)
    batch = Contrast(image_features, text_features, temperature=temperature, **options)
    joint_labels = gather_rows(labels) if batch.gather else labels
    classes, places = torch.unique(joint_labels, return_inverse=True)
    count = torch.bincount(places)[places][batch.rows]
    with batch.precise():
        if batch.whole and batch.within_view:
            log_negatives, scores = batch.sums(1.0, positives=places)
            log_all = torch.logaddexp(log_negatives, batch.positive)
            return batch.reduce(log_all - (scores + batch.positive) / (2 * count - 1))
        (log_negatives,) = batch.sums(1.0)
        log_all = torch.logaddexp(log_negatives, batch.positive)
        # The mean over P of s_p only needs the sum of the features of each class.
        anchor_classes = places[batch.rows]
        zeros = batch.joint[0].new_zeros(len(classes), batch.joint[0].shape[1])
        totals = [zeros.index_add(0, places, side) for side in batch.joint]
        if batch.within_view:
            totals = [totals[0] + totals[1]] * 2
        # index_select has a faster gradient than an index.
        sums = [total.index_select(0, anchor_classes) for total in totals[::-1]]
        anchors = torch.stack(batch.anchors)
        scores = (anchors * torch.stack(sums)).sum(2)
        if batch.within_view:
            # P contains the rows of both views, but not the anchor itself.
            own_rows = torch.stack([side[batch.rows] for side in batch.joint])
            scores = scores - (anchors * own_rows).sum(2)
            count = 2 * count - 1
        return batch.reduce(log_all - scores / count)


class SupCon(ContrastiveLoss[NoSettings]):
    """Apply `supcon` with the options of `ContrastiveLoss`; `within_view` is True by default.

    >>> import torch
    >>> loss = SupCon(temperature=0.5)
    >>> images = torch.eye(4)
    >>> loss(images, images, torch.tensor([0, 0, 1, 1]))
    tensor(1.9278)
    """

    function = staticmethod(supcon)
    reads_labels = True

    def __init__(self, *, within_view: bool = True, **settings: Any) -> None:
        super().__init__(within_view=within_view, **settings)
