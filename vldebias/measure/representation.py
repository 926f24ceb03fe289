"""Compute multi-group proportional representation (MPR) and group exposure (AWRF).

Sources: Oesterling et al., "Multi-Group Proportional Representation in Retrieval" (NeurIPS 2024);
Sapiezynski et al., "Quantifying the Impact of User Attention on Fair Group Representation in Ranked
Lists" (2019), as computed by the TREC Fair Ranking track (2021).
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.errors import InvalidInputError, need
from vldebias.utils.arrays import Floats, refuse_masked

Functions = Literal["linear", "trees"]


def representation_gap(
    statistics: ArrayLike,
    selected: ArrayLike,
    curated: ArrayLike,
    *,
    functions: Functions | Callable[[Floats, Floats], Floats] = "linear",
    max_depth: int = 3,
) -> float:
    """Return MPR, the largest gap between selected rows and a population; 0 means proportional.

    A function's gap is the difference between its mean over the selected rows and its mean over the
    population, and MPR is the maximum over a class of functions. With a = 1 / k on the k selected
    rows and -1 / m on the m curated rows, it is sup_c |sum_i a_i c(x_i)| over functions with sum_i
    c(x_i)^2 = m k / (m + k). The maximum is 1.

    Args:
        statistics: inputs (n, d) to the functions, such as one-hot labels for one or more
            attributes, probabilities, or embeddings.
        selected: weights (n,) in [0, 1], or whether each row is selected.
        curated: statistics (m, d) of the population.
        functions: "linear" (closed form, with an intercept), "trees" (regression trees fitted to a,
            as in the paper, which cover attribute intersections), or a function that maps (rows, a)
            to fitted values.
        max_depth: maximum depth of the trees.

    Returns:
        The gap in [0, 1].

    Raises:
        InvalidInputError: If shapes do not match or no row is selected.

    >>> # All results belong to one of two groups that are equally common in the population.
    >>> groups = [[1, 0], [1, 0], [0, 1], [0, 1]]
    >>> round(representation_gap(groups, [1, 1, 0, 0], groups), 3)
    0.408
    """
    for name, values in (("statistics", statistics), ("selected", selected), ("curated", curated)):
        refuse_masked(values, name)
    rows = np.asarray(statistics, dtype=np.float64)
    weights = np.asarray(selected, dtype=np.float64)
    population = np.asarray(curated, dtype=np.float64)
    fits = rows.ndim == population.ndim == 2 and rows.shape[1] == population.shape[1]
    if not fits or weights.shape != (len(rows),) or not len(population):
        raise InvalidInputError(
            "expected statistics (n, d), selected (n,) and curated (m, d), got"
            f" {rows.shape}, {weights.shape} and {population.shape}"
        )
    k = float(weights.sum())
    # Written so that NaN, for which every comparison is false, is rejected.
    if not (k > 0 and weights.min() >= 0 and weights.max() <= 1):
        raise InvalidInputError(
            f"selected: expected weights in [0, 1], some of them positive, got {weights[:8]}"
        )
    m = len(population)
    both = np.concatenate([rows, population])
    signed = np.concatenate([weights / k, np.full(m, -1 / m)])
    values = fitted_function(both, signed, functions, max_depth)
    length = float(np.linalg.norm(values))
    if length == 0:
        return 0.0
    return abs(float(signed @ values)) * sqrt(m * k / (m + k)) / length


def fitted_function(
    rows: Floats,
    signed: Floats,
    functions: Functions | Callable[[Floats, Floats], Floats] = "linear",
    max_depth: int = 3,
) -> Floats:
    """Return the values (n + m,) of the function with the largest gap.

    This is the function in the class that is closest to the signed weights.

    Args:
        rows: inputs (n + m, d): the selected rows, followed by the population.
        signed: weights (n + m,), negative for the population.
        functions: the class of functions, or a function of `rows` and `signed`.
        max_depth: maximum depth of the trees.
    """
    if callable(functions):
        return functions(rows, signed)
    if functions == "linear":
        # Project onto the column space, U U^T a.
        with_intercept = np.concatenate([np.ones((len(rows), 1)), rows], axis=1)
        basis, sizes, _ = np.linalg.svd(with_intercept, full_matrices=False)
        basis = basis[:, sizes > sizes[0] * 1e-10]
        return basis @ (basis.T @ signed)
    if functions == "trees":
        tree = need("sklearn.tree").DecisionTreeRegressor(max_depth=max_depth, random_state=0)
        return np.asarray(tree.fit(rows, signed).predict(rows), dtype=np.float64)
    raise InvalidInputError(f"functions: expected 'linear' or 'trees', got {functions!r}")


# ---- many rankings: group codes (r, k) of their first k rows, prior (g,) or (r, g) ------------


def representation_gaps(groups: NDArray[np.integer], prior: Floats) -> Floats:
    """Return the MPR (r,) of the first k results relative to k images with the prior's shares.

    Every function of a single label is linear in its one-hot code, so linear functions and trees
    give the same value, sqrt(1/2 sum_a (r_a - p_a)^2 / (r_a + p_a)). It is 0 if the shares equal
    the prior, and 1 if results and prior have no group in common.

    Args:
        groups: group codes (r, k).
        prior: shares (g,) or (r, g).
    """
    weights = np.ones(groups.shape[1])
    shares = exposure_shares(groups, prior.shape[-1], weights)
    both = shares + prior
    parts = np.divide((shares - prior) ** 2, both, out=np.zeros_like(both), where=both > 0)
    return np.sqrt(parts.sum(axis=1) / 2)


def rank_fairness(groups: NDArray[np.integer], prior: Floats) -> Floats:
    """Return AWRF (r,), 1 minus the Jensen-Shannon divergence between exposure and prior.

    A value of 1 is fair. Place i has weight 1 / log2(max(i, 2)), and the divergence is in nats, as
    in TREC's evaluation.

    Args:
        groups: group codes (r, k).
        prior: shares (g,) or (r, g).
    """
    places = np.arange(1, groups.shape[1] + 1)
    shares = exposure_shares(groups, prior.shape[-1], 1 / np.log2(np.maximum(places, 2)))
    middle = (shares + prior) / 2
    divergence = (_relative_entropy(shares, middle) + _relative_entropy(prior, middle)) / 2
    return np.clip(1 - divergence, 0.0, 1.0)


def exposure_shares(groups: NDArray[np.integer], g: int, weights: Floats) -> Floats:
    """Return each group's share (r, g) of the total weight of the places.

    Args:
        groups: group codes (r, k).
        g: number of groups.
        weights: weights (k,) of the places.
    """
    return counts_of_groups(groups, g, weights) / weights.sum()


def counts_of_groups(
    groups: NDArray[np.integer], g: int, weights: Floats | None = None
) -> np.ndarray:
    """Return each group's count, or the total weight of its places, in each ranking (r, g).

    Args:
        groups: group codes (r, k).
        g: number of groups.
        weights: weights (k,) of the places. If None, all weights are 1.
    """
    # Use a single bincount for all rankings, where group a in ranking r has cell r g + a.
    cells = np.arange(len(groups))[:, None] * g + groups
    spread = None if weights is None else np.tile(weights, len(groups))
    return np.bincount(cells.ravel(), spread, minlength=len(groups) * g).reshape(-1, g)


def _relative_entropy(shares: Floats, middle: Floats) -> Floats:
    """Return sum_a p_a log(p_a / m_a) (r,), with 0 log 0 = 0."""
    shares = np.broadcast_to(shares, middle.shape)
    ratio = np.divide(shares, middle, out=np.ones_like(middle), where=shares > 0)
    return (shares * np.log(ratio)).sum(axis=1)
