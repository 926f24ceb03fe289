"""Compute CyCLIP's loss, InfoNCE with terms for consistent similarities."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vldebias.losses.catalog import CyCLIPSettings
from vldebias.losses.checks import check_interval
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss
from vldebias.losses.sums import row_blocks, softplus


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
    if cross_modal > 0 or in_modal > 0:
        with batch.precise():
            losses = losses + _inconsistencies(batch, cross_modal, in_modal)
    return batch.reduce(losses)


def _inconsistencies(batch: Contrast, cross_modal: float, in_modal: float) -> Tensor:
    """Return both terms of each pair (n,), weighted.

    One product contains both differences. For E = (X - Y) (X + Y)^T,

        <x_i, x_j> - <y_i, y_j> = (E + E^T)_ij / 2,   <x_i, y_j> - <x_j, y_i> = (E - E^T)_ij / 2.
    """
    images, texts = batch.joint
    differences, totals = images - texts, images + texts
    even = (cross_modal + in_modal) / 4
    odd = (in_modal - cross_modal) / 2
    if batch.whole and batch.chunk_size is None:
        e = batch.products(differences, totals)
        squares = e.square()
        rows = even * (squares.sum(0) + squares.sum(1))
        return rows if odd == 0 else rows + odd * (e * e.T).sum(1)

    def terms(anchors: slice) -> Tensor:
        e = batch.products(differences[anchors], totals)
        transposed = batch.products(totals[anchors], differences)
        return even * (e.square() + transposed.square()).sum(1) + odd * (e * transposed).sum(1)

    start, stop = batch.rows.start, batch.rows.stop
    blocks = row_blocks(stop, batch.chunk_size or stop - start, start)
    return torch.cat([checkpoint(terms, block, use_reentrant=False) for block in blocks])


class CyCLIP(ContrastiveLoss[CyCLIPSettings]):
    """Apply `cyclip` with stored settings and the options of `ContrastiveLoss`.

    >>> import torch
    >>> loss = CyCLIP(temperature=0.2)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(0.0200)
    """

    function = staticmethod(cyclip)
