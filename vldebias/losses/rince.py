"""RINCE, the InfoNCE that wrong pairs pull on less: a symmetric exponential loss raised to the power q."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from vldebias.errors import warn
from vldebias.losses.checks import check_interval, check_step
from vldebias.losses.contrast import Contrast, ContrastiveLoss, LossOptions
from vldebias.losses.sums import LogSum

# Exponents up to here are left as they are. e^30 / t still has a square that float32 can hold, which Adam and the
# clipping of gradients compute.
_LARGEST_EXPONENT = {torch.float32: 30.0, torch.float64: 300.0}
# Below e^-x a gradient is lost: as an entry of half precision, or as the square of an entry.
_SMALLEST_EXPONENT = {torch.float16: 16.0, torch.bfloat16: 43.0, torch.float32: 43.0, torch.float64: 350.0}
_LONGEST = 1.1  # norm of a row that rounding can explain


def _difference_of_exponentials(high: Tensor, low: Tensor, q: float, shift: float | Tensor) -> Tensor:
    """(e^{q high} - e^{q low}) / q * e^{-shift}, without overflow, and without cancellation for small q."""
    up = high >= low
    top, gap = torch.where(up, high, low), torch.where(up, low - high, high - low)
    return torch.where(up, -1.0, 1.0) * torch.exp(q * top - shift) * torch.expm1(q * gap) / q


def _check(q: float, lam: float) -> None:
    check_interval("q", q, "(0, 1]")
    check_interval("lam", lam, "(0, 1]")


def _warn(image_features: Tensor, text_features: Tensor, q: float, temperature: float | Tensor) -> None:
    """Says where the loss has no gradient to speak of, and where it is none of features of norm 1.

    What is on another device than the CPU is not read, which would wait for it.
    """
    if not isinstance(temperature, Tensor) or temperature.device.type == "cpu":
        t, dtype = float(torch.as_tensor(temperature).detach()), image_features.dtype
        wide = torch.promote_types(dtype, torch.float32)
        least = 1 - (min(q / t, _LARGEST_EXPONENT[wide]) + _SMALLEST_EXPONENT[dtype]) * t / q
        if least > 0:
            warn(
                f"rince: q / temperature is {q / t:.3g}, so in {str(dtype).removeprefix('torch.')} pairs and negatives "
                f"with a cosine below {least:.2f} have a gradient of 0; expected at most "
                f"{_LARGEST_EXPONENT[wide] + _SMALLEST_EXPONENT[dtype]:.0f}: raise temperature (0.1), or lower q"
            )
    if image_features.device.type == "cpu" and len(image_features):
        norm = max(float(rows.detach().float().norm(dim=1).max()) for rows in (image_features, text_features))
        if norm > _LONGEST:
            warn(
                f"rince: rows of norm {norm:.3g}, expected 1: it grows as e^(q s / t), and overflows where s is no "
                "cosine; normalise the features (torch.nn.functional.normalize)"
            )


def rince(
    image_features: Tensor, text_features: Tensor, *, q: float = 0.5, lam: float = 0.01, **options: Unpack[LossOptions]
) -> Tensor:
    """-e^{q s+} / q + (lam (e^{s+} + sum_i e^{s_i}))^q / q: Robust InfoNCE, section 5.2 of the thesis.

    q steers between two losses. q -> 0 is `info_nce` + log lam, in value and gradient (Lemma 5.2), and learns from
    hard pairs; q = 1 is symmetric, -(1 - lam) e^{s+} + lam sum_i e^{s_i}, and does not follow pairs that do not fit,
    such as wrong captions. The thesis uses q in [.1, .5] and warms it up (`vldebias.losses.q_warmup`), with
    lam = .01 for images and .025 for graphs. While all similarities are alike, as between two towers with random
    weights, pull and push balance at lam = 1/n; values far above it kept them from learning (noisy_captions in eval/).

    The value is often negative: the best one is near -e^{q/t} (1 - lam^q) / q, not 0.

    Features of norm 1 have s <= 1/t, so no exponent is above q/t (up to the logarithm of n). Where q/t exceeds 30 (300
    in float64), as q = .5 does at CLIP's t = .01, the loss and with it the gradient is multiplied by the constant
    e^{30 - q/t}: minimisers and the direction of the gradient stay. Below that the value is the equation's own. The
    gradient of pairs that do not fit is lost where q/t exceeds 73 (46 where the features are float16), which it warns
    of, as of features that are longer than 1.

    Args:
        q: in (0, 1].
        lam: in (0, 1], the weight of the denominator.

    The other arguments, Returns and Raises: see `info_nce`.

    Raises:
        InvalidInputError: q or lam outside (0, 1].
    """
    _check(q, lam)
    batch = Contrast(image_features, text_features, **options)
    _warn(image_features, text_features, q, options["temperature"])
    (log_sum,) = batch.sums(LogSum())
    log_total = torch.logaddexp(batch.positive, log_sum) + math.log(lam)
    # how far q/t, the largest exponent of features of norm 1, lies above what the dtype holds; a constant
    temperature, limit = options["temperature"], _LARGEST_EXPONENT[log_total.dtype]
    shift: float | Tensor
    if isinstance(temperature, Tensor):
        shift = (q / temperature.detach() - limit).clamp(min=0).to(log_total.dtype)
    else:
        shift = max(q / temperature - limit, 0.0)
    return batch.reduce(_difference_of_exponentials(log_total, batch.positive, q, shift))


class RINCELoss(ContrastiveLoss, function=rince, check=_check):
    """`rince` with its settings; `q` may be set anew every step, for a warm-up. Options: see `ContrastiveLoss`."""

    q: float
    lam: float


def q_warmup(step: int, total_steps: int, *, start: float = 0.01, end: float = 0.4) -> float:
    """q of RINCE, linear from `start` at step 0 to `end` at the last step (section 5.3.3 of the thesis).

    A small q explores, a large one no longer follows the pairs that turned out not to fit.

    Raises:
        InvalidInputError: step outside 0 .. total_steps - 1, start or end outside (0, 1].

    >>> [round(q_warmup(step, 4), 2) for step in range(4)]
    [0.01, 0.14, 0.27, 0.4]
    """
    check_step("step", step, "total_steps", total_steps)
    check_interval("start", start, "(0, 1]")
    check_interval("end", end, "(0, 1]")
    return start + (end - start) * step / max(total_steps - 1, 1)
