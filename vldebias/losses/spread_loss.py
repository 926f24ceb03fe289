"""Compute the spread loss, in which items of the same class attract and repel each other.

The sum over negatives needs one exponential per similarity, but the sums over the rows of an
anchor's class need a logarithm and a sigmoid per similarity as well. Rows are therefore sorted by
class. Similarities within a class then lie next to each other, in tiles of the matrix, and the
slower functions are computed only there.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, NamedTuple, Self, Unpack

import torch
from torch import Tensor

from vldebias.losses.catalog import SpreadSettings
from vldebias.losses.checks import check_interval, check_labels
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss, ModuleOptions
from vldebias.losses.processes import gather_rows
from vldebias.losses.sums import (
    Block,
    Buffers,
    Slopes,
    Sums,
    log_sums_of,
    once_differentiable,
    product,
    softplus,
    write_exponentials,
    write_slope,
)

# Fewest rows of a tile, unless its block ends. Each tile takes about 25 calls of torch.
_TILE = 64


def spread(
    image_features: Tensor,
    text_features: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor,
    alpha: float = 0.5,
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return the spread loss alpha L_attract + (1 - alpha) L_repel, which avoids class collapse.

        L_attract = -1/|P| sum_{p in P} log e^{s_p} / (e^{s_p} + sum_{a in N} e^{s_a})
        L_repel   = -log e^{s+} / sum_{p in P} e^{s_p}

    Source: eq. 1-3 of Fu et al., The Details Matter (2022). P is the set of rows in the batch
    that share the anchor's class, including the anchor's other view s+ but not the anchor itself. N
    is the set of rows from other classes. By default, the batch contains both views. For images and
    captions, pass `within_view=False` to use only the opposite view. With alpha = 1, this is a
    supervised contrastive loss, which collapses each class to a point. With alpha = 0 and a single
    class, it is `info_nce`.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        labels: (n,) integers, the class of each row.
        alpha: weight of the attraction, in [0, 1]. The paper tunes it between 0.16 and 0.67.
        temperature: t > 0, a number or a tensor ().
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    Returns:
        The loss (), or one loss per pair (n,) with reduction "none".

    Raises:
        InvalidInputError: If the features, an argument or an option is invalid.

    >>> import torch
    >>> images = torch.eye(4)
    >>> spread(images, images, torch.tensor([0, 0, 1, 1]), alpha=0.5, temperature=0.5)
    tensor(0.7284)
    """
    check_interval("alpha", alpha, "[0, 1]")
    if isinstance(image_features, Tensor):
        check_labels("labels", labels, len(image_features))
    options.setdefault("within_view", True)
    batch = Contrast(image_features, text_features, temperature=temperature, **options)
    joint_labels = gather_rows(labels) if batch.gather else labels
    with batch.precise():
        _, codes, sizes = torch.unique(joint_labels, return_inverse=True, return_counts=True)
        # Eq. 2 averages over the positives, which include the anchor's other view.
        views = 2 if batch.within_view else 1
        count = views * (sizes[codes[batch.rows]] - 1) + 1
        log_negatives, rest, log_same_class = _class_sums(batch, codes, repels=alpha < 1)
        loss = alpha * (softplus(log_negatives - batch.positive) + rest) / count
        if alpha < 1:
            # Eq. 3 separates the pair from the other rows of its class.
            loss = loss + (1 - alpha) * softplus(log_same_class - batch.positive)
        return batch.reduce(loss)


