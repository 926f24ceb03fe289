"""DCL and HCL: negatives corrected for the false ones that come with drawing at random, and weighed by hardness."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses.checks import check_choice, check_interval, check_step
from vldebias.losses.contrast import Contrast, ContrastiveLoss, LossOptions
from vldebias.losses.sums import LogSum, LogWeightedSoftplus, Reduction, softplus

BelowFloor = Literal["clamp", "uncorrected"]
Form = Literal["nce", "jsd"]
Positives = Tensor | tuple[Tensor, Tensor]


def _check_correction(tau_plus: float, floor: float | None, below_floor: str) -> None:
    """Refuse settings under which eq. 3.6 has no meaning."""
    check_interval("tau_plus", tau_plus, "[0, 1)")
    check_choice("below_floor", below_floor, ("clamp", "uncorrected"))
    if floor is not None and not 0 <= floor < math.inf:
        raise InvalidInputError(f"floor: expected None (for e^(-1/t)) or a number in [0, inf), got {floor}")


def _check_positives(positives: Positives, image_features: Tensor) -> None:
    """Refuse positives that are not M >= 1 vectors per row, or two of different M."""
    if isinstance(positives, tuple):
        for side in positives:
            _check_positives(side, image_features)
        if len(positives) != 2 or positives[0].shape != positives[1].shape:
            shapes = ", ".join(str(tuple(side.shape)) for side in positives)
            raise InvalidInputError(f"positives: expected two of the same M, or one for both directions, got {shapes}")
        return
    n, d = image_features.shape
    if positives.ndim != 3 or positives.shape[1] < 1 or (positives.shape[0], positives.shape[2]) != (n, d):
        raise InvalidInputError(
            f"positives: expected shape ({n}, M, {d}) with M >= 1, got {tuple(positives.shape)}; "
            "stack the M samples of each row along the second axis"
        )
    if not positives.is_floating_point():
        raise InvalidInputError(f"positives: expected floating point features, got {positives.dtype}; encode first")


def _check_hardness(tau_plus: float, beta: float, form: str, floor: float | None, below_floor: str) -> None:
    _check_correction(tau_plus, floor, below_floor)
    check_interval("beta", beta, "[0, inf)")
    check_choice("form", form, ("nce", "jsd"))


def _log_debiased(
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


def debiased_contrastive(
    image_features: Tensor,
    text_features: Tensor,
    positives: Positives | None = None,
    *,
    tau_plus: float = 0.1,
    floor: float | None = None,
    below_floor: BelowFloor = "clamp",
    **options: Unpack[LossOptions],
) -> Tensor:
    """-log e^{s+} / (e^{s+} + N g) with g from eq. 3.6 of the thesis, mean of both directions.

        g = max((mean_u e^{s_u} - tau+ mean_v e^{s_v}) / (1 - tau+), e^{-1/t})

    over the N negatives u and M positives v of a row: a share tau+ of rows drawn at random are of the anchor's own
    class, and their contribution is estimated from the positives and taken out (Chuang et al., Debiased Contrastive
    Learning, 2020). tau+ = 0 is `info_nce`; `hard_negative_contrastive` with beta = 0 is this loss.

    lightly's `DCLLoss` is DEcoupled contrastive learning, which drops the positive below; this is DEbiased.

    Args:
        tau_plus: tau+ in [0, 1), the probability that a row drawn at random has the anchor's class.
        positives: (n, M, d), M samples v of each row's class for both directions, such as further views; or two: what
            the images are compared with, such as M other captions of each, and what the texts are. (The cosines of two
            images lie elsewhere than those with texts.) None is M = 1, the row that the anchor belongs with.
        floor: least value of g; None is e^{-1/t}, its minimum for features of norm 1; 0 for others.
        below_floor: "clamp" is eq. 3.6. "uncorrected" gives rows whose g is under its floor the loss without the
            correction, for a signal where the clamp has no gradient, common at small t (appendix A.1).

    The other arguments and Returns: see `info_nce`.

    Raises:
        InvalidInputError: tau_plus outside [0, 1), a negative floor, positives of another shape.
    """
    own: Any = {"tau_plus": tau_plus, "beta": 0.0, "floor": floor, "below_floor": below_floor}
    return hard_negative_contrastive(image_features, text_features, positives, **own, **options)


def hard_negative_contrastive(
    image_features: Tensor,
    text_features: Tensor,
    positives: Positives | None = None,
    *,
    tau_plus: float = 0.1,
    beta: float = 1.0,
    form: Form = "nce",
    floor: float | None = None,
    below_floor: BelowFloor = "clamp",
    **options: Unpack[LossOptions],
) -> Tensor:
    """The loss of eq. 4.4 of the thesis: `debiased_contrastive` with negatives drawn in proportion to e^{beta s}.

    Nothing is drawn: both means of eq. 3.6 become means under importance weights, over the negatives u and the
    positives v,

        sum_u e^{(beta + 1) s_u} / sum_u e^{beta s_u}        sum_v e^{(beta + 1) s_v} / sum_v e^{beta s_v}

    and the gradient goes through the weights (Robinson et al., Contrastive Learning with Hard Negative Samples,
    2021). beta = 0 is `debiased_contrastive`; beta to infinity is the hardest negative. See `beta_annealing`.

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
    _check_hardness(tau_plus, beta, form, floor, below_floor)
    if positives is not None and isinstance(image_features, Tensor) and image_features.ndim == 2:
        _check_positives(positives, image_features)
    batch = Contrast(image_features, text_features, **options)
    # (2, n, M) similarities of the anchors to their positives: M = 1 is the pair's own
    scores = batch.positive.expand(2, -1)[..., None] if positives is None else batch.samples(positives)
    hard: Reduction = LogSum(1 + beta) if form == "nce" else LogWeightedSoftplus(beta)
    terms = [hard, *([LogSum(beta)] if beta else []), *([LogSum()] if form == "nce" and below_floor != "clamp" else [])]
    terms = list(dict.fromkeys(terms))
    sums = dict(zip(terms, batch.sums(*terms), strict=True))

    def log_mean(total: Callable[[Reduction], Tensor], count: int) -> Tensor:
        return total(hard) - (total(LogSum(beta)) if beta else math.log(count))

    log_all = log_mean(sums.__getitem__, batch.count)
    log_positive = log_mean(lambda term: term.total(term.value(scores), 2), scores.shape[2])
    # log of the least value of g: e^{-1/t} for features of norm 1, or what the caller sets
    least: float | Tensor
    least = -1 / options["temperature"] if floor is None else math.log(floor) if floor > 0 else -math.inf
    if form == "nce":
        log_g, above = _log_debiased(log_all, log_positive, tau_plus, least)
        log_denominator = log_g + math.log(batch.count)
        if below_floor == "uncorrected":
            log_denominator = torch.where(above, log_denominator, sums[LogSum()])
        return batch.reduce(softplus(log_denominator - batch.positive))
    repulsion = log_all.exp()
    corrected = (repulsion - tau_plus * log_positive.exp()) / (1 - tau_plus)
    lowest = softplus(torch.as_tensor(least, dtype=corrected.dtype, device=corrected.device))
    instead = repulsion if below_floor == "uncorrected" else lowest
    return batch.reduce(softplus(-batch.positive) + torch.where(corrected > lowest, corrected, instead))


