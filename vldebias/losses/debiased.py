"""DCL, the debiased contrastive loss: negatives corrected for the false ones that come with drawing at random."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses.blocks import RowLoss, Rows
from vldebias.losses.checks import check_choice, check_interval
from vldebias.losses.contrast import Reduction, contrast, softplus
from vldebias.losses.module import ContrastiveLoss

__all__ = ["BelowFloor", "DebiasedContrastiveLoss", "debiased_contrastive"]

BelowFloor = Literal["clamp", "uncorrected"]


def check_correction(tau_plus: float, floor: float | None, below_floor: str) -> None:
    """Refuse settings under which eq. 3.6 has no meaning."""
    check_interval("tau_plus", tau_plus, "[0, 1)")
    check_choice("below_floor", below_floor, ("clamp", "uncorrected"))
    if floor is not None and not 0 <= floor < math.inf:
        raise InvalidInputError(f"floor: expected None (for e^(-1/t)) or a number in [0, inf), got {floor}")


def check_positives(positives: Tensor | None, image_features: Tensor) -> None:
    """Refuse positives that are not M >= 1 vectors per row."""
    if positives is None:
        return
    n, d = image_features.shape
    if positives.ndim != 3 or positives.shape[1] < 1 or (positives.shape[0], positives.shape[2]) != (n, d):
        raise InvalidInputError(
            f"positives: expected shape ({n}, M, {d}) with M >= 1, got {tuple(positives.shape)}; "
            "stack the M samples of each row along the second axis"
        )
    if not positives.is_floating_point():
        raise InvalidInputError(f"positives: expected floating point features, got {positives.dtype}; encode first")


def positive_scores(rows: Rows, positives: Tensor | None) -> Tensor:
    """(c, M) scaled similarities s_v of the anchors to their positives; M = 1 is the row they belong with."""
    if positives is None:
        return rows.positive[:, None]
    return torch.einsum("cd,cmd->cm", rows.anchors, positives[rows.local].to(rows.anchors.dtype))


def log_floor(temperature: float | Tensor, floor: float | None) -> float | Tensor:
    """log of the least value of g: e^{-1/t} for features of norm 1, or what the caller sets."""
    if floor is None:
        return -1 / temperature
    return math.log(floor) if floor > 0 else -math.inf


def log_debiased(
    log_all: Tensor, log_positive: Tensor, tau_plus: float, floor: float | Tensor
) -> tuple[Tensor, Tensor]:
    """log g and where g is above its floor, eq. 3.6, from the logarithms of both means.

    g = max((e^{log_all} - tau+ e^{log_positive}) / (1 - tau+), e^floor)
    """
    if tau_plus == 0:
        return log_all, torch.ones_like(log_all, dtype=torch.bool)
    ratio = log_positive + math.log(tau_plus) - log_all
    defined = ratio < 0
    # the replaced value keeps log(0) and its infinite gradient out of the branch that is not taken
    safe = torch.where(defined, ratio, -1.0)
    log_g = log_all + torch.log(-torch.expm1(safe)) - math.log1p(-tau_plus)
    above = defined & (log_g > floor)
    return torch.where(above, log_g, floor), above


def corrected_loss(rows: Rows, log_g: Tensor, above: Tensor, below_floor: BelowFloor) -> Tensor:
    """-log e^{s+} / (e^{s+} + N g), or InfoNCE in the rows whose g is not above its floor."""
    log_denominator = log_g + math.log(rows.count)
    if below_floor == "uncorrected":
        log_denominator = torch.where(above, log_denominator, rows.log_sum_negatives())
    return softplus(log_denominator - rows.positive)


def debiased_contrastive(
    image_features: Tensor,
    text_features: Tensor,
    *,
    temperature: float | Tensor,
    tau_plus: float = 0.1,
    positives: Tensor | None = None,
    floor: float | None = None,
    below_floor: BelowFloor = "clamp",
    reduction: Reduction = "mean",
    chunk_size: int | None = None,
    gather: bool = False,
    within_view: bool = False,
) -> Tensor:
    """-log e^{s+} / (e^{s+} + N g) with g from eq. 3.6 of the thesis, mean of both directions.

        g = max((mean_u e^{s_u} - tau+ mean_v e^{s_v}) / (1 - tau+), e^{-1/t})

    over the N negatives u and M positives v of a row: a share tau+ of rows drawn at random are of the anchor's own
    class, and their contribution is estimated from the positives and taken out (Chuang et al., Debiased Contrastive
    Learning, 2020). tau+ = 0 is `info_nce`; `hard_negative_contrastive` with beta = 0 is this loss.

    DCL is also the name of DEcoupled contrastive learning (lightly's `DCLLoss`), which drops the positive from the
    denominator. This one is DEbiased.

    Args:
        tau_plus: tau+ in [0, 1), the probability that a row drawn at random has the anchor's class.
        positives: (n, M, d), M samples v of each row's class for both directions, for example M further views.
            None is M = 1, the row that the anchor belongs with.
        floor: least value of g; None is e^{-1/t}, its theoretical minimum for features of norm 1. Features that are
            not normalised have none: floor = 0.
        below_floor: "clamp" is eq. 3.6. "uncorrected" gives the rows whose g is under its floor the loss without
            the correction, for a signal where the clamp has no gradient, common at small t (appendix A.1).

    The other arguments and Returns: see `info_nce`.

    Raises:
        InvalidInputError: tau_plus outside [0, 1), a negative floor, positives of another shape, and what
            `info_nce` refuses.
    """
    check_correction(tau_plus, floor, below_floor)

    def row_loss(rows: Rows, temperature: float | Tensor, positives: Tensor | None) -> Tensor:
        scores = positive_scores(rows, positives)
        log_all = rows.log_sum_negatives() - math.log(rows.count)
        log_positive = torch.logsumexp(scores, dim=1) - math.log(scores.shape[1])
        log_g, above = log_debiased(log_all, log_positive, tau_plus, log_floor(temperature, floor))
        return corrected_loss(rows, log_g, above, below_floor)

    return contrast_with_positives(
        row_loss,
        image_features,
        text_features,
        positives=positives,
        temperature=temperature,
        reduction=reduction,
        chunk_size=chunk_size,
        gather=gather,
        within_view=within_view,
    )


def contrast_with_positives(
    row_loss: RowLoss,
    image_features: Tensor,
    text_features: Tensor,
    *,
    positives: Tensor | None,
    temperature: float | Tensor,
    **options: Any,
) -> Tensor:
    """`contrast` of a `row_loss` of the rows, the temperature and the positives."""
    if isinstance(image_features, Tensor) and image_features.ndim == 2:
        check_positives(positives, image_features)
    values = (temperature, positives)
    return contrast(row_loss, image_features, text_features, *values, temperature=temperature, **options)


class DebiasedContrastiveLoss(ContrastiveLoss):
    """`debiased_contrastive` with its settings. Options: see `ContrastiveLoss`."""

    def __init__(
        self,
        *,
        tau_plus: float = 0.1,
        floor: float | None = None,
        below_floor: BelowFloor = "clamp",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_correction(tau_plus, floor, below_floor)
        self.tau_plus, self.floor = tau_plus, floor
        self.below_floor: BelowFloor = below_floor

    def forward(self, image_features: Tensor, text_features: Tensor, positives: Tensor | None = None) -> Tensor:
        """Loss of image_features (n, d) and text_features (n, d), with positives (n, M, d)."""
        return debiased_contrastive(image_features, text_features, positives=positives, **self.options())

    def options(self) -> dict[str, Any]:
        """The keywords of `debiased_contrastive`."""
        own = {"tau_plus": self.tau_plus, "floor": self.floor, "below_floor": self.below_floor}
        return super().options() | own