def _class_sums(batch: Contrast, codes: Tensor, repels: bool) -> Tensor:
    """Return the three sums (3, 2, n) of `_ClassSums` for each anchor.

    Args:
        batch: the features and options.
        codes: (N,), the classes of the joint batch, counted from 0.
        repels: whether to compute the third sum.
    """
    how = batch.how((1.0,))._replace(diagonals=())
    if batch.whole:
        rows = _Order.sort(codes.repeat(2 if batch.within_view else 1), len(codes))
        classes = _Classes(rows, rows, repels)
        if batch.within_view:
            # The rows of both views are anchors and candidates of the same classes.
            how = how._replace(symmetric=True)
            (sums,) = _ClassSums.apply(batch.both_views, None, how, classes)
            return sums.unflatten(1, (2, -1))
        return torch.stack(_ClassSums.apply(batch.anchor(0), batch.joint[1], how, classes), dim=1)
    how = how._replace(both=False)
    rows = _Order.sort(codes[batch.rows], len(codes), batch.rows.start)
    directions = []
    for k, anchors in enumerate(batch.anchors):
        views = batch.joint if batch.within_view else [batch.joint[1 - k]]
        columns = _Order.sort(codes.repeat(len(views)), len(codes))
        classes = _Classes(rows, columns, repels)
        directions.append(_ClassSums.apply(anchors, torch.cat(views), how, classes)[0])
    return torch.stack(directions, dim=1)


class _Order(NamedTuple):
    """Rows sorted by class.

    Attributes:
        rows: (n,), the numbers of the rows in this order.
        places: (n,), the place of each row in this order.
        codes: (n,), the sorted classes.
        items: (n,), the number of each sorted row's pair in the joint batch.
    """

    rows: Tensor
    places: Tensor
    codes: Tensor
    items: Tensor

    @classmethod
    def sort(cls, codes: Tensor, pairs: int, start: int = 0) -> Self:
        """Sort rows by their classes (n,).

        Args:
            codes: the class of each row.
            pairs: number of pairs in the joint batch; rows i and i + `pairs` form a pair.
            start: row of the joint batch that the first row is.
        """
        rows = codes.argsort(stable=True)
        return cls(rows, rows.argsort(), codes[rows].int(), ((rows + start) % pairs).int())


class _Tile(NamedTuple):
    """A part of a block: some of its rows, and the columns of their classes."""

    rows: slice
    columns: slice

    def part_of(self, matrix: Tensor, block: Block) -> Tensor:
        """Return the tile's part of a matrix that has the shape of its block."""
        rows = slice(self.rows.start - block.rows.start, self.rows.stop - block.rows.start)
        columns = slice(self.columns.start - block.first, self.columns.stop - block.first)
        return matrix[rows, columns]


class _Classes(NamedTuple):
    """Which similarities of sorted rows and columns are within a class.

    If rows and columns are sorted by class, those of successive rows lie in few columns. Tiles end
    with a class if possible, so that few of their similarities are of other classes.

    Attributes:
        rows: the order of the rows.
        columns: the order of the columns.
        repels: whether the sum over the similarities within a class is computed.
    """

    rows: _Order
    columns: _Order
    repels: bool

    def tiles(self, blocks: Iterable[Block]) -> list[list[_Tile]]:
        """Return the tiles of each block."""
        first = torch.searchsorted(self.columns.codes, self.rows.codes).tolist()
        stop = torch.searchsorted(self.columns.codes, self.rows.codes, right=True).tolist()
        ends = torch.searchsorted(self.rows.codes, self.rows.codes, right=True).tolist()
        tiles = []
        for block in blocks:
            tiles_of_block = []
            start = block.rows.start
            while start < block.rows.stop:
                last = min(start + _TILE, block.rows.stop) - 1
                end = min(ends[last], block.rows.stop)
                band = slice(max(first[start], block.first), stop[last])
                tiles_of_block.append(_Tile(slice(start, end), band))
                start = end
            tiles.append(tiles_of_block)
        return tiles

    def take(self, s: Tensor, tile: _Tile) -> Tensor:
        """Return the similarities within classes in a tile (c, w), and overwrite them by -inf.

        Entries of other classes, of an anchor itself and of its pair are infinite in the result.
        """
        differs = self.rows.codes[tile.rows, None] != self.columns.codes[tile.columns]
        is_pair = self.rows.items[tile.rows, None] == self.columns.items[tile.columns]
        within = s.masked_fill(differs, torch.inf).masked_fill_(is_pair, torch.inf)
        s.masked_fill_(differs.logical_not_(), -torch.inf)
        return within


