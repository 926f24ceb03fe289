"""Discrepancy (eq. 7.2) against its definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.metrics import discrepancy
from vldebias.metrics.shares import (
    deviation_ratios,
    discrepancies,
    kl_divergences,
    shares_radius,
    squared_discrepancies,
)

laws = settings(max_examples=60, deadline=None, derandomize=True)


@laws
@given(st.integers(2, 6).flatmap(lambda g: st.tuples(st.just(g), st.lists(st.integers(0, g - 1), min_size=1))))
def test_agrees_with_eq_7_2(case: tuple[int, list[int]]) -> None:
    n_groups, labels = case
    expected = math.sqrt(sum((labels.count(a) / len(labels) - 1 / n_groups) ** 2 for a in range(n_groups)))
    assert discrepancy(labels, n_groups) == discrepancy(torch.tensor(labels), n_groups) == pytest.approx(expected)
    assert expected <= math.sqrt(1 - 1 / n_groups) + 1e-12


@laws
@given(st.lists(st.integers(-1, 2), min_size=1), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_unknown_rows_are_left_out(labels: list[int], random) -> None:
    known = [label for label in labels if label >= 0]
    if not known:
        return
    shuffled = list(labels)
    random.shuffle(shuffled)
    assert discrepancy(shuffled, 3, unknown=-1) == pytest.approx(discrepancy(known, 3))


def test_fair_draws_have_the_bias_that_is_documented() -> None:
    rng = np.random.default_rng(0)
    for n_groups in (2, 5):
        squares = [discrepancy(rng.integers(n_groups, size=100), n_groups) ** 2 for _ in range(2000)]
        assert np.mean(squares) == pytest.approx((1 - 1 / n_groups) / 100, rel=0.1)


@laws
@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_discrepancies_of_many_are_those_of_each(counts: list[list[int]]) -> None:
    largest = math.sqrt(1 - 1 / 3)
    each = [discrepancy(np.repeat(range(3), row), 3) if sum(row) else largest for row in counts]
    assert discrepancies(np.array(counts)) == pytest.approx(each)


def test_the_squared_discrepancy_is_unbiased() -> None:
    p, rng = np.array([0.6, 0.3, 0.1]), np.random.default_rng(1)
    for n in (2, 10):
        drawn = squared_discrepancies(rng.multinomial(n, p, size=200_000))
        assert drawn.mean() == pytest.approx(((p - 1 / 3) ** 2).sum(), abs=4e-3)
    assert squared_discrepancies(np.array([[1, 0, 0], [0, 0, 0]])) == pytest.approx(2 / 3)


def test_the_radius_holds_the_true_shares_as_often_as_it_says() -> None:
    p, rng = np.array([0.7, 0.3]), np.random.default_rng(2)
    counts = rng.multinomial(25, p, size=400)
    inside = np.linalg.norm(counts / 25 - p, axis=1) <= shares_radius(counts, resamples=400)
    assert inside.mean() > 0.92
    assert 0 < shares_radius(np.array([[25, 0]]))[0] < 0.2  # 25 alike are not certain
    assert shares_radius(np.array([[0, 0]]))[0] == pytest.approx(math.sqrt(0.5))


@refused(
    (([0, 2], 2, None), r"labels: with n_groups=2 expected integers 0 .. 1, got \[0, 2\]"),
    (([-1, 0], 2, None), r"expected integers 0 .. 1, got \[-1, 0\]"),
    ((["f", "m"], 2, None), r"expected integers 0 .. 1, got \['f', 'm'\]"),
    (([-1, -1], 2, -1), r"labels: all 2 are unknown \(-1\); there is no share to report"),
    (([0, 1], 2, 1), r"unknown: expected a label outside 0 .. 1, got 1"),
    (([0, 0], 1, None), r"n_groups: expected at least 2 attribute values, got 1"),
)
def test_errors(arguments: tuple) -> None:
    labels, n_groups, unknown = arguments
    discrepancy(labels, n_groups, unknown=unknown)


@laws
@given(st.integers(2, 6).flatmap(lambda g: st.tuples(st.just(g), st.lists(st.integers(0, g - 1), min_size=1))))
def test_deviation_ratio_and_kl_against_their_definitions(case: tuple[int, list[int]]) -> None:
    n_groups, labels = case
    shares = [labels.count(a) / len(labels) for a in range(n_groups)]
    counts = np.bincount(labels, minlength=n_groups)[None]
    ratio, kl = float(deviation_ratios(counts)[0]), float(kl_divergences(counts)[0])
    assert ratio == pytest.approx(max(abs(s - 1 / n_groups) for s in shares) / (1 - 1 / n_groups))
    assert kl == pytest.approx(sum(s * math.log(s * n_groups) for s in shares if s), abs=1e-12)
    nothing = np.zeros(n_groups, dtype=int)
    assert (deviation_ratios(nothing), kl_divergences(nothing)) == pytest.approx((1, math.log(n_groups)))
