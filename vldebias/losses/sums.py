"""Sums over the rows and the columns of one similarity matrix: computed together, in blocks that need not be kept.

Most losses are functions of a few sums per anchor, such as log sum_j e^{s_ij} over the negatives j. The anchors of one
direction are the rows of S = A B^T, those of the other its columns. So the matrix is multiplied once forward and its
gradient, the sum of both directions', twice backward: three products where a direction at a time takes six.

    A (n, d), B (N, d)  --blocks of rows-->  S (c, N)  --terms-->  over columns (T, n), over rows (T, N)

With a `chunk_size` nothing of a block outlives it but its sums, and the backward pass computes it again: four products,
and memory O(chunk_size * N). (torch.utils.checkpoint per block would leave small allocations between which the C
library cannot reuse the holes.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

_CACHED = 256  # rows
_SMALL = -30.0  # below it log(1 + e^s) is e^s, up to a part in 10^13


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact to double precision: the default threshold of torch cuts at 20, an error of 2e-9."""
    return F.softplus(x, threshold=50.0)


@dataclass(frozen=True)
class Reduction:
    """A sum over the negatives of an anchor: log sum_j e^{u(s_j)}; or sum_j u(s_j), where `log` is False."""

    log: ClassVar[bool] = True

    def value(self, s: Tensor) -> Tensor:
        """u(s), which adds nothing where s is -inf: a column that is no negative."""
        raise NotImplementedError

    def slope(self, s: Tensor) -> Tensor | float:
        """u'(s), finite where s is -inf."""
        raise NotImplementedError

    def total(self, values: Tensor, dim: int) -> Tensor:
        """The sum of the values over a dimension."""
        return torch.logsumexp(values, dim) if self.log else values.sum(dim)

    def merged(self, one: Tensor, other: Tensor) -> Tensor:
        """The sum over two disjoint sets of negatives, from those over each."""
        return torch.logaddexp(one, other) if self.log else one + other


@dataclass(frozen=True)
class LogSum(Reduction):
    """log sum_j e^{scale s_j}."""

    scale: float = 1.0

    def value(self, s: Tensor) -> Tensor:
        """Scale s."""
        return s if self.scale == 1 else self.scale * s

    def slope(self, s: Tensor) -> float:
        """The scale."""
        return self.scale


@dataclass(frozen=True)
class LogWeightedSoftplus(Reduction):
    """log sum_j e^{beta s_j} log(1 + e^{s_j})."""

    beta: float = 0.0

    def value(self, s: Tensor) -> Tensor:
        """beta s + log log(1 + e^s), of which the second goes to s."""
        log = torch.where(s < _SMALL, s, softplus(s.clamp(min=_SMALL)).log())
        return log if self.beta == 0 else log + self.beta * s

    def slope(self, s: Tensor) -> Tensor:
        """Beta and the slope of the second, which goes to 1."""
        s = s.clamp(min=_SMALL)
        return torch.sigmoid(s) / softplus(s) + self.beta


@dataclass(frozen=True)
class SoftplusSum(Reduction):
    """sum_j log(1 + e^{s_j})."""

    log: ClassVar[bool] = False

    def value(self, s: Tensor) -> Tensor:
        """log(1 + e^s)."""
        return softplus(s)

    def slope(self, s: Tensor) -> Tensor:
        """Of that."""
        return torch.sigmoid(s)


def score_block(a: Tensor, b: Tensor, pair: int) -> Tensor:
    """S = A B^T (n, N), with -inf where row i meets column `pair` + i, which is no negative of it."""
    s: Tensor = _Product.apply(a, b)
    s.diagonal(pair).fill_(-torch.inf)
    return s


