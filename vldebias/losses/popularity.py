"""The popularity of items by itself: NUCLR's convex problem, solved as the matrix scaling that it is."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.losses.checks import check_interval, check_temperature

__all__ = ["Popularity", "estimate_popularity", "popularity_objective"]


@dataclass(frozen=True)
class Popularity:
    """Solution of the popularity problem.

    zeta: (n,) float64 margins with mean 0; the problem fixes them up to a constant.
    log_popularity: (n,) zeta / tau, so that its exponential is proportional to q_j = sum_i p(y_j | x_i).
    gradient_norm: Euclidean norm of the gradient of eq. 8 at zeta.
    iterations: how many scalings it took.
    """

    zeta: Tensor
    log_popularity: Tensor
    gradient_norm: float
    iterations: int


def popularity_objective(zeta: Tensor, similarity: Tensor, *, temperature: float) -> Tensor:
    """Eq. 8 of Wang et al. (2025): convex in zeta (n,) and constant along zeta + c.

    -1/n sum_i tau log(e^{E_ii/tau} / sum_j e^{(E_ij - zeta_j)/tau}) + 1/n sum_j zeta_j
    """
    log_total = torch.logsumexp((similarity - zeta) / temperature, dim=1)
    return (temperature * log_total - similarity.diagonal()).mean() + zeta.mean()


def estimate_popularity(
    similarity: Tensor, *, temperature: float, tolerance: float = 1e-12, max_iterations: int = 10_000
) -> Popularity:
    """Popularity of n items from their similarities, eq. 8 and 9 of Wang et al., NUCLR (2025).

    At the optimum q_j = sum_i K_ij / sum_k K_ik / q_k with K = e^{E/tau} (eq. 9): K divided by its columns' q and
    its rows' sums is doubly stochastic. So instead of gradient descent the two scalings alternate (Sinkhorn's
    iteration, each an exact minimisation), in logarithms and float64, without a step size to choose.

    Args:
        similarity: (n, n), E_ij of anchor x_i and item y_j; the diagonal are the pairs.
        temperature: tau > 0.
        tolerance: stop at this norm of the gradient of eq. 8.
        max_iterations: stop here at the latest, with a warning that tells the norm reached.

    Raises:
        InvalidInputError: a similarity that is not square, finite and floating point with n >= 2.

    >>> one_popular = torch.tensor([[0.9, 0.1, 0.8], [0.2, 0.9, 0.8], [0.1, 0.1, 0.9]])
    >>> int(estimate_popularity(one_popular, temperature=0.2).zeta.argmax())
    2
    """
    check_temperature(temperature)
    check_interval("max_iterations", max_iterations, "[1, inf)")
    logits = _checked(similarity) / temperature
    log_q = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    for iteration in range(1, max_iterations + 1):
        log_total = torch.logsumexp(logits - log_q, dim=1)
        # sum_i K_ij / total_i against q_j: their ratio is the column sum that the optimum has at 1
        scaled = torch.logsumexp(logits - log_total[:, None], dim=0)
        norm = float(torch.expm1(scaled - log_q).norm()) / len(logits)
        if norm <= tolerance or iteration == max_iterations:
            break
        log_q = scaled
    if norm > tolerance:
        message = f"popularity: gradient norm {norm:.1e} after {max_iterations} iterations, asked for {tolerance:.1e}"
        warnings.warn(f"{message}; raise max_iterations or the temperature", VldebiasWarning, stacklevel=2)
    log_q = log_q - log_q.mean()
    return Popularity(log_q * temperature, log_q, norm, iteration)


def _checked(similarity: Tensor) -> Tensor:
    """The similarities in float64."""
    if not isinstance(similarity, Tensor) or not similarity.is_floating_point():
        got = similarity.dtype if isinstance(similarity, Tensor) else type(similarity).__name__
        raise InvalidInputError(f"similarity: expected a floating point tensor (n, n), got {got}")
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1] or len(similarity) < 2:
        raise InvalidInputError(f"similarity: expected shape (n, n) with n >= 2, got {tuple(similarity.shape)}")
    if not torch.isfinite(similarity).all():
        raise InvalidInputError("similarity: some values are NaN or infinite; check the features")
    return similarity.detach().double()
