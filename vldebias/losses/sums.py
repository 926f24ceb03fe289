"""Compute log-sums over the rows and the columns of one similarity matrix together, in blocks.

Most losses are functions of a few sums per anchor, log sum_j e^{scale s_ij} over the negatives j.
The anchors of one direction are the rows of S = A B^T, those of the other its columns. So the
matrix is multiplied once forward and its gradient, the sum of both directions', twice backward:
three products where a direction at a time takes six.

    A (n, d), B (N, d)  --blocks of rows-->  S (c, N)
    S (c, N)  --T scales-->  over columns (T, n), over rows (T, N)

With a `chunk_size` nothing of a block outlives it but its sums, and the backward pass computes it
again: four products, and memory O(chunk_size * N).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_CACHED = 256  # rows


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x) to double precision: the default threshold of torch cuts at 20, an error
    of 2e-9."""
    return F.softplus(x, threshold=50.0)


def matrix_sums(
    scales: Sequence[float],
    a: Tensor,
    b: Tensor,
    *,
    pair: int = 0,
    chunk_size: int | None = None,
    both: bool = True,
) -> tuple[Tensor, ...]:
    """Return log sum_j e^{scale s_ij} of every row of S = A B^T (T, n) and, with `both`, of every
    column (T, N).

    Args:
        scales: T numbers, a sum over the negatives of an anchor for each.
        a, b: (n, d) and (N, d), one of them already divided by the temperature.
        pair: the column that row 0 belongs with; row i belongs with `pair` + i.
        chunk_size: rows per block; None is one block, which is kept for the backward pass.
        both: the columns are anchors too; N = n then.
    """
    sums: tuple[Tensor, ...] = _MatrixSums.apply(tuple(scales), pair, chunk_size, both, a, b)
    return sums


def _scores_into(scores: Tensor, a: Tensor, b: Tensor, pair: int, block: slice) -> Tensor:
    """Return the similarities of a block of rows, in a part of `scores`: the whole matrix, or room
    for one block."""
    part = scores[block] if len(scores) == len(a) else scores[: block.stop - block.start]
    torch.mm(a[block], b.T, out=part)
    part.diagonal(pair + block.start).fill_(-torch.inf)
    return part


def _scaled(s: Tensor, scale: float) -> Tensor:
    return s if scale == 1 else scale * s


class _MatrixSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scales: tuple[float, ...],
        pair: int,
        chunk_size: int | None,
        both: bool,
        a: Tensor,
        b: Tensor,
    ) -> tuple[Tensor, ...]:
        size = chunk_size or _rows_at_once(a)
        ctx.settings = scales, pair, size, (1, 0) if both else (1,)
        rows = a.new_empty(len(scales), len(a))
        columns = a.new_full((len(scales), len(b)), -torch.inf)
        scores = a.new_empty(len(a) if chunk_size is None else min(size, len(a)), len(b))
        for block in row_blocks(len(a), size):
            s = _scores_into(scores, a, b, pair, block)
            values = [_scaled(s, scale) for scale in scales]
            rows[:, block] = torch.stack([each.logsumexp(1) for each in values])
            if both:
                torch.logaddexp(
                    columns, torch.stack([each.logsumexp(0) for each in values]), out=columns
                )
        sums = (rows, columns) if both else (rows,)
        ctx.save_for_backward(a, b, scores if chunk_size is None else None, *sums)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        scales, pair, size, dims = ctx.settings
        a, b, kept, *sums = ctx.saved_tensors
        with torch.autocast(a.device.type, enabled=False):
            to_a = torch.empty_like(a)
            to_b = torch.zeros_like(b)
            room = [a.new_empty(min(size, len(a)), len(b)) for _ in range(3 if kept is None else 2)]
            for block in row_blocks(len(a), size):
                s = _scores_into(room[2], a, b, pair, block) if kept is None else kept[block]
                gradient, weights = (part[: len(s)] for part in room[:2])
                gradient.zero_()
                for k, scale in enumerate(scales):
                    for total, along, dim in zip(sums, outer, dims, strict=True):
                        cut = block if dim == 1 else slice(None)
                        torch.sub(
                            _scaled(s, scale), total[k, cut].unsqueeze(dim), out=weights
                        ).exp_()
                        gradient.addcmul_(weights, _scaled(along[k, cut], scale).unsqueeze(dim))
                torch.mm(gradient, b, out=to_a[block])
                to_b.addmm_(gradient.T, a[block])
        return None, None, None, None, to_a, to_b


def matrix_total(
    a: Tensor, b: Tensor, bias: Tensor, *, pair: int = 0, chunk_size: int | None = None
) -> Tensor:
    """Return sum_ij log(1 + e^{s_ij + bias}) () over the negatives of S = A B^T; arguments as of
    `matrix_sums`.

    The gradient of this sum is known with the similarities, up to one factor: it is taken with each
    block, so that no block is kept or computed again.
    """
    total: Tensor = _SoftplusTotal.apply(pair, chunk_size or _rows_at_once(a), a, b, bias)
    return total


class _SoftplusTotal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: int, size: int, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        needed = any(ctx.needs_input_grad)
        total = torch.zeros_like(bias)
        to_a = torch.zeros_like(a)
        to_b = torch.zeros_like(b)
        to_bias = torch.zeros_like(bias)
        for block in row_blocks(len(a), size):
            s = torch.mm(a[block], b.T).add_(bias)
            s.diagonal(pair + block.start).fill_(-torch.inf)
            total += softplus(s).sum()
            if needed:
                slope = s.sigmoid_()
                to_bias += slope.sum()
                torch.mm(slope, b, out=to_a[block])
                to_b.addmm_(slope.T, a[block])
        ctx.save_for_backward(to_a, to_b, to_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        (slope,) = outer
        return None, None, *(slope * gradient for gradient in ctx.saved_tensors)


def _rows_at_once(rows: Tensor) -> int:
    """Return how many rows to work on where all may be: on a CPU those whose similarities stay in
    its cache."""
    return _CACHED if rows.device.type == "cpu" else max(len(rows), 1)


def row_blocks(n: int, size: int) -> Iterator[slice]:
    """Yield the rows of each block."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