class DebiasedContrastiveLoss(ContrastiveLoss, function=debiased_contrastive, check=_check_correction):
    """`debiased_contrastive` with its settings; `forward` also takes positives."""

    tau_plus: float
    floor: float | None
    below_floor: BelowFloor


class HardNegativeContrastiveLoss(ContrastiveLoss, function=hard_negative_contrastive, check=_check_hardness):
    """`hard_negative_contrastive` with its settings; `forward` also takes positives, and `beta` may be set anew."""

    tau_plus: float
    beta: float
    form: Form
    floor: float | None
    below_floor: BelowFloor


def beta_annealing(epoch: int, total_epochs: int, *, beta: float, changes: int) -> float:
    """beta of HCL, lowered by beta / changes every total_epochs / changes epochs (appendix A.2.2 of the thesis).

    Hard negatives help early; later their false ones harm, since the correction is approximate.

    Raises:
        InvalidInputError: epoch outside 0 .. total_epochs - 1, beta < 0, changes < 1.

    >>> [beta_annealing(epoch, 6, beta=3.0, changes=3) for epoch in range(6)]
    [3.0, 3.0, 2.0, 2.0, 1.0, 1.0]
    """
    check_step("epoch", epoch, "total_epochs", total_epochs)
    check_interval("beta", beta, "[0, inf)")
    check_interval("changes", changes, "[1, inf)")
    return beta * (changes - epoch * changes // total_epochs) / changes
