"""Accuracy by group, AUROC, precision of suspicion and k-variance: other libraries, naive twins, definitions."""

from itertools import permutations

import numpy as np
import pandas
import pytest
import torch
from fairlearn.metrics import MetricFrame
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from sklearn.metrics import accuracy_score, roc_auc_score

from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.metrics import auroc, group_accuracy, k_variance, worst_group_accuracy
from vldebias.metrics.classification import share_below

tables = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-1, 3)), min_size=1, max_size=60)
NAN = float("nan")


@given(tables)
def test_group_accuracy_agrees_with_a_naive_twin(table: list[tuple[int, int, int]]) -> None:
    naive = {}
    for group in sorted({g for _, _, g in table}):
        rows = [p == y for p, y, g in table if g == group]
        naive[group] = (sum(rows) / len(rows), len(rows))
    found = group_accuracy(*zip(*table, strict=True))
    assert found.n == {g: n for g, (_, n) in naive.items()}
    assert found.accuracy == pytest.approx({g: a for g, (a, _) in naive.items()})
    assert found.worst == pytest.approx(min(a for a, _ in naive.values()))
    assert found.average == pytest.approx(sum(p == y for p, y, _ in table) / len(table))


def test_group_accuracy_agrees_with_fairlearn_for_any_kind_of_array() -> None:
    rng = np.random.default_rng(0)
    predictions, labels, groups = rng.integers(0, 2, 500), rng.integers(0, 2, 500), rng.choice(["a", "b", "c"], 500)
    frame = MetricFrame(metrics=accuracy_score, y_true=labels, y_pred=predictions, sensitive_features=groups)
    found = group_accuracy(predictions, labels, groups)
    assert found.accuracy == pytest.approx(frame.by_group.to_dict())
    assert worst_group_accuracy(predictions, labels, groups) == pytest.approx(frame.group_min())
    assert found.average == pytest.approx(frame.overall)
    column = pandas.Series(groups, index=np.arange(500)[::-1], dtype=object)  # as pandas 2 holds texts
    assert group_accuracy(torch.tensor(predictions), labels.tolist(), column) == found


@refused(
    (([0, 1], [0], [0, 1]), "'labels': 1"),
    (([NAN], [0], [0]), "predictions"),
    ((["0"], [0], [0]), "predictions and labels"),
    (([0.2, 0.9], [0, 1], [0, 0]), "predictions"),
)
def test_what_has_no_group_accuracy(arguments: tuple) -> None:
    group_accuracy(*arguments)


def problem(seed: int, n: int, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < 0.4
    wrong[:2] = True, False
    scores = rng.normal(size=n) - wrong
    return (scores.round() if ties else scores), wrong


@given(st.integers(0, 10_000), st.integers(2, 60), st.booleans())
def test_auroc_agrees_with_scikit_learn(seed: int, n: int, ties: bool) -> None:
    scores, wrong = problem(seed, n, ties)
    found = auroc(scores, wrong, resamples=5)
    assert found.value == pytest.approx(roc_auc_score(wrong, -scores), abs=1e-12)
    assert found.n == n
    assert share_below(-scores[wrong], -scores[~wrong]).mean() == pytest.approx(found.value, abs=1e-12)


def test_auroc_interval_is_that_of_resampling_each_kind() -> None:
    scores, wrong = problem(3, 200, ties=True)
    found, rng = auroc(scores, wrong), np.random.default_rng(1)
    kinds = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    rows = [np.concatenate([rng.choice(kind, len(kind)) for kind in kinds]) for _ in range(500)]
    expected = np.quantile([roc_auc_score(wrong[row], -scores[row]) for row in rows], [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.015)
    for scores, wrong in (([0.1, 0.2], [0, 0]), ([0.1, NAN], [0, 1]), ([0.1, 0.2], [0, 2])):
        with pytest.raises(InvalidInputError):
            auroc(scores, wrong)


RNG = np.random.default_rng(0)


def subsets(n: int, k: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of the subsets, by the definition: shuffled once, and dealt."""
    order = np.random.default_rng(seed).permutation(n).tolist()
    return [(order[i : i + k], order[i + k : i + 2 * k]) for i in range(0, 2 * k * (n // (2 * k)), 2 * k)]


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_k_variance_is_the_cheapest_of_all_matchings(k: int) -> None:
    points = RNG.normal(size=(13, 3))

    def cheapest(one: np.ndarray, other: np.ndarray) -> float:
        return min(np.linalg.norm(one - other[list(to)], axis=1).mean() for to in permutations(range(k)))

    expected = np.mean([cheapest(points[a], points[b]) for a, b in subsets(13, k, 5)])
    assert k_variance(points, k=k, seed=5) == pytest.approx(expected, rel=1e-12)


def test_on_a_line_it_is_scipys_distance_and_far_from_the_origin_nothing_is_lost() -> None:
    points = RNG.normal(size=(40, 1)).round(3)
    ((one, other),) = subsets(40, 20, 0)
    assert k_variance(points) == pytest.approx(wasserstein_distance(points[one, 0], points[other, 0]))
    expected = np.mean([np.abs(np.sort(points[a, 0]) - np.sort(points[b, 0])).mean() for a, b in subsets(40, 4, 3)])
    assert k_variance(points, k=4, seed=3) == pytest.approx(expected)  # five pairs
    assert k_variance(points + 2.0**20, k=10) == pytest.approx(k_variance(points, k=10), rel=1e-8)
    assert k_variance(np.full((300, 3), 1e8 / 3)) == 0


@refused(
    (np.ones(4), None, "features"),
    (np.ones((1, 4)), None, "features"),
    (np.full((4, 2), np.inf), None, "features"),
    (np.ones((5, 2)), 3, "k: .* got 3"),
)
def test_what_has_no_k_variance(features: np.ndarray, k: int | None) -> None:
    k_variance(features, k=k)
