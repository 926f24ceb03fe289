"""Select results that represent a population, by linear programming (MOPR)."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

from vldebias.errors import InvalidInputError, need
from vldebias.measure.representation import Functions, fitted_function
from vldebias.reranking.candidates import Candidates, Floats, Rows

_CUTS = 50  # maximum number of cutting planes, as in the paper
_ENOUGH = 1e-9


def mopr(
    candidates: Candidates,
    k: int,
    *,
    curated: ArrayLike | None = None,
    gap: float = 0.0,
    functions: Functions | Callable[[Floats, Floats], Floats] = "linear",
) -> Rows:
    """Return the k candidates with the highest total score, given a bound on the MPR gap.

    The gap in multi-group proportional representation (MPR) is the largest difference between a
    function's means over the selection and over the population. The method maximises sum_i s_i a_i
    over 0 <= a_i <= 1 with sum_i a_i = k and MPR(a) <= gap. It uses cutting planes: solve the
    linear programme, find the function with the largest difference (in closed form for linear
    functions), bound this difference, and solve again. If the solution is fractional, the k
    candidates with the largest a are selected.

    Args:
        candidates: the candidates for one query. Candidates whose group is unknown are never
            selected, because the population contains no such rows.
        k: number of results, less than the number of candidates.
        curated: statistics (m, d) of the population, as in `Candidates.statistics`. If None, the
            population is k rows with the requested shares.
        gap: maximum MPR gap, as computed by `representation_gap`.
        functions: function class for the gap, "linear" or "trees".

    Returns:
        Rows (k,) of the selected candidates, best first.

    Source: Oesterling et al., "Multi-Group Proportional Representation in Retrieval" (NeurIPS
    2024), Algorithm 1 with the linear programme of section 4 and its closed form for linear
    functions.

    >>> from vldebias import rerank
    >>> groups = ["m", "m", "m", "f", "f"]
    >>> rerank([0.9, 0.8, 0.7, 0.2, 0.1], 4, labels=groups, method="mopr").tolist()
    [0, 1, 3, 4]
    """
    weights = selection(candidates, k, curated=curated, gap=gap, functions=functions)
    # The candidates are sorted by rank and the sort is stable, so the better candidate wins ties.
    ranked = candidates.ranked
    chosen = np.argsort(-weights[ranked].round(6), kind="stable")[:k]
    return ranked[np.sort(chosen)]


def selection(
    candidates: Candidates,
    k: int,
    *,
    curated: ArrayLike | None = None,
    gap: float = 0.0,
    functions: Functions | Callable[[Floats, Floats], Floats] = "linear",
) -> Floats:
    """Return the candidates' weights a (n,), which `mopr` rounds to a selection.

    Args:
        candidates: the candidates for one query.
        k: number of results.
        curated: statistics (m, d) of the population.
        gap: maximum MPR gap.
        functions: function class for the gap, "linear" or "trees".

    Raises:
        InvalidInputError: If every selection of k candidates has a larger gap.
    """
    n = len(candidates)
    if curated is None:
        # A linear function's mean only depends on the mean of the rows.
        population = np.tile(candidates.shares, (k, 1))
    else:
        population = np.asarray(curated, dtype=np.float64)
    m = len(population)
    both = np.concatenate([candidates.statistics, population])
    scale = sqrt(m * k / (m + k))
    cuts: list[Floats] = []
    bounds: list[float] = []
    weights = np.zeros(n)
    weights[candidates.ranked[:k]] = 1.0
    for _ in range(_CUTS):
        signed = np.concatenate([weights / k, np.full(m, -1 / m)])
        values = fitted_function(both, signed, functions)
        length = float(np.linalg.norm(values))
        if length < _ENOUGH or abs(float(signed @ values)) * scale / length <= gap + _ENOUGH:
            return weights
        # Express |sum_i c(x_i) a_i / k - mean c| <= gap as two constraints.
        values *= scale / length
        cuts += [values[:n] / k, -values[:n] / k]
        mean = float(values[n:].mean())
        bounds += [gap + mean + _ENOUGH, gap - mean + _ENOUGH]
        # Maximise the total score, subject to all cuts, with weights that sum to k.
        solved = need("scipy.optimize").linprog(
            -candidates.scores,
            A_ub=np.array(cuts),
            b_ub=np.array(bounds),
            A_eq=np.ones((1, n)),
            b_eq=[k],
            bounds=(0, 1),
            method="highs",
        )
        if not solved.success:
            raise InvalidInputError(
                f"mopr: no {k} of {n} candidates have such a small representational gap; allow a"
                " larger gap, pass more candidates, or use method='quota'"
            )
        weights = np.clip(solved.x, 0.0, 1.0)
    return weights
