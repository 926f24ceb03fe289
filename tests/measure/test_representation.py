"""Test MPR and AWRF: naive versions, properties, and the chance level for a small pool."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import hypergeom
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor

from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.measure.metric import METRICS
from vldebias.measure.representation import (
    rank_fairness,
    representation_gap,
    representation_gaps,
)
from vldebias.study.tasks.gallery import Gallery


def authors_gap(rows, curated, selected, regressor):  # type: ignore[no-untyped-def]
    """Compute the gap like the authors: fit a regressor to the signed weights, scale it, and
    subtract."""
    k = int(selected.sum())
    m = len(curated)
    both = np.vstack([rows, curated])
    signed = [one / k for one in selected] + [-1 / m] * m
    c = regressor.fit(both, signed).predict(both)
    c = c / np.sqrt((c**2).sum()) * np.sqrt(m * k / (m + k))
    of_selected = sum(weight / k * value for weight, value in zip(selected, c, strict=False))
    return abs(of_selected - sum(c[len(rows) :]) / m)


@pytest.mark.parametrize("seed", range(5))
def test_gap_matches_the_authors_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(2, size=(60, 5)).astype(float)
    rows[:30, 0] = 1
    curated = rng.integers(2, size=(40, 5)).astype(float)
    selected = np.zeros(60)
    selected[rng.permutation(35)[:15]] = 1
    linear = authors_gap(rows, curated, selected, LinearRegression())
    assert representation_gap(rows, selected, curated) == pytest.approx(linear, abs=1e-9)
    tree = DecisionTreeRegressor(max_depth=3, random_state=0)
    trees = authors_gap(rows, curated, selected, tree)
    found = representation_gap(rows, selected, curated, functions="trees")
    assert found == pytest.approx(trees, abs=1e-9)
    assert 0 < linear <= trees <= 1


def test_gap_of_linear_functions_is_their_supremum() -> None:
    """No linear function with the right norm has a larger difference."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(30, 3))
    curated = rng.normal(size=(20, 3)) + 0.5
    selected = np.r_[np.ones(10), np.zeros(20)]
    gap = representation_gap(rows, selected, curated)
    both = np.vstack([rows, curated])
    for _ in range(300):
        values = both @ rng.normal(size=3) + rng.normal()
        values *= np.sqrt(20 * 10 / 30) / np.linalg.norm(values)
        assert abs(values[:10].mean() - values[30:].mean()) <= gap + 1e-12


@pytest.mark.parametrize("counts", [(10, 0), (7, 3), (5, 5), (0, 10)])
def test_ranking_gaps_match_the_gap_of_their_labels(counts: tuple[int, int]) -> None:
    groups = np.repeat([0, 1], counts)[None]
    one_hot = np.eye(2)[groups[0]]
    curated = np.eye(2).repeat([6, 4], axis=0)
    expected = representation_gap(one_hot, np.ones(10), curated)
    found = representation_gaps(groups, np.array([0.6, 0.4]))[0]
    assert found == pytest.approx(expected, abs=1e-12)


def slow_fairness(groups: list[int], prior: list[float]) -> float:
    """Compute AWRF one position at a time, with scipy's distance."""
    exposure = [0.0] * len(prior)
    for place, group in enumerate(groups, start=1):
        exposure[group] += 1 / np.log2(max(place, 2))
    shares = np.array(exposure) / sum(exposure)
    return float(1 - jensenshannon(shares, prior) ** 2)


@pytest.mark.parametrize("prior", [[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
def test_fairness_agrees_with_a_plain_implementation(prior: list[float]) -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(2 if prior[-1] == 0 else 3, size=(20, 12))
    found = rank_fairness(groups, np.array(prior))
    expected = [slow_fairness(row.tolist(), prior) for row in groups]
    assert np.allclose(found, expected, atol=1e-9)


def test_scales_are_bounded() -> None:
    prior = np.array([0.5, 0.5])
    even = np.array([[0, 1] * 5])
    one = np.zeros((1, 10), dtype=int)
    assert representation_gaps(even, prior)[0] == 0
    assert representation_gaps(one, np.array([0.0, 1.0]))[0] == pytest.approx(1)
    assert rank_fairness(one, np.array([0.0, 1.0]))[0] == pytest.approx(1 - log(2))
    # Exposure depends on the order, not only on which rows are included.
    assert rank_fairness(even, prior)[0] > rank_fairness(np.sort(even), prior)[0]


def test_each_ranking_can_have_its_own_prior() -> None:
    """Gallery resamples are compared with their own shares."""
    groups = np.random.default_rng(3).integers(2, size=(4, 9))
    priors = np.array([[0.5, 0.5], [0.2, 0.8], [1.0, 0.0], [0.4, 0.6]])
    for compute in (representation_gaps, rank_fairness):
        rows = [compute(row[None], prior)[0] for row, prior in zip(groups, priors, strict=True)]
        assert np.allclose(compute(groups, priors), rows, atol=1e-15)


def test_both_are_registered_as_ranking_metrics() -> None:
    assert METRICS["mpr"].better == "lower"
    assert METRICS["awrf"].better == "higher"
    assert METRICS["mpr"].reads == METRICS["awrf"].reads == "rankings"


@pytest.mark.parametrize(("sizes", "k"), [((12, 8), 6), ((30, 10), 20)])
def test_chance_level_accounts_for_a_finite_pool(sizes: tuple[int, int], k: int) -> None:
    """Results are sampled without replacement, so counts are hypergeometric."""
    labels = Labels.from_values(np.repeat(["a", "b"], sizes).tolist())
    gallery = Gallery(labels, [k], resamples=4000)
    values = gallery.random()
    counts = np.arange(k + 1)
    weights = hypergeom(sum(sizes), sizes[0], k).pmf(counts)
    for metric, compute in (
        ("mpr", representation_gaps),
        ("max_skew", METRICS["max_skew"].compute),
    ):
        exact = 0.0
        for count, weight in zip(counts, weights, strict=True):
            if weight > 0:
                groups = np.repeat([0, 1], [count, k - count])[None]
                exact += weight * float(compute(groups, np.array([0.5, 0.5]))[0])  # type: ignore[misc]
        found = values[f"{metric}@{k}"]
        assert abs(found.mean() - exact) < 4 * found.std() / np.sqrt(len(found))


@pytest.mark.parametrize(
    ("selected", "words"),
    [
        ([0, 0], "some of them positive"),
        ([1], "expected statistics"),
        ([2, 0], "0, 1"),
        ([float("nan"), 1], "some of them positive"),
    ],
)
def test_invalid_arguments_are_rejected(selected: list[float], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        representation_gap(np.eye(2), selected, np.eye(2))


def test_a_function_that_is_zero_everywhere_has_no_gap() -> None:
    def zero(rows: np.ndarray, signed: np.ndarray) -> np.ndarray:
        return np.zeros(len(rows))

    assert representation_gap(np.eye(2), [1, 0], np.eye(2), functions=zero) == 0.0
