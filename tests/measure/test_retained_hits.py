"""Test the shares of hits and of results that a method retains: naive versions, chance level, and
extreme lists."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.measure.resampling import resampled_weights
from vldebias.measure.retained import chance_shared, hits_of_value, resampled_shared, shared

ROWS = 40
CODES = np.arange(ROWS) % 2  # the value of each row


def order(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(ROWS)


def hits_of(ranking: np.ndarray) -> list[np.ndarray]:
    return [ranking[CODES[ranking] == value] for value in (0, 1)]


def test_a_list_of_one_value_retains_only_this_value() -> None:
    before = order(0)
    hits = np.concatenate([rows[:10] for rows in hits_of(before)])
    assert shared(hits, hits_of(before)[0][:20]) == 0.5
    assert shared(hits, hits[::-1]) == 1, "the order among them does not matter"
    assert shared(hits, np.setdiff1d(before, hits)) == 0


def test_a_skewed_search_does_not_retain_all_hits_itself() -> None:
    before = np.concatenate([np.flatnonzero(CODES == 0), np.flatnonzero(CODES == 1)])
    hits = np.concatenate([rows[:10] for rows in hits_of(before)])
    assert shared(hits, before[:20]) == 0.5


@pytest.mark.parametrize(("k", "groups", "first"), [(50, 2, 25), (50, 7, 7), (3, 7, 1)])
def test_hits_are_divided_evenly_among_values(k: int, groups: int, first: int) -> None:
    assert hits_of_value(k, groups) == first


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), first=st.integers(1, 5), rare=st.booleans())
def test_resamples_match_those_of_repeated_rows(seed: int, first: int, rare: bool) -> None:
    before, after = order(seed), order(seed + 1)
    hits = hits_of(before)
    if rare:  # Many resamples contain fewer of these rows than there are hits.
        hits[0] = hits[0][: first + 1]
    k = 2 * first
    rankings = {"none": before, "edit": after}
    shares = resampled_shared(hits, first, rankings, k, ROWS, 5, seed, {})
    (weights,) = resampled_weights(ROWS, 5, seed, ROWS)

    def top(rows: np.ndarray, times: np.ndarray, n: int) -> Counter[int]:
        return Counter(np.repeat(rows, times[rows])[:n].tolist())

    for resample, times in enumerate(weights):
        own = top(hits[0], times, first) + top(hits[1], times, first)
        results = top(after, times, k)
        retained, stay = shares["edit"][:, resample]
        assert retained == pytest.approx((own & results).total() / own.total())
        assert stay == pytest.approx((top(before, times, k) & results).total() / k)
    assert (shares["none"][1] == 1).all()


def test_each_resample_of_a_reranking_keeps_the_places_of_its_labels() -> None:
    n = 400  # enough for the places of each label in every resample
    codes = np.arange(n) % 2
    before = np.random.default_rng(3).permutation(n)
    hits = [before[codes[before] == value] for value in (0, 1)]
    rankings = {"none": before, "rerank": np.stack(hits, axis=1).ravel()}
    # The list takes each value's own hits, in every resample.
    shares = resampled_shared(hits, 4, rankings, 8, n, 50, 0, {"rerank": codes})
    assert (shares["rerank"][0] == 1).all()
    assert (resampled_shared(hits, 4, rankings, 8, n, 50, 0, {})["rerank"][0] < 1).any()


def test_chance_is_the_share_of_the_results_among_the_rows() -> None:
    draws = chance_shared(20, 10, ROWS, 4000, seed=0)
    assert draws.mean() == pytest.approx(10 / ROWS, abs=0.01)
    shares = [shared(order(0)[:20], order(seed)[:10]) for seed in range(1, 1000)]
    assert np.mean(shares) == pytest.approx(draws.mean(), abs=0.02)
