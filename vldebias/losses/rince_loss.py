"""Compute RINCE, a variant of InfoNCE that is robust to wrong pairs."""

from __future__ import annotations

import math
from functools import cache
from typing import Self, Unpack

import torch
from torch import Tensor

from vldebias.errors import warn
from vldebias.losses.catalog import RINCESettings
from vldebias.losses.checks import check_interval
from vldebias.losses.contrast import BatchOptions, Contrast, ContrastiveLoss, ModuleOptions

# Exponents above these limits are reduced. Adam squares gradients, and (e^30 / t)^2 does not
# overflow in float32. The gradient of float16 features is itself float16, so e^x / t must stay
# below the largest float16 number, with a factor of 4 to spare for gradients that add up.
_LARGEST_EXPONENT = {torch.float32: 30.0, torch.float64: 300.0}
_LARGEST_HALF = torch.finfo(torch.float16).max / 4
# Below e^-x, gradients underflow in half precision, and their squares in other dtypes.
_SMALLEST_EXPONENT = {
    torch.float16: 16.0,
    torch.bfloat16: 43.0,
    torch.float32: 43.0,
    torch.float64: 350.0,
}
# Positives and negatives balance at lam K = 1. Above that, the negatives dominate.
_LARGEST_LAM_TIMES_NEGATIVES = 3.0
_STEEP = 20  # q / t above which a few pairs outweigh all others


@cache
def _warn_of_large_lam(lam: float, negatives: int) -> None:
    """Warn that lam is too large for the number of negatives.

    The function is cached, so that a training run only warns once.
    """
    warn(
        f"rince: lam {lam:g} times {negatives:,} negatives is {lam * negatives:.3g}, above"
        f" {_LARGEST_LAM_TIMES_NEGATIVES:g}. The push of negatives then outweighs the pull of"
        " pairs, and with q of about 0.4 or more a pretrained model forgets what it has learned."
        f" Leave lam unset: the default is 1 / (negatives + 1) = {1 / (negatives + 1):.2g}"
    )


def _warn_of_lost_gradients(
    dtype: torch.dtype, q: float, temperature: Tensor, limit: Tensor
) -> None:
    """Warn if gradients of features with a dtype underflow.

    Only a temperature on the CPU is checked, because reading values from a GPU would block. `limit`
    () is the largest exponent whose gradient does not overflow in the dtype.
    """
    if temperature.device.type == "cpu":
        # A pair with cosine c has the exponent x - (1 - c) q/t. Its gradient underflows if the
        # exponent is below -y, that is, if c < 1 - (x + y) t/q.
        steepness = q / float(temperature)
        span = float(limit) + _SMALLEST_EXPONENT[dtype]
        if steepness > span:
            warn(
                f"rince: q / temperature is {steepness:.3g}, so the gradient of pairs with a cosine"
                f" below {1 - span / steepness:.2f} is 0 in {str(dtype).removeprefix('torch.')};"
                " raise temperature (0.1), or lower q"
            )


