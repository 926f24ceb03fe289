"""The spread loss: classes attract, and within a class every item keeps its distance, so that strata survive."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vldebias.losses.blocks import Rows
from vldebias.losses.checks import check_interval, check_labels
from vldebias.losses.contrast import Reduction, contrast, softplus
from vldebias.losses.module import ContrastiveLoss
from vldebias.losses.processes import gather_rows

__all__ = ["SpreadLoss", "spread"]


def _attract(rows: Rows, classmate: Tensor) -> Tensor:
    """Eq. 2: mean over the positives p of -log e^{s_p} / (e^{s_p} + sum over the other classes)."""
    others = torch.logsumexp(rows.negatives.masked_fill(classmate, -torch.inf), dim=1)
    counted = classmate & (rows.negatives > -torch.inf)
    # the replaced score keeps the infinite ones out of the gradient
    scores = torch.where(counted, rows.negatives, 0.0)
    rest = torch.where(counted, softplus(others[:, None] - scores), 0.0).sum(1)
    return (softplus(others - rows.positive) + rest) / (counted.sum(1) + 1)


def _repel(rows: Rows, classmate: Tensor) -> Tensor:
    """Eq. 3: -log e^{s+} / sum of e^{s_p} over the positives p, of which the own other view is one."""
    rivals = torch.logsumexp(rows.negatives.masked_fill(~classmate, -torch.inf), dim=1)
    return softplus(rivals - rows.positive)


def spread(
    image_features: Tensor,
    text_features: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor,
    alpha: float = 0.5,
    reduction: Reduction = "mean",
    chunk_size: int | None = None,
    gather: bool = False,
    within_view: bool = True,
) -> Tensor:
    """alpha L_attract + (1 - alpha) L_repel, eq. 1-3 of Chen et al., Perfectly Balanced (2022).

        L_attract = -1/|P| sum_{p in P} log e^{s_p} / (e^{s_p} + sum_{a in N} e^{s_a})
        L_repel   = -log e^{s+} / sum_{p in P} e^{s_p}

    P are the rows of the anchor's class in the batch, its own other view s+ among them and itself not, N those of
    other classes. The batch is both views, as for two augmentations; `within_view=False` makes it the opposite view
    alone, as for images and captions. alpha = 1 is a supervised contrastive loss, under which a class collapses to
    one point; alpha = 0 with a single class is `info_nce`, which knows no classes.

    Args:
        image_features: (n, d) first view, rows of norm 1.
        text_features: (n, d) second view, rows of norm 1.
        labels: (n,) integers, the class of each row.
        alpha: in [0, 1]; the paper tunes it from .16 to .67.

    The other arguments and Returns: see `info_nce`.

    Raises:
        InvalidInputError: alpha outside [0, 1], labels that are not integers (n,), and what `info_nce` refuses.
    """
    check_interval("alpha", alpha, "[0, 1]")
    if isinstance(image_features, Tensor):
        check_labels("labels", labels, len(image_features))
    every = gather_rows(labels) if gather else labels
    columns = torch.cat([every, every]) if within_view else every

    def row_loss(rows: Rows) -> Tensor:
        classmate = every[rows.index][:, None] == columns
        return alpha * _attract(rows, classmate) + (1 - alpha) * _repel(rows, classmate)

    return contrast(
        row_loss,
        image_features,
        text_features,
        temperature=temperature,
        reduction=reduction,
        chunk_size=chunk_size,
        gather=gather,
        within_view=within_view,
    )


class SpreadLoss(ContrastiveLoss):
    """`spread` with its settings. Options: see `ContrastiveLoss`; `within_view` is True here."""

    def __init__(self, *, alpha: float = 0.5, within_view: bool = True, **options: Any) -> None:
        super().__init__(within_view=within_view, **options)
        check_interval("alpha", alpha, "[0, 1]")
        self.alpha = alpha

    def forward(self, image_features: Tensor, text_features: Tensor, labels: Tensor) -> Tensor:
        """Loss of two views (n, d) with labels (n,)."""
        return spread(image_features, text_features, labels, **self.options())

    def options(self) -> dict[str, Any]:
        """The keywords of `spread`."""
        return super().options() | {"alpha": self.alpha}
