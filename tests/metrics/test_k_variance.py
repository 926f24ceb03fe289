"""k-variance: against every matching, against the closed form on a line, and the laws of a transport distance."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from vldebias.errors import InvalidInputError
from vldebias.metrics import k_variance

RNG = np.random.default_rng(0)


def halves(points: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(len(points))
    return points[order[:k]], points[order[k : 2 * k]]


@pytest.mark.parametrize("k", [1, 2, 4])
def test_it_is_the_cheapest_of_all_matchings(k: int) -> None:
    points = RNG.normal(size=(9, 3))
    one, other = halves(points, k, seed=5)
    costs = [np.linalg.norm(one - other[list(order)], axis=1).mean() for order in permutations(range(k))]
    assert k_variance(points, k=k, seed=5) == pytest.approx(min(costs))


def test_on_a_line_it_is_scipys_distance() -> None:
    points = RNG.normal(size=(40, 1))
    one, other = halves(points, 20, seed=0)
    assert k_variance(points) == pytest.approx(wasserstein_distance(one[:, 0], other[:, 0]))


def test_moving_turning_and_stretching() -> None:
    points = RNG.normal(size=(30, 4))
    turn, _ = np.linalg.qr(RNG.normal(size=(4, 4)))
    value = k_variance(points, draws=3)
    assert k_variance(points @ turn + 7, draws=3) == pytest.approx(value)
    assert k_variance(-2.5 * points, draws=3) == pytest.approx(2.5 * value)


def test_it_is_zero_for_one_point_and_never_above_the_diameter() -> None:
    assert k_variance(np.ones((10, 3))) == 0
    points = RNG.normal(size=(20, 3))
    diameter = np.linalg.norm(points[:, None] - points[None], axis=-1).max()
    assert 0 < k_variance(points) < diameter


def test_draws_average() -> None:
    points = RNG.normal(size=(12, 2))
    rng = np.random.default_rng(3)
    singles = []
    for _ in range(4):
        order = rng.permutation(12)
        singles.append(k_variance_of(points[order[:6]], points[order[6:]]))
    assert k_variance(points, draws=4, seed=3) == pytest.approx(np.mean(singles))


def k_variance_of(one: np.ndarray, other: np.ndarray) -> float:
    return min(np.linalg.norm(one - other[list(order)], axis=1).mean() for order in permutations(range(len(one))))


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (np.ones(4), {}, r"expected finite \(n, d\) with n >= 2, got shape \(4,\)"),
        (np.ones((1, 4)), {}, "n >= 2"),
        (np.full((4, 2), np.inf), {}, "finite"),
        (np.ones((5, 2)), {"k": 3}, r"two disjoint subsets of 5 rows have 1 \.\. 2 rows, got 3"),
        (np.ones((5, 2)), {"draws": 0}, "draws: expected at least 1, got 0"),
    ],
)
def test_errors(features: np.ndarray, options: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        k_variance(features, **options)
