"""Compute log-sums over both the rows and the columns of a similarity matrix, in blocks.

Most losses are functions of a few sums per anchor, log sum_j e^{scale s_ij} over the negatives j.
The anchors are the rows of S = A B^T in one direction and its columns in the other. Computing both
directions together needs one matrix product in the forward pass and two in the backward pass,
whereas separate computation needs six in total.

    A (n, d), B (N, d)  --blocks of rows-->  S (c, N)
    S (c, N)  --T scales-->  over columns (T, n), over rows (T, N)

With a `chunk_size`, only the sums of each block are kept, and the backward pass recomputes the
block. This takes four products in total and O(chunk_size * N) memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from vldebias.errors import InvalidInputError

P = ParamSpec("P")
R = TypeVar("R")
# Rows per block on a CPU. With a batch of 2,000, a block takes 2 MB in float32 and fits in cache.
_CACHED = 256
# Similarities per block on a GPU; they take a quarter of a gigabyte in float32.
_AT_ONCE = 1 << 26


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x), accurate to double precision.

    With torch's default threshold of 20, the error is up to 2e-9.
    """
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
    classes: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Return the log-sum-exp over the negatives in each row of S = A B^T, and in each column.

    Args:
        scales: T factors for the similarities; each factor has its own sum.
        a: (n, d). Either `a` or `b` must be divided by the temperature.
        b: (N, d), the other factor of S.
        pair: column that forms a pair with row 0. Row i forms a pair with column `pair` + i.
        chunk_size: rows per block. Default: keep the entire matrix for the backward pass.
        both: whether to also return the sums of the columns, which requires N = n.
        dtype: dtype to which the factors of the products are rounded, as in `product`.
        classes: the classes of the rows (n,) and of the columns (N,). Columns of a row's own class
            are then not negatives.

    Returns:
        log sum_j e^{scale s_ij} for the rows (T, n) and, with `both`, for the columns (T, N).
    """
    how = _Sums(scales, pair, chunk_size, both, dtype, classes)
    sums: tuple[Tensor, ...] = _MatrixSums.apply(a, b, how)
    return sums


def product(a: Tensor, b: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return A B (n, N) in the dtype of A, with both factors rounded to half precision.

    Terms are summed in float32, as tensor cores do, and the result is not rounded. For unit rows
    divided by t = 0.01, the error of a similarity is about 0.005; rounding the result would cause
    errors of 0.25.

    Args:
        a: the left factor (n, d).
        b: the right factor (d, N).
        dtype: dtype to which the factors are rounded. If None, they are not rounded.
    """
    if dtype is None:
        return a @ b
    rounded_a = a.to(dtype)
    rounded_b = b.to(dtype)
    if a.device.type == "cuda" and a.dtype == torch.float32:
        # Tensor cores multiply in half precision and add in float32. Without out_dtype, torch would
        # round the result.
        return torch.mm(rounded_a, rounded_b, out_dtype=torch.float32)
    # On other devices, multiply the rounded factors in float32. The result is the same, but slower.
    return rounded_a.to(a.dtype) @ rounded_b.to(a.dtype)


