"""Compute RINCE, an InfoNCE that is robust to wrong pairs: a symmetric exponential loss raised to
the power q."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Self, Unpack

import torch
from torch import Tensor

from vldebias.errors import warn
from vldebias.losses.catalog import RINCESettings
from vldebias.losses.checks import check_interval
from vldebias.losses.contrast import Contrast, ContrastiveLoss, LossOptions

# Exponents up to here are left as they are. e^30 / t still has a square that float32 can hold,
# which Adam computes. The gradient of float16 features is float16: there e^x / t itself has to be
# below its largest number, with a factor of 4 for rows that several others pull on.
_LARGEST_EXPONENT = {torch.float32: 30.0, torch.float64: 300.0}
_LARGEST_HALF = torch.finfo(torch.float16).max / 4
# Below e^-x a gradient is lost: as an entry of half precision, or as the square of an entry.
_SMALLEST_EXPONENT = {
    torch.float16: 16.0,
    torch.bfloat16: 43.0,
    torch.float32: 43.0,
    torch.float64: 350.0,
}
_LONGEST = 1.1  # norm of a row that rounding can explain
# Above this many times the balance 1 / K, the push of the negatives outweighs the pull of the pair.
_LARGEST_LAM_TIMES_NEGATIVES = 3.0
_STEEP = 20  # q / t above which a few pairs outweigh all others


@cache
def _warn_of_large_lam(lam: float, negatives: int) -> None:
    """Warn that lam is too large for the number of negatives; cached, so that a training run warns
    once instead of at every step."""
    warn(
        f"rince: lam {lam:g} times {negatives:,} negatives is {lam * negatives:.3g}, above"
        f" {_LARGEST_LAM_TIMES_NEGATIVES:g}. Negatives then push more than pairs pull, and with a q"
        " of about 0.4 or more a pretrained model loses what it knows. Leave lam unset: the default"
        f" is 1 / (negatives + 1) = {1 / (negatives + 1):.2g}"
    )


def _warn_of_lost_gradients(
    image_features: Tensor, text_features: Tensor, q: float, temperature: Tensor, limit: Tensor
) -> None:
    """Warn of gradients that are lost in rounding, and of features longer than 1; only on the CPU,
    where reading a number does not wait for the GPU.

    limit: the largest exponent whose gradient the dtype of the features can hold, ().
    """
    if temperature.device.type == "cpu":
        # A pair of cosine c has the exponent x - (1 - c) q/t: with x the largest and -y the least
        # that count, it is lost below c = 1 - (x + y) t/q.
        steepness = q / float(temperature)
        dtype = image_features.dtype
        span = float(limit) + _SMALLEST_EXPONENT[dtype]
        if steepness > span:
            warn(
                f"rince: q / temperature is {steepness:.3g}, so in"
                f" {str(dtype).removeprefix('torch.')} pairs with a cosine below"
                f" {1 - span / steepness:.2f} have a gradient of 0; raise temperature (0.1), or"
                " lower q"
            )
    if image_features.device.type == "cpu" and len(image_features):
        norm = max(
            float(rows.detach().float().norm(dim=1).max())
            for rows in (image_features, text_features)
        )
        if norm > _LONGEST:
            warn(
                f"rince: rows of norm {norm:.3g}, expected 1, or it overflows; normalise the"
                " features"
            )


def rince(
    image_features: Tensor,
    text_features: Tensor,
    *,
    q: float = 0.5,
    lam: float | None = None,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Return -e^{q s+} / q + (lam (e^{s+} + sum_i e^{s_i}))^q / q: Robust InfoNCE, section 5.2 of
    the thesis (Chuang et al., 2022).

    q steers between two losses. q -> 0 is `info_nce` + log lam, in value and gradient (Lemma 5.2),
    and learns from hard pairs; q = 1 is symmetric, -(1 - lam) e^{s+} + lam sum_i e^{s_i}, and does
    not follow pairs that do not fit, such as wrong captions. The thesis uses q in [.1, .5] and
    warms it up (`vldebias.losses.q_warmup`), with lam = .01 for images and .025 for graphs.

    The safe lam depends on the number K of negatives. If all similarities are equal, pull and push
    balance at lam = 1 / (K + 1), the default. A lam several times as large pushes all pairs apart:
    with q = .4 a pretrained model is ruined if lam K passes 5 to 10 (`batch_sizes` in
    eval/experiments). So the thesis's .01 is for batches of up to about 300, and a lam above 3 / K
    is warned about.

    The value is often negative: the best one is near -e^{q/t} (1 - lam^q) / q, not 0.
    Features of norm 1 have s <= 1/t, so no exponent is above q/t (up to the logarithm of n). Where
    q/t exceeds a limit x, as q = .5 does at CLIP's t = .01, the loss and with it the gradient is
    multiplied by the constant e^{x - q/t}: minimisers and the direction of the gradient stay. Below
    that the value is the equation's own. x is 30, of float64 features 300, of float16 features
    log(16376 t): similarities and sums are float32 then, the gradient is float16. The gradient of
    pairs that do not fit is lost where q/t exceeds x + 43 (float16: x + 16), which it warns of, as
    of features that are longer than 1.

    Args:
        image_features: (n, d), rows of norm 1.
        text_features: (n, d), rows of norm 1.
        q: in (0, 1].
        lam: in (0, 1], the weight of the denominator. None: 1 / (K + 1) with the K negatives of
            this call, those of all processes with `gather` and of both views with `within_view`.
        options: temperature and the other options of `info_nce`.

    Returns and Raises: see `info_nce`.

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
    batch = Contrast(image_features, text_features, **options)
    if lam is None:
        lam = 1 / (batch.count + 1)
    elif lam * batch.count > _LARGEST_LAM_TIMES_NEGATIVES:
        _warn_of_large_lam(lam, batch.count)
    (log_sum,) = batch.sums(1.0)
    positive = batch.positive
    # log(lam (e^{s+} + sum_i e^{s_i}))
    total = torch.logaddexp(positive, log_sum) + math.log(lam)
    # (e^{q total} - e^{q positive}) / q: the larger exponential is taken out, and of the gap, at
    # most 0, expm1 loses no digits.
    is_total_larger = total >= positive
    larger = torch.where(is_total_larger, total, positive)
    gap = torch.where(is_total_larger, positive - total, total - positive)
    sign = torch.where(is_total_larger, -1.0, 1.0)
    # The largest exponent of features of norm 1 is q/t. How far it lies above what the gradient,
    # which has the dtype of the features, can hold is taken off: a constant factor. Detached: a
    # learned t must not be drawn towards a more convenient scale of the loss.
    temperature = options["temperature"]
    if isinstance(temperature, Tensor):
        t = temperature.detach()
    else:
        t = torch.tensor(temperature, dtype=torch.float64)
    if image_features.dtype == torch.float16:
        limit = (_LARGEST_HALF * t).log()
    else:
        dtype = torch.promote_types(image_features.dtype, torch.float32)
        limit = torch.full_like(t, _LARGEST_EXPONENT[dtype])
    _warn_of_lost_gradients(image_features, text_features, q, t, limit)
    shift = (q / t - limit).clamp(min=0)
    scale = torch.exp(q * larger - shift.to(total.dtype))
    return batch.reduce(sign * scale * torch.expm1(q * gap) / q)


class RINCELoss(ContrastiveLoss[RINCESettings]):
    """Apply `rince` with its settings; `q` may change every step, for a warm-up. Options: see
    `ContrastiveLoss`.

    >>> import torch
    >>> loss = RINCELoss(q=0.5, temperature=0.2)
    >>> images = torch.eye(4)
    >>> loss(images, images)
    tensor(-12.0600)
    """

    function = staticmethod(rince)
    q: float
    lam: float | None

    @classmethod
    def from_settings(cls, settings: RINCESettings, **options: Any) -> Self:
        """Build the loss, and warn if a few pairs would outweigh all others."""
        # At t = .01 and q = .4 a cosine that is lower by .1 weighs 55 times less.
        steepness = settings.q / options["temperature"]
        if steepness > _STEEP:
            warn(
                f"rince at temperature {options['temperature']:.3g} and q {settings.q} weighs close"
                f" pairs up to e^{steepness:.0f} times more; raise temperature to 0.1"
            )
        return super().from_settings(settings, **options)

    def schedule(self, settings: RINCESettings, step: int, steps: int) -> None:
        """Warm q up, if the settings have a q to start from.

        Args:
            settings: the settings that the loss declares.
            step: the update that comes next, from 0.
            steps: number of updates of the whole training.
        """
        if settings.q_start is not None:
            self.q = q_warmup(step, steps, start=settings.q_start, end=settings.q)


def q_warmup(step: int, total_steps: int, *, start: float = 0.01, end: float = 0.4) -> float:
    """Return q of RINCE, linear from `start` at step 0 to `end` at the last step (section 5.3.3 of
    the thesis).

    A small q explores; a large one ignores the pairs that turned out not to fit.

    Args:
        step: in 0 .. total_steps - 1.
        total_steps: number of steps of the whole training.
        start: q at the first step.
        end: q at the last step.

    >>> [round(q_warmup(step, 4), 2) for step in range(4)]
    [0.01, 0.14, 0.27, 0.4]
    """
    check_interval("step", step, f"[0, {total_steps})")
    return start + (end - start) * step / max(total_steps - 1, 1)
