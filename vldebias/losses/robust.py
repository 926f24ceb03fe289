"""RINCE, the InfoNCE that wrong pairs pull on less: a symmetric exponential loss raised to the power q."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vldebias.losses.blocks import Rows
from vldebias.losses.checks import check_interval
from vldebias.losses.contrast import Reduction, contrast
from vldebias.losses.module import ContrastiveLoss

__all__ = ["RINCELoss", "rince"]

# Exponents up to here are left as they are. e^30 / t still has a square that float32 can hold, which Adam and the
# clipping of gradients compute.
_LARGEST_EXPONENT = {torch.float32: 30.0, torch.float64: 300.0}


def _excess(temperature: float | Tensor, q: float, dtype: torch.dtype) -> float | Tensor:
    """How far q/t, the largest exponent of features of norm 1, lies above what the dtype holds; a constant."""
    limit = _LARGEST_EXPONENT[dtype]
    if isinstance(temperature, Tensor):
        return (q / temperature.detach() - limit).clamp(min=0).to(dtype)
    return max(q / temperature - limit, 0.0)


def _difference_of_exponentials(high: Tensor, low: Tensor, q: float, shift: float | Tensor) -> Tensor:
    """(e^{q high} - e^{q low}) / q * e^{-shift}, without overflow, and without cancellation for small q."""
    up = high >= low
    top, gap = torch.where(up, high, low), torch.where(up, low - high, high - low)
    return torch.where(up, -1.0, 1.0) * torch.exp(q * top - shift) * torch.expm1(q * gap) / q


def rince(
    image_features: Tensor,
    text_features: Tensor,
    *,
    temperature: float | Tensor,
    q: float = 0.5,
    lam: float = 0.01,
    reduction: Reduction = "mean",
    chunk_size: int | None = None,
    gather: bool = False,
    within_view: bool = False,
) -> Tensor:
    """-e^{q s+} / q + (lam (e^{s+} + sum_i e^{s_i}))^q / q: Robust InfoNCE, section 5.2 of the thesis.

    q steers between two losses. q -> 0 is `info_nce` + log lam, in value and gradient (Lemma 5.2), and learns from
    hard pairs; q = 1 is symmetric, -(1 - lam) e^{s+} + lam sum_i e^{s_i}, and does not follow pairs that do not fit,
    such as wrong captions. The thesis uses q in [.1, .5] and warms it up (`vldebias.losses.q_warmup`), with
    lam = .01 for images and .025 for graphs. While all similarities are alike, as between two towers with random
    weights, pull and push balance at lam = 1/n; values far above it kept them from learning (eval/noisy_captions.py).

    The value is often negative: the best one is near -e^{q/t} (1 - lam^q) / q, not 0. That is the loss, not a bug.

    How the scale is kept finite: features of norm 1 have s <= 1/t, so no exponent is above q/t (up to the logarithm
    of n). Where q/t exceeds 30 (300 in float64), as q = .5 does at CLIP's t = .01, the loss and with it the gradient
    is multiplied by the constant e^{30 - q/t}. Minimisers and the direction of the gradient stay as they are; the
    constant is the same for every pair, block, process and batch. Below that the value is the equation's own.

    Args:
        q: in (0, 1].
        lam: in (0, 1], the weight of the denominator.

    The other arguments, Returns and Raises: see `info_nce`.

    Raises:
        InvalidInputError: q or lam outside (0, 1].
    """
    check_interval("q", q, "(0, 1]")
    check_interval("lam", lam, "(0, 1]")

    def row_loss(rows: Rows) -> Tensor:
        log_total = torch.logaddexp(rows.positive, rows.log_sum_negatives()) + math.log(lam)
        shift = _excess(temperature, q, log_total.dtype)
        return _difference_of_exponentials(log_total, rows.positive, q, shift)

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


class RINCELoss(ContrastiveLoss):
    """`rince` with its settings; `q` may be set anew every step, for a warm-up. Options: see `ContrastiveLoss`."""

    def __init__(self, *, q: float = 0.5, lam: float = 0.01, **options: Any) -> None:
        super().__init__(**options)
        check_interval("q", q, "(0, 1]")
        check_interval("lam", lam, "(0, 1]")
        self.q, self.lam = q, lam

    def forward(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Loss of image_features (n, d) and text_features (n, d)."""
        return rince(image_features, text_features, **self.options())

    def options(self) -> dict[str, Any]:
        """The keywords of `rince`."""
        return super().options() | {"q": self.q, "lam": self.lam}
