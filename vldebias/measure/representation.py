"""Measure how far results are from representing a population: the maximal representational gap,
and the exposure of groups by rank.

Sources: Oesterling et al., "Multi-Group Proportional Representation in Retrieval" (NeurIPS 2024);
Sapiezynski et al., "Quantifying the Impact of User Attention on Fair Group Representation in Ranked
Lists" (2019), as the TREC Fair Ranking track computes it (2021).
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, need

Floats = NDArray[np.float64]
Functions = Literal["linear", "trees"]


def representation_gap(
    statistics: Any,
    selected: Any,
    curated: Any,
    *,
    functions: Functions | Callable[[Floats, Floats], Floats] = "linear",
    max_depth: int = 3,
) -> float:
    """Return MPR, the maximal gap between the mean of a function over the selected rows and its
    mean over a curated set, over a class of functions; 0 is proportional, 1 the most.

    With a = 1 / k on the k selected of n rows, and -1 / m on the m curated ones, it is
    sup_c |sum_i a_i c(x_i)| over functions of the class with sum_i c(x_i)^2 = m k / (m + k), i over
    the n + m rows.

    Args:
        statistics: (n, d) what the functions read of each row: one-hot labels of one or several
            attributes, probabilities of them, or embeddings.
        selected: (n,) weights of the rows in [0, 1], or whether each is selected.
        curated: (m, d) the same of the population that should be represented.
        functions: "linear" (an intercept included; the supremum in closed form), "trees"
            (regression trees of `max_depth`, with intersections of attributes; the function is the
            tree fitted to a, as in the paper), or a function from (rows, a) to the fitted values.

    Raises:
        InvalidInputError: arrays that do not fit, or nothing selected.

    >>> # all results of one of two groups that are even in the population
    >>> groups = [[1, 0], [1, 0], [0, 1], [0, 1]]
    >>> round(representation_gap(groups, [1, 1, 0, 0], groups), 3)
    0.408
    """
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
    if k <= 0 or weights.min() < 0 or weights.max() > 1:
        raise InvalidInputError("selected: expected weights in [0, 1], some above 0")
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
    """Return the values (n + m,) of the function of a class that is nearest to the signed weights:
    the one in which selected rows and the population differ most."""
    if callable(functions):
        return functions(rows, signed)
    if functions == "linear":
        # The projection on the columns; with orthonormal ones it is U U^T a.
        with_intercept = np.concatenate([np.ones((len(rows), 1)), rows], axis=1)
        basis, sizes, _ = np.linalg.svd(with_intercept, full_matrices=False)
        basis = basis[:, sizes > sizes[0] * 1e-10]
        return basis @ (basis.T @ signed)
    if functions == "trees":
        tree = need("sklearn.tree").DecisionTreeRegressor(max_depth=max_depth, random_state=0)
        return np.asarray(tree.fit(rows, signed).predict(rows), dtype=np.float64)
    raise InvalidInputError(f"functions: expected 'linear' or 'trees', got {functions!r}")


# ---- of many rankings: group codes (r, k) of their first k rows, prior (g,) or (r, g) ------------


def representation_gaps(groups: NDArray[np.integer], prior: Floats) -> Floats:
    """Return MPR (r,) of the groups of the first k results, against k images with the shares of the
    prior.

    Every function of one label is linear in its one-hot code, so linear functions and trees give
    the same: sqrt(1/2 sum_a (r_a - p_a)^2 / (r_a + p_a)), which is 0 where the shares are those of
    the prior and 1 where no group is in both.
    """
    weights = np.ones(groups.shape[1])
    shares = exposure_shares(groups, prior.shape[-1], weights)
    both = shares + prior
    parts = np.divide((shares - prior) ** 2, both, out=np.zeros_like(both), where=both > 0)
    return np.sqrt(parts.sum(axis=1) / 2)


def rank_fairness(groups: NDArray[np.integer], prior: Floats) -> Floats:
    """Return AWRF (r,), 1 less the Jensen-Shannon divergence between the exposure of the groups and
    the prior; 1 is fair.

    Place i weighs 1 / log2(max(i, 2)), and the divergence is in nats, as in TREC's evaluation.
    """
    places = np.arange(1, groups.shape[1] + 1)
    shares = exposure_shares(groups, prior.shape[-1], 1 / np.log2(np.maximum(places, 2)))
    middle = (shares + prior) / 2
    divergence = (_relative_entropy(shares, middle) + _relative_entropy(prior, middle)) / 2
    return np.clip(1 - divergence, 0.0, 1.0)


def exposure_shares(groups: NDArray[np.integer], g: int, weights: Floats) -> Floats:
    """Return the share (r, g) of the weight of the places (k,) that each group has."""
    return counts_of_groups(groups, g, weights) / weights.sum()


def counts_of_groups(
    groups: NDArray[np.integer], g: int, weights: Floats | None = None
) -> NDArray[Any]:
    """Return how many rows, or what weight (k,) of places, each group has in each ranking (r,
    g)."""
    # One bincount for all rankings: group a of ranking r is cell r g + a.
    cells = np.arange(len(groups))[:, None] * g + groups
    spread = None if weights is None else np.tile(weights, len(groups))
    return np.bincount(cells.ravel(), spread, minlength=len(groups) * g).reshape(-1, g)


def _relative_entropy(shares: Floats, middle: Floats) -> Floats:
    """Return sum_a p_a log(p_a / m_a) (r,), with 0 log 0 = 0."""
    shares = np.broadcast_to(shares, middle.shape)
    ratio = np.divide(shares, middle, out=np.ones_like(middle), where=shares > 0)
    return (shares * np.log(ratio)).sum(axis=1)
