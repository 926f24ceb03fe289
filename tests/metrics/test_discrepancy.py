"""Discrepancy (eq. 7.2) against its definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.metrics import attribute_shares, discrepancy

laws = settings(max_examples=60, deadline=None, derandomize=True)


@laws
@given(st.integers(2, 6).flatmap(lambda g: st.tuples(st.just(g), st.lists(st.integers(0, g - 1), min_size=1))))
def test_agrees_with_eq_7_2(case: tuple[int, list[int]]) -> None:
    n_groups, labels = case
    expected = math.sqrt(sum((labels.count(a) / len(labels) - 1 / n_groups) ** 2 for a in range(n_groups)))
    assert discrepancy(labels, n_groups) == pytest.approx(expected)
    assert expected <= math.sqrt(1 - 1 / n_groups) + 1e-12


@laws
@given(st.lists(st.integers(-1, 2), min_size=1), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_unknown_rows_are_left_out(labels: list[int], random) -> None:
    known = [label for label in labels if label >= 0]
    if not known:
        return
    shuffled = list(labels)
    random.shuffle(shuffled)
    found = attribute_shares(shuffled, 3, unknown=-1)
    assert found.discrepancy == pytest.approx(discrepancy(known, 3))
    assert found.unknown_rate == pytest.approx(1 - len(known) / len(labels))
    assert found.n == len(known)
    assert sum(found.shares) == pytest.approx(1)


def test_extremes() -> None:
    assert discrepancy([0, 1, 2, 3, 4], 5) == pytest.approx(0)
    assert discrepancy([1, 1], 2) == pytest.approx(math.sqrt(0.5))
    assert discrepancy(torch.tensor([4, 4]), 5) == pytest.approx(math.sqrt(0.8))


def test_fair_draws_have_the_bias_that_is_documented() -> None:
    rng = np.random.default_rng(0)
    for n_groups in (2, 5):
        squares = [discrepancy(rng.integers(n_groups, size=100), n_groups) ** 2 for _ in range(2000)]
        assert np.mean(squares) == pytest.approx((1 - 1 / n_groups) / 100, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0, 2], 2, None), r"labels: with n_groups=2 expected integers 0 .. 1, got \[0, 2\]"),
        (([-1, 0], 2, None), r"expected integers 0 .. 1, got \[-1, 0\]"),
        ((["f", "m"], 2, None), r"expected integers 0 .. 1, got \['f', 'm'\]"),
        (([-1, -1], 2, -1), r"labels: all 2 are unknown \(-1\); there is no share to report"),
        (([0, 1], 2, 1), r"unknown: expected a label outside 0 .. 1, got 1"),
        (([0, 0], 1, None), r"n_groups: expected at least 2 attribute values, got 1"),
    ],
)
def test_errors(arguments: tuple, text: str) -> None:
    labels, n_groups, unknown = arguments
    with pytest.raises(InvalidInputError, match=text):
        discrepancy(labels, n_groups, unknown=unknown)