def rince(
    image_features: Tensor,
    text_features: Tensor,
    *,
    temperature: float | Tensor,
    q: float,
    lam: float | None = None,
    **options: Unpack[BatchOptions],
) -> Tensor:
    """Return the robust InfoNCE loss (RINCE), averaged over both directions.

        -e^{q s+} / q + (lam (e^{s+} + sum_i e^{s_i}))^q / q

    Source: section 5.2 of the thesis (Chuang et al., 2022). q interpolates between two losses. As
    q -> 0, the loss approaches `info_nce` + log lam (Lemma 5.2), which emphasises hard pairs. With
    q = 1, it is symmetric, -(1 - lam) e^{s+} + lam sum_i e^{s_i}, and robust to wrong pairs, such
    as wrong captions. The thesis uses q in [0.1, 0.5], and 0.6 for MoCo v3, with lam =
    0.01 for images and 0.025 for graphs.

    Which values of lam are safe depends on the number of negatives K. If all similarities are
    equal, positives and negatives balance at lam = 1 / (K + 1), the default. Values several times
    larger push all pairs apart: with q = 0.4, a pretrained model is ruined if lam K exceeds 5 to 10
    (`batch_sizes` in eval/experiments). The thesis's 0.01 therefore suits batches of up to about
    300 pairs, and a warning is issued if lam exceeds 3 / K.

    The loss is often negative, because its minimum is near -e^{q/t} (1 - lam^q) / q, not 0.

    For features of norm 1, s <= 1/t, so exponents are at most q/t (plus the logarithm of n). If q/t
    exceeds a limit x, as with q = 0.5 at CLIP's t = 0.01, the loss and its gradient are multiplied
    by the constant e^{x - q/t}, which changes neither the minimisers nor the direction of the
    gradient. The limit is 300 for float64 features, log(16376 t) for float16 features, whose
    gradients are float16, and 30 otherwise. If q/t exceeds x + 43 (x + 16 for float16), the
    gradients of some pairs underflow and a warning is issued.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        q: exponent in (0, 1].
        lam: weight of the denominator, in (0, 1]. Default: 1 / (K + 1), where K is the number
            of negatives in this call, including the negatives of all processes with `gather` and of
            both views with `within_view`.
        temperature: t > 0, a number or a tensor ().
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    Returns:
        The loss (), or one loss per pair (n,) with reduction "none".

    Raises:
        InvalidInputError: If the features, an argument or an option is invalid.

    >>> import torch
    >>> images = torch.eye(4)
    >>> rince(images, images, q=0.5, temperature=0.2)
    tensor(-12.0600)
    >>> rince(images, images.roll(1, 0), q=0.5, temperature=0.2)  # every caption is wrong
    tensor(10.3050)
    """
    check_interval("q", q, "(0, 1]")
    if lam is not None:
        check_interval("lam", lam, "(0, 1]")
    batch = Contrast(image_features, text_features, temperature=temperature, **options)
    if lam is None:
        lam = 1 / (batch.count + 1)
    elif lam * batch.count > _LARGEST_LAM_TIMES_NEGATIVES:
        _warn_of_large_lam(lam, batch.count)
    (log_sum,) = batch.sums(1.0)
    positive = batch.positive
    # log(lam (e^{s+} + sum_i e^{s_i}))
    total = torch.logaddexp(positive, log_sum) + math.log(lam)
    # The loss is (e^{q total} - e^{q positive}) / q. Factor out the larger exponential and use
    # expm1 for the gap, which is at most 0, to keep full precision.
    is_total_larger = total >= positive
    larger = torch.where(is_total_larger, total, positive)
    gap = torch.where(is_total_larger, positive - total, total - positive)
    sign = torch.where(is_total_larger, -1.0, 1.0)
    # For features of norm 1, the largest exponent is q/t. If it exceeds the dtype's limit for
    # gradients, reduce all exponents by the excess, which scales the loss by a constant. The excess
    # is detached, so that a learned t cannot lower the loss by rescaling it.
    if isinstance(temperature, Tensor):
        t = temperature.detach()
    else:
        t = torch.tensor(temperature, dtype=torch.float64)
    if image_features.dtype == torch.float16:
        limit = (_LARGEST_HALF * t).log()
    else:
        dtype = torch.promote_types(image_features.dtype, torch.float32)
        limit = torch.full_like(t, _LARGEST_EXPONENT[dtype])
    _warn_of_lost_gradients(image_features.dtype, q, t, limit)
    shift = (q / t - limit).clamp(min=0)
    scale = torch.exp(q * larger - shift.to(total.dtype))
    return batch.reduce(sign * scale * torch.expm1(q * gap) / q)


class RINCE(ContrastiveLoss[RINCESettings]):
    """Apply `rince` with stored settings and the options of `ContrastiveLoss`.

    >>> import torch
    >>> loss = RINCE(q=0.5, temperature=0.2)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(-12.0600)
    """

    function = staticmethod(rince)
    q: float

    @classmethod
    def from_settings(cls, settings: RINCESettings, **options: Unpack[ModuleOptions]) -> Self:
        """Build the loss, and warn if a few pairs would outweigh all others."""
        # At t = 0.01 and q = 0.4, reducing a pair's cosine by 0.1 divides its weight by 55.
        steepness = settings.q / options["temperature"]
        if steepness > _STEEP:
            warn(
                f"rince at temperature {options['temperature']:.3g} and q {settings.q} gives close"
                f" pairs up to e^{steepness:.0f} times the weight of others; raise temperature to"
                " 0.1"
            )
        return super().from_settings(settings, **options)

    def schedule(self, settings: RINCESettings, step: int, steps: int) -> None:
        """Warm up q if `q_start` is set.

        Args:
            settings: settings as declared in `Loss.settings`.
            step: index of the next update, from 0.
            steps: total number of updates.
        """
        if settings.q_start is not None:
            self.q = q_warmup(step, steps, start=settings.q_start, end=settings.q)


def q_warmup(step: int, total_steps: int, *, start: float = 0.01, end: float = 0.4) -> float:
    """Return RINCE's q at a step of a linear warm-up (section 5.3.3 of the thesis).

    At first, a small q lets the model learn from all pairs. Later, a larger q ignores pairs that
    appear to be wrong.

    Args:
        step: index of the step, in 0 .. total_steps - 1.
        total_steps: total number of steps.
        start: q at the first step.
        end: q at the last step.

    >>> [round(q_warmup(step, 4), 2) for step in range(4)]
    [0.01, 0.14, 0.27, 0.4]
    """
    check_interval("step", step, f"[0, {total_steps})")
    return start + (end - start) * step / max(total_steps - 1, 1)
