"""Counts of many prompts: twins of the metrics one by one, an unbiased square, a radius that covers."""

import itertools
from math import factorial, prod, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vldebias.data import UNKNOWN
from vldebias.evaluation.discrepancies import Counts
from vldebias.metrics import attribute_shares
from vldebias.metrics.discrepancy import squared_discrepancies


@st.composite
def codes(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    values = draw(st.integers(2, 5))
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 9)))
    return draw(arrays(np.int64, shape, elements=st.integers(UNKNOWN, values - 1))), values


@given(codes())
def test_prompts_are_measured_as_one_by_one(given_codes: tuple[np.ndarray, int]) -> None:
    table, values = given_codes
    counts = Counts.of(table, values)
    for i, row in enumerate(table):
        if (row == UNKNOWN).all():
            assert counts.discrepancy[i] == pytest.approx(sqrt(1 - 1 / values))
            assert counts.unknown_rate[i] == 1
            assert np.isnan(counts.shares[i]).all()
            continue
        twin = attribute_shares(row, values, unknown=UNKNOWN)
        assert counts.discrepancy[i] == pytest.approx(twin.discrepancy)
        assert counts.unknown_rate[i] == pytest.approx(twin.unknown_rate)
        assert counts.shares[i] == pytest.approx(np.array(twin.shares))
        assert counts.n[i] == twin.n
    assert counts.undecidable == sum((row == UNKNOWN).all() for row in table)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5)])
@pytest.mark.parametrize("n", [2, 5])
def test_the_corrected_square_is_unbiased(shares: tuple[float, ...], n: int) -> None:
    """By all outcomes of n images with their probabilities; the plain square is not."""
    outcomes = [c for c in itertools.product(range(n + 1), repeat=len(shares)) if sum(c) == n]
    chances = [factorial(n) * prod(p**k / factorial(k) for p, k in zip(shares, c, strict=True)) for c in outcomes]
    counts = Counts(np.array(outcomes), n)
    truth = sum((p - 1 / len(shares)) ** 2 for p in shares)
    assert np.dot(chances, squared_discrepancies(counts.known)) == pytest.approx(truth)
    assert np.dot(chances, counts.discrepancy**2) > truth + 0.01


def test_one_image_or_none_has_the_largest_square() -> None:
    counts = Counts.of(np.array([[0, UNKNOWN], [UNKNOWN, UNKNOWN]]), 4)
    assert squared_discrepancies(counts.known) == pytest.approx([0.75, 0.75])


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.85, 0.15), (0.2,) * 5, (0.6, 0.1, 0.1, 0.1, 0.1)])
@pytest.mark.parametrize("n", [8, 40])
def test_the_radius_covers_the_true_discrepancy(shares: tuple[float, ...], n: int) -> None:
    """At least 95 % of the time but for the steps of a few images, where Wilson's interval has 93 % as well."""
    known = np.random.default_rng(0).multinomial(n, shares, size=400)
    counts = Counts(known, n)
    truth = np.linalg.norm(np.array(shares) - 1 / len(shares))
    covered = np.abs(counts.discrepancy - truth) <= counts.radius(resamples=300, seed=1)
    assert covered.mean() >= 0.915


def test_the_radius_shrinks_with_images_and_is_no_bound_without() -> None:
    radius = Counts(np.array([[1, 1], [50, 50], [5000, 5000], [0, 0]]), 10_000).radius(resamples=500, seed=0)
    assert radius[0] > radius[1] > radius[2] > 0
    assert radius[3] == pytest.approx(sqrt(0.5))
    assert Counts(np.array([[4, 0]]), 4).radius(resamples=500, seed=0)[0] > 0.1  # all alike is not certain
