"""Test the properties of the re-ranking methods, and compare them with their naive versions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vldebias
from tests.reranking import slow_orders
from vldebias.reranking import Candidates, quota

SHARES = (
    [Fraction(1, 2)] * 2,
    [Fraction(1, 3)] * 3,
    [Fraction(7, 10), Fraction(3, 10)],
    [Fraction(9, 10), Fraction(1, 10)],
    [Fraction(1, 2), *[Fraction(1, 10)] * 5],
    [Fraction(5, 11), Fraction(3, 11), Fraction(2, 11), Fraction(1, 11)],
)


def made(
    seed: int, shares: list[Fraction], n: int = 120, unknown: float = 0.0, tied: bool = False
) -> Candidates:
    """Return candidates with enough rows per group. Later groups have higher scores."""
    rng = np.random.default_rng(seed)
    g = len(shares)
    codes = np.concatenate([np.arange(g).repeat(n // g), rng.integers(g, size=n - n // g * g)])
    scores = rng.normal(size=n) + 0.8 * codes
    if tied:
        scores = scores.round(0)
    codes = np.where(rng.random(n) < unknown, -1, codes)
    rows = rng.permutation(n)
    names = [f"g{place}" for place in range(g)]
    return Candidates(scores[rows], codes[rows], names, np.array(shares, float))


def reach(shares: list[Fraction], n: int = 120) -> int:
    """Return the longest prefix for which no group runs out of candidates."""
    return int(min(n // len(shares) / share for share in shares))


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_quota_is_the_best_ranking_within_one_of_the_shares(
    shares: list[Fraction], tied: bool
) -> None:
    for seed in range(2):
        candidates = made(seed, shares, tied=tied)
        k = min(reach(shares), 44)
        order = quota(candidates, k)
        naive = slow_orders.quota(candidates.scores.tolist(), candidates.codes.tolist(), shares, k)
        assert order.tolist() == naive


@pytest.mark.parametrize("n", [0, 1, 2, 7, 5000])
@pytest.mark.parametrize("digits", [0, 2, 15])
def test_tied_scores_keep_the_order_of_the_rows(n: int, digits: int) -> None:
    scores = np.random.default_rng(n).normal(size=n).round(digits)
    ranked = Candidates(scores, np.zeros(n, dtype=int), ["a"], np.ones(1)).ranked
    assert ranked.tolist() == slow_orders.best_first(scores.tolist())


def test_changing_the_scores_afterwards_does_not_change_the_report() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6])
    positions = vldebias.rerank(scores, 2, labels=["m", "m", "f", "f"])
    before = str(positions.report)
    scores[:] = scores[::-1].copy()
    assert str(positions.report) == before


@given(st.lists(st.integers(1, 30), min_size=2, max_size=7), st.integers(0, 2**31), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_prefix_is_within_one_of_the_shares(parts: list[int], seed: int, tied: bool) -> None:
    shares = [Fraction(part, sum(parts)) for part in parts]
    n = 60 * len(shares)
    candidates = made(seed, shares, n, tied=tied)
    k = min(reach(shares, n), 150)
    codes = candidates.codes[quota(candidates, k)]
    counts = (codes[:, None] == np.arange(len(shares))).cumsum(axis=0)
    places = np.arange(1, k + 1)[:, None]
    assert np.abs(counts - places * candidates.shares).max() < 1 + 1e-9


def test_all_candidates_appear_once_and_each_group_in_order_of_score() -> None:
    candidates = made(4, SHARES[0], unknown=0.1, tied=True)
    order = quota(candidates, len(candidates))
    assert sorted(order.tolist()) == list(range(len(candidates)))
    for code in (-1, 0, 1):
        rows = order[candidates.codes[order] == code]
        best = candidates.ranked[candidates.codes[candidates.ranked] == code]
        assert rows.tolist() == best.tolist()


@pytest.mark.parametrize("shares", SHARES[1:4], ids=str)
def test_unknown_candidates_keep_their_positions(shares: list[Fraction]) -> None:
    candidates = made(5, shares, unknown=0.3)
    ranked = candidates.ranked
    order = quota(candidates, 40)
    is_unknown = candidates.codes[ranked[:40]] == -1
    assert is_unknown.sum() > 5
    assert order[is_unknown].tolist() == ranked[:40][is_unknown].tolist()
    assert (candidates.codes[order[~is_unknown]] >= 0).all()


def test_an_exhausted_group_leaves_its_positions_to_the_others() -> None:
    scores = np.arange(12.0)[::-1]
    codes = np.array([0] * 6 + [1] * 4 + [2] * 2)
    candidates = Candidates(scores, codes, ["a", "b", "c"], np.full(3, 1 / 3))
    codes = codes[quota(candidates, 12)]
    assert sorted(codes[:6].tolist()) == [0, 0, 1, 1, 2, 2]
    assert sorted(codes[6:10].tolist()) == [0, 0, 1, 1]
    assert codes[10:].tolist() == [0, 0]


def test_several_groups_with_a_share_of_zero_follow_in_order_of_score() -> None:
    codes = np.array([1, 2, 0, 2, 1, 0])
    shares = np.array([1.0, 0.0, 0.0])
    candidates = Candidates(-np.arange(6.0), codes, ["a", "b", "c"], shares)
    assert quota(candidates, 6).tolist() == [2, 5, 0, 1, 3, 4]
    assert quota(candidates, 4).tolist() == [2, 5, 0, 1]


def with_borders(seed: int, shares: list[Fraction], near_shares: list[Fraction]) -> Candidates:
    """Return candidates of which a third are near the border of their group."""
    candidates = made(seed, shares, n=240, tied=seed % 2 == 1)
    is_near = np.random.default_rng(seed).random(240) < 1 / 3
    near = np.array(near_shares, float)
    return replace(candidates, is_near=is_near, near_shares=near)


@pytest.mark.parametrize(
    ("shares", "near_shares"),
    [
        ([Fraction(1, 2)] * 2, [Fraction(1, 3), Fraction(1, 4)]),
        ([Fraction(3, 4), Fraction(1, 4)], [Fraction(0), Fraction(2, 5)]),
        ([Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)], [Fraction(1, 3)] * 3),
    ],
    ids=str,
)
def test_the_places_of_each_group_are_dealt_to_its_two_parts(
    shares: list[Fraction], near_shares: list[Fraction]
) -> None:
    for seed in range(4):
        candidates = with_borders(seed, shares, near_shares)
        order = quota(candidates, 36)
        by_label = quota(replace(candidates, is_near=None), 36)
        # The labels have the places that a quota by labels gives them.
        assert candidates.codes[order].tolist() == candidates.codes[by_label].tolist()
        for group, near_share in enumerate(near_shares):
            rows = [row for row in order if candidates.codes[row] == group]
            own = [row for row in candidates.ranked if candidates.codes[row] == group]
            parts = candidates.is_near[own].astype(int).tolist()
            if near_share:
                scores = list(range(len(own), 0, -1))
                places = slow_orders.quota(scores, parts, [1 - near_share, near_share], len(rows))
            else:
                places = list(range(len(rows)))
            assert rows == [own[place] for place in places]


def test_a_part_that_runs_out_leaves_its_places_to_the_rest_of_its_group() -> None:
    codes = np.array([0, 1] * 20)
    is_near = np.arange(40) < 4
    even = np.array([0.5, 0.5])
    candidates = Candidates(-np.arange(40.0), codes, "ab", even, is_near=is_near, near_shares=even)
    order = quota(candidates, 20)
    assert (codes[order] == 0).sum() == 10
    assert is_near[order].sum() == 4
    assert sorted(quota(candidates, 40).tolist()) == list(range(40))


def test_a_group_without_candidates_leaves_the_ratio_of_the_others() -> None:
    scores = np.arange(20.0)[::-1]
    codes = np.arange(20) // 10
    two = Candidates(scores, codes, ["b", "c"], np.array([0.6, 0.4]))
    three = Candidates(scores, codes + 1, ["a", "b", "c"], np.array([0.5, 0.3, 0.2]))
    assert quota(three, 10).tolist() == quota(two, 10).tolist()
