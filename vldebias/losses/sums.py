"""Compute log-sums over both the rows and the columns of a similarity matrix, in blocks.

Most losses are functions of a few sums per anchor, log sum_j e^{scale s_ij} over the negatives j.
The anchors are the rows of S = A B^T in one direction and its columns in the other. Computing both
directions together needs one matrix product in the forward pass and two in the backward pass,
whereas separate computation needs six in total.

    A (n, d), B (N, d)  --blocks of rows-->  S (c, N)
    S (c, N)  --T scales-->  over columns (T, n), over rows (T, N)

If the negatives include the rows of both views, S = U U^T for the rows U of both is symmetric, so
only the blocks above its diagonal are computed. This halves the products.

With a `chunk_size`, only the sums of each block are kept, and the backward pass recomputes the
block. This takes four products in total and O(chunk_size * N) memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeGuard, TypeVar

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
# Range of similarities whose exponentials, and their products, are normal numbers in float32.
_NARROW = 60.0


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x), accurate to double precision.

    With torch's default threshold of 20, the error is up to 2e-9.
    """
    return F.softplus(x, threshold=50.0)


def matrix_sums(a: Tensor, b: Tensor, how: Sums) -> tuple[Tensor, ...]:
    """Return the log-sum-exp over the negatives in each row of S = A B^T, and in each column.

    Args:
        a: (n, d). Either `a` or `b` must be divided by the temperature.
        b: (N, d), the other factor of S.
        how: which similarities to add up, and in which blocks.

    Returns:
        log sum_j e^{scale s_ij} for the rows (T, n) and, with `both`, for the columns (T, N).
    """
    sums: tuple[Tensor, ...] = _MatrixSums.apply(a, b, how)
    return sums


def own_sums(u: Tensor, how: Sums) -> Tensor:
    """Return the log-sum-exp (T, n) over the negatives in each row of S = U U^T.

    Args:
        u: (n, d), rows divided by the square root of the temperature.
        how: which similarities to add up, and in which blocks. If k is in `diagonals`, so is -k.
    """
    sums: Tensor = _OwnSums.apply(u, how)
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


@dataclass
class Gradient:
    """Which gradient the next backward pass of `matrix_sums` computes.

    Attributes:
        first: first column of A and B whose gradient is computed; that of earlier ones is not.
    """

    first: int = 0


class Sums(NamedTuple):
    """Which sums to compute of a matrix of similarities.

    Attributes:
        scales: factors for the similarities; each factor has its own sum.
        diagonals: numbers k such that row i and column i + k are not negatives, such as pairs.
        chunk_size: rows per block. None: keep the entire matrix for the backward pass.
        both: whether to also return the sums of the columns, which requires a square matrix.
        dtype: dtype to which the factors of the products are rounded, as in `product`.
        classes: the classes of the rows (n,) and of the columns (N,). Columns of a row's own class
            are then not negatives.
        splits: whether to keep the columns of a row's own class as negatives and to append the
            sum over only these columns, with scale 1.
        gradient: which gradient to compute.
    """

    scales: Sequence[float]
    diagonals: tuple[int, ...] = (0,)
    chunk_size: int | None = None
    both: bool = True
    dtype: torch.dtype | None = None
    classes: tuple[Tensor, Tensor] | None = None
    splits: bool = False
    gradient: Gradient = Gradient()

    @property
    def sums_per_anchor(self) -> int:
        """Return T, the number of sums per anchor."""
        return len(self.scales) + self.splits

    def overwrites(self, shift: float | None) -> TypeGuard[float]:
        """Return whether a block keeps its only exponentials instead of its similarities."""
        return shift is not None and self.sums_per_anchor == 1

    def terms(self, s: Tensor, block: slice) -> Iterator[tuple[float, Tensor]]:
        """Yield the factor and the similarities (c, N) of each sum.

        Args:
            s: (c, N), the similarities of a block.
            block: slice of the block's rows.
        """
        for scale in self.scales:
            yield scale, s
        if self.splits and self.classes is not None:
            rows, columns = self.classes
            yield 1.0, s.masked_fill(rows[block, None] != columns, -torch.inf)

    def scores(
        self, a: Tensor, b: Tensor, block: slice, out: Tensor, first: int = 0
    ) -> float | None:
        """Write the similarities of a block to `out`, with -inf if they are not negatives.

        Args:
            a: (n, d), the factor that the block's rows are taken from.
            b: (N, d), the other factor.
            block: slice of the rows.
            out: (c, N - first), overwritten.
            first: first column to compute.

        Returns:
            A number such that e^{s - number} can serve both the rows and the columns of the block,
            or None if one exponential for both would overflow or underflow.
        """
        if self.dtype is None:
            torch.mm(a[block], b[first:].T, out=out)
        else:
            out.copy_(product(a[block], b[first:].T, self.dtype))
        shift = None
        if out.device.type == "cpu":  # a GPU would have to wait for the two numbers
            low, high = (float(end) for end in out.aminmax())
            if (high - low) * max(map(abs, self.scales)) <= _NARROW:
                shift = high
        # Since e^-inf = 0, pairs do not contribute to any sum, nor do rows of the same class.
        for k in self.diagonals:
            out.diagonal(k + block.start - first).fill_(-torch.inf)
        if self.classes is not None and not self.splits:
            rows, columns = self.classes
            out.masked_fill_(rows[block, None] == columns[first:], -torch.inf)
        return shift