class _ClassSums(torch.autograd.Function):
    """Compute sums over the negatives of an anchor, and over the rows p of its class.

        r = log sum_a e^{s_a},   sum_p log(1 + e^{r - s_p}),   log sum_p e^{s_p}

    The arguments are the factors of S as in `matrix_sums`, the rows and columns to add up, and the
    classes. The result is (3, n) for the rows and, with `both`, (3, N) for the columns. A fourth
    row in `totals` is the derivative of the second sum by r, which the backward pass needs first.
    """

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor | None, how: Sums, classes: _Classes
    ) -> tuple[Tensor, ...]:
        ctx.how = how
        ctx.classes = classes
        ctx.shifts = []
        a = a.index_select(0, classes.rows.rows)
        b = a if b is None else b.index_select(0, classes.columns.rows)
        totals = [a.new_zeros(4, len(a))]
        totals.append(totals[0] if how.symmetric else a.new_zeros(4, len(b)))
        for total in totals:
            total[[0, 2]] = -torch.inf
        blocks = list(how.blocks(a, b))
        ctx.tiles = classes.tiles(blocks)
        # The similarities within large classes would take more memory than those of the batch.
        entries = [
            (tile.rows.stop - tile.rows.start) * (tile.columns.stop - tile.columns.start)
            for tile in chain.from_iterable(ctx.tiles)
        ]
        keeps = how.chunk_size is None and sum(entries) <= len(a) * len(b) / 2
        buffers = Buffers(a, b, how, 2)
        kept, kept_within = [], []
        for block, tiles_of_block in zip(blocks, ctx.tiles, strict=True):
            s, exponentials = buffers.views(block)
            if keeps:
                s = torch.empty_like(s)
                kept.append(s)
            shift = how.scores(a, b, block, s)
            ctx.shifts.append(shift)
            for tile in tiles_of_block:
                within = classes.take(tile.part_of(s, block), tile)
                if keeps:
                    kept_within.append(within)
            out = s if how.overwrites(shift) else exponentials
            log_sums = log_sums_of(s, 1.0, shift, out, how.both)
            total = totals[0][0, block.rows]
            torch.logaddexp(total, log_sums[0], out=total)
            if how.both:
                total = totals[1][0, block.anchors :]
                torch.logaddexp(total, log_sums[1][block.skipped :], out=total)
        for total in totals:
            # A sum over no negatives is log 0, but -inf would make the gradient NaN.
            total[0].clamp_(min=-1e30)
        unread = iter(kept_within)
        for block, tiles_of_block in zip(blocks, ctx.tiles, strict=True):
            for tile in tiles_of_block:
                if keeps:
                    within = next(unread)
                else:
                    s = product(a[tile.rows], b[tile.columns].T, how.dtype)
                    within = classes.take(s, tile)
                _add_positives(totals[0][:, tile.rows], within, classes.repels)
                later = slice(max(tile.columns.start, block.anchors), tile.columns.stop)
                if how.both and later.start < later.stop:
                    part = within[:, later.start - tile.columns.start :]
                    _add_positives(totals[1][:, later], part.T, classes.repels)
        for total in totals:
            total[2].clamp_(min=-1e30)
        ctx.save_for_backward(a, b, *totals, *kept, *kept_within)
        rows = totals[0][:3].index_select(1, classes.rows.places)
        if how.symmetric or not how.both:
            return (rows,)
        return rows, totals[1][:3].index_select(1, classes.columns.places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        a, b, *totals = ctx.saved_tensors[:4]
        how = ctx.how
        classes = ctx.classes
        blocks = list(how.blocks(a, b))
        kept = ctx.saved_tensors[4:]
        outer = tuple(
            slopes.index_select(1, order.rows)
            for slopes, order in zip(outer, (classes.rows, classes.columns), strict=False)
        )
        for slopes_of_sums, total in zip(outer, totals, strict=False):
            slopes_of_sums[0] += slopes_of_sums[1] * total[3]
        slopes = Slopes(a, b, how)
        buffers = Buffers(a, b, how, 3)
        with torch.autocast(a.device.type, enabled=False):
            unread = iter(kept[len(blocks) :])
            for k, (block, tiles_of_block) in enumerate(zip(blocks, ctx.tiles, strict=True)):
                shift = ctx.shifts[k]
                slope, weights, s = buffers.views(block)
                if kept:
                    s = kept[k]
                    within = list(islice(unread, len(tiles_of_block)))
                else:
                    how.scores(a, b, block, s)
                    within = [classes.take(tile.part_of(s, block), tile) for tile in tiles_of_block]
                    if how.overwrites(shift):
                        write_exponentials(s, s, 1.0, shift)
                if how.overwrites(shift):
                    weights = s
                rows = totals[0][:, block.rows], outer[0][:, block.rows]
                columns = None
                if how.both:
                    columns = totals[1][:, block.first :], outer[-1][:, block.first :]
                write_slope(slope, how.terms(s, block), shift, rows, columns, weights)
                for tile, part in zip(tiles_of_block, within, strict=True):
                    slope_of_tile = tile.part_of(slope, block)
                    rows = totals[0][:, tile.rows], outer[0][:, tile.rows]
                    _add_slope_of_positives(slope_of_tile, *rows, part, classes.repels)
                    if how.both:
                        columns = totals[1][:, tile.columns], outer[-1][:, tile.columns]
                        _add_slope_of_positives(slope_of_tile.T, *columns, part.T, classes.repels)
                slopes.add(slope, block)
        slope_of_a = slopes.of_a.index_select(0, classes.rows.places)
        if how.symmetric:
            return slope_of_a, None, None, None
        return slope_of_a, slopes.of_b.index_select(0, classes.columns.places), None, None


def _add_positives(total: Tensor, within: Tensor, repels: bool) -> None:
    """Add the similarities (c, w) of a tile to the sums (4, c) of its anchors."""
    excess = total[0][:, None] - within
    total[1] += softplus(excess).sum(1)
    total[3] += excess.sigmoid_().sum(1)
    if repels:
        log_sums = within.masked_fill(within == torch.inf, -torch.inf).logsumexp(1)
        total[2] = torch.logaddexp(total[2], log_sums)


def _add_slope_of_positives(
    slope: Tensor, total: Tensor, slope_of_total: Tensor, within: Tensor, repels: bool
) -> None:
    """Add the gradient through the sums over positives to that of the similarities (c, w)."""
    falls = (total[0][:, None] - within).sigmoid_()
    slope.addcmul_(falls, slope_of_total[1][:, None], value=-1)
    if repels:
        shares = (within - total[2][:, None]).exp_().masked_fill_(within == torch.inf, 0.0)
        slope.addcmul_(shares, slope_of_total[2][:, None])


class Spread(ContrastiveLoss[SpreadSettings]):
    """Apply `spread` with the options of `ContrastiveLoss`; `within_view` is True by default.

    >>> import torch
    >>> loss = Spread(alpha=0.5, temperature=0.5)
    >>> images = torch.eye(4)
    >>> loss(images, images, torch.tensor([0, 0, 1, 1]))
    tensor(0.7284)
    """

    function = staticmethod(spread)
    reads_labels = True

    def __init__(self, *, within_view: bool = True, **settings: Any) -> None:
        super().__init__(within_view=within_view, **settings)

    @classmethod
    def from_settings(cls, settings: SpreadSettings, **options: Unpack[ModuleOptions]) -> Self:
        """Build the loss for a training run."""
        return cls(alpha=settings.spread_alpha, **options)
