"""The one data flow under every loss: a block of rows meets the joint batch, and each row comes out as one number.

    anchors (n, d) / t  --blocks of rows-->  similarities (c, N)  --row_loss-->  (c,)  --cat-->  (n,)

A loss is a `row_loss`: a function of the scaled similarities of some rows, s+ of the pair and s- of the negatives.
What surrounds it is the same for all of them and written once here: both directions, the negatives within a view,
the gathering of all processes, and the blocks (`vldebias.losses.blocks`).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses.blocks import RowLoss, block, in_blocks
from vldebias.losses.checks import check_choice, check_temperature, matched
from vldebias.losses.processes import gather_rows, mean_over_processes, own_rows

__all__ = ["Reduction", "check_options", "contrast", "per_row", "reduce", "softplus", "without_autocast"]

Reduction = Literal["mean", "none"]


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact to double precision: the default threshold of torch cuts at 20, an error of 2e-9."""
    return F.softplus(x, threshold=50.0)


def without_autocast(features: Tensor) -> torch.autocast:
    """Autocast off: it would round the similarities to half precision, which the division by t makes large."""
    return torch.autocast(features.device.type, enabled=False)


def per_row(
    row_loss: RowLoss,
    anchors: Tensor,
    other: Tensor,
    own: Tensor | None = None,
    *values: Any,
    temperature: float | Tensor,
    chunk_size: int | None = None,
) -> Tensor:
    """(n,) one direction of a loss: `row_loss` of every anchor.

    Args:
        row_loss: maps `Rows` of c anchors, and the `values`, to (c,).
        anchors: (n, d) rows of this process.
        other: (N, d) the other view of the joint batch, this process's rows at rank * n.
        own: (N, d) the anchors' own view of the joint batch, if its rows are negatives too.
        values: what else `row_loss` takes, tensors with their gradient among it.
        temperature: t, a number or a tensor of shape ().
        chunk_size: rows per block; None is one block, without recomputation.
    """
    if len(other) < 2:
        raise InvalidInputError(f"expected n >= 2 rows, since the other rows are the negatives, got n = {len(other)}")
    offset = own_rows(len(anchors), len(other)).start
    scaled = anchors / temperature
    if chunk_size is None:
        return block(row_loss, 0, offset, scaled, other, own, *values)
    return in_blocks(row_loss, chunk_size, offset, scaled, other, own, *values)


def reduce(losses: Tensor, reduction: Reduction, gather: bool) -> Tensor:
    """(n,) losses of this process, or their mean, over the joint batch if it was gathered."""
    if reduction == "none":
        return losses
    return mean_over_processes(losses.mean()) if gather else losses.mean()


def check_options(temperature: float | Tensor, reduction: str, chunk_size: int | None) -> None:
    """Refuse the options that no loss takes."""
    check_temperature(temperature)
    check_choice("reduction", reduction, ("mean", "none"))
    if chunk_size is not None and chunk_size < 1:
        raise InvalidInputError(f"chunk_size: expected a positive number of rows or None, got {chunk_size}")


def contrast(
    row_loss: RowLoss,
    image_features: Tensor,
    text_features: Tensor,
    *values: Any,
    temperature: float | Tensor,
    reduction: Reduction = "mean",
    chunk_size: int | None = None,
    gather: bool = False,
    within_view: bool = False,
) -> Tensor:
    """Mean over both directions of a `row_loss`, image to text and text to image, or view to view.

    `values` are handed to `row_loss` behind the rows; whatever of them needs a gradient goes in here, since a
    block finds its way back to its arguments only. The other arguments, Returns and Raises: see
    `vldebias.losses.info_nce`, which has them all.
    """
    check_options(temperature, reduction, chunk_size)
    image, text = matched(image_features, text_features)
    with without_autocast(image):
        images, texts = (gather_rows(image), gather_rows(text)) if gather else (image, text)
        own = (images, texts) if within_view else (None, None)
        options: Any = {"temperature": temperature, "chunk_size": chunk_size}
        forward = per_row(row_loss, image, texts, own[0], *values, **options)
        backward = per_row(row_loss, text, images, own[1], *values, **options)
        return reduce((forward + backward) / 2, reduction, gather)
