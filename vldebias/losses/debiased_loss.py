"""Compute DCL, which corrects for false negatives, and HCL, which also favours hard negatives."""

from __future__ import annotations

import math
from typing import Literal, Self, Unpack

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, warn
from vldebias.losses.catalog import DebiasedSettings, HardNegativeSettings
from vldebias.losses.checks import check_interval, described
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss, ModuleOptions
from vldebias.losses.sums import softplus
from vldebias.utils.registry import check_choice

Positives = Tensor | tuple[Tensor, Tensor]
BelowFloor = Literal["floor", "biased"]
# Below this temperature, the debiased estimates for many rows fall below the floor.
_FLOORED = 0.05


def _check_positives(positives: Positives, image_features: Tensor) -> None:
    """Raise an error unless there are M >= 1 positives per row, with the same M for both sides."""
    sides = positives if isinstance(positives, tuple) else (positives, positives)
    n, d = image_features.shape
    are_floats = all(isinstance(side, Tensor) and side.is_floating_point() for side in sides)
    shapes = {tuple(side.shape) for side in sides} if are_floats else set()
    fits = all(len(shape) == 3 and shape == (n, max(shape[1], 1), d) for shape in shapes)
    if len(shapes) != 1 or not fits:
        raise InvalidInputError(
            f"positives: expected a floating-point tensor of shape ({n}, M, {d}), or a tuple of two"
            " (one per direction), with M >= 1 samples along the second axis; got"
            f" {' and '.join(map(described, sides))}"
        )


def _log_debiased(
    log_all: Tensor,
    log_positive: Tensor,
    tau_plus: float,
    log_floor: float | Tensor,
    below_floor: str,
) -> Tensor:
    """Return log g = log max((e^{log_all} - tau+ e^{log_positive}) / (1 - tau+), e^log_floor).

    If the estimate is below the floor, g is the floor (eq. 3.6) or, with "biased", the mean over
    all negatives, `log_all` (appendix A.1.1).
    """
    # With tau+ = 0, there is nothing to correct, and log tau+ is undefined.
    below = log_all if below_floor == "biased" else log_floor
    if tau_plus == 0:
        return torch.where(log_all > log_floor, log_all, below)
    # The estimate is only positive if the correction is smaller than the mean, so that the log
    # ratio is negative.
    ratio = log_positive + math.log(tau_plus) - log_all
    defined = ratio < 0
    # The unused branch must not compute log(0), whose gradient is infinite.
    safe = torch.where(defined, ratio, -1.0)
    # log(e^all - e^positive) = all + log(1 - e^ratio); expm1 stays accurate near 0.
    log_g = log_all + torch.log(-torch.expm1(safe)) - math.log1p(-tau_plus)
    above = defined & (log_g > log_floor)
    return torch.where(above, log_g, below)


class _AnyNorms(Contrast):
    """Accept features of any norm, for which the user has set the floor."""

    expects_unit_rows = False


