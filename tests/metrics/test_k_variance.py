"""k-variance: every matching, the closed form on a line, a transport's laws, and the shift gap by loops."""

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from tests.refusals import refused
from vldebias.metrics import k_variance, robustness
from vldebias.metrics.robustness import shift_distances

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


# --- the distribution shift gap


def problem(seed: int, n: int = 12, t: int = 3, d: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, t, d)), rng.integers(3, size=n), rng.normal(size=(n, d))


BAD = ({"norm": 0.0}, {"exponent": 0.0}, {"exponent": math.inf}, {"norm": math.nan})


def shift_gap(*features: np.ndarray, **options: Any) -> float:
    return float(shift_distances(*features, **options).mean())


def looped(views: np.ndarray, labels: np.ndarray, images: np.ndarray, norm: float, exponent: float) -> float:
    """The definition, class by class, image by image and coordinate by coordinate."""
    total = 0.0
    for c in set(labels.tolist()):
        members = [i for i in range(len(labels)) if labels[i] == c]
        share = len(members) / len(labels)
        for i in members:
            length = 0.0
            for k in range(views.shape[2]):
                centre = sum(float(images[j, k]) for j in members) / len(members)
                seen = sum(float(views[i, t, k]) for t in range(views.shape[1])) / views.shape[1]
                length += abs(centre - seen) ** norm
            total += share / len(members) * (length ** (1 / norm)) ** exponent
    return total


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.sampled_from([0.5, 1.0, 2.0]))
def test_agrees_with_the_definition(seed: int, norm: float, exponent: float) -> None:
    views, labels, images = problem(seed)
    found = shift_gap(views, labels, images=images, norm=norm, exponent=exponent)
    assert found == pytest.approx(looped(views, labels, images, norm, exponent))
    own = shift_gap(views, labels, norm=norm, exponent=exponent)
    assert own == pytest.approx(looped(views, labels, views.mean(1), norm, exponent))


def test_the_default_is_the_proof_s_euclidean_norm() -> None:
    views, labels, images = problem(1)
    assert shift_gap(views, labels, images=images) == pytest.approx(looped(views, labels, images, 2.0, 1.0))


def test_a_class_of_one_image_is_its_own_centre() -> None:
    views, _, _ = problem(3)
    assert shift_gap(views, np.arange(len(views))) == pytest.approx(0, abs=1e-12)


def test_an_image_gives_one_value() -> None:
    views, labels, images = problem(4)
    order = np.random.default_rng(0).permutation(len(labels))
    found = shift_distances(views, labels, images=images)
    assert found.shape == (len(labels),)
    assert shift_distances(views[order], labels[order], images=images[order]) == pytest.approx(found[order])
    assert shift_distances(views[:, ::-1].copy(), labels, images=images) == pytest.approx(found)


@refused(
    (lambda v, x, i: (v[:, 0], x), {}, r"finite features \(n, t, d\), got shape \(12, 5\)"),
    (lambda v, x, i: (v[:, :0], x), {}, r"finite features \(n, t, d\), got shape \(12, 0, 5\)"),
    (lambda v, x, i: (v * np.nan, x), {}, r"views: .* are NaN"),
    (lambda v, x, i: (v, x[:3]), {}, r"labels \(12,\) and images \(12, 5\) .* got \(3,\) and \(12, 5\)"),
    (lambda v, x, i: (v, x, i[:, :4]), {}, r"got \(12,\) and \(12, 4\)"),
    (lambda v, x, i: (v, x, i + np.inf), {}, "images: expected finite features"),
    *((lambda v, x, i: (v, x), wrong, "norm and exponent: expected numbers > 0") for wrong in BAD),
)
def test_what_has_no_shift_gap(features: Any, wrong: dict[str, float]) -> None:
    views, labels, *images = features(*problem(5))
    shift_gap(views, labels, images=images[0] if images else None, **wrong)
