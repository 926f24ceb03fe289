"""Group accuracies against fairlearn and a naive twin."""

import numpy as np
import pandas
import pytest
import torch
from fairlearn.metrics import MetricFrame
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.metrics import average_accuracy, gap, group_accuracy, worst_group_accuracy, worst_group_auc

tables = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-1, 3)), min_size=1, max_size=60)
laws = settings(max_examples=60, deadline=None, derandomize=True)


@laws
@given(tables)
def test_agrees_with_a_naive_twin(table: list[tuple[int, int, int]]) -> None:
    naive = {}
    for group in sorted({g for _, _, g in table}):
        rows = [p == y for p, y, g in table if g == group]
        naive[group] = (sum(rows) / len(rows), len(rows))
    found = group_accuracy(*zip(*table, strict=True))
    assert found.n == {g: n for g, (_, n) in naive.items()}
    assert found.accuracy == pytest.approx({g: a for g, (a, _) in naive.items()})
    assert found.worst == pytest.approx(min(a for a, _ in naive.values()))
    assert found.average == pytest.approx(sum(p == y for p, y, _ in table) / len(table))
    assert found.accuracy[found.worst_group] == found.worst


def test_agrees_with_fairlearn() -> None:
    rng = np.random.default_rng(0)
    predictions, labels, groups = rng.integers(0, 2, 500), rng.integers(0, 2, 500), rng.choice(["a", "b", "c"], 500)
    frame = MetricFrame(metrics=accuracy_score, y_true=labels, y_pred=predictions, sensitive_features=groups)
    found = group_accuracy(predictions, labels, groups)
    assert found.accuracy == pytest.approx(frame.by_group.to_dict())
    assert worst_group_accuracy(predictions, labels, groups) == pytest.approx(frame.group_min())
    assert average_accuracy(predictions, labels) == pytest.approx(frame.overall)
    assert gap(predictions, labels, groups) == pytest.approx(frame.overall - frame.group_min())


def test_reweighting_by_hand() -> None:
    predictions, labels, groups = [1, 1, 0, 0], [1, 1, 1, 1], ["x", "x", "x", "y"]
    assert average_accuracy(predictions, labels) == 0.5
    assert average_accuracy(predictions, labels, groups, {"x": 1, "y": 1}) == pytest.approx((2 / 3 + 0) / 2)
    assert average_accuracy(predictions, labels, groups, {"x": 95, "y": 5}) == pytest.approx(0.95 * 2 / 3)
    n = group_accuracy(predictions, labels, groups).n
    assert average_accuracy(predictions, labels, groups, n) == pytest.approx(0.5)
    with pytest.raises(InvalidInputError, match="groups and weights go together"):
        average_accuracy(predictions, labels, groups)


def test_tensors_arrays_and_lists_agree() -> None:
    predictions, labels, groups = [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 1, 1]
    expected = group_accuracy(predictions, labels, groups)
    assert group_accuracy(*(torch.tensor(x) for x in (predictions, labels, groups))) == expected
    assert group_accuracy(*(np.array(x) for x in (predictions, labels, groups))) == expected
    assert isinstance(expected.worst, float)
    column = pandas.Series(["a", "a", "b", "b"], index=[3, 2, 1, 0], dtype=object)  # as pandas 2 holds texts
    assert group_accuracy(predictions, labels, column) == group_accuracy(predictions, labels, list(column))


@refused(
    (([0, 1], [0], [0, 1]), r"one length, got {'predictions': 2, 'labels': 1, 'groups': 2}"),
    (([], [], []), r"predictions: expected a non-empty array, got shape \(0,\)"),
    (([[0]], [[0]], [[0]]), r"predictions: expected shape \(n,\), got \(1, 1\)"),
    (([float("nan")], [0], [0]), r"predictions: 1 of 1 values are NaN"),
    (([0], [0], [None]), r"groups: expected a non-empty array, got shape \(1,\) of object"),
)
def test_errors(arguments: tuple) -> None:
    group_accuracy(*arguments)


@refused(
    ({0: 1.0}, r"weights: expected one per group \[0, 1\], got \[0\]"),
    ({0: 2.0, 1: -1.0}, r"weights: expected finite values >= 0"),
    ({0: 0.0, 1: 0.0}, r"not all 0, got \[0.0, 0.0\]"),
)
def test_weight_errors(weights: dict[int, float]) -> None:
    average_accuracy([0, 1], [0, 1], [0, 1], weights)


@pytest.mark.parametrize("seed", range(5))
def test_worst_group_auc_is_that_of_the_group_with_the_fewest_pairs_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, positive, groups = rng.integers(0, 5, 60), rng.integers(0, 2, 60), rng.integers(0, 3, 60)

    def area(group: int) -> float:
        high, low = (scores[(groups == group) & (positive == kind)] for kind in (1, 0))
        return float(np.mean([(h > o) + 0.5 * (h == o) for h in high for o in low]))

    found = worst_group_auc(scores, positive, groups)
    assert found == pytest.approx(min(map(area, range(3))))
    assert worst_group_auc(scores**3 - 7, positive, groups) == found  # any increasing map of the scores
    areas = [worst_group_auc(scores[groups == g], positive[groups == g], groups[groups == g]) for g in range(3)]
    assert found == min(areas)
    with pytest.raises(InvalidInputError, match="expected positive and other rows in every group, 'b' has one kind"):
        worst_group_auc([1.0, 0.0, 1.0], [1, 0, 1], ["a", "a", "b"])