def debiased(
    image_features: Tensor,
    text_features: Tensor,
    positives: Positives | None = None,
    *,
    temperature: float | Tensor,
    tau_plus: float = 0.1,
    floor: float | None = None,
    below_floor: BelowFloor = "floor",
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return the debiased contrastive loss (DCL), averaged over both directions.

    For N negatives u and M positives v per row (eq. 3.6 of the thesis):

        -log e^{s+} / (e^{s+} + N g)
        g = max((mean_u e^{s_u} - tau+ mean_v e^{s_v}) / (1 - tau+), e^{-1/t})

    A share tau+ of the negatives is assumed to have the anchor's class. Their contribution is
    estimated from the positives and subtracted (Chuang et al., Debiased Contrastive Learning,
    2020). With tau+ = 0 and no floor, the loss reduces to `info_nce`.
    `hard_negative` reduces to this loss with beta = 0.

    This is not lightly's `DCLLoss`, which implements DEcoupled contrastive learning and drops the
    positive from the denominator.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        positives: (n, M, d), M samples v from each row's class, such as further views, or a tuple
            of two such tensors: samples to compare with the images, such as M other captions per
            image, and samples to compare with the texts. Use a tuple for images and captions,
            because image-image cosines and image-text cosines are on different scales. Default: the
            other half of the pair, M = 1.
        tau_plus: tau+ in [0, 1), the probability that a randomly sampled row has the anchor's
            class.
        floor: lower bound for g. Default: e^{-1/t}, the minimum for features of norm 1. Use 0 for
            features with other norms.
        below_floor: how to treat rows whose g is below the floor, which is common at CLIP's
            temperature of 0.01. "floor" uses the floor, as in eq. 3.6, so that their negatives get
            no gradient. "biased" leaves these rows uncorrected, which is the authors' rule for low
            temperatures (appendix A.1.1).
        temperature: t > 0, a number or a tensor ().
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    Returns:
        The loss (), or one loss per pair (n,) with reduction "none".

    Raises:
        InvalidInputError: If the features, an argument or an option is invalid.

    >>> import torch
    >>> images = torch.eye(4)
    >>> debiased(images, images, tau_plus=0.1, temperature=0.5)
    tensor(0.1113)
    """
    return hard_negative(
        image_features,
        text_features,
        positives,
        tau_plus=tau_plus,
        beta=0.0,
        floor=floor,
        below_floor=below_floor,
        temperature=temperature,
        **options,
    )


def hard_negative(
    image_features: Tensor,
    text_features: Tensor,
    positives: Positives | None = None,
    *,
    temperature: float | Tensor,
    tau_plus: float = 0.1,
    beta: float = 1.0,
    floor: float | None = None,
    below_floor: BelowFloor = "floor",
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return the hard negative loss (HCL): `debiased` with importance weights.

    Nothing is sampled. The two means of eq. 3.6, over negatives u and positives v, become weighted
    means with weights e^{beta s} (eq. 4.4 of the thesis):

        sum_u e^{(beta + 1) s_u} / sum_u e^{beta s_u}
        sum_v e^{(beta + 1) s_v} / sum_v e^{beta s_v}

    The gradient includes the weights (Robinson et al., Contrastive Learning with Hard Negative
    Samples, 2021). With beta = 0, this is `debiased`; as beta goes to infinity, only
    the hardest negative counts.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        positives: (n, M, d), M further samples from each row's class, or a tuple of two such
            tensors, as for `debiased`.
        tau_plus: the probability in [0, 1) that a random row has the anchor's class.
        beta: concentration on hard negatives, >= 0. The thesis uses 0.2 to 2. A value of 6 is too
            large.
        floor: lower bound for g, the debiased mean over the negatives. Default: e^{-1/t}.
        below_floor: how to treat rows whose g is below the floor: "floor" uses the floor, "biased"
            the uncorrected mean.
        temperature: t > 0, a number or a tensor ().
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    Returns:
        The loss (), or one loss per pair (n,) with reduction "none".

    Raises:
        InvalidInputError: If the features, an argument or an option is invalid.

    >>> import torch
    >>> images = torch.eye(4)
    >>> hard_negative(images, images, tau_plus=0.1, beta=1.0, temperature=0.5)
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
    contrast = Contrast if floor is None else _AnyNorms
    batch = contrast(image_features, text_features, temperature=temperature, **options)
    # Similarities (2, n, M) between the anchors and their positives.
    if positives is None:
        scores = batch.positive.expand(2, -1)[..., None]
    else:
        scores = batch.samples(positives)
    if beta:
        # The mean of e^s with weights e^{beta s} in eq. 4.4 is a ratio of two sums.
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
    log_floor: float | Tensor = -math.inf
    if floor:
        log_floor = math.log(floor)
    elif floor is None and tau_plus > 0:
        # For rows of norm 1, s >= -1/t. Without a correction, g is a mean of e^s and not below it.
        log_floor = -1 / temperature
    log_g = _log_debiased(log_all, log_positive, tau_plus, log_floor, below_floor)
    # -log e^{s+} / (e^{s+} + K g) = log(1 + K g e^{-s+})
    return batch.reduce(softplus(log_g + math.log(batch.count) - batch.positive))


class Debiased(ContrastiveLoss[DebiasedSettings]):
    """Apply `debiased` with stored settings; `forward` also takes positives.

    >>> import torch
    >>> loss = Debiased(tau_plus=0.1, temperature=0.5)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(0.1113)
    """

    function = staticmethod(debiased)

    @classmethod
    def from_settings(cls, settings: DebiasedSettings, **options: Unpack[ModuleOptions]) -> Self:
        """Build the loss, warning if many estimates would be below the floor."""
        temperature = options["temperature"]
        has_floor = settings.below_floor == "floor" and settings.floor != 0
        # With tau_plus = 0, nothing is corrected.
        if has_floor and settings.tau_plus > 0 and temperature < _FLOORED:
            warn(
                f"{cls.function.__name__} at temperature {temperature:.3g}: the debiased estimate"
                " of many rows is below its floor, so their negatives get no gradient; set"
                " below_floor=biased (the authors' rule) or use a temperature of 0.1"
            )
        return super().from_settings(settings, **options)


class HardNegative(Debiased):
    """Apply `hard_negative` with stored settings; `forward` also takes positives.

    >>> import torch
    >>> loss = HardNegative(beta=1.0, temperature=0.5)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(0.1113)
    """

    function = staticmethod(hard_negative)
    beta: float

    def schedule(  # type: ignore[override]  # its settings extend those of Debiased
        self, settings: HardNegativeSettings, step: int, steps: int
    ) -> None:
        """Lower beta in `settings.beta_changes` equal steps if it is set (appendix A.2.2).

        Args:
            settings: settings as declared in `Loss.settings`.
            step: index of the next update, from 0.
            steps: total number of updates.
        """
        if settings.beta_changes is not None:
            changes = step * settings.beta_changes // steps
            self.beta = settings.beta * (1 - changes / settings.beta_changes)
