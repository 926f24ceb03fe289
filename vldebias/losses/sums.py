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
from typing import Any, NamedTuple, ParamSpec, TypeGuard, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

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


def matrix_sums(
    a: Tensor,
    b: Tensor | None,
    how: Sums,
    of_columns: Tensor | None = None,
    of_rows: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the log-sum-exp over the negatives in each row of S = A B^T, and in each column.

    Args:
        a: (n, d). Either `a` or `b` must be divided by the temperature.
        b: (N, d), the other factor of S. If None, S = A A^T for the rows A of both views; `a` must
            then be divided by the square root of the temperature, and if k is in the diagonals of
            `how`, so is -k.
        how: which similarities to add up, and in which blocks.
        of_columns: (N,), a margin that is subtracted from the columns of S.
        of_rows: (n,), a margin that is subtracted from the rows of S.

    Returns:
        log sum_j e^{scale s_ij} for the rows (T, n) and, with `both` and `b`, for the columns
            (T, N). Without `b`, the similarities of the pairs (n / 2,) follow, and then the sums
            over `positives` (n,) if there are any.
    """
    how = how._replace(symmetric=b is None)
    sums: tuple[Tensor, ...] = _MatrixSums.apply(a, b, of_columns, of_rows, how)
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


def once_differentiable(backward: Callable[P, R]) -> Callable[P, R]:
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
        only_margins: whether to skip the gradient with respect to A and B.
    """

    only_margins: bool = False


class Block(NamedTuple):
    """A part of S = A B^T: some of its rows, and its columns from the first one on.

    Attributes:
        rows: slice of the rows.
        first: first column. If S is symmetric, blocks start at their own diagonal.
        anchors: first column whose sum is computed from the column. The sums of earlier columns are
            those of the rows of the block.
    """

    rows: slice
    first: int
    anchors: int

    @property
    def skipped(self) -> int:
        """Return the number of columns in the block before `anchors`."""
        return self.anchors - self.first


class Sums(NamedTuple):
    """Which sums to compute of a matrix of similarities.

    Attributes:
        scales: factors for the similarities; each factor has its own sum.
        diagonals: numbers k such that row i and column i + k are not negatives, such as pairs.
        chunk_size: rows per block. None: keep the entire matrix for the backward pass.
        both: whether to also return the sums of the columns, which requires a square matrix.
        dtype: dtype to which the factors of the products are rounded, as in `product`.
        classes: the classes of the rows (n,) and of the columns (N,). For each anchor, a sum over
            only the negatives of its own class, with scale 1, is appended.
        gradient: which gradient to compute.
        symmetric: whether B is A, so that only blocks above the diagonal are computed.
        positives: the classes of the rows (n,), as floats, if S is symmetric. If given, the sum of
            each row's similarities to the rows of its class, without those on `diagonals`, is
            appended.
    """

    scales: Sequence[float]
    diagonals: tuple[int, ...] = (0,)
    chunk_size: int | None = None
    both: bool = True
    dtype: torch.dtype | None = None
    classes: tuple[Tensor, Tensor] | None = None
    gradient: Gradient = Gradient()
    symmetric: bool = False
    positives: Tensor | None = None

    @property
    def sums_per_anchor(self) -> int:
        """Return T, the number of sums per anchor."""
        return len(self.scales) + (self.classes is not None)

    def blocks(self, a: Tensor, b: Tensor) -> Iterator[Block]:
        """Yield the blocks of S = A B^T, from top to bottom.

        Args:
            a: (n, d), the left factor.
            b: (N, d), the right factor before it is transposed.
        """
        size = self.chunk_size or rows_at_once(a, b)
        for rows in row_blocks(len(a), size):
            yield Block(rows, rows.start, rows.stop) if self.symmetric else Block(rows, 0, 0)

    def overwrites(self, shift: float | None) -> TypeGuard[float]:
        """Return whether a block keeps its only exponentials instead of its similarities."""
        return shift is not None and self.sums_per_anchor == 1

    def terms(self, s: Tensor, block: Block) -> Iterator[tuple[float, Tensor]]:
        """Yield the factor and the similarities (c, N) of each sum.

        Args:
            s: (c, N), the similarities of a block.
            block: the block.
        """
        for scale in self.scales:
            yield scale, s
        if self.classes is not None:
            rows, columns = self.classes
            yield 1.0, s.masked_fill(rows[block.rows, None] != columns, -torch.inf)

    def fill_diagonals(self, matrix: Tensor, block: Block, value: float) -> None:
        """Overwrite the entries of a block that are not negatives.

        Args:
            matrix: the entries of the block (c, N - first).
            block: the block.
            value: the new value of these entries.
        """
        for k in self.diagonals:
            matrix.diagonal(k + block.rows.start - block.first).fill_(value)

    def write_positives(self, out: Tensor, block: Block) -> None:
        """Write 1 for the positives of a block, and 0 for other entries.

        Args:
            out: (c, N - first), overwritten.
            block: the block.
        """
        assert self.positives is not None
        # Comparing floats is several times faster than comparing integers.
        torch.eq(self.positives[block.rows, None], self.positives[block.first :], out=out)
        self.fill_diagonals(out, block, 0.0)

    def scores(
        self,
        a: Tensor,
        b: Tensor,
        block: Block,
        out: Tensor,
        *margins: Tensor | None,
        pairs: Tensor | None = None,
    ) -> float | None:
        """Write the similarities of a block to `out`, with -inf if they are not negatives.

        Args:
            a: (n, d), the factor that the block's rows are taken from.
            b: (N, d), the other factor.
            block: the block.
            out: (c, N - first), overwritten.
            margins: numbers to subtract from the columns (N,) and from the rows (n,), or None.
            pairs: (n / 2,), overwritten with the block's similarities of row i to row i + n / 2.

        Returns:
            A number such that e^{s - number} can serve both the rows and the columns of the block,
            or None if one exponential for both would overflow or underflow.
        """
        if self.dtype is None:
            torch.mm(a[block.rows], b[block.first :].T, out=out)
        else:
            out.copy_(product(a[block.rows], b[block.first :].T, self.dtype))
        for axis, margin in enumerate(margins):
            if margin is not None:
                out -= margin[block.rows, None] if axis else margin
        shift = None
        if out.device.type == "cpu":  # a GPU would have to wait for the two numbers
            low, high = (float(end) for end in out.aminmax())
            if (high - low) * max(map(abs, self.scales)) <= _NARROW:
                shift = high
        if pairs is not None:
            diagonal = out.diagonal(len(pairs))
            pairs[block.rows.start :][: len(diagonal)] = diagonal
        # Since e^-inf = 0, pairs do not contribute to any sum.
        self.fill_diagonals(out, block, -torch.inf)
        return shift


class _MatrixSums(torch.autograd.Function):
    """Compute `matrix_sums`, which documents the arguments, and its gradient in blocks.

    In a symmetric matrix, a block has the columns from its first row on. Its rows' sums get the
    entries of the block, and the sums of later rows get their column, which equals the missing part
    of their row.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor | None,
        of_columns: Tensor | None,
        of_rows: Tensor | None,
        how: Sums,
    ) -> tuple[Tensor, ...]:
        ctx.how = how
        ctx.shifts = []
        other = a if b is None else b
        # A block contains only some negatives of each column, so sums are accumulated over blocks,
        # starting from log 0.
        rows = a.new_full((how.sums_per_anchor, len(a)), -torch.inf)
        columns = rows
        if not how.symmetric:
            columns = a.new_full((how.sums_per_anchor, len(other)), -torch.inf)
        pairs = a.new_empty(len(a) // 2) if how.symmetric else None
        of_positives = a.new_zeros(len(a))
        buffers = Buffers(a, other, how, 2)
        kept = []
        for block in how.blocks(a, other):
            s, exponentials = buffers.views(block)
            if how.chunk_size is None:
                s = torch.empty_like(s)
                kept.append(s)
            shift = how.scores(a, other, block, s, of_columns, of_rows, pairs=pairs)
            ctx.shifts.append(shift)
            if how.positives is not None:
                how.write_positives(exponentials, block)
                exponentials *= s
                # On the diagonals, s is -inf.
                how.fill_diagonals(exponentials, block, 0.0)
                of_positives[block.rows] += exponentials.sum(1)
                of_positives[block.anchors :] += exponentials[:, block.skipped :].sum(0)
            out = s if how.overwrites(shift) else exponentials
            for k, (scale, values) in enumerate(how.terms(s, block)):
                log_sums = log_sums_of(values, scale, shift, out, how.both)
                total = rows[k, block.rows]
                torch.logaddexp(total, log_sums[0], out=total)
                if how.both:
                    total = columns[k, block.anchors :]
                    torch.logaddexp(total, log_sums[1][block.skipped :], out=total)
        sums = (rows, columns) if how.both and not how.symmetric else (rows,)
        if how.classes is not None:
            # A sum over no negatives is log 0, but -inf would make the gradient NaN.
            for log_sums_of_side in sums:
                log_sums_of_side.clamp_(min=-1e30)
        margins: tuple[Any, ...] = (of_columns, of_rows)
        ctx.save_for_backward(a, other, rows, columns, *margins, *kept)
        if pairs is None:
            return sums
        return (*sums, pairs) if how.positives is None else (*sums, pairs, of_positives)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        a, b, *sums = ctx.saved_tensors[:4]
        margins = ctx.saved_tensors[4:6]
        kept = ctx.saved_tensors[6:]
        how = ctx.how
        of_columns = 0 if how.symmetric else 1
        slopes = None if how.gradient.only_margins else Slopes(a, b, how)
        slopes_of_margins = [
            torch.zeros_like(margin) if ctx.needs_input_grad[2 + axis] else None
            for axis, margin in enumerate(margins)
        ]
        buffers = Buffers(a, b, how, 3)
        # backward() may be called under autocast, which would round the products.
        with torch.autocast(a.device.type, enabled=False):
            for k, block in enumerate(how.blocks(a, b)):
                shift = ctx.shifts[k]
                slope, weights, spare = buffers.views(block)
                s = spare
                if kept:
                    s = kept[k]
                else:
                    how.scores(a, b, block, s, *margins)
                    if how.overwrites(shift):
                        write_exponentials(s, s, how.scales[0], shift)
                if how.overwrites(shift):
                    weights = s
                rows = sums[0][:, block.rows], outer[0][:, block.rows]
                # If columns are anchors too, their gradient is added. In the square on the diagonal
                # of a symmetric matrix, this adds the gradients of both equal entries.
                columns = None
                if how.both:
                    columns = sums[1][:, block.first :], outer[of_columns][:, block.first :]
                write_slope(slope, how.terms(s, block), shift, rows, columns, weights)
                if how.symmetric:
                    # A pair inside the square on the block's diagonal has two entries.
                    for number in (len(a) // 2, -(len(a) // 2)):
                        diagonal = slope.diagonal(number)
                        diagonal += outer[1][block.rows.start :][: len(diagonal)]
                if how.positives is not None:
                    # The similarities are not needed any more, so `spare` is free.
                    how.write_positives(spare, block)
                    slope.addcmul_(spare, outer[2][block.rows, None])
                    slope.addcmul_(spare, outer[2][block.first :])
                for axis, slope_of_margin in enumerate(slopes_of_margins):
                    if slope_of_margin is not None:
                        part = slope_of_margin[block.rows] if axis else slope_of_margin
                        part -= slope.sum(axis)
                if slopes is not None:
                    slopes.add(slope, block)
        if slopes is None:
            return None, None, *slopes_of_margins, None
        of_b = None if how.symmetric else slopes.of_b
        return slopes.of_a, of_b, *slopes_of_margins, None


class Buffers:
    """Memory for `count` matrices of the size of a block, which all blocks share."""

    def __init__(self, a: Tensor, b: Tensor, how: Sums, count: int) -> None:
        self._width = len(b)
        first = next(how.blocks(a, b))  # no other block is larger
        entries = (first.rows.stop - first.rows.start) * len(b)
        self._parts = [a.new_empty(entries) for _ in range(count)]

    def views(self, block: Block) -> list[Tensor]:
        """Return matrices with the shape of a block."""
        shape = block.rows.stop - block.rows.start, self._width - block.first
        return [part[: math.prod(shape)].view(shape) for part in self._parts]


class Slopes:
    """The gradients with respect to the factors of S = A B^T, which blocks add to.

    Attributes:
        of_a: (n, d), the gradient with respect to A.
        of_b: (N, d), the gradient with respect to B; that of A if B is A.
    """

    def __init__(self, a: Tensor, b: Tensor, how: Sums) -> None:
        self._a = a
        self._b = b
        self._half = slope_dtype(how.dtype)
        self.of_a = torch.zeros_like(a)
        self.of_b = self.of_a if how.symmetric else torch.zeros_like(b)

    def add(self, slope: Tensor, block: Block) -> None:
        """Backpropagate the gradient of a block of similarities to A and B.

        Args:
            slope: (c, N), the gradient with respect to the similarities.
            block: the block.
        """
        pairs = (
            (self.of_a[block.rows], slope, self._b[block.first :]),
            (self.of_b[block.anchors :], slope[:, block.skipped :].T, self._a[block.rows]),
        )
        # For S = A B^T, dA = slope B and dB = slope^T A, summed over the blocks.
        for total, left, right in pairs:
            if self._half is None:
                total.addmm_(left, right)
            else:
                total += product(left, right, self._half)


def log_sums_of(
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
    write_exponentials(exponentials, s, scale, shift)
    return tuple(
        exponentials.sum(axis).log_().add_(scale * shift) for axis in ((1, 0) if both else (1,))
    )


def write_exponentials(out: Tensor, s: Tensor, scale: float, shift: float) -> None:
    """Write e^{scale (s - shift)} to `out`.

    Args:
        out: (c, N), overwritten; may be `s`.
        s: (c, N), the similarities.
        scale: factor for the similarities.
        shift: the number that `Sums.scores` returned.
    """
    torch.sub(s, shift, out=out)
    if scale != 1:
        out *= scale
    out.exp_()


def write_slope(
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
            write_exponentials(weights, s, scale, shift)
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


class SoftplusTotal(torch.autograd.Function):
    """Compute the sum of log(1 + e^{-z_ij (s_ij + bias)}) over S = A B^T.

    z is 1 for pairs and -1 for negatives.

    The gradient only depends on the similarities, up to a scalar factor. It is computed together
    with each block in the forward pass, so no block is kept or recomputed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        bias: Tensor,
        pair: int,
        attracts: bool,
        size: int,
        dtype: torch.dtype | None,
    ) -> Tensor:
        """Return the sum ().

        Args:
            ctx: the context, which stores the gradient.
            a: (n, d). Either `a` or `b` must be divided by the temperature.
            b: (N, d), the other factor of S.
            bias: scalar () that is added to every similarity.
            pair: column that forms a pair with row 0. Row i forms a pair with column `pair` + i.
            attracts: whether pairs are included. Pairs of a row and itself must not be.
            size: rows per block.
            dtype: dtype to which the factors of the products are rounded.
        """
        needs_gradient = any(ctx.needs_input_grad)
        total = torch.zeros_like(bias)
        slopes = Slopes(a, b, Sums((1.0,), dtype=dtype))
        slope_of_bias = torch.zeros_like(bias)
        for block in row_blocks(len(a), size):
            s = product(a[block], b.T, dtype).add_(bias)
            # softplus(-inf) and sigmoid(-inf) are 0, so pairs that are left out contribute neither
            # to the value nor to the slope.
            pairs = s.diagonal(pair + block.start)
            if attracts:
                pairs.neg_()
            else:
                pairs.fill_(-torch.inf)
            total += softplus(s).sum()
            if needs_gradient:
                # s is no longer needed, so the derivative of log(1 + e^s) overwrites it.
                slope = s.sigmoid_()
                pairs.neg_()
                slope_of_bias += slope.sum()
                slopes.add(slope, Block(block, 0, 0))
        ctx.save_for_backward(slopes.of_a, slopes.of_b, slope_of_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to both factors and the bias.

        Args:
            ctx: the context of `forward`.
            outer: the gradient () with respect to the sum.
        """
        slope_of_a, slope_of_b, slope_of_bias = ctx.saved_tensors
        slope = outer[0]
        return slope * slope_of_a, slope * slope_of_b, slope * slope_of_bias, None, None, None, None


def rows_at_once(rows: Tensor, columns: Tensor) -> int:
    """Return the default number of rows per block.

    On a CPU, the similarities of a block fit in cache. On a GPU, the backward buffers are small
    compared with the entire matrix.

    Args:
        rows: (n, d), one factor of the similarities.
        columns: (N, d), the other factor.
    """
    if rows.device.type == "cpu":
        return _CACHED
    return max(_AT_ONCE // max(len(columns), 1), 1)


def row_blocks(n: int, size: int, first: int = 0) -> Iterator[slice]:
    """Yield the row slice of each block.

    Args:
        n: row after the last one.
        size: rows per block; the last block may be smaller.
        first: first row.
    """
    for start in range(first, n, size):
        yield slice(start, min(start + size, n))
