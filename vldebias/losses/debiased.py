"""Compute DCL and HCL: negatives are corrected for false negatives of random sampling, and weighted
by hardness."""

from __future__ import annotations

import math
from typing import Any, Literal, Self, Unpack

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, warn
from vldebias.losses.catalog import DebiasedSettings, HardNegativeSettings
from vldebias.losses.checks import check_choice, check_interval
from vldebias.losses.contrast import Contrast, ContrastiveLoss, LossOptions
from vldebias.losses.sums import softplus

Positives = Tensor | tuple[Tensor, Tensor]
BelowFloor = Literal["floor", "biased"]
# Temperature under which many rows of a batch lie below the floor of the debiased estimate.
_FLOORED = 0.05


def _check_positives(positives: Positives, image_features: Tensor) -> None:
    """Refuse positives that are not M >= 1 vectors per row, or two of different M."""
    sides = positives if isinstance(positives, tuple) else (positives, positives)
    shapes = [tuple(side.shape) for side in sides]
    n, d = image_features.shape
    fits = (
        len(sides[0].shape) == 3
        and shapes == [(n, sides[0].shape[1], d)] * 2
        and sides[0].shape[1] >= 1
    )
    if not fits or not all(side.is_floating_point() for side in sides):
        raise InvalidInputError(
            f"positives: expected floating point features ({n}, M, {d}) with M >= 1, one for both"
            f" directions or two of the same M, got {', '.join(map(str, shapes))} {sides[0].dtype};"
            " stack the M samples along the second axis"
        )


def _log_debiased(
    log_all: Tensor,
    log_positive: Tensor,
    tau_plus: float,
    log_floor: float | Tensor,
    below_floor: str,
) -> Tensor:
    """Return log g = log max((e^{log_all} - tau+ e^{log_positive}) / (1 - tau+), e^log_floor).

    Where the estimate lies below the floor, g is the floor (eq. 3.6) or, with "biased", the mean
    over all negatives, `log_all` (appendix A.1.1).
    """
    # Nothing is corrected, and log tau+ has no value.
    if tau_plus == 0:
        if below_floor == "biased":
            return log_all
        return torch.where(log_all > log_floor, log_all, log_floor)
    # From a ratio of 1 (log 0) on, the correction takes away more than there is.
    ratio = log_positive + math.log(tau_plus) - log_all
    defined = ratio < 0
    # the replaced value keeps log(0) and its infinite gradient out of the branch that is not taken
    safe = torch.where(defined, ratio, -1.0)
    # log(e^all - e^positive) = all + log(1 - e^ratio), where expm1 loses no digits near 0.
    log_g = log_all + torch.log(-torch.expm1(safe)) - math.log1p(-tau_plus)
    above = defined & (log_g > log_floor)
    if below_floor == "biased":
        return torch.where(above, log_g, log_all)
    return torch.where(above, log_g, log_floor)


def _log_floor(floor: float | None, temperature: float | Tensor, tau_plus: float) -> float | Tensor:
    """Return the log of the least value of g."""
    if floor is None and tau_plus == 0:
        # A mean that is not corrected is never below its minimum.
        return -math.inf
    if floor is None:
        # Rows of norm 1 have s >= -1/t.
        return -1 / temperature
    if floor == 0:
        return -math.inf
    return math.log(floor)


def debiased_contrastive(
    image_features: Tensor,
    text_features: Tensor,
    positives: Positives | None = None,
    *,
    tau_plus: float = 0.1,
    floor: float | None = None,
    below_floor: BelowFloor = "floor",
    **options: Unpack[LossOptions],
) -> Tensor:
    """Return -log e^{s+} / (e^{s+} + N g) with g from eq. 3.6 of the thesis, mean of both
    directions.

        g = max((mean_u e^{s_u} - tau+ mean_v e^{s_v}) / (1 - tau+), e^{-1/t})

    over the N negatives u and M positives v of a row: a share tau+ of randomly sampled rows are of
    the anchor's own class, and their contribution is estimated from the positives and taken out
    (Chuang et al., Debiased Contrastive Learning, 2020). tau+ = 0 without a floor is `info_nce`;
    `hard_negative_contrastive` with beta = 0 is this loss.

    lightly's `DCLLoss` is DEcoupled contrastive learning, which drops the positive below; this is
    DEbiased.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        positives: (n, M, d), M samples v of each row's class for both directions, such as further
            views; or two: what the images are compared with, such as M other captions of each, and
            what the texts are. (The cosines of two images lie elsewhere than those with texts.)
            None is M = 1, the row that the anchor belongs with.
        tau_plus: tau+ in [0, 1), the probability that a randomly sampled row has the anchor's
            class.
        floor: least value of g; None is e^{-1/t}, its minimum for features of norm 1; 0 for others.
        below_floor: what a row has whose estimate lies below the floor. "floor": the floor, as in
            eq. 3.6; its negatives then have no gradient. "biased": the loss without the correction,
            the authors' rule for small temperatures (appendix A.1.1). At CLIP's .01 many rows are
            below.
        options: temperature and the other options of `info_nce`.

    Returns and Raises: see `info_nce`.

    >>> import torch
    >>> images = torch.eye(4)
    >>> debiased_contrastive(images, images, tau_plus=0.1, temperature=0.5)
    tensor(0.1113)
    """
    return hard_negative_contrastive(
        image_features,
        text_features,
        positives,
        tau_plus=tau_plus,
        beta=0.0,
        floor=floor,
        below_floor=below_floor,
        **options,
    )


