"""k-variance: how far apart two random halves of one class are, by optimal transport.

Source: Solomon et al., "k-variance: a clustered notion of variance" (2022); unnormalised with p = 1 as in chapter 8
of Chuang's thesis (definition 8.1 and Lemma 8.5).
"""

from __future__ import annotations

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.metrics.arrays import Values, rows

__all__ = ["k_variance"]


def k_variance(features: Values, *, k: int | None = None, draws: int = 1, seed: int = 0) -> float:
    """Mean over draws of W1 between two disjoint random subsets of k rows of `features` (n, d).

    Small where the features of the class are concentrated. With uniform weights and equal sizes W1 is the cheapest
    one-to-one matching in Euclidean distance, divided by k; cubic in k.

    Args:
        features: (n, d) features of one class, in any unit; the result has the same unit.
        k: size of each subset, at most n // 2, which is the default and the thesis's choice.
        draws: how often two subsets are drawn; the thesis uses 1.

    Raises:
        InvalidInputError: not (n, d) with finite values and n >= 2, k outside 1 .. n // 2, or draws < 1.
    """
    points = rows(features, "features")
    if points.ndim != 2 or len(points) < 2 or not np.isfinite(points).all():
        raise InvalidInputError(f"features: expected finite (n, d) with n >= 2, got shape {points.shape}")
    size = len(points) // 2 if k is None else k
    if not 1 <= size <= len(points) // 2:
        raise InvalidInputError(
            f"k: two disjoint subsets of {len(points)} rows have 1 .. {len(points) // 2} rows, got {k}"
        )
    if draws < 1:
        raise InvalidInputError(f"draws: expected at least 1, got {draws}")
    rng = np.random.default_rng(seed)
    orders = (rng.permutation(len(points)) for _ in range(draws))
    return float(np.mean([_transport(points[order[:size]], points[order[size : 2 * size]]) for order in orders]))


def _transport(one: np.ndarray, other: np.ndarray) -> float:
    """W1 between two sets of k points: the mean distance of the best matching."""
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    cost = cdist(one, other)
    return float(cost[linear_sum_assignment(cost)].mean())
