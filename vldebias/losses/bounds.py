"""Compute lower bounds of dependence that the losses maximise: mutual information and Wasserstein
dependency.

Source: chapter 6 of the thesis. Both take the expected loss; a single batch may lie above.
"""

from __future__ import annotations

import math

from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses.checks import check_interval, check_temperature


def mutual_information_bound(loss: float | Tensor, *, negatives: int) -> float:
    """Return log K - E[L_InfoNCE] <= I(phi(X), phi(V)) in nats, section 6.1.

    Args:
        loss: expected `info_nce`, of pairs that may include wrong ones: the information is theirs.
        negatives: K >= 1 negatives per row: n - 1 in a batch of n. log(K + 1) instead of log K is a
            bound as well.
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
    """Return a lower bound on I_W = W1(P_XV, P_X P_V) of the representations, theorems 6.1 (eta =
    0) and 6.2.

        -E[L_RINCE] <= (1 - eta) Lip(f) (1 - lam) e^{1/t} / t * I_W        at q = 1

    W1 under the metric ||x - x'|| + ||v - v'||. The pairs come from (1 - eta) P_XV + eta P_X P_V, a
    share eta of wrong pairs, and the bound is on the dependency WITHOUT the noise: what RINCE
    maximises is still there.

    Theorem 6.2 asks for a larger lam, but its last step needs only lam K >= 1 - lam, the condition
    of theorem 6.1, which is checked here. The default lam of `rince`, 1 / (K + 1), meets it
    exactly.

    Args:
        loss: expected `rince` with q = 1 and the same lam and temperature. Take float64: there its
            value is the equation's own down to t = 1/300, in float32 to 1/30.
        negatives: K >= 1.
        temperature: t > 0, the temperature of the loss.
        lam: lambda, in (0, 1).
        eta: share of wrong pairs, in [0, 1).
        lipschitz: Lip(f) of the projection head f, whose outputs have norm 1; 1 without a head.

    Raises:
        InvalidInputError: lam K < 1 - lam, or an argument outside its interval.
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
    # Theorem 6.2 solved for I_W; eta = 0 gives theorem 6.1.
    return (
        -_number(loss)
        * temperature
        * math.exp(-1 / temperature)
        / ((1 - eta) * (1 - lam) * lipschitz)
    )


def _number(loss: float | Tensor) -> float:
    return float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
