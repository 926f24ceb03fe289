"""Compute InfoNCE, the symmetric softmax loss of CLIP and, within a view, of SimCLR."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from vldebias.losses.catalog import NoSettings
from vldebias.losses.contrast import Contrast, ContrastiveLoss, LossOptions
from vldebias.losses.sums import softplus


def info_nce(
    image_features: Tensor, text_features: Tensor, **options: Unpack[LossOptions]
) -> Tensor:
    """Return -log e^{s+} / (e^{s+} + sum_i e^{s_i}), eq. 5.2 of the thesis, mean of both
    directions (van den Oord et al., 2018; of images and captions, Radford et al., 2021).

    s = <image, text> / t. Row i belongs with row i; the other rows are its K negatives.

    Args:
        image_features: (n, d), rows of norm 1. Two views of one modality go in as images and texts.
        text_features: (n, d), rows of norm 1.
        temperature: t > 0, a number or a tensor (), which then receives its gradient.
        reduction: "mean", or "none" for the loss (n,) of every pair.
        chunk_size: None keeps the n x n similarities. A number of rows computes them in blocks of
            this height, twice (again for the backward pass): same value, same gradient, memory
            linear in n.
        gather: negatives from all processes of torch.distributed, with gradients. Value and, after
            the averaging of DistributedDataParallel, gradient are those of one process on the joint
            batch; "none" gives the own rows.
        within_view: the other rows of the anchor's own view are negatives too, K = 2 (n - 1), as in
            SimCLR.
        precision: to which dtype the factors of the similarities are rounded, and those of their
            gradients: "float32" (not at all), "bfloat16", "float16", or "autocast": that of
            autocast on a GPU, where it doubles the speed, and none on a CPU. Sums, exponentials and
            similarities themselves are float32 in any case; the value stays within 1e-3.

    Returns:
        () or (n,), in the dtype of the features; half precision is promoted to float32, and
            autocast is off.

    Raises:
        InvalidInputError: shapes or dtypes that differ, n < 2, a temperature that is not positive,
            an unknown reduction, chunk_size < 1, or processes with different numbers of rows.

    >>> import torch
    >>> images = torch.eye(4)  # each image is like its own caption alone
    >>> info_nce(images, images, temperature=0.2)
    tensor(0.0200)
    >>> info_nce(images, images.roll(1, 0), temperature=0.2)  # every caption is wrong
    tensor(5.0200)
    """
    batch = Contrast(image_features, text_features, **options)
    (log_sum,) = batch.sums(1.0)
    # -log e^{s+} / (e^{s+} + sum) = log(1 + sum e^{-s+})
    return batch.reduce(softplus(log_sum - batch.positive))


class InfoNCELoss(ContrastiveLoss[NoSettings]):
    """Apply `info_nce` with its settings.

    >>> import torch
    >>> loss = InfoNCELoss(temperature=0.2)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(0.0200)
    """

    function = staticmethod(info_nce)
