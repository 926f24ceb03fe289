"""The sources' statements as functions of a few numbers, to test against; constants as the proofs give them.

Where a printed constant does not follow from its proof, the proof's stands here and the docstring says so.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]


def sampling_error(n: int, m: int, tau_plus: float) -> float:
    """Theorem 3.3: how far the debiased loss of n negatives and m positives is from its limit, features of length 1.

    e^{3/2} / tau- sqrt(2 pi / n) + e^{3/2} tau+ / tau- sqrt(2 pi / m), as the proof has it; the thesis prints pi / 2.
    It holds at temperature 1 alone.
    """
    rest = 1 - tau_plus
    return math.exp(1.5) / rest * (math.sqrt(2 * math.pi / n) + tau_plus * math.sqrt(2 * math.pi / m))


def biased_floor(unbiased: float, same: Floats, other: Floats, n: int) -> float:
    """Lemma 3.1: the least that the biased loss can be, given the unbiased one and n negatives.

    same, other: (a, s) and (a, o), e^{f(x) . f(x')} of every anchor with rows of its class and of other classes.
    """
    ratio = np.log(np.mean(same, 1) / np.mean(other, 1))
    return float(unbiased + np.minimum(0, ratio).mean() - sampling_error(n, 1, 0.0))


def worst_case_loss(positive: Floats, negatives: Floats, q: float) -> float:
    """Proposition 4.3: where hard negatives end as beta grows, the loss against the most similar row of another class.

    positive: (a,) similarities; negatives: (a, o) with rows of other classes; q: weight of the negatives.
    """
    return float(np.mean(np.log1p(q * np.exp(negatives.max(1) - positive))))


def farthest_points(k: int, d: int, radius: float = 1.0) -> Tensor:
    """A solution of Problem 4.7 for k <= d + 1: a simplex of k points (k, d) on a sphere, least distance largest."""
    corners = torch.eye(k, dtype=torch.float64) - 1 / k
    basis = torch.linalg.svd(corners)[2][: k - 1]  # of the k - 1 dimensions in which they lie
    flat = torch.nn.functional.normalize(corners @ basis.T, dim=1) * radius
    return torch.nn.functional.pad(flat, (0, d - (k - 1)))


def nearest_centre_risk(excess: float, least: float, classes: int, t: float = 1.0) -> float:
    """Theorem 4.5: most that a nearest-centre classifier errs at this excess risk <= 1; 1 where the bound is void.

    16 excess / (least^2 - 2 |C| (1 + 1/t) sqrt(excess)), the minimum that its proof reaches; the printed one, with 8
    and a square below, is smaller than that. least: distance of the two nearest solutions of Problem 4.7.
    """
    below = least**2 - 2 * classes * (1 + 1 / t) * math.sqrt(excess)
    return min(1.0, 16 * excess / below) if below > 0 else 1.0


def noisy_risk(optimal: float, noise: float, largest: float) -> float:
    """Corollary 5.1: most that the minimiser risks under label noise <= `noise` < 1/2, loss -y e^s, s <= largest."""
    return (optimal + 2 * noise * math.exp(largest)) / (1 - 2 * noise)


def separation(scores: Floats, codes: NDArray[np.int64], pair: tuple[int, int], gamma: float, slope: float) -> float:
    """Lemma 8.12, and 8.11 where every margin of the pair is >= gamma: least W1 between the features of two classes.

    (gamma - R) / L with R the pairwise hinge loss, scores (n, k), L a Lipschitz constant of every score.
    """
    one, other = pair
    ahead = scores[codes == one, one] - scores[codes == one, other]
    behind = scores[codes == other, other] - scores[codes == other, one]
    hinge = (np.maximum(gamma - ahead, 0).mean() + np.maximum(gamma - behind, 0).mean()) / 2
    return float((gamma - hinge) / slope)
