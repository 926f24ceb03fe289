"""k-variance: against every matching, against the closed form on a line, and the laws of a transport distance."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from tests.refusals import refused
from vldebias.metrics import k_variance, robustness

RNG = np.random.default_rng(0)


def subsets(n: int, k: int, seed: int, draws: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of the subsets, by the definition: shuffled once, and dealt."""
    order = np.random.default_rng(seed).permutation(n).tolist()
    return [(order[i : i + k], order[i + k : i + 2 * k]) for i in range(0, 2 * k * (draws or n // (2 * k)), 2 * k)]


def twin(points: np.ndarray, k: int, seed: int = 0, draws: int | None = None, p: float = 1.0) -> float:
    """Every matching of every pair of subsets."""

    def cheapest(one: np.ndarray, other: np.ndarray) -> float:
        return min((np.linalg.norm(one - other[list(to)], axis=1) ** p).mean() for to in permutations(range(k)))

    return np.mean([cheapest(points[a], points[b]) for a, b in subsets(len(points), k, seed, draws)])


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("k", "draws"), [(1, None), (2, None), (3, 2), (4, 1), (6, None)])
def test_it_is_the_cheapest_of_all_matchings(k: int, draws: int | None, p: float) -> None:
    points = RNG.normal(size=(13, 3))
    assert k_variance(points, k=k, seed=5, draws=draws, p=p) == pytest.approx(twin(points, k, 5, draws, p), rel=1e-12)


def test_on_a_line_it_is_scipys_distance() -> None:
    points = RNG.normal(size=(40, 1))
    ((one, other),) = subsets(40, 20, 0)
    assert k_variance(points) == pytest.approx(wasserstein_distance(points[one, 0], points[other, 0]))


def test_no_row_is_in_two_subsets_and_by_default_as_many_as_fit_are_used() -> None:
    seen: list[float] = []
    points = np.arange(950.0)[:, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robustness, "_transport", lambda one, other, p: seen.extend([*one[:, 0], *other[:, 0]]) or 0.0)
        k_variance(points)
        assert (len(seen), len(set(seen))) == (800, 800)  # four pairs of 100
        seen.clear()
        k_variance(points, k=7, draws=3)
        assert (len(seen), len(set(seen))) == (42, 42)


def test_far_from_the_origin_nothing_is_lost_to_rounding() -> None:
    points = RNG.normal(size=(60, 4)).round(3)
    assert k_variance(points + 2.0**20, k=10) == pytest.approx(k_variance(points, k=10), rel=1e-8)


def test_it_is_zero_for_a_collapsed_class_and_never_above_the_diameter() -> None:
    assert k_variance(np.full((10, 3), 0.1, np.float32)) == 0
    assert k_variance(np.full((300, 3), 1e8 / 3)) == 0
    points = RNG.normal(size=(20, 3))
    diameter = np.linalg.norm(points[:, None] - points[None], axis=-1).max()
    assert 0 < k_variance(points) < diameter


@refused(
    (np.ones(4), {}, r"expected finite \(n, d\) with n >= 2, got shape \(4,\)"),
    (np.ones((1, 4)), {}, "n >= 2"),
    (np.full((4, 2), np.inf), {}, "finite"),
    (np.ones((5, 2)), {"k": 3}, r"two disjoint subsets of 5 rows have 1 \.\. 2 rows, got 3"),
    (np.ones((5, 2)), {"draws": 0}, r"draws: 5 rows have 1 \.\. 1 disjoint pairs of subsets of 2 rows, got 0"),
    (np.ones((13, 2)), {"k": 2, "draws": 4}, r"1 \.\. 3 disjoint pairs of subsets of 2 rows, got 4; take fewer"),
    (np.ones((5, 2)), {"p": 0.0}, "p: expected a number > 0, got 0"),
)
def test_errors(features: np.ndarray, options: dict[str, Any]) -> None:
    k_variance(features, **options)