def slope_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype to which factors are rounded in the products of the backward pass.

    It is bfloat16 even if `dtype` is float16, because a softmax over many rows would underflow in
    float16.
    """
    return None if dtype is None else torch.bfloat16


def _scaled(s: Tensor, scale: float) -> Tensor:
    # Avoid multiplying by 1, which would only copy the matrix.
    return s if scale == 1 else scale * s


def _once_differentiable(backward: Callable[P, R]) -> Callable[P, R]:
    """Raise an error if the gradient is differentiated again.

    With torch's decorator of the same name, `torch.autograd.grad` would return a wrong second
    derivative, because the node that raises the error is not on the path to the inputs.
    """

    @wraps(backward)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        # Gradients are only enabled in the backward pass with create_graph=True.
        if torch.is_grad_enabled():
            raise InvalidInputError(
                "create_graph=True: the gradients of this loss cannot be differentiated again;"
                " omit create_graph, or write the loss in plain torch"
            )
        return backward(*args, **kwargs)

    return checked


class _Sums(NamedTuple):
    """The arguments of `matrix_sums` that receive no gradient."""

    scales: Sequence[float]
    pair: int
    chunk_size: int | None
    both: bool
    dtype: torch.dtype | None
    classes: tuple[Tensor, Tensor] | None

    def scores(self, a: Tensor, b: Tensor, block: slice, out: Tensor) -> Tensor:
        """Write the similarities of a block to `out`, with -inf if they are not negatives."""
        if self.dtype is None:
            torch.mm(a[block], b.T, out=out)
        else:
            out.copy_(product(a[block], b.T, self.dtype))
        # Since e^-inf = 0, pairs do not contribute to any sum, nor do rows of the same class.
        out.diagonal(self.pair + block.start).fill_(-torch.inf)
        if self.classes is not None:
            rows, columns = self.classes
            out.masked_fill_(rows[block, None] == columns, -torch.inf)
        return out


class _SumsContext(FunctionCtx):
    """Values that `_MatrixSums` stores for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    how: _Sums
    size: int


class _MatrixSums(torch.autograd.Function):
    """Compute `matrix_sums`, which documents the arguments, and its gradient in blocks."""

    @staticmethod
    def forward(
        ctx: _SumsContext,
        a: Tensor,
        b: Tensor,
        how: _Sums,
    ) -> tuple[Tensor, ...]:
        size = how.chunk_size or _rows_at_once(a, b)
        keeps_scores = how.chunk_size is None
        scales = how.scales
        rows = a.new_empty(len(scales), len(a))
        # A block contains all negatives of its rows, but only some negatives of each column, so
        # column sums are accumulated over blocks, starting from log 0.
        columns = a.new_full((len(scales), len(b)), -torch.inf)
        # If the scores are not kept, all blocks share one buffer.
        scores = a.new_empty(len(a) if keeps_scores else min(size, len(a)), len(b))
        for block in row_blocks(len(a), size):
            buffer = scores[block] if keeps_scores else scores[: block.stop - block.start]
            s = how.scores(a, b, block, buffer)
            values = [_scaled(s, scale) for scale in scales]
            rows[:, block] = torch.stack([value.logsumexp(1) for value in values])
            if how.both:
                sums_of_block = torch.stack([value.logsumexp(0) for value in values])
                torch.logaddexp(columns, sums_of_block, out=columns)
        sums = (rows, columns) if how.both else (rows,)
        if how.classes is not None:
            # A sum over no negatives is log 0, but -inf would make the gradient NaN.
            for log_sums in sums:
                log_sums.clamp_(min=-1e30)
        ctx.how = how
        ctx.size = size
        kept = (scores,) if keeps_scores else ()
        ctx.save_for_backward(a, b, *sums, *kept)
        return sums

    @staticmethod
    @_once_differentiable
    def backward(ctx: _SumsContext, *outer: Tensor) -> tuple[Tensor | None, ...]:
        a, b, *sums = ctx.saved_tensors
        how = ctx.how
        kept = sums.pop() if how.chunk_size is None else None
        # backward() may be called under autocast, which would round the products.
        with torch.autocast(a.device.type, enabled=False):
            slope_of_a = torch.empty_like(a)
            slope_of_b = torch.zeros_like(b)
            # Each block needs buffers for the slope, the weights and, if not kept, the scores.
            count = 3 if kept is None else 2
            buffers = [a.new_empty(min(ctx.size, len(a)), len(b)) for _ in range(count)]
            for block in row_blocks(len(a), ctx.size):
                slope, weights, *unkept = [part[: block.stop - block.start] for part in buffers]
                if kept is None:
                    s = how.scores(a, b, block, unkept[0])
                else:
                    s = kept[block]
                slope.zero_()
                _add_softmax(slope, s, how.scales, sums[0][:, block], outer[0][:, block], weights)
                # If columns are anchors too, add their gradient, for which the similarities are
                # S^T.
                if len(sums) == 2:
                    _add_softmax(slope.T, s.T, how.scales, sums[1], outer[1], weights.T)
                _add_slopes(slope, a, b, block, how.dtype, slope_of_a, slope_of_b)
        return slope_of_a, slope_of_b, None


