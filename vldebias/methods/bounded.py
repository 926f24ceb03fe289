"""Weaken a projection until the cosine similarity lost by neutral text satisfies a bound.

Equation 7.4 of the thesis, min_z |z - z0|^2 + lam z^T M z, is the Lagrangian of a constrained
problem: among all z with <z, z0> = 1 and a loss 1 - cos(z, z0) of at most e, z = a (I + lam M)^-1
z0 minimises z^T M z, for some a and with 1 / lam as the multiplier of the constraint. One matrix is
used for all text, so the largest lam that satisfies the bound is chosen. The loss never decreases
as lam grows: with m = 1 / (1 + lam s) on the eigenvectors of M and the mean E over the squared
coordinates of z0, cos = E[m] / sqrt(E[m^2]) and

    lam d/dlam log cos = E[m^2] / E[m] - E[m^3] / E[m^2] <= 0
    by Cauchy-Schwarz: E[m^2]^2 <= E[m] E[m^3]

so bisection finds that lam. This requires P = (I + S)^-1 with a symmetric S. If P0 is part of the
projection (P0 alone may exceed the bound), or if P is not symmetric, the strength is lowered
instead: along z0 + t (P z0 - z0), the angle to z0 never decreases as t grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection

_STEPS = 60  # enough bisection steps for double precision


def losses(projection: CalibratedProjection, neutral: Tensor) -> Tensor:
    """Return 1 - cosine (n,) between each neutral embedding and its projection.

    Args:
        projection: the fitted edit to apply to `neutral`.
        neutral: embeddings (n, d) of neutral text.
    """
    return 1 - torch.cosine_similarity(neutral.double(), projection(neutral.double()), dim=1)


def bounded(edit: Edit, neutral: Tensor, max_loss: float) -> CalibratedProjection:
    """Return an edit under which the maximum loss of neutral text satisfies a bound.

    An edit that satisfies the bound is returned unchanged. Otherwise, a projection (I + S)^-1
    ("cali", "equalise" or both) is returned with a smaller lam, and any other projection as I - t
    (I - P), 0 < t < 1, with "bounded" in its method name.

    Args:
        edit: the fitted edit.
        neutral: embeddings (n, d) of neutral text.
        max_loss: the maximum allowed loss, 1 - cosine.

    Raises:
        InvalidInputError: If the edit is not a projection.
    """
    if not isinstance(edit, CalibratedProjection):
        raise InvalidInputError(
            f"max_loss: expected a method that fits a projection, got {edit!r}; omit max_loss, or"
            " pass a lower strength="
        )

    def holds(projection: CalibratedProjection) -> bool:
        return float(losses(projection, neutral).max()) <= max_loss

    if holds(edit):
        return edit
    # At t = 0 nothing is lost, so the bound always holds for some t > 0.
    share = largest(lambda t: holds(_weaker(edit, t)))
    return _weaker(edit, share)


def _weaker(edit: CalibratedProjection, t: float) -> CalibratedProjection:
    """Return the projection with t times its lam, or I - t (I - P) if P has a different form."""
    # Decide by the factors, because another package's method may not record what it removed.
    if edit.is_resolvent:
        return edit.at_multiple(t)
    # With P = I - L R^T, this is I - t L R^T.
    return replace(edit, left=t * edit.left).with_provenance(method=f"{edit.method}, bounded")


def largest(holds: Callable[[float], bool]) -> float:
    """Return the largest t in (0, 1) that satisfies a condition.

    It must hold near 0 and fail beyond some t.
    """
    low = 0.1
    high = 1.0
    while not holds(low):
        high = low
        low = low / 10
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
