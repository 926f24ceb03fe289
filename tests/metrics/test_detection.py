"""AUROC and precision of suspicion: against scikit-learn, by definition, and the coverage of their intervals."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from tests.refusals import refused
from vldebias.metrics.bootstrap import bootstrap_interval
from vldebias.metrics.detection import auroc, precision_among_lowest

laws = settings(max_examples=60, deadline=None, derandomize=True)


def problem(seed: int, n: int, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < 0.4
    wrong[:2] = True, False
    scores = rng.normal(size=n) - wrong
    return (scores.round() if ties else scores), wrong


@laws
@given(st.integers(0, 10_000), st.integers(2, 60), st.booleans())
def test_auroc_agrees_with_scikit_learn_and_with_counting(seed: int, n: int, ties: bool) -> None:
    scores, wrong = problem(seed, n, ties)
    found = auroc(scores, wrong, resamples=5)
    assert found.value == pytest.approx(roc_auc_score(wrong, -scores), abs=1e-12)
    low, high = scores[wrong][:, None], scores[~wrong]
    assert found.value == pytest.approx(((low < high) + (low == high) / 2).mean(), abs=1e-12)
    assert auroc(-scores, wrong, resamples=5).value == pytest.approx(1 - found.value, abs=1e-12)
    assert found.n == n


def test_auroc_interval_equals_that_of_a_plain_loop() -> None:
    scores, wrong = problem(3, 50, ties=True)

    def area(low: np.ndarray, high: np.ndarray) -> float:
        return float(((low[:, None] < high) + (low[:, None] == high) / 2).mean())

    plain = bootstrap_interval(scores[wrong], scores[~wrong], statistic=area, paired=False, resamples=200, seed=4)
    fast = auroc(scores, wrong, resamples=200, seed=4)
    assert (fast.value, fast.low, fast.high) == pytest.approx((plain.value, plain.low, plain.high))
    assert fast.low < fast.value < fast.high


def test_few_wrong_rows_leave_no_resample_empty() -> None:
    scores, wrong = np.arange(40.0), np.arange(40) == 3
    assert auroc(scores, wrong).value == pytest.approx(36 / 39)


@laws
@given(st.integers(0, 10_000), st.integers(2, 60), st.sampled_from([0.01, 0.07, 0.25, 0.5, 1.0]), st.booleans())
def test_precision_is_the_mean_over_orders_of_the_ties(seed: int, n: int, share: float, ties: bool) -> None:
    scores, wrong = problem(seed, n, ties)
    k = int(np.ceil(round(share * n, 6)))
    rng = np.random.default_rng(seed)
    found = precision_among_lowest(scores, wrong, share, resamples=3).value
    if not ties:
        assert found == pytest.approx(wrong[np.argsort(scores)[:k]].mean())
        return
    orders = [np.lexsort((rng.random(n), scores))[:k] for _ in range(400)]
    assert found == pytest.approx(np.mean([wrong[order].mean() for order in orders]), abs=0.12)


def test_seven_percent_of_a_hundred_are_seven() -> None:
    wrong = np.arange(100) < 7
    assert precision_among_lowest(np.arange(100.0), wrong, 0.07, resamples=2).value == 1


@refused(
    (lambda: auroc([0.1, 0.2], [0, 0]), "wrong: 0 of 2 rows are wrong; both kinds are needed"),
    (lambda: auroc([0.1, 0.2], [True, True]), "wrong: 2 of 2 rows are wrong"),
    (lambda: auroc([0.1, np.nan], [0, 1]), "NaN"),
    (lambda: auroc([0.1, np.inf], [0, 1]), "scores: 1 of 2 are not finite"),
    (lambda: auroc([0.1, 0.2], [0, 2]), r"expected truth values, got \[0, 2\]"),
    (lambda: auroc([0.1, 0.2, 0.3], [0, 1]), "one length"),
    (lambda: precision_among_lowest([0.1, 0.2], [0, 1], 0), r"share in \(0, 1\], got 0"),
    (lambda: precision_among_lowest([0.1, 0.2], [0, 1], 1.5), r"share in \(0, 1\], got 1.5"),
)
def test_errors(call: Callable[[], object]) -> None:
    call()
