"""Compute lower bounds on mutual information and Wasserstein dependency from an expected loss.

Source: chapter 6 of the thesis. Both bounds need the expected loss. The value computed from a
single batch may exceed the true dependence.
"""

from __future__ import annotations

import math

from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses.checks import check_interval, check_temperature


def mutual_information_bound(loss: float | Tensor, *, negatives: int) -> float:
    """Return a lower bound on the representations' mutual information in nats (section 6.1).

        log K - E[L_InfoNCE] <= I(phi(X), phi(V))

    Args:
        loss: expected value of `info_nce`. If some pairs are wrong, the bound applies to the mutual
            information of the mixture of wrong and correct pairs.
        negatives: K >= 1 negatives per row, n - 1 in a batch of n. The bound also holds with
            log(K + 1) instead of log K.
    """
    check_interval("negatives", negatives, "[1, inf)")
    return math.log(negatives) - _number(loss)


def wasserstein_dependency_bound(
    loss: float | Tensor,
    *,
    negatives: int,
    temperature: float,
    lam: float,
    eta: float = 0.0,
    lipschitz: float = 1.0,
) -> float:
    """Return a lower bound on the representations' Wasserstein dependency.

    Theorem 6.1 (eta = 0) and theorem 6.2, for q = 1:

        -E[L_RINCE] <= (1 - eta) Lip(f) (1 - lam) e^{1/t} / t * I_W,   I_W = W1(P_XV, P_X P_V)

    W1 uses the metric ||x - x'|| + ||v - v'||. The pairs are samples of (1 - eta) P_XV + eta P_X
    P_V, so a share eta of them is wrong. The bound nevertheless applies to the dependency WITHOUT
    this noise: RINCE maximises the dependency of the correct pairs even if others are wrong.

    Theorem 6.2 assumes a larger lam, because its proof counts the noise in one positive K times.
    Without this factor, lam K >= 1 - lam is enough, as in theorem 6.1, and is checked here. The
    default lam of `rince`, 1 / (K + 1), satisfies it with equality.

    Args:
        loss: expected value of `rince` with q = 1 and the same lam and temperature. Use float64:
            float32 losses are rescaled below t = 1/30, float64 losses only below t = 1/300.
        negatives: K >= 1 negatives per row.
        temperature: t > 0, the temperature of the loss.
        lam: lambda, in (0, 1).
        eta: share of wrong pairs, in [0, 1).
        lipschitz: Lip(f), the Lipschitz constant of the projection head f, whose outputs have norm
            1. Use 1 if there is no head.

    Raises:
        InvalidInputError: If lam K < 1 - lam, or an argument is outside its interval.
    """
    check_temperature(temperature)
    check_interval("negatives", negatives, "[1, inf)")
    check_interval("lam", lam, "(0, 1)")
    check_interval("eta", eta, "[0, 1)")
    check_interval("lipschitz", lipschitz, "(0, inf)")
    least = 1 / (negatives + 1)
    if lam < least:
        raise InvalidInputError(
            f"lam: expected at least 1/(K + 1) = {least:.4g} with K = {negatives}, got {lam}"
        )
    # This is theorem 6.2 solved for I_W. With eta = 0, it reduces to theorem 6.1.
    return (
        -_number(loss)
        * temperature
        * math.exp(-1 / temperature)
        / ((1 - eta) * (1 - lam) * lipschitz)
    )


def _number(loss: float | Tensor) -> float:
    return float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
