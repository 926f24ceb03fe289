"""The toy world of popularity.py: points of a half disc choose points of a square by a density that is known.

Section 3.3 of Wang et al., NUCLR (2025): x is uniform on the upper half of the unit disc, y in the unit square has
p(y | x) = e^{x.y / tau} / Z(x) with tau = .2. So the partition function, the popularity of every item and the true risk
can be computed, which data never permit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vldebias.losses import estimate_popularity

TAU = 0.2
EXACT = "exact partition"


@dataclass(frozen=True, eq=False)
class Pairs:
    """n pairs, x (n, 2) in the half disc and y (n, 2) in the square, float64."""

    x: Tensor
    y: Tensor

    @cached_property
    def similarity(self) -> Tensor:
        """(n, n) E_ij = x_i . y_j."""
        return self.x @ self.y.T

    @cached_property
    def log_popularity(self) -> Tensor:
        """(n,) log of the true q_j = sum_i p(y_j | x_i)."""
        return torch.logsumexp(self.similarity / TAU - log_partition(self.x)[:, None], dim=0)

    @cached_property
    def log_density(self) -> Tensor:
        """(n,) log p(y_i | x_i)."""
        return (self.x * self.y).sum(1) / TAU - log_partition(self.x)


def log_partition(x: Tensor) -> Tensor:
    """(n,) log of the integral of e^{x.y / tau} over the square: per axis (e^s - 1) / s with s = x / tau."""
    half = x / TAU / 2
    small = half.abs() < 1e-3  # 0 / 0 at 0; the series is exact to 1e-14 there
    safe = torch.where(small, 1.0, half)
    return (half + torch.where(small, half**2 / 6, torch.log(torch.sinh(safe) / safe))).sum(1)


def half_disc(n: int, rng: np.random.Generator) -> Tensor:
    """(n, 2) uniform on the upper half of the unit disc, by rejection from the rectangle around it."""
    found = np.empty((0, 2))
    while len(found) < n:
        drawn = rng.uniform((-1, 0), (1, 1), size=(2 * n, 2))
        found = np.concatenate([found, drawn[(drawn**2).sum(1) <= 1]])
    return torch.from_numpy(found[:n].copy())


def square(x: Tensor, rng: np.random.Generator) -> Tensor:
    """(n, 2) one y per x from p(y | x), by rejection from the uniform density of the square."""
    slope = x.numpy() / TAU
    highest = np.maximum(slope, 0).sum(1)  # of the exponent, at a corner
    y, open_ = np.empty_like(slope), np.arange(len(slope))
    while len(open_):
        drawn = rng.uniform(size=(len(open_), 2))
        accepted = rng.uniform(size=len(open_)) < np.exp((slope[open_] * drawn).sum(1) - highest[open_])
        y[open_[accepted]] = drawn[accepted]
        open_ = open_[~accepted]
    return torch.from_numpy(y)


def sample(n: int, rng: np.random.Generator) -> Pairs:
    """n independent pairs."""
    x = half_disc(n, rng)
    return Pairs(x, square(x, rng))


def exact_risk(order: int = 80) -> float:
    """L = -E[tau log p(y | x)], eq. 3: E over y in closed form, over x by Gauss-Legendre in polar coordinates."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    radius, angle = (nodes + 1) / 2, (nodes + 1) * math.pi / 2
    x = np.stack([radius[:, None] * np.cos(angle), radius[:, None] * np.sin(angle)], -1).reshape(-1, 2)
    weight = np.outer(weights * radius, weights).reshape(-1) / 2  # area element over the area pi / 2; sums to 1
    slope = x / TAU
    mean = 1 / -np.expm1(-slope) - 1 / slope  # of y under its density, per axis; an even order has no node at 0
    entropy = log_partition(torch.from_numpy(x)).numpy() - (slope * mean).sum(1)
    return float(TAU * (weight @ entropy))


def popularities(pairs: Pairs) -> dict[str, Tensor]:
    """log q~ (n,) by method, as they enter eq. 5.

    "estimate" solves eq. 8, "uniform" is GCL, q~ = n c (remark 4). Both are known up to a constant, which the plots
    have to fix. Uniform has a natural one, c = 1 / area of the square = 1: then eq. 5 divides by the mean of
    e^{E / tau} over the data, which is GCL as it is written and the limit of InfoNCE in remark 1. "by maxima" is the
    paper's ratio of maxima; "best constant" minimises the error term itself, so no other constant does better.
    """
    true = pairs.log_popularity
    found = estimate_popularity(pairs.similarity, temperature=TAU).log_popularity
    flat = torch.zeros_like(true)
    return {
        "true": true,
        "estimate": matched_maxima(found, true),
        "estimate, best constant": best_constant(found, pairs),
        "uniform": flat + math.log(len(true)),
        "uniform, by maxima": matched_maxima(flat, true),
        "uniform, best constant": best_constant(flat, pairs),
    }


def matched_maxima(log_q: Tensor, log_true: Tensor) -> Tensor:
    """q~ = q~' / Z with Z = max q~' / max q, section 3.3."""
    return log_q - log_q.max() + log_true.max()


def best_constant(log_q: Tensor, pairs: Pairs) -> Tensor:
    """q~ = q~' / Z with the Z that minimises the error term: the weighted median of q~' / q, exactly."""
    ratio = log_q - pairs.log_popularity
    weight = column_weights(pairs) * torch.exp(-(log_q - log_q.mean()))
    order = ratio.argsort()
    total = weight[order].cumsum(0)
    return log_q - ratio[order[int((total < total[-1] / 2).sum())]]


def column_weights(pairs: Pairs) -> Tensor:
    """(n,) 1/n sum_i e^{(E_ij - 1) / tau}."""
    return torch.exp((pairs.similarity - 1) / TAU).mean(0)


def error_term(log_q: Tensor, pairs: Pairs) -> float:
    """1/n sum_ij |1/q~_j - 1/q_j| e^{(E_ij - 1) / tau}, theorem 1.

    The theorem prints E(x_i, y_i) in it; its proof (eq. 24) has E(x_i, y_j), which is meant.
    """
    gap = (torch.exp(-log_q) - torch.exp(-pairs.log_popularity)).abs()
    return float(gap @ column_weights(pairs))


def risk(log_q: Tensor, pairs: Pairs) -> float:
    """Empirical risk with this popularity, eq. 5."""
    log_total = torch.logsumexp(pairs.similarity / TAU - log_q, dim=1)
    return float((TAU * log_total - pairs.similarity.diagonal()).mean())