def hard_negative_contrastive(
    image_features: Tensor,
    text_features: Tensor,
    positives: Positives | None = None,
    *,
    tau_plus: float = 0.1,
    beta: float = 1.0,
    floor: float | None = None,
    below_floor: BelowFloor = "floor",
    **options: Unpack[LossOptions],
) -> Tensor:
    """Return the loss of eq. 4.4 of the thesis: `debiased_contrastive` with negatives weighed by
    e^{beta s}.

    Nothing is sampled: both means of eq. 3.6 become means under importance weights, over the
    negatives u and the positives v,

        sum_u e^{(beta + 1) s_u} / sum_u e^{beta s_u}  sum_v e^{(beta + 1) s_v} / sum_v e^{beta s_v}

    and the gradient goes through the weights (Robinson et al., Contrastive Learning with Hard
    Negative Samples, 2021). beta = 0 is `debiased_contrastive`; beta to infinity is the hardest
    negative.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        positives: see `debiased_contrastive`.
        tau_plus: see `debiased_contrastive`.
        beta: concentration, >= 0. The thesis uses .2 to 2; 6 hurt.
        floor: see `debiased_contrastive`.
        below_floor: see `debiased_contrastive`.
        options: temperature and the other options of `info_nce`.

    Returns and Raises: see `debiased_contrastive`; beta negative or infinite
    is refused too.

    >>> import torch
    >>> images = torch.eye(4)
    >>> hard_negative_contrastive(images, images, tau_plus=0.1, beta=1.0, temperature=0.5)
    tensor(0.1113)
    """
    check_interval("tau_plus", tau_plus, "[0, 1)")
    check_interval("beta", beta, "[0, inf)")
    if floor is not None and not 0 <= floor < math.inf:
        raise InvalidInputError(
            f"floor: expected None (for e^(-1/t)) or a number in [0, inf), got {floor}"
        )
    check_choice("below_floor", below_floor, ("floor", "biased"))
    if positives is not None and isinstance(image_features, Tensor) and image_features.ndim == 2:
        _check_positives(positives, image_features)
    batch = Contrast(image_features, text_features, **options)
    # (2, n, M) similarities of the anchors to their positives: M = 1 is the pair's own
    if positives is None:
        scores = batch.positive.expand(2, -1)[..., None]
    else:
        scores = batch.samples(positives)
    if beta:
        # Eq. 4.4: the mean of e^s under weights e^{beta s} is a ratio of two sums.
        log_weighted, log_weights = batch.sums(1 + beta, beta)
        log_all = log_weighted - log_weights
    else:
        (log_sum,) = batch.sums(1.0)
        log_all = log_sum - math.log(batch.count)
    log_positive = torch.logsumexp((1 + beta) * scores, 2)
    if beta:
        log_positive = log_positive - torch.logsumexp(beta * scores, 2)
    else:
        log_positive = log_positive - math.log(scores.shape[2])
    log_floor = _log_floor(floor, options["temperature"], tau_plus)
    log_g = _log_debiased(log_all, log_positive, tau_plus, log_floor, below_floor)
    # -log e^{s+} / (e^{s+} + K g) = log(1 + K g e^{-s+})
    return batch.reduce(softplus(log_g + math.log(batch.count) - batch.positive))


class DebiasedContrastiveLoss(ContrastiveLoss[DebiasedSettings]):
    """Apply `debiased_contrastive` with its settings; `forward` also takes positives.

    >>> import torch
    >>> loss = DebiasedContrastiveLoss(tau_plus=0.1, temperature=0.5)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(0.1113)
    """

    function = staticmethod(debiased_contrastive)
    tau_plus: float
    floor: float | None
    below_floor: BelowFloor

    @classmethod
    def from_settings(cls, settings: DebiasedSettings, **options: Any) -> Self:
        """Build the loss, and warn if many estimates would lie below the floor."""
        _warn_of_floor("debiased", settings, options["temperature"])
        return super().from_settings(settings, **options)


class HardNegativeContrastiveLoss(ContrastiveLoss[HardNegativeSettings]):
    """Apply `hard_negative_contrastive` with its settings; `forward` also takes positives, and
    `beta` may change.

    >>> import torch
    >>> loss = HardNegativeContrastiveLoss(beta=1.0, temperature=0.5)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(0.1113)
    """

    function = staticmethod(hard_negative_contrastive)
    tau_plus: float
    beta: float
    floor: float | None
    below_floor: BelowFloor

    @classmethod
    def from_settings(cls, settings: HardNegativeSettings, **options: Any) -> Self:
        """Build the loss, and warn if many estimates would lie below the floor."""
        _warn_of_floor("hard_negative", settings, options["temperature"])
        return super().from_settings(settings, **options)

    def schedule(self, settings: HardNegativeSettings, step: int, steps: int) -> None:
        """Lower beta by its share once in every `steps / changes` steps, if the settings ask for
        changes (appendix A.2.2).

        Args:
            settings: the settings that the loss declares.
            step: the update that comes next, from 0.
            steps: number of updates of the whole training.
        """
        if settings.beta_changes is not None:
            changes = step * settings.beta_changes // steps
            self.beta = settings.beta * (1 - changes / settings.beta_changes)


def _warn_of_floor(name: str, settings: DebiasedSettings, temperature: float) -> None:
    """Warn that at a low temperature the negatives of many rows have no gradient."""
    has_floor = settings.below_floor == "floor" and settings.floor != 0
    # Without tau_plus nothing is estimated.
    if has_floor and settings.tau_plus > 0 and temperature < _FLOORED:
        warn(
            f"{name} at temperature {temperature:.3g}: the debiased estimate of many rows lies"
            " below its floor, and their negatives have no gradient; set below_floor=biased (the"
            " authors' rule) or a temperature of 0.1"
        )
