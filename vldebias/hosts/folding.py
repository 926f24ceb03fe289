"""Fold a projection into the linear head that makes an embedding, so that plain weights give what it gave attached."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vldebias.errors import UnsupportedHostError
from vldebias.projection import CalibratedProjection

__all__ = ["fold", "foldable", "head_width"]

Axes = list[tuple[Tensor, int]]
"""Weights, and the axis of each that is the axis of the embedding."""


def foldable(name: str, tower: str, head: object) -> Axes:
    """The weights of `head` that a projection is folded into; nothing is changed here.

    A parameter W (width, d) makes x W, and x W P^T = x (W P^T); a Linear makes x W^T + b, and P (W x + b) has
    the weights P W and P b. Either way the projection acts on the axis of the embedding.

    Args:
        name: of the model, for messages.
        tower: "text" or "image", for messages.
        head: a parameter, a module, or None.

    Raises:
        UnsupportedHostError: nothing linear at the end, or weights that are quantized, adapted or not loaded.
    """
    last = _last(head)
    axes: Axes
    if isinstance(last, nn.Parameter):
        axes = [(last, 1)]
    elif isinstance(last, nn.Linear):
        axes = [(last.weight, 0)] + ([(last.bias, 0)] if last.bias is not None else [])
    else:
        kind = f"{type(last).__module__}.{type(last).__qualname__}"
        raise UnsupportedHostError(
            f"{name}: the {tower} tower ends in {kind}; expected a torch.nn.Linear or a projection matrix to fold "
            "into. Keep the attachment, or save its projection and attach that after loading"
        )
    for weight, _ in axes:
        if not isinstance(weight, nn.Parameter) or weight.is_meta or not weight.is_floating_point():
            raise UnsupportedHostError(
                f"{name}: the head of the {tower} tower has weights of type {type(weight).__name__}, {weight.dtype} on "
                f"{weight.device}; expected plain floating-point parameters in memory. Load the model unquantized and "
                "not offloaded"
            )
    return axes


def fold(axes: Axes, projection: CalibratedProjection, strength: float) -> None:
    """P* into the weights that `foldable` gave, in place and in their dtype."""
    with torch.no_grad():
        for weight, axis in axes:
            rows = weight.cpu().double().movedim(axis, -1)
            weight.copy_(projection(rows, strength).movedim(-1, axis))


def head_width(head: object) -> int | None:
    """Width d of what `head` makes, where it says so."""
    last = _last(head)
    if isinstance(last, nn.Parameter):
        return last.shape[1]
    width = getattr(last, "out_features", None)
    return width if isinstance(width, int) else None


def _last(head: object) -> object:
    return head[-1] if isinstance(head, nn.Sequential) and len(head) else head
