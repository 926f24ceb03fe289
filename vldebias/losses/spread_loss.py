"""Compute the spread loss, in which items of the same class attract and repel each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self, Unpack

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

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
        anchors = torch.stack(batch.anchors)
        # For each row, stack its other view and, with `within_view`, its own view: (2, N, v, d).
        views = [batch.joint[::-1], batch.joint] if batch.within_view else [batch.joint[::-1]]
        candidates = torch.stack([torch.stack(view) for view in views], dim=2)

        def sums_of_classes(rows_by_class: list[Tensor], members: list[Tensor]) -> Tensor:
            """Return the two sums of `_ClassSums` for each anchor.

            Args:
                rows_by_class: the joint rows of each class.
                members: the anchors of each class.
            """
            # Classes with fewer rows are padded with row -1.
            rows = pad_sequence(rows_by_class, batch_first=True, padding_value=-1)
            columns = pad_sequence(members, batch_first=True, padding_value=-1)
            # The pair is added below, and the anchor is not a positive of itself.
            is_row = rows[:, :, None] + batch.rows.start == columns[:, None, :]
            excluded = (is_row | (columns < 0)[:, None, :]).repeat_interleave(len(views), dim=2)
            sums = _ClassSums.apply(
                anchors[:, rows],
                candidates[:, columns].flatten(2, 3),
                log_negatives[:, rows],
                excluded,
            )
            return torch.stack(sums)[..., rows >= 0]

        sums = []
        order: list[Tensor] = []
        for rows_by_class, members in _classes(
            joint_labels, batch.rows, batch.chunk_size or AT_ONCE
        ):
            if batch.chunk_size is None:
                sums.append(sums_of_classes(rows_by_class, members))
            else:
                sums.append(
                    checkpoint(sums_of_classes, rows_by_class, members, use_reentrant=False)
                )
            order += rows_by_class
        rest, log_same_class = torch.cat(sums, dim=2)[..., torch.cat(order).argsort()]
        # Eq. 2 averages over the positives, which include the anchor's other view.
        _, codes, sizes = torch.unique(joint_labels, return_inverse=True, return_counts=True)
        count = len(views) * (sizes[codes[batch.rows]] - 1) + 1
        attract = (softplus(log_negatives - batch.positive) + rest) / count
        # Eq. 3 separates the pair from the other rows of its class.
        repel = softplus(log_same_class - batch.positive)
        return batch.reduce(alpha * attract + (1 - alpha) * repel)


class _ClassSumsContext(FunctionCtx):
    """Values that `_ClassSums` stores for the backward pass."""

    saved_tensors: tuple[Tensor, ...]


class _ClassSums(torch.autograd.Function):
    """Compute sum_p log(1 + e^{r - s_p}) and log sum_p e^{s_p} over the rows p of a class.

    The arguments are anchors (2, k, a, d) of k classes, the rows (2, k, c, d) of each class, the
    log-sums r (2, k, a) over the anchors' negatives, and which rows to exclude (k, a, c). Autocast
    does not affect the products, including those of the backward pass.
    """

    @staticmethod
    def forward(
        ctx: _ClassSumsContext,
        anchors: Tensor,
        candidates: Tensor,
        log_negatives: Tensor,
        excluded: Tensor,
    ) -> tuple[Tensor, Tensor]:
        s = (anchors @ candidates.mT).masked_fill_(excluded, -torch.inf)
        log_sum = s.logsumexp(-1)
        total = softplus(log_negatives[..., None] - s).masked_fill_(excluded, 0.0).sum(-1)
        ctx.save_for_backward(anchors, candidates, log_negatives, excluded, s, log_sum)
        return total, log_sum

    @staticmethod
    def backward(ctx: _ClassSumsContext, *outer: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        anchors, candidates, log_negatives, excluded, s, log_sum = ctx.saved_tensors
        slope_of_total, slope_of_sum = outer
        with torch.autocast(anchors.device.type, enabled=False):
            falls = torch.sigmoid(log_negatives[..., None] - s).masked_fill_(excluded, 0.0)
            falls.mul_(slope_of_total[..., None])
            # If an anchor is alone in its class, -inf - -inf would be NaN.
            slope = torch.exp(s - log_sum.clamp(min=-1e30)[..., None])
            slope.mul_(slope_of_sum[..., None]).sub_(falls)
            return slope @ candidates, slope.mT @ anchors, falls.sum(-1), None


def _classes(
    labels: Tensor, anchor_rows: slice, at_once: int
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yield the anchors of some classes, and the joint rows of each of these classes.

    Classes are computed together because one product for each class would be slow if there are
    many classes. Their sizes differ by less than a factor of 2, so that padding costs little.

    Args:
        labels: (N,), the classes of the joint batch.
        anchor_rows: slice of the joint batch that contains the anchors. Yielded anchors are
            numbered from its start.
        at_once: maximum number of anchors to yield at once.
    """
    _, codes, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
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
            yield [part for part, _ in chunk], [members for _, members in chunk]


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
