"""HCL, the hard negative contrastive loss: negatives near the anchor weigh more, and false ones are taken out."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from vldebias.losses.blocks import Rows
from vldebias.losses.checks import check_choice, check_interval
from vldebias.losses.contrast import Reduction, softplus
from vldebias.losses.debiased import (
    BelowFloor,
    check_correction,
    contrast_with_positives,
    corrected_loss,
    log_debiased,
    log_floor,
    positive_scores,
)
from vldebias.losses.module import ContrastiveLoss

__all__ = ["Form", "HardNegativeContrastiveLoss", "hard_negative_contrastive"]

Form = Literal["nce", "jsd"]


def _log_weighted_mean(scores: Tensor, beta: float, count: int) -> Tensor:
    """log of the mean of e^s under weights proportional to e^{beta s}; -inf marks columns that do not count."""
    log_sum = torch.logsumexp(scores if beta == 0 else (beta + 1) * scores, dim=1)
    return log_sum - (math.log(count) if beta == 0 else torch.logsumexp(beta * scores, dim=1))


def _weighted_softplus(scores: Tensor, beta: float, count: int) -> Tensor:
    """Mean of log(1 + e^s) under weights proportional to e^{beta s}."""
    if beta == 0:
        return softplus(scores).sum(1) / count
    return (torch.softmax(beta * scores, dim=1) * softplus(scores)).sum(1)


def _nce(
    rows: Rows, scores: Tensor, tau_plus: float, beta: float, floor: float | Tensor, below_floor: BelowFloor
) -> Tensor:
    """Eq. 4.4 with the estimates of section 4.1.2."""
    log_all = _log_weighted_mean(rows.negatives, beta, rows.count)
    log_positive = _log_weighted_mean(scores, beta, scores.shape[1])
    log_g, above = log_debiased(log_all, log_positive, tau_plus, floor)
    return corrected_loss(rows, log_g, above, below_floor)


def _jsd(
    rows: Rows, scores: Tensor, tau_plus: float, beta: float, floor: float | Tensor, below_floor: BelowFloor
) -> Tensor:
    """Appendix A.2.1: log(1 + e^{-s+}) + E[log(1 + e^s)] under the hard negatives, corrected like g."""
    repulsion = _weighted_softplus(rows.negatives, beta, rows.count)
    corrected = (repulsion - tau_plus * _weighted_softplus(scores, beta, scores.shape[1])) / (1 - tau_plus)
    least = softplus(torch.as_tensor(floor, dtype=corrected.dtype, device=corrected.device))
    instead = repulsion if below_floor == "uncorrected" else least
    return softplus(-rows.positive) + torch.where(corrected > least, corrected, instead)


def hard_negative_contrastive(
    image_features: Tensor,
    text_features: Tensor,
    *,
    temperature: float | Tensor,
    tau_plus: float = 0.1,
    beta: float = 1.0,
    form: Form = "nce",
    positives: Tensor | None = None,
    floor: float | None = None,
    below_floor: BelowFloor = "clamp",
    reduction: Reduction = "mean",
    chunk_size: int | None = None,
    gather: bool = False,
    within_view: bool = False,
) -> Tensor:
    """The loss of eq. 4.4 of the thesis: `debiased_contrastive` with negatives drawn in proportion to e^{beta s}.

    Nothing is drawn: both means of eq. 3.6 become means under importance weights, over the negatives u and the
    positives v,

        sum_u e^{(beta + 1) s_u} / sum_u e^{beta s_u}        sum_v e^{(beta + 1) s_v} / sum_v e^{beta s_v}

    and the gradient goes through the weights (Robinson et al., Contrastive Learning with Hard Negative Samples,
    2021). beta = 0 is `debiased_contrastive`, also with tau+ = 0 `info_nce`; beta to infinity is the hardest negative.
    `vldebias.losses.beta_annealing` lowers beta during training.

    form = "jsd" is the Jensen-Shannon objective (appendix A.2.1), for critics that are classifiers:

        log(1 + e^{-s+}) + max((E_u log(1 + e^{s_u}) - tau+ E_v log(1 + e^{s_v})) / (1 - tau+), log(1 + e^{-1/t}))

    with the same weights; the appendix writes tau+ = 0, and the correction is eq. 4.2 applied to this integrand.

    Args:
        beta: concentration, >= 0. The thesis uses .2 to 2; 6 hurt.
        form: "nce" or "jsd".

    The other arguments, Returns and Raises: see `debiased_contrastive`. In the "jsd" form `floor` bounds e^s.

    Raises:
        InvalidInputError: beta negative or infinite, or an unknown form.
    """
    check_correction(tau_plus, floor, below_floor)
    check_interval("beta", beta, "[0, inf)")
    check_choice("form", form, ("nce", "jsd"))
    row_form = _nce if form == "nce" else _jsd

    def row_loss(rows: Rows, temperature: float | Tensor, positives: Tensor | None) -> Tensor:
        least = log_floor(temperature, floor)
        return row_form(rows, positive_scores(rows, positives), tau_plus, beta, least, below_floor)

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


class HardNegativeContrastiveLoss(ContrastiveLoss):
    """`hard_negative_contrastive` with its settings; `beta` may be set anew every epoch, for an annealing."""

    def __init__(
        self,
        *,
        tau_plus: float = 0.1,
        beta: float = 1.0,
        form: Form = "nce",
        floor: float | None = None,
        below_floor: BelowFloor = "clamp",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_correction(tau_plus, floor, below_floor)
        check_interval("beta", beta, "[0, inf)")
        check_choice("form", form, ("nce", "jsd"))
        self.tau_plus, self.beta, self.floor = tau_plus, beta, floor
        self.form: Form = form
        self.below_floor: BelowFloor = below_floor

    def forward(self, image_features: Tensor, text_features: Tensor, positives: Tensor | None = None) -> Tensor:
        """Loss of image_features (n, d) and text_features (n, d), with positives (n, M, d)."""
        return hard_negative_contrastive(image_features, text_features, positives=positives, **self.options())

    def options(self) -> dict[str, Any]:
        """The keywords of `hard_negative_contrastive`."""
        names = ("tau_plus", "beta", "form", "floor", "below_floor")
        return super().options() | {name: getattr(self, name) for name in names}
