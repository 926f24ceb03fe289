"""Test the share of hits kept within each value: naive versions, chance level, and both
extremes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.measure.kept import (
    chance_kept,
    hits_of_value,
    kept_share,
    resampled_kept_shares,
)
from vldebias.measure.resampling import resampled_weights

ROWS = 40


def order(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(ROWS)


def test_an_identical_ranking_keeps_all_hits_and_a_disjoint_one_keeps_none() -> None:
    before = order(0)
    assert kept_share(before, before, 10) == 1
    assert kept_share(before, np.sort(before[:10]), 10) == 1, "the order among them does not matter"
    assert kept_share(before, before[::-1], 10) == 0


@pytest.mark.parametrize(("k", "groups", "first"), [(50, 2, 25), (50, 7, 7), (3, 7, 1)])
def test_hits_are_divided_evenly_among_values(k: int, groups: int, first: int) -> None:
    assert hits_of_value(k, groups) == first


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), first=st.integers(1, 15))
def test_resamples_match_those_of_repeated_rows(seed: int, first: int) -> None:
    before = order(seed)
    after = order(seed + 1)
    shares = resampled_kept_shares(before, {"edit": after}, first, ROWS, 5, seed)["edit"]
    (weights,) = resampled_weights(ROWS, 5, seed, ROWS)
    for share, times in zip(shares, weights, strict=True):
        drawn_before = Counter(np.repeat(before, times[before])[:first].tolist())
        drawn_after = Counter(np.repeat(after, times[after])[:first].tolist())
        assert share == pytest.approx((drawn_before & drawn_after).total() / first)


def test_chance_is_the_share_of_the_hits_among_the_rows() -> None:
    draws = chance_kept(10, ROWS, 4000, seed=0)
    assert draws.mean() == pytest.approx(10 / ROWS, abs=0.01)
    shares = [kept_share(order(0), order(seed), 10) for seed in range(1, 1000)]
    assert np.mean(shares) == pytest.approx(draws.mean(), abs=0.02)