class _Product(torch.autograd.Function):
    """A B^T, whose backward pass autocast does not round either."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b.T

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        with torch.autocast(a.device.type, enabled=False):
            return outer[0] @ b, outer[0].T @ a


def matrix_sums(
    terms: Sequence[Reduction], a: Tensor, b: Tensor, *, pair: int = 0, chunk_size: int | None = None, both: bool = True
) -> tuple[Tensor, ...]:
    """All terms of every row of S = A B^T (T, n) and, with `both`, of every column (T, N).

    Args:
        terms: T sums, each over the negatives of an anchor.
        a, b: (n, d) and (N, d), one of them already divided by the temperature.
        pair: the column that row 0 belongs with; row i belongs with `pair` + i.
        chunk_size: rows per block; None is one block, which is kept for the backward pass.
        both: the columns are anchors too; N = n then.
    """
    sums: tuple[Tensor, ...] = _MatrixSums.apply(tuple(terms), pair, chunk_size, (1, 0) if both else (1,), a, b)
    return sums


def _block_sums(terms: Sequence[Reduction], s: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """All terms of a block, summed over each of the dimensions."""
    totals = []
    for term in terms:
        values = term.value(s)
        totals.append([term.total(values, dim) for dim in dims])
    return [torch.stack(of_dim) for of_dim in zip(*totals, strict=True)]


def _block_gradient(
    terms: Sequence[Reduction], s: Tensor, sums: Sequence[tuple[Tensor, Tensor]], dims: Sequence[int]
) -> Tensor:
    """Gradient (c, N) of a block, from the sums of all terms and their gradients for each of the dimensions."""
    gradient: Tensor | None = None
    for k, term in enumerate(terms):
        slope, values = term.slope(s), term.value(s) if term.log else s
        share: Tensor | None = None
        for (total, outer), dim in zip(sums, dims, strict=True):
            along = outer[k].unsqueeze(dim)
            if term.log:
                weights = torch.sub(values, total[k].unsqueeze(dim)).exp_()
                share = weights.mul_(along) if share is None else share.addcmul_(weights, along)
            else:
                share = along if share is None else share + along
        assert share is not None
        share = share.mul_(slope) if term.log else share * slope
        gradient = share if gradient is None else gradient.add_(share)
    assert gradient is not None
    return gradient


class _MatrixSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        terms: tuple[Reduction, ...],
        pair: int,
        chunk_size: int | None,
        dims: tuple[int, ...],
        a: Tensor,
        b: Tensor,
    ) -> tuple[Tensor, ...]:
        size = chunk_size or _rows_at_once(a)
        ctx.settings = terms, pair, size, dims
        rows, columns = a.new_empty(len(terms), len(a)), None
        kept = a.new_empty(len(a), len(b)) if chunk_size is None else None
        for block in row_blocks(len(a), size):
            s = torch.mm(a[block], b.T) if kept is None else torch.mm(a[block], b.T, out=kept[block])
            s.diagonal(pair + block.start).fill_(-torch.inf)
            rows[:, block], *rest = _block_sums(terms, s, dims)
            for part in rest:
                both = zip(terms, part if columns is None else columns, part, strict=True)
                columns = part if columns is None else torch.stack([t.merged(one, two) for t, one, two in both])
        sums = (rows,) if columns is None else (rows, columns)
        ctx.save_for_backward(a, b, kept, *sums)
        return sums

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        terms, pair, size, dims = ctx.settings
        a, b, kept, *sums = ctx.saved_tensors
        with torch.autocast(a.device.type, enabled=False):
            if torch.is_grad_enabled():  # differentiated again: left to autograd, on the whole matrix
                again = _block_sums(terms, score_block(a, b, pair), dims)
                return (None,) * 4 + torch.autograd.grad(again, (a, b), outer, create_graph=True)
            to_a, to_b = torch.empty_like(a), torch.zeros_like(b)
            for block in row_blocks(len(a), size):
                s = score_block(a[block], b, pair + block.start) if kept is None else kept[block]
                cuts = [slice(None) if dim == 0 else block for dim in dims]
                parts = [(total[:, cut], g[:, cut]) for total, g, cut in zip(sums, outer, cuts, strict=True)]
                gradient = _block_gradient(terms, s, parts, dims)
                torch.mm(gradient, b, out=to_a[block])
                to_b.addmm_(gradient.T, a[block])
        return None, None, None, None, to_a, to_b


def matrix_total(a: Tensor, b: Tensor, bias: Tensor, *, pair: int = 0, chunk_size: int | None = None) -> Tensor:
    """sum_ij log(1 + e^{s_ij + bias}) () over the negatives of S = A B^T; arguments as of `matrix_sums`, a bias ().

    The gradient of this sum is known with the similarities, up to one factor: it is taken with each block, so that no
    block is kept or computed again.
    """
    total: Tensor = _SoftplusTotal.apply(pair, chunk_size or _rows_at_once(a), a, b, bias)
    return total


class _SoftplusTotal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: int, size: int, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        needed = any(ctx.needs_input_grad)
        total, to_a, to_b, to_bias = (torch.zeros_like(one) for one in (bias, a, b, bias))
        for block in row_blocks(len(a), size):
            s = torch.mm(a[block], b.T).add_(bias)
            s.diagonal(pair + block.start).fill_(-torch.inf)
            total += softplus(s).sum()
            if needed:
                slope = s.sigmoid_()
                to_bias += slope.sum()
                torch.mm(slope, b, out=to_a[block])
                to_b.addmm_(slope.T, a[block])
        ctx.pair = pair
        ctx.save_for_backward(a, b, bias, to_a, to_b, to_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        a, b, bias, *gradients = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated again: left to autograd, on the whole matrix
            with torch.autocast(a.device.type, enabled=False):
                again = softplus(score_block(a, b, ctx.pair) + bias).sum()
            needed = ctx.needs_input_grad[2:]
            slopes = iter(
                torch.autograd.grad(
                    again, [one for one, w in zip((a, b, bias), needed, strict=True) if w], outer, create_graph=True
                )
            )
            return None, None, *(next(slopes) if w else None for w in needed)
        return None, None, *(outer[0] * one for one in gradients)


def _rows_at_once(rows: Tensor) -> int:
    """How many to work on where all may be: on a CPU those whose similarities stay in its cache."""
    return _CACHED if rows.device.type == "cpu" else max(len(rows), 1)


def row_blocks(n: int, size: int) -> Iterator[slice]:
    """The rows of each block."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
