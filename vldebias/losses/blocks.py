"""Blocks of rows against the joint batch: computed, reduced and forgotten, and computed again for the gradient.

So memory is O(chunk_size * n) and not O(n * n), while the arithmetic of a row is the same as without blocks. Nothing
of a block outlives it but its losses. torch.utils.checkpoint does the same per call, but leaves the nodes of all
blocks' graphs behind, small allocations that keep the C library from reusing the holes between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["RowLoss", "Rows", "block", "in_blocks"]


@dataclass(frozen=True)
class Rows:
    """c anchors and their similarities, divided by the temperature, to the N rows of the joint batch.

    anchors: (c, d), already divided by the temperature.
    positive: (c,) s+, the similarity to the row they belong with.
    negatives: (c, N) s-; -inf in the columns that are no negatives: the pair and, within a view, the anchor itself.
        The N columns are the rows of the other view and then, with `within_view`, those of the own view.
    count: how many negatives a row has.
    local: the rows of this process's batch that the anchors are.
    index: (c,) the rows of the joint batch that the anchors are.
    """

    anchors: Tensor
    positive: Tensor
    negatives: Tensor
    count: int
    local: slice
    index: Tensor

    def log_sum_negatives(self) -> Tensor:
        """(c,) log sum_u e^{s_u} over the negatives."""
        return torch.logsumexp(self.negatives, dim=1)


RowLoss = Callable[..., Tensor]  # (rows, *values) -> (c,)


def block(
    row_loss: RowLoss, start: int, offset: int, anchors: Tensor, other: Tensor, own: Tensor | None, *values: Any
) -> Tensor:
    """(c,) losses of anchors (c, d), rows `start` and on of this process and `offset` + start of the joint batch."""
    row = torch.arange(len(anchors), device=anchors.device)
    index = row + (offset + start)
    columns = other if own is None else torch.cat([other, own])
    negatives = anchors @ columns.T
    negatives[row, index] = -torch.inf
    if own is not None:
        negatives[row, len(other) + index] = -torch.inf
    rows = Rows(
        anchors=anchors,
        positive=(anchors * other[index]).sum(1),
        negatives=negatives,
        count=len(columns) - (1 if own is None else 2),
        local=slice(start, start + len(anchors)),
        index=index,
    )
    return row_loss(rows, *values)


def in_blocks(
    row_loss: RowLoss, chunk_size: int, offset: int, anchors: Tensor, other: Tensor, own: Tensor | None, *values: Any
) -> Tensor:
    """(n,) what `block` gives for all anchors (n, d), `chunk_size` at a time. Differentiable once."""
    losses: Tensor = _InBlocks.apply(row_loss, chunk_size, offset, anchors, other, own, *values)
    return losses


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, row_loss: RowLoss, chunk_size: int, offset: int, *inputs: Any) -> Tensor:
        ctx.row_loss, ctx.chunk_size, ctx.offset = row_loss, chunk_size, offset
        ctx.constants = [None if isinstance(value, Tensor) else value for value in inputs]
        ctx.save_for_backward(*(value if isinstance(value, Tensor) else None for value in inputs))
        anchors, *rest = inputs
        losses = anchors.new_empty(len(anchors))
        for rows in _slices(len(anchors), chunk_size):
            losses[rows] = block(row_loss, rows.start, offset, anchors[rows], *rest)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[3:]
        inputs = [
            constant if tensor is None else tensor.detach().requires_grad_(want)
            for tensor, constant, want in zip(ctx.saved_tensors, ctx.constants, wanted, strict=True)
        ]
        gradients = [torch.zeros_like(value) if want else None for value, want in zip(inputs, wanted, strict=True)]
        with torch.autocast(outer.device.type, enabled=False):
            for rows in _slices(len(outer), ctx.chunk_size):
                _add_gradients(ctx, rows, outer[rows], inputs, gradients)
        return (None, None, None, *gradients)


def _add_gradients(ctx: Any, rows: slice, outer: Tensor, inputs: list[Any], gradients: list[Tensor | None]) -> None:
    """Add what the block of these rows contributes to the gradients of the inputs."""
    with torch.enable_grad():
        losses = block(ctx.row_loss, rows.start, ctx.offset, inputs[0][rows], *inputs[1:])
    pairs = [(value, total) for value, total in zip(inputs, gradients, strict=True) if total is not None]
    found = torch.autograd.grad(losses, [value for value, _ in pairs], outer, allow_unused=True)
    for (_, total), gradient in zip(pairs, found, strict=True):
        if gradient is not None:
            total += gradient


def _slices(n: int, chunk_size: int) -> Iterator[slice]:
    for start in range(0, n, chunk_size):
        yield slice(start, min(start + chunk_size, n))
