"""Test impact ratios: the rate of each category over the highest rate, and the coverage of their
intervals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.measure.impact import impact_ratios, ratio_interval
from vldebias.measure.resampling import wilson_interval

counts = st.lists(
    st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    min_size=1,
    max_size=8,
)


def names(number: int) -> list[str]:
    return [f"group {place}" for place in range(number)]


@given(counts)
def test_ratios_are_computed_from_the_rates(pairs: list[tuple[int, int]]) -> None:
    hits, sizes = zip(*pairs, strict=True)
    categories = impact_ratios(names(len(pairs)), sizes, hits)
    large = [(k, n) for k, n in pairs if n >= 0.02 * sum(sizes)]
    highest = max(k / n for k, n in large)
    for (k, n), category in zip(pairs, categories, strict=True):
        assert category.is_small == (n < 0.02 * sum(sizes))
        assert category.rate is not None
        assert category.rate.value == k / n
        assert category.rate.low <= k / n <= category.rate.high
        if category.is_small or highest == 0:
            assert category.ratio is None
            continue
        assert category.ratio is not None
        assert category.ratio.value == pytest.approx(k / n / highest)
        assert 0 <= category.ratio.low <= category.ratio.value <= category.ratio.high <= 1


@pytest.mark.parametrize(
    ("rates", "sizes"),
    [
        ((0.3, 0.3), (100, 100)),
        ((0.15, 0.3), (100, 100)),
        ((0.3,) * 7, (60,) * 7),
        ((0.1, 0.2, 0.3, 0.3, 0.05), (40, 60, 400, 300, 30)),
        ((0.05, 0.1), (50, 400)),
    ],
)
def test_intervals_cover_the_true_ratio_even_for_equal_rates(
    rates: tuple[float, ...], sizes: tuple[int, ...]
) -> None:
    """The highest rate is selected on the same data, and the interval must account for that."""
    rng = np.random.default_rng(0)
    truth = np.array(rates) / max(rates)
    covered = np.zeros(len(rates))
    repeats = 400
    for _ in range(repeats):
        hits = rng.binomial(sizes, rates).tolist()
        for place, category in enumerate(impact_ratios(names(len(rates)), sizes, hits)):
            assert category.ratio is not None
            low, high = category.ratio.low, category.ratio.high
            covered[place] += low - 1e-12 <= truth[place] <= high + 1e-12
    # Two standard errors below 0.95.
    assert (covered / repeats).min() > 0.95 - 2 * (0.95 * 0.05 / repeats) ** 0.5


def test_the_interval_of_the_inverse_ratio_is_the_inverse_interval() -> None:
    low, high = ratio_interval((30, 100), (60, 120))
    inverse_low, inverse_high = ratio_interval((60, 120), (30, 100))
    assert (1 / inverse_high, 1 / inverse_low) == pytest.approx((low, high))
    assert ratio_interval((0, 10), (5, 10))[0] == 0
    assert ratio_interval((5, 10), (0, 10))[1] == math.inf


def test_the_lower_end_stays_positive_if_the_rate_of_the_reference_is_uncertain() -> None:
    low, _ = wilson_interval(5, 10)
    _, reference_high = wilson_interval(1, 10)
    assert reference_high > 2 * 1 / 10
    assert ratio_interval((5, 10), (1, 10))[0] == low / reference_high > 0
    assert ratio_interval((0, 10), (1, 10))[0] == 0


def test_a_category_of_exactly_two_percent_is_included() -> None:
    small, large = impact_ratios(["small", "large"], [2, 98], [1, 98])
    assert (small.is_small, large.is_small) == (False, False)
    assert small.ratio is not None
    assert small.ratio.value == 0.5
    below, _ = impact_ratios(["small", "large"], [2, 99], [1, 99])
    assert below.is_small
    assert below.ratio is None


@refused(
    ([3], [2], "expected 0 .. "),
    ([-1], [2], "expected 0 .. "),
)
def test_impossible_counts_are_rejected(selected: list[int], applicants: list[int]) -> None:
    impact_ratios(["a"], applicants, selected)
