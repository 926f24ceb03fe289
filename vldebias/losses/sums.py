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

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vldebias.errors import InvalidInputError

# 256 rows against a batch of 2,000 are 2 MB in float32, which stay in a core's cache.
_CACHED = 256  # rows
_AT_ONCE = 1 << 26  # similarities that a GPU works on at once, a quarter of a gigabyte in float32


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
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    """Return log sum_j e^{scale s_ij} of every row of S = A B^T (T, n) and, with `both`, of every
    column (T, N).

    Args:
        scales: T numbers, a sum over the negatives of an anchor for each.
        a: (n, d), divided by the temperature if `b` is not.
        b: (N, d).
        pair: the column that row 0 belongs with; row i belongs with `pair` + i.
        chunk_size: rows per block; None is one block, which is kept for the backward pass.
        both: the columns are anchors too; N = n then.
        dtype: to which the factors of products are rounded, see `product`; None for that of a, b.
    """
    sums: tuple[Tensor, ...] = _MatrixSums.apply(a, b, scales, pair, chunk_size, both, dtype)
    return sums


def product(a: Tensor, b: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return A B (n, N) in the dtype of A, of factors that are rounded to a half precision.

    The terms are summed in float32, as tensor cores do, and the result is not rounded: of unit rows
    over t = .01 a similarity is off by some .005, where a rounded one would be off by .25.

    Args:
        a: (n, d).
        b: (d, N).
        dtype: half precision that the factors are rounded to; None: not at all.
    """
    if dtype is None:
        return a @ b
    rounded_a = a.to(dtype)
    rounded_b = b.to(dtype)
    if a.device.type == "cuda" and a.dtype == torch.float32:
        # Tensor cores multiply half precision and add in float32; without this the sum is rounded.
        return torch.mm(rounded_a, rounded_b, out_dtype=torch.float32)
    # Elsewhere float32 multiplies the rounded factors: the same numbers, without the speed.
    return rounded_a.to(a.dtype) @ rounded_b.to(a.dtype)


def slope_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of products with slopes: a softmax over many rows is too small for
    float16."""
    return None if dtype is None else torch.bfloat16


def _scores(a: Tensor, b: Tensor, pair: int, dtype: torch.dtype | None, out: Tensor) -> Tensor:
    """Write the similarities of all rows into `out` and return it; -inf where row i meets column
    `pair` + i."""
    if dtype is None:
        torch.mm(a, b.T, out=out)
    else:
        out.copy_(product(a, b.T, dtype))
    # A pair is no negative: e^-inf = 0 leaves it out of every sum.
    out.diagonal(pair).fill_(-torch.inf)
    return out


def _scaled(s: Tensor, scale: float) -> Tensor:
    # A product with 1 would only copy the matrix.
    return s if scale == 1 else scale * s


def _once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse to differentiate a gradient again.

    torch's own decorator of this name lets `torch.autograd.grad` return a wrong second derivative,
    since the node that would raise is not on the way to the inputs.
    """

    @wraps(backward)
    def checked(ctx: Any, *outer: Tensor) -> Any:
        # Only with create_graph=True.
        if torch.is_grad_enabled():
            raise InvalidInputError(
                "create_graph=True: expected a loss that is differentiated once; the gradients of"
                " these losses have no derivative. Leave create_graph out, or write the loss in"
                " plain torch"
            )
        return backward(ctx, *outer)

    return checked


class _MatrixSums(torch.autograd.Function):
    """Compute `matrix_sums`, which has the arguments, and its gradient in the same blocks."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        scales: Sequence[float],
        pair: int,
        chunk_size: int | None,
        both: bool,
        dtype: torch.dtype | None,
    ) -> tuple[Tensor, ...]:
        size = chunk_size or _rows_at_once(a, b)
        keeps_scores = chunk_size is None
        rows = a.new_empty(len(scales), len(a))
        # A block has all negatives of its rows, but a part of each column's: these begin at log 0.
        columns = a.new_full((len(scales), len(b)), -torch.inf)
        # Scores that are not kept are written into the buffer of one block, again and again.
        scores = a.new_empty(len(a) if keeps_scores else min(size, len(a)), len(b))
        for block in row_blocks(len(a), size):
            buffer = scores[block] if keeps_scores else scores[: block.stop - block.start]
            s = _scores(a[block], b, pair + block.start, dtype, buffer)
            values = [_scaled(s, scale) for scale in scales]
            rows[:, block] = torch.stack([value.logsumexp(1) for value in values])
            if both:
                sums_of_block = torch.stack([value.logsumexp(0) for value in values])
                torch.logaddexp(columns, sums_of_block, out=columns)
        sums = (rows, columns) if both else (rows,)
        ctx.scales = scales
        ctx.pair = pair
        ctx.size = size
        ctx.dtype = dtype
        ctx.save_for_backward(a, b, scores if keeps_scores else None, *sums)
        return sums

    @staticmethod
    @_once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        # kept: the scores, or None. sums: of the rows and, where they are anchors, of the columns.
        a, b, kept, *sums = ctx.saved_tensors
        # Where backward() is called under autocast, it would round the products.
        with torch.autocast(a.device.type, enabled=False):
            slope_of_a = torch.empty_like(a)
            slope_of_b = torch.zeros_like(b)
            # Buffers of one block: slope, weights and, unless they were kept, the scores.
            count = 3 if kept is None else 2
            buffers = [a.new_empty(min(ctx.size, len(a)), len(b)) for _ in range(count)]
            for block in row_blocks(len(a), ctx.size):
                slope, weights, *unkept = [part[: block.stop - block.start] for part in buffers]
                if kept is None:
                    s = _scores(a[block], b, ctx.pair + block.start, ctx.dtype, unkept[0])
                else:
                    s = kept[block]
                slope.zero_()
                _add_softmax(slope, s, ctx.scales, sums[0][:, block], outer[0][:, block], weights)
                # The columns are anchors too: seen from them, the same similarities are S^T.
                if len(sums) == 2:
                    _add_softmax(slope.T, s.T, ctx.scales, sums[1], outer[1], weights.T)
                _add_slopes(slope, a, b, block, ctx.dtype, slope_of_a, slope_of_b)
        return slope_of_a, slope_of_b, None, None, None, None, None


