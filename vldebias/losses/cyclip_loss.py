"""Compute CyCLIP's loss, InfoNCE with terms for consistent similarities."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from vldebias.losses.catalog import CyCLIPSettings
from vldebias.losses.checks import check_interval
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss
from vldebias.losses.sums import softplus


def cyclip(
    image_features: Tensor,
    text_features: Tensor,
    *,
    temperature: float | Tensor,
    cross_modal: float = 0.25,
    in_modal: float = 0.25,
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return CyCLIP's loss (Goel et al., 2022).

        InfoNCE + cross_modal sum_j (<x_i, y_j> - <x_j, y_i>)^2
                + in_modal sum_j (<x_i, x_j> - <y_i, y_j>)^2

    Here x are the images and y the texts. Both sums are over cosines, which are not divided by the
    temperature, and are averaged over the pairs i. They grow with the batch, as in the paper. With
    both weights 0, this is `info_nce`.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        temperature: t > 0 of InfoNCE, a number or a tensor ().
        cross_modal: weight of the second term, >= 0.
        in_modal: weight of the third term, >= 0.
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    Returns:
        The loss (), or one loss per pair (n,) with reduction "none".

    Raises:
        InvalidInputError: If the features, an argument or an option is invalid.

    >>> import torch
    >>> images = torch.eye(4)
    >>> cyclip(images, images, temperature=0.2)  # consistent, so only InfoNCE is left
    tensor(0.0200)
    >>> cyclip(images, images.roll(1, 0), temperature=0.2)
    tensor(5.5200)
    """
    check_interval("cross_modal", cross_modal, "[0, inf)")
    check_interval("in_modal", in_modal, "[0, inf)")
    batch = Contrast(image_features, text_features, temperature=temperature, **options)
    (log_sum,) = batch.sums(1.0)
    losses = softplus(log_sum - batch.positive)
    images, texts = batch.joint
    # Each difference of two similarities is one product of the concatenated features.
    anchors = torch.cat([images, texts], 1)[batch.rows]
    if cross_modal > 0:
        losses = losses + cross_modal * batch.row_squares(anchors, torch.cat([texts, -images], 1))
    if in_modal > 0:
        losses = losses + in_modal * batch.row_squares(anchors, torch.cat([images, -texts], 1))
    return batch.reduce(losses)


class CyCLIP(ContrastiveLoss[CyCLIPSettings]):
    """Apply `cyclip` with stored settings and the options of `ContrastiveLoss`.

    >>> import torch
    >>> loss = CyCLIP(temperature=0.2)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(0.0200)
    """

    function = staticmethod(cyclip)
