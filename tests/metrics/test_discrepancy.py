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


cases = st.integers(2, 6).flatmap(lambda g: st.tuples(st.just(g), st.lists(st.integers(0, g - 1), min_size=1)))


@laws
@given(cases, st.integers(0, 5))
def test_agrees_with_eq_7_2_and_unknown_rows_are_left_out(case: tuple[int, list[int]], unknown: int) -> None:
    n_groups, labels = case
    expected = math.sqrt(sum((labels.count(a) / len(labels) - 1 / n_groups) ** 2 for a in range(n_groups)))
    assert discrepancy(labels, n_groups) == discrepancy(torch.tensor(labels), n_groups) == pytest.approx(expected)
    assert discrepancy([-1] * unknown + labels[::-1], n_groups, unknown=-1) == pytest.approx(expected)
    counts = np.bincount(labels, minlength=n_groups)
    assert discrepancies(np.stack([counts, 0 * counts])) == pytest.approx([expected, math.sqrt(1 - 1 / n_groups)])


def test_fair_draws_have_the_bias_that_is_documented() -> None:
    rng = np.random.default_rng(0)
    for n_groups in (2, 5):
        squares = [discrepancy(rng.integers(n_groups, size=100), n_groups) ** 2 for _ in range(2000)]
        assert np.mean(squares) == pytest.approx((1 - 1 / n_groups) / 100, rel=0.1)


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
    *(((labels, 2, None), "labels: .* 0 .. 1") for labels in ([0, 2], [-1, 0], ["f", "m"])),
    (([-1, -1], 2, -1), "labels: all 2"),
    (([0, 1], 2, 1), "unknown: "),
    (([0, 0], 1, None), "n_groups: "),
)
def test_errors(arguments: tuple) -> None:
    labels, n_groups, unknown = arguments
    discrepancy(labels, n_groups, unknown=unknown)


@laws
@given(cases)
def test_deviation_ratio_and_kl_against_their_definitions(case: tuple[int, list[int]]) -> None:
    n_groups, labels = case
    shares = [labels.count(a) / len(labels) for a in range(n_groups)]
    counts = np.bincount(labels, minlength=n_groups)[None]
    ratio, kl = float(deviation_ratios(counts)[0]), float(kl_divergences(counts)[0])
    assert ratio == pytest.approx(max(abs(s - 1 / n_groups) for s in shares) / (1 - 1 / n_groups))
    assert kl == pytest.approx(sum(s * math.log(s * n_groups) for s in shares if s), abs=1e-12)
    nothing = np.zeros(n_groups, dtype=int)
    assert (deviation_ratios(nothing), kl_divergences(nothing)) == pytest.approx((1, math.log(n_groups)))