class _SumsContext(FunctionCtx):
    """Values that `_MatrixSums` and `_OwnSums` store for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    how: Sums
    size: int
    shifts: list[float | None]


class _MatrixSums(torch.autograd.Function):
    """Compute `matrix_sums`, which documents the arguments, and its gradient in blocks."""

    @staticmethod
    def forward(ctx: _SumsContext, a: Tensor, b: Tensor, how: Sums) -> tuple[Tensor, ...]:
        ctx.how = how
        ctx.size = how.chunk_size or _rows_at_once(a, b)
        ctx.shifts = []
        keeps_scores = how.chunk_size is None
        rows = a.new_empty(how.sums_per_anchor, len(a))
        # A block contains all negatives of its rows, but only some negatives of each column, so
        # column sums are accumulated over blocks, starting from log 0.
        columns = a.new_full((how.sums_per_anchor, len(b)), -torch.inf)
        # If the scores are not kept, all blocks share one buffer.
        scores = a.new_empty(len(a) if keeps_scores else min(ctx.size, len(a)), len(b))
        exponentials = a.new_empty(min(ctx.size, len(a)), len(b))
        for block in row_blocks(len(a), ctx.size):
            count = block.stop - block.start
            s = scores[block] if keeps_scores else scores[:count]
            shift = how.scores(a, b, block, s)
            ctx.shifts.append(shift)
            out = s if how.overwrites(shift) else exponentials[:count]
            for k, (scale, values) in enumerate(how.terms(s, block)):
                log_sums = _log_sums(values, scale, shift, out, how.both)
                rows[k, block] = log_sums[0]
                if how.both:
                    _add_log(columns[k], log_sums[1])
        sums = (rows, columns) if how.both else (rows,)
        if how.classes is not None:
            # A sum over no negatives is log 0, but -inf would make the gradient NaN.
            for log_sums_of_side in sums:
                log_sums_of_side.clamp_(min=-1e30)
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
            first = how.gradient.first
            slope_of_a = torch.empty_like(a)
            slope_of_b = torch.empty_like(b)
            needed_of_a, needed_of_b = a[:, first:], b[:, first:]
            into_a, into_b = slope_of_a[:, first:], slope_of_b[:, first:]
            into_b.zero_()
            # Each block needs buffers for the slope, the weights and, if not kept, the scores.
            count = 3 if kept is None else 2
            buffers = [a.new_empty(min(ctx.size, len(a)), len(b)) for _ in range(count)]
            for block, shift in zip(row_blocks(len(a), ctx.size), ctx.shifts, strict=True):
                slope, weights, *unkept = [part[: block.stop - block.start] for part in buffers]
                if kept is None:
                    s = unkept[0]
                    how.scores(a, b, block, s)
                    if how.overwrites(shift):
                        _write_exponentials(s, s, how.scales[0], shift)
                else:
                    s = kept[block]
                if how.overwrites(shift):
                    weights = s
                rows = sums[0][:, block], outer[0][:, block]
                # If columns are anchors too, their gradient is added.
                columns = (sums[1], outer[1]) if how.both else None
                _write_slope(slope, how.terms(s, block), shift, rows, columns, weights)
                _add_slopes(slope, needed_of_a, needed_of_b, block, how.dtype, into_a, into_b)
        return slope_of_a, slope_of_b, None


class _OwnSums(torch.autograd.Function):
    """Compute `own_sums`, which documents the arguments, and its gradient in blocks.

    A block has the columns from its first row on. Its rows' sums get the entries of the block, and
    the sums of later rows get their column, which equals the missing part of their row.
    """

    @staticmethod
    def forward(ctx: _SumsContext, u: Tensor, how: Sums) -> Tensor:
        ctx.how = how
        ctx.size = how.chunk_size or _rows_at_once(u, u)
        ctx.shifts = []
        sums = u.new_full((len(how.scales), len(u)), -torch.inf)
        buffers = u.new_empty(2, min(ctx.size, len(u)) * len(u))
        kept = []
        for block in row_blocks(len(u), ctx.size):
            shape = block.stop - block.start, len(u) - block.start
            s, exponentials = (part[: math.prod(shape)].view(shape) for part in buffers)
            if how.chunk_size is None:
                s = u.new_empty(shape)
                kept.append(s)
            shift = how.scores(u, u, block, s, block.start)
            ctx.shifts.append(shift)
            out = s if how.overwrites(shift) else exponentials
            for total, scale in zip(sums, how.scales, strict=True):
                rows, columns = _log_sums(s, scale, shift, out, True)
                _add_log(total[block], rows)
                _add_log(total[block.stop :], columns[shape[0] :])
        if how.classes is not None:
            sums.clamp_(min=-1e30)  # as in `_MatrixSums`
        ctx.save_for_backward(u, sums, *kept)
        return sums

    @staticmethod
    @_once_differentiable
    def backward(ctx: _SumsContext, *outer: Tensor) -> tuple[Tensor, None]:
        u, sums, *kept = ctx.saved_tensors
        how = ctx.how
        half = slope_dtype(how.dtype)
        slope_of_u = torch.zeros_like(u)
        buffers = u.new_empty(3, min(ctx.size, len(u)) * len(u))
        with torch.autocast(u.device.type, enabled=False):
            for k, block in enumerate(row_blocks(len(u), ctx.size)):
                shift = ctx.shifts[k]
                shape = block.stop - block.start, len(u) - block.start
                slope, weights, s = (part[: math.prod(shape)].view(shape) for part in buffers)
                if kept:
                    s = kept[k]
                else:
                    how.scores(u, u, block, s, block.start)
                    if how.overwrites(shift):
                        _write_exponentials(s, s, how.scales[0], shift)
                if how.overwrites(shift):
                    weights = s
                # In the square on the diagonal, this adds the gradients of both equal entries.
                rows = sums[:, block], outer[0][:, block]
                columns = sums[:, block.start :], outer[0][:, block.start :]
                _write_slope(slope, how.terms(s, block), shift, rows, columns, weights)
                slope_of_later = slope[:, shape[0] :]
                if half is None:
                    slope_of_u[block].addmm_(slope, u[block.start :])
                    slope_of_u[block.stop :].addmm_(slope_of_later.T, u[block])
                else:
                    slope_of_u[block] += product(slope, u[block.start :], half)
                    slope_of_u[block.stop :] += product(slope_of_later.T, u[block], half)
        return slope_of_u, None


def _add_log(total: Tensor, values: Tensor) -> None:
    """Add e^values to e^total, in place."""
    torch.logaddexp(total, values, out=total)


def _log_sums(
    s: Tensor, scale: float, shift: float | None, exponentials: Tensor, both: bool
) -> tuple[Tensor, ...]:
    """Return log sum_j e^{scale s_ij} of the rows (c,) and, with `both`, of the columns (N,).

    Args:
        s: (c, N), the similarities.
        scale: factor for the similarities.
        shift: the number that `Sums.scores` returned.
        exponentials: (c, N), a buffer that is overwritten.
        both: whether to return the sums of the columns.
    """
    if shift is None:
        value = _scaled(s, scale)
        return tuple(value.logsumexp(axis) for axis in ((1, 0) if both else (1,)))
    _write_exponentials(exponentials, s, scale, shift)
    return tuple(
        exponentials.sum(axis).log_().add_(scale * shift) for axis in ((1, 0) if both else (1,))
    )


def _write_exponentials(out: Tensor, s: Tensor, scale: float, shift: float) -> None:
    """Write e^{scale (s - shift)} to `out`."""
    torch.sub(s, shift, out=out)
    if scale != 1:
        out *= scale
    out.exp_()


def _write_slope(
    slope: Tensor,
    terms: Iterator[tuple[float, Tensor]],
    shift: float | None,
    rows: tuple[Tensor, Tensor],
    columns: tuple[Tensor, Tensor] | None,
    weights: Tensor,
) -> None:
    """Write the gradient with respect to the similarities of a block.

    Args:
        slope: (c, N), overwritten with the gradient.
        terms: the result of `Sums.terms`.
        shift: the number that `Sums.scores` returned.
        rows: the log-sums of the rows and the gradient with respect to them, (T, c) each.
        columns: the same for the columns, (T, N) each, or None if they are not anchors.
        weights: (c, N), a buffer that is overwritten, or the block itself if it already contains
            exponentials.
    """
    # d/ds_j log sum_i e^{scale s_i} = scale e^{scale s_j - log-sum}, or 0 for pairs (s = -inf).
    for k, (scale, s) in enumerate(terms):
        if shift is None:
            if k == 0:
                slope.zero_()
            _add_softmax(slope, s, scale, rows[0][k], rows[1][k], weights)
            if columns is not None:
                _add_softmax(slope.T, s.T, scale, columns[0][k], columns[1][k], weights.T)
            continue
        if weights is not s:
            _write_exponentials(weights, s, scale, shift)
        factors = _factors(scale, shift, rows[0][k], rows[1][k])[:, None]
        if k == 0:
            torch.mul(weights, factors, out=slope)
        else:
            slope.addcmul_(weights, factors)
        if columns is not None:
            slope.addcmul_(weights, _factors(scale, shift, columns[0][k], columns[1][k]))


def _factors(scale: float, shift: float, total: Tensor, total_slope: Tensor) -> Tensor:
    """Return the factors of e^{scale (s - shift)} in the gradient of the log-sums `total`."""
    # Without negatives, the log-sum is far below all similarities, and the exponentials are 0.
    return (scale * shift - total).clamp_(max=_NARROW).exp_().mul_(scale * total_slope)


def _add_softmax(
    slope: Tensor, s: Tensor, scale: float, total: Tensor, total_slope: Tensor, weights: Tensor
) -> None:
    """Add the gradient through the log-sums of the rows to the gradient of the similarities.

    Args:
        slope: (c, N), gradient with respect to the similarities.
        s: (c, N), the similarities.
        scale: factor for the similarities.
        total: (c,), the log-sums.
        total_slope: (c,), gradient with respect to the log-sums.
        weights: (c, N), a buffer that is overwritten.
    """
    torch.sub(_scaled(s, scale), total[:, None], out=weights).exp_()
    slope.addcmul_(weights, _scaled(total_slope, scale)[:, None])


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
