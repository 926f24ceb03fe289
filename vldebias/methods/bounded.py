"""Bound the loss of cosine similarity of neutral texts: weaken a projection until the bound holds.

Equation 7.4 of the thesis, min_z |z - z0|^2 + lam z^T M z, is the Lagrangian of a problem with a bound: among all z
with <z, z0> = 1 and a loss 1 - cos(z, z0) of at most e, z = a (I + lam M)^-1 z0 has the least z^T M z, for some a and
with lam one over the multiplier of the bound. One matrix serves all texts, so the largest lam that satisfies the bound
is used. The loss never falls as lam grows: with m = 1 / (1 + lam s) on the eigenvectors of M and the mean E over the
squared coordinates of z0, cos = E[m] / sqrt(E[m^2]) and

    lam d/dlam log cos = E[m^2] / E[m] - E[m^3] / E[m^2] <= 0          (Cauchy-Schwarz: E[m^2]^2 <= E[m] E[m^3])

so bisection finds that lam. If P0 is part of the projection this does not hold (P0 alone may lose more than the
bound), and the strength is lowered instead: along z0 + t (P z0 - z0) the angle to z0 never falls as t grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.projection import CalibratedProjection

_STEPS = 60  # halvings: the multiplier to the precision of a double


@dataclass(frozen=True)
class Bound:
    """Allow neutral texts a loss of at most `loss` = 1 - cosine of a text with its projection.

    Attributes:
        loss: in [1e-6, 1); float32 embeddings cannot resolve less. 0.02 keeps a cosine of 0.98.
        over: "every": for every neutral text; "mean": for their mean.
        neutral: prompts that do not state the attribute. None given: the class prompts of the prompt sets.

    Raises:
        InvalidInputError: a value outside its range.
    """

    loss: float
    over: str = "every"
    neutral: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        number = isinstance(self.loss, (int, float)) and not isinstance(self.loss, bool)
        if not number or not 1e-6 <= self.loss < 1:
            raise InvalidInputError(f"max_loss: expected a loss of cosine in [1e-6, 1), as 0.02 is, got {self.loss!r}")
        if self.over not in ("every", "mean"):
            raise InvalidInputError(f"over: expected 'every' or 'mean', got {self.over!r}")
        if isinstance(self.neutral, str):
            raise InvalidInputError(f"neutral: expected a list of prompts, got the text {self.neutral!r}")
        object.__setattr__(self, "neutral", tuple(self.neutral))

    def value(self, losses: Tensor) -> float:
        """Return the bounded quantity: the largest or the mean of the losses (n,) of the neutral texts."""
        return float(losses.max() if self.over == "every" else losses.mean())


def losses(projection: CalibratedProjection, neutral: Tensor) -> Tensor:
    """Return 1 - cosine (n,) of each neutral embedding (n, d) with its projection."""
    return 1 - torch.cosine_similarity(neutral.double(), projection(neutral.double()), dim=1)


def bounded(projection: CalibratedProjection, neutral: Tensor, bound: Bound) -> CalibratedProjection:
    """Return `projection` if it satisfies the bound on `neutral` (n, d), else one with a smaller lam or strength.

    Without P0 ("cali", "equalise", and both) the result is the same method at a smaller lam. With P0 it is
    I - t (I - P), 0 < t < 1, and its method says "bounded".
    """
    if bound.value(losses(projection, neutral)) <= bound.loss:
        return projection
    weaker = projection.at_strength if projection.spurious_rank else projection.at_multiple
    kept = weaker(largest(lambda t: bound.value(losses(weaker(t), neutral)) <= bound.loss))
    return kept.stamped(method=f"{kept.method}, bounded") if projection.spurious_rank else kept


def largest(holds: Callable[[float], bool]) -> float:
    """Return the largest t in (0, 1) with `holds(t)`, which must be true near 0 and false beyond some t."""
    low, high = 0.1, 1.0
    while not holds(low):
        low, high = low / 10, low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
