"""k-variance: against every matching, against the closed form on a line, and the laws of a transport distance."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from vldebias.errors import InvalidInputError
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


def test_pairs_of_rows_give_twice_the_variance_and_the_mean_difference() -> None:
    """k = 1: E |x - y|^2 = 2 tr(cov); of a normal distribution on a line E |x - y| = 2 sigma / sqrt(pi)."""
    scales = np.array([1.0, 2.0, 0.5])
    n, draws = 40_000, 20_000
    squares = k_variance(RNG.normal(size=(n, 3)) * scales, k=1, p=2.0)
    error = np.sqrt(8 * (scales**4).sum() / draws)  # of |x - y|^2, a sum of 2 s^2 chi^2(1)
    assert squares == pytest.approx(2 * (scales**2).sum(), abs=5 * error)
    line = k_variance(3 * RNG.normal(size=(n, 1)), k=1)
    assert line == pytest.approx(6 / np.sqrt(np.pi), abs=5 * 3 * np.sqrt((2 - 4 / np.pi) / draws))


def test_subsets_come_closer_as_they_grow() -> None:
    """W1 of two samples of one distribution falls to 0 as k grows, so a larger k gives a smaller value."""
    points = RNG.normal(size=(4000, 2))
    values = [k_variance(points, k=k) for k in (1, 10, 100)]
    assert values[0] > values[1] > values[2]
    assert values[0] > 4 * values[2]


def test_moving_turning_and_stretching() -> None:
    points = RNG.normal(size=(30, 4))
    turn, _ = np.linalg.qr(RNG.normal(size=(4, 4)))
    value = k_variance(points, k=5, draws=3)
    assert k_variance(points @ turn + 7, k=5, draws=3) == pytest.approx(value)
    assert k_variance(-2.5 * points, k=5, draws=3) == pytest.approx(2.5 * value)
    assert k_variance(-2.5 * points, k=5, p=2.0) == pytest.approx(2.5**2 * k_variance(points, k=5, p=2.0))


def test_far_from_the_origin_nothing_is_lost_to_rounding() -> None:
    points = RNG.normal(size=(60, 4)).round(3)
    assert k_variance(points + 2.0**20, k=10) == pytest.approx(k_variance(points, k=10), rel=1e-8)


def test_it_is_zero_for_a_collapsed_class_and_never_above_the_diameter() -> None:
    assert k_variance(np.full((10, 3), 0.1, np.float32)) == 0
    assert k_variance(np.full((300, 3), 1e8 / 3)) == 0
    points = RNG.normal(size=(20, 3))
    diameter = np.linalg.norm(points[:, None] - points[None], axis=-1).max()
    assert 0 < k_variance(points) < diameter


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (np.ones(4), {}, r"expected finite \(n, d\) with n >= 2, got shape \(4,\)"),
        (np.ones((1, 4)), {}, "n >= 2"),
        (np.full((4, 2), np.inf), {}, "finite"),
        (np.ones((5, 2)), {"k": 3}, r"two disjoint subsets of 5 rows have 1 \.\. 2 rows, got 3"),
        (np.ones((5, 2)), {"draws": 0}, r"draws: 5 rows have 1 \.\. 1 disjoint pairs of subsets of 2 rows, got 0"),
        (np.ones((13, 2)), {"k": 2, "draws": 4}, r"1 \.\. 3 disjoint pairs of subsets of 2 rows, got 4; take fewer"),
        (np.ones((5, 2)), {"p": 0.0}, "p: expected a number > 0, got 0"),
    ],
)
def test_errors(features: np.ndarray, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        k_variance(features, **options)
