"""Compute the spread loss, in which items of the same class attract and repel each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self, Unpack

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.utils.rnn import pad_sequence

from vldebias.losses.catalog import SpreadSettings
from vldebias.losses.checks import check_interval, check_labels
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss, ModuleOptions
from vldebias.losses.processes import gather_rows
from vldebias.losses.sums import softplus

# Anchors to compute at once; their scores then fit in the CPU's cache.
AT_ONCE = 256


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
    (log_negatives,) = batch.sums(1.0, labels=joint_labels)
    with batch.precise():
        _, codes, sizes = torch.unique(joint_labels, return_inverse=True, return_counts=True)
        # Eq. 2 averages over the positives, which include the anchor's other view.
        views = 2 if batch.within_view else 1
        count = views * (sizes[codes[batch.rows]] - 1) + 1
        rest, log_same_class = _class_sums(batch, codes, sizes, log_negatives)
        attract = (softplus(log_negatives - batch.positive) + rest) / count
        # Eq. 3 separates the pair from the other rows of its class.
        repel = softplus(log_same_class - batch.positive)
        return batch.reduce(alpha * attract + (1 - alpha) * repel)


def _class_sums(
    batch: Contrast, codes: Tensor, sizes: Tensor, log_negatives: Tensor
) -> tuple[Tensor, Tensor]:
    """Return both sums (2, n) of `_ClassSums` for each anchor.

    Args:
        batch: the features and options.
        codes: (N,), the classes of the joint batch, counted from 0.
        sizes: the number of rows of each class.
        log_negatives: (2, n), the log-sums over the anchors' negatives.
    """
    at_once = batch.chunk_size or AT_ONCE
    if batch.whole and batch.within_view:
        # The rows of both views are anchors and candidates of the same classes.
        anchors = batch.both_views[None]
        candidates = anchors[:, :, None]
        joint_codes = codes.repeat(2)
        rows_of_anchors = slice(0, len(joint_codes))
        chunks = list(_chunks(joint_codes, 2 * sizes, rows_of_anchors, 2 * at_once))
    else:
        anchors = torch.stack(batch.anchors)
        # For each row, stack its other view and, with `within_view`, its own view: (2, N, v, d).
        views = [batch.joint[::-1], batch.joint] if batch.within_view else [batch.joint[::-1]]
        candidates = torch.stack([torch.stack(view) for view in views], dim=2)
        chunks = list(_chunks(codes, sizes, batch.rows, at_once))
    entries = sum(rows.numel() * columns.shape[1] for rows, columns in chunks)
    # The similarities within large classes would take more memory than those of the batch.
    is_small = entries <= anchors.shape[1] * candidates.shape[1] / 4
    keeps = batch.chunk_size is None and is_small
    how = _Classes(chunks, batch.rows.start, len(codes), keeps)
    limits = log_negatives.reshape(anchors.shape[:2])
    rest, log_same_class = _ClassSums.apply(anchors, candidates, limits, how)
    return rest.view_as(log_negatives), log_same_class.view_as(log_negatives)


class _Classes(NamedTuple):
    """Which rows belong to the same class.

    Attributes:
        chunks: for some classes at a time, their anchors (k, a) and their joint rows (k, c). Rows
            that pad smaller classes are -1.
        start: joint row of the first anchor.
        pairs: number of pairs N in the joint batch. Rows i and i + N form a pair.
        keeps: whether to keep the similarities for the backward pass.
    """

    chunks: list[tuple[Tensor, Tensor]]
    start: int
    pairs: int
    keeps: bool

    def excluded(self, rows: Tensor, columns: Tensor, views: int) -> Tensor:
        """Return which entries (k, a, c * views) are padding, an anchor itself, or its pair."""
        is_row = (rows[:, :, None] + self.start - columns[:, None, :]) % self.pairs == 0
        is_padding = (rows < 0)[:, :, None] | (columns < 0)[:, None, :]
        return (is_row | is_padding).repeat_interleave(views, dim=2)


class _ClassSumsContext(FunctionCtx):
    """Values that `_ClassSums` stores for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    how: _Classes