def _add_softmax(
    slope: Tensor,
    s: Tensor,
    scales: Sequence[float],
    total: Tensor,
    total_slope: Tensor,
    weights: Tensor,
) -> None:
    """Add the gradient through the log-sums of the rows to the gradient of the similarities.

    Args:
        slope: (c, N), gradient with respect to the similarities.
        s: (c, N), the similarities.
        scales: T factors for the similarities.
        total: (T, c), the log-sums.
        total_slope: (T, c), gradient with respect to the log-sums.
        weights: (c, N), a buffer that is overwritten.
    """
    # d/ds_j log sum_i e^{scale s_i} = scale e^{scale s_j - log-sum}, or 0 for pairs (s = -inf).
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
    """Backpropagate the gradient `slope` of a block of similarities to A and B.

    The block's rows of `slope_of_a` are overwritten, and its contribution is added to `slope_of_b`.
    """
    if dtype is None:
        # For S = A B^T, dA = slope B and dB = slope^T A. The latter is summed over the blocks.
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
    """Return the sum of log(1 + e^{s_ij + bias}) over all negatives of S = A B^T.

    The gradient only depends on the similarities, up to a scalar factor. It is computed together
    with each block in the forward pass, so no block is kept or recomputed.

    Args:
        a: (n, d). Either `a` or `b` must be divided by the temperature.
        b: (N, d), the other factor of S.
        bias: scalar () that is added to every similarity.
        pair: column that forms a pair with row 0. Row i forms a pair with column `pair` + i.
        chunk_size: rows per block. Default: one block.
        dtype: dtype to which the factors of the products are rounded.
    """
    size = chunk_size or _rows_at_once(a, b)
    total: Tensor = _SoftplusTotal.apply(a, b, bias, pair, size, dtype)
    return total


class _TotalContext(FunctionCtx):
    """Values that `_SoftplusTotal` stores for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _SoftplusTotal(torch.autograd.Function):
    """Compute `matrix_total` and its gradient in blocks of `size` rows."""

    @staticmethod
    def forward(
        ctx: _TotalContext,
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
            # softplus(-inf) and sigmoid(-inf) are 0, so pairs contribute neither to the value nor
            # to the slope.
            s.diagonal(pair + block.start).fill_(-torch.inf)
            total += softplus(s).sum()
            if needs_gradient:
                # s is no longer needed, so the derivative of log(1 + e^s) overwrites it.
                slope = s.sigmoid_()
                slope_of_bias += slope.sum()
                _add_slopes(slope, a, b, block, dtype, slope_of_a, slope_of_b)
        ctx.save_for_backward(slope_of_a, slope_of_b, slope_of_bias)
        return total

    @staticmethod
    @_once_differentiable
    def backward(ctx: _TotalContext, *outer: Tensor) -> tuple[Tensor | None, ...]:
        slope_of_a, slope_of_b, slope_of_bias = ctx.saved_tensors
        slope = outer[0]
        return slope * slope_of_a, slope * slope_of_b, slope * slope_of_bias, None, None, None


def _rows_at_once(rows: Tensor, columns: Tensor) -> int:
    """Return the default number of rows per block.

    On a CPU, the similarities of a block fit in cache. On a GPU, the backward buffers are small
    compared with the entire matrix.
    """
    if rows.device.type == "cpu":
        return _CACHED
    return max(_AT_ONCE // max(len(columns), 1), 1)


def row_blocks(n: int, size: int) -> Iterator[slice]:
    """Yield the row slice of each block.

    Args:
        n: number of rows.
        size: rows per block; the last block may be smaller.
    """
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