def _add_softmax(
    slope: Tensor,
    s: Tensor,
    scales: Sequence[float],
    total: Tensor,
    total_slope: Tensor,
    weights: Tensor,
) -> None:
    """Add the gradient through the log-sums of rows to the gradient of similarities (c, N).

    Args:
        slope: the gradient of the similarities.
        s: the similarities.
        scales: T numbers.
        total, total_slope: (T, c), the log-sums, and the gradient of the loss in them.
        weights: buffer (c, N).
    """
    # d/ds_j log sum_i e^{scale s_i} = scale e^{scale s_j - log-sum}; a pair, s = -inf, gets 0.
    for k, scale in enumerate(scales):
        torch.sub(_scaled(s, scale), total[k][:, None], out=weights).exp_()
        slope.addcmul_(weights, _scaled(total_slope[k], scale)[:, None])


def _add_slopes(
    slope: Tensor,
    a: Tensor,
    b: Tensor,
    block: slice,
    dtype: torch.dtype | None,
    slope_of_a: Tensor,
    slope_of_b: Tensor,
) -> None:
    """Write the gradient of a block of rows of A, and add the block's part to the gradient of B,
    from the gradient `slope` of its similarities."""
    if dtype is None:
        # From S = A B^T follow dA = slope B and dB = slope^T A, the latter summed over the blocks.
        torch.mm(slope, b, out=slope_of_a[block])
        slope_of_b.addmm_(slope.T, a[block])
        return
    half = slope_dtype(dtype)
    slope_of_a[block] = product(slope, b, half)
    slope_of_b += product(slope.T, a[block], half)


def matrix_total(
    a: Tensor,
    b: Tensor,
    bias: Tensor,
    *,
    pair: int = 0,
    chunk_size: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return sum_ij log(1 + e^{s_ij + bias}) () over the negatives of S = A B^T; for the arguments
    see `matrix_sums`.

    The gradient of this sum is known with the similarities, up to one factor: it is taken with each
    block, so that no block is kept or computed again.

    Args:
        a: (n, d), see `matrix_sums`.
        b: (N, d), see `matrix_sums`.
        bias: (), added to every similarity.
        pair: see `matrix_sums`.
        chunk_size: see `matrix_sums`.
        dtype: see `matrix_sums`.
    """
    size = chunk_size or _rows_at_once(a, b)
    total: Tensor = _SoftplusTotal.apply(a, b, bias, pair, size, dtype)
    return total


class _SoftplusTotal(torch.autograd.Function):
    """Compute `matrix_total` in blocks of `size` rows, and its gradient with it."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor,
        pair: int,
        size: int,
        dtype: torch.dtype | None,
    ) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad)
        total = torch.zeros_like(bias)
        slope_of_a = torch.zeros_like(a)
        slope_of_b = torch.zeros_like(b)
        slope_of_bias = torch.zeros_like(bias)
        for block in row_blocks(len(a), size):
            s = product(a[block], b.T, dtype).add_(bias)
            # Pairs add nothing to value or slope: softplus and sigmoid of -inf are 0.
            s.diagonal(pair + block.start).fill_(-torch.inf)
            total += softplus(s).sum()
            if needs_gradient:
                # The derivative of log(1 + e^s), written over s, which is not needed any more.
                slope = s.sigmoid_()
                slope_of_bias += slope.sum()
                _add_slopes(slope, a, b, block, dtype, slope_of_a, slope_of_b)
        ctx.save_for_backward(slope_of_a, slope_of_b, slope_of_bias)
        return total

    @staticmethod
    @_once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        slope_of_a, slope_of_b, slope_of_bias = ctx.saved_tensors
        slope = outer[0]
        return slope * slope_of_a, slope * slope_of_b, slope * slope_of_bias, None, None, None


def _rows_at_once(rows: Tensor, columns: Tensor) -> int:
    """Return how many rows to process at once where the caller sets no limit.

    On a CPU those whose similarities stay in its cache; on a GPU so many that the buffers of the
    backward pass stay small against the whole matrix.
    """
    if rows.device.type == "cpu":
        return _CACHED
    return max(_AT_ONCE // max(len(columns), 1), 1)


def row_blocks(n: int, size: int) -> Iterator[slice]:
    """Yield the rows of each block.

    Args:
        n: number of rows.
        size: height of a block; the last may be lower.
    """
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