class _ClassSums(torch.autograd.Function):
    """Compute sum_p log(1 + e^{r - s_p}) and log sum_p e^{s_p} over the rows p of a class.

    The arguments are the anchors (2, n, d), the joint rows of each view (2, N, v, d), the log-sums
    r (2, n) over the anchors' negatives, and the classes. Autocast does not affect the products,
    including those of the backward pass.
    """

    @staticmethod
    def forward(
        ctx: _ClassSumsContext,
        anchors: Tensor,
        candidates: Tensor,
        log_negatives: Tensor,
        how: _Classes,
    ) -> tuple[Tensor, Tensor]:
        totals = torch.empty_like(log_negatives)
        log_sums = torch.empty_like(log_negatives)
        kept = []
        for rows, columns in how.chunks:
            excluded = how.excluded(rows, columns, candidates.shape[2])
            s = anchors[:, rows] @ candidates[:, columns].flatten(2, 3).mT
            s.masked_fill_(excluded, -torch.inf)
            losses = softplus(log_negatives[:, rows][..., None] - s).masked_fill_(excluded, 0.0)
            is_anchor = rows >= 0
            totals[:, rows[is_anchor]] = losses.sum(-1)[:, is_anchor]
            log_sums[:, rows[is_anchor]] = s.logsumexp(-1)[:, is_anchor]
            if how.keeps:
                kept.append(s)
        ctx.how = how
        ctx.save_for_backward(anchors, candidates, log_negatives, log_sums, *kept)
        return totals, log_sums

    @staticmethod
    def backward(ctx: _ClassSumsContext, *outer: Tensor) -> tuple[Tensor | None, ...]:
        anchors, candidates, log_negatives, log_sums, *kept = ctx.saved_tensors
        how = ctx.how
        slope_of_anchors = torch.zeros_like(anchors)
        slope_of_candidates = torch.zeros_like(candidates)
        slope_of_negatives = torch.zeros_like(log_negatives)
        with torch.autocast(anchors.device.type, enabled=False):
            for k, (rows, columns) in enumerate(how.chunks):
                excluded = how.excluded(rows, columns, candidates.shape[2])
                some_anchors = anchors[:, rows]
                members = candidates[:, columns].flatten(2, 3)
                if kept:
                    s = kept[k]
                else:
                    s = (some_anchors @ members.mT).masked_fill_(excluded, -torch.inf)
                slope_of_total, slope_of_sum = (slopes[:, rows][..., None] for slopes in outer)
                falls = torch.sigmoid(log_negatives[:, rows][..., None] - s)
                falls.masked_fill_(excluded, 0.0).mul_(slope_of_total)
                # If an anchor is alone in its class, -inf - -inf would be NaN.
                slope = torch.exp(s - log_sums[:, rows].clamp(min=-1e30)[..., None])
                slope.mul_(slope_of_sum).sub_(falls)
                # Padding has a slope of 0, so it may be added to any row.
                flat = rows.flatten().clamp(min=0)
                slope_of_anchors.index_add_(1, flat, (slope @ members).flatten(1, 2))
                slope_of_negatives.index_add_(1, flat, falls.sum(-1).flatten(1))
                slope_of_members = (slope.mT @ some_anchors).unflatten(2, (columns.shape[1], -1))
                slope_of_candidates.index_add_(
                    1, columns.flatten().clamp(min=0), slope_of_members.flatten(1, 2)
                )
        return slope_of_anchors, slope_of_candidates, slope_of_negatives, None


def _chunks(
    codes: Tensor, sizes: Tensor, anchor_rows: slice, at_once: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the anchors (k, a) of k classes, and the joint rows (k, c) of these classes.

    Classes are computed together because one product for each class would be slow if there are
    many classes. Their sizes differ by less than a factor of 2, so that padding, by -1, costs
    little.

    Args:
        codes: (N,), the classes of the joint batch, counted from 0.
        sizes: the number of rows of each class.
        anchor_rows: slice of the joint batch that contains the anchors. Yielded anchors are
            numbered from its start.
        at_once: maximum number of anchors to yield at once.
    """
    own_codes = codes[anchor_rows]
    own_sizes = torch.bincount(own_codes, minlength=len(sizes))
    rows_of_class = codes.argsort(stable=True).split(sizes.tolist())
    anchors_of_class = own_codes.argsort(stable=True).split(own_sizes.tolist())
    alike: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
    for anchors, members in zip(anchors_of_class, rows_of_class, strict=True):
        for part in anchors.split(at_once):
            size = len(part).bit_length(), len(members).bit_length()
            alike.setdefault(size, []).append((part, members))
    for (bits, _), parts in alike.items():
        count = max(at_once >> bits, 1)
        for first in range(0, len(parts), count):
            chunk = parts[first : first + count]
            rows = [part for part, _ in chunk]
            columns = [members for _, members in chunk]
            yield (
                pad_sequence(rows, batch_first=True, padding_value=-1),
                pad_sequence(columns, batch_first=True, padding_value=-1),
            )


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
    alpha: float

    def __init__(self, *, within_view: bool = True, **settings: Any) -> None:
        super().__init__(within_view=within_view, **settings)

    @classmethod
    def from_settings(cls, settings: SpreadSettings, **options: Unpack[ModuleOptions]) -> Self:
        """Build the loss for a training run."""
        return cls(alpha=settings.spread_alpha, **options)
