"""Compute InfoNCE, the symmetric softmax loss of CLIP and, with `within_view`, of SimCLR."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from vldebias.losses.catalog import NoSettings
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss
from vldebias.losses.sums import softplus


def info_nce(
    image_features: Tensor,
    text_features: Tensor,
    *,
    temperature: float | Tensor,
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return the InfoNCE loss (eq. 5.2 of the thesis), averaged over both directions.

        -log e^{s+} / (e^{s+} + sum_i e^{s_i}),   s = <image, text> / t

    Row i of the images and row i of the texts form a pair. The other rows are its K negatives (van
    den Oord et al., 2018; Radford et al., 2021, for images and captions).

    Args:
        image_features: (n, d), rows of norm 1. For two views of one modality, pass one view as the
            images and the other as the texts.
        text_features: (n, d), rows of norm 1.
        temperature: t > 0, a number or a tensor (), which receives a gradient. CLIP learns it,
            from 0.07 to 0.01.
        reduction: "mean", or "none" for per-pair losses (n,).
        chunk_size: number of rows of the similarity matrix to compute at once; each block is
            recomputed in the backward pass. The result is the same, and memory use is linear in n.
            Default: keep all n x n similarities.
        gather: whether to use negatives from all torch.distributed processes, with gradients. The
            value, and the gradient after DistributedDataParallel has averaged it, are the same as
            for one process with the joint batch. With reduction "none", only the losses of this
            process are returned.
        within_view: whether to also use the other rows of the anchor's own view as negatives, as in
            SimCLR, so that K = 2 (n - 1).
        precision: dtype to which the factors of similarities and of their gradients are rounded:
            "float32" (no rounding), "bfloat16", "float16" or "autocast". "autocast" uses autocast's
            dtype on GPUs, where it doubles the speed, and does not round on CPUs. Similarities,
            exponentials and sums are always float32. Rounding changes the loss by less than 1e-3.

    Returns:
        The loss, () or (n,), in the dtype of the features. Half precision is promoted to float32,
            and autocast is disabled.

    Raises:
        InvalidInputError: If shapes or dtypes differ, n < 2, the temperature is not positive, the
            reduction is unknown, chunk_size < 1, or processes have different numbers of rows.

    >>> import torch
    >>> images = torch.eye(4)  # each image matches only its own caption
    >>> info_nce(images, images, temperature=0.2)
    tensor(0.0200)
    >>> info_nce(images, images.roll(1, 0), temperature=0.2)  # every caption is wrong
    tensor(5.0200)
    """
    batch = Contrast(image_features, text_features, temperature=temperature, **options)
    (log_sum,) = batch.sums(1.0)
    # -log e^{s+} / (e^{s+} + sum) = log(1 + sum e^{-s+})
    return batch.reduce(softplus(log_sum - batch.positive))


class InfoNCE(ContrastiveLoss[NoSettings]):
    """Apply `info_nce` with stored settings and the options of `ContrastiveLoss`.

    >>> import torch
    >>> loss = InfoNCE(temperature=0.2)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(0.0200)
    """

    function = staticmethod(info_nce)
