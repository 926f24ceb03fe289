"""Test rankings and skew: every convention against naive versions, and resampled galleries against
sorting each of them."""

import math
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from tests.refusals import refused
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.measure import rankings as module
from vldebias.measure.rankings import (
    first_hits,
    leaders,
    max_skews,
    min_skews,
    ndkls,
    resampled_places,
)
from vldebias.metrics import max_skew, min_skew, ndkl

G = 3


def ranked_by(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")


@st.composite
def galleries(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Draw scores (q, n) with many ties, groups (n,), some of which may be empty, and k."""
    q = draw(st.integers(1, 4))
    n = draw(st.integers(1, 25))
    levels = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 2.0]), min_size=n, max_size=n)
    scores = np.array([draw(levels) for _ in range(q)])
    groups = np.array(draw(st.lists(st.integers(0, G - 1), min_size=n, max_size=n)))
    return scores, groups, draw(st.integers(1, n))


@given(galleries(), st.sampled_from([0.0, 0.1, 0.6]), st.sampled_from([None, (0.5, 0.3, 0.2)]))
def test_skew_and_ndkl_match_their_definitions(gallery, floor: float, prior) -> None:
    scores, groups, k = gallery
    p = np.full(G, 1 / G) if prior is None else np.array(prior)
    ranked = groups[ranked_by(scores)][:, :k]
    weights = 1 / np.log2(np.arange(2, k + 2))
    of_many = max_skews(ranked, p), min_skews(ranked, p, floor), ndkls(ranked.astype(np.uint8), p)
    for row, largest, least, spread in zip(scores.tolist(), *of_many, strict=True):
        first = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        shares = [max(sum(groups[i] == a for i in first) / k, floor) for a in range(G)]
        skews = [
            math.log(r / wanted_share) if r else -math.inf
            for r, wanted_share in zip(shares, p, strict=True)
        ]
        named = {"prior": "uniform" if prior is None else p, "n_groups": G}
        assert max_skew(row, groups, k, **named) == largest
        assert largest == pytest.approx(max(skews)) or floor
        assert (
            min_skew(row, groups, k, floor=floor, **named)
            == pytest.approx(min(0.0, *skews))
            == pytest.approx(least)
        )
        parts = [
            entropy(np.bincount(groups[first[:i]], minlength=G) / i, p) for i in range(1, k + 1)
        ]
        assert spread == pytest.approx(np.average(parts, weights=weights), abs=1e-12)
        assert ndkl(row, groups, k, **named) == pytest.approx(spread, abs=1e-12)


def test_priors_match_a_manual_computation() -> None:
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6], dtype=torch.bfloat16)
    groups = ["f", "m", "m", "m"]
    # All four are retrieved, and 3/4 of them are m. They are compared with even shares of 1/2, or
    # with the shares in the data set, which are also 3/4.
    assert max_skew(scores, groups, 4) == pytest.approx(math.log(0.75 / 0.5))
    assert max_skew(scores, groups, 4, prior="dataset") == 0
    assert max_skew(scores, groups, 1, prior="dataset") == pytest.approx(math.log(1 / 0.25))
    assert max_skew(scores, groups, 1, prior=[0.1, 0.9]) == pytest.approx(math.log(10))
    # Neither of the two retrieved rows belongs to group 1, which gives log 0, or the floor of 1/4
    # against 1/2.
    assert min_skew([3.0, 2.0, 1.0], [0, 0, 1], 2) == -math.inf
    assert min_skew([3.0, 2.0, 1.0], [0, 0, 1], 2, floor=1 / 4) == pytest.approx(math.log(0.5))
    for floor in (-1, 1.5, math.nan, "half"):
        with pytest.raises(InvalidInputError, match=r"floor: expected a share in \[0, 1\], such"):
            min_skew([3.0, 2.0, 1.0], [0, 0, 1], 2, floor=floor)
    assert min_skews(np.zeros((1, 2), int), np.array([0.5, 0.5])) == pytest.approx(math.log(0.5)), (
        "half an image"
    )


def test_a_single_group_is_never_skewed_and_warns() -> None:
    for measure in (partial(max_skew, k=1), partial(min_skew, k=1), ndkl):
        with pytest.warns(SuspectInputWarning, match="n_groups="):
            assert measure([1.0, 2.0], [5, 5]) == 0
        assert measure([1.0, 2.0], [1, 1], n_groups=2) != 0


@refused(
    *(({"k": k}, "k: ") for k in (4, 0, 1.5, 2.0)),
    ({"scores": ["a", "b", "c"]}, "scores: expected numbers"),
    ({"groups": [0.5, 0.25, 0.5]}, "groups: .* fractions"),
    ({"scores": [[0.1], [0.2, 0.3], [0.4]]}, "scores: got rows of different lengths"),
    ({"scores": [0.1, 0.2j, 0.3]}, "scores: .* complex128"),
    ({"scores": torch.ones(3).to_sparse()}, r"scores: got a sparse .*pass scores\.to_dense\(\)"),
    ({"groups": [0.0, 1.0, float("inf")]}, "groups: got infinite values"),
    ({"groups": [0, 1]}, "'groups': 2"),
    ({"scores": [0.0, float("nan"), 1.0]}, "scores: 1 of 3"),
    *(({"prior": prior}, "prior: ") for prior in ("flat", [0.5, 0.4], [1.0, 0.0])),
    ({"prior": "dataset", "n_groups": 3}, "prior: .* groups that cannot occur"),
    ({"n_groups": 1}, "groups: .*n_groups=1"),
)
def test_invalid_rankings_are_rejected(change: dict) -> None:
    max_skew(**{"scores": [0.1, 0.2, 0.3], "groups": [0, 1, 0], "k": 2, **change})


@given(galleries(), st.randoms(use_true_random=False))
def test_top_rows_are_sorted_and_ties_keep_their_order(gallery, random) -> None:
    scores, _, k = gallery
    q, n = scores.shape
    place = np.array(random.sample(range(n), n))
    queries = torch.eye(q)
    items = torch.tensor(scores.T, dtype=torch.float32)
    of_rows, of_places = (leaders(queries, items, k, places) for places in (np.arange(n), place))
    for i, row in enumerate(scores):
        stable = sorted(range(n), key=lambda j: (-row[j], j))[:k]
        assert [part[i].tolist() for part in of_rows] == [row[stable].tolist(), stable]
        assert (
            of_places[1][i].tolist()
            == place[sorted(range(n), key=lambda j: (-row[j], place[j]))[:k]].tolist()
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_top_rows_are_exact_beyond_float32(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These include rows that differ in the eighth digit and equal rows, and more of both than the
    # initial number of candidates.
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1, 16, generator=generator, dtype=torch.float64)
    items = base + 1e-8 * torch.randn(3000, 16, generator=generator, dtype=torch.float64)
    items[1000:1500] = items[0]
    items = items.to(dtype)
    queries = torch.randn(3, 16, generator=generator, dtype=torch.float64).to(dtype)
    exact = (queries.double() @ items.double().T).numpy().round(12)
    monkeypatch.setattr(module, "_SCORES", 3 * 700)  # several blocks
    place = np.arange(3000)
    assert np.array_equal(leaders(queries, items, 50, place)[1], ranked_by(exact)[:, :50])
    naive = (queries.float() @ items.float().T).numpy()
    assert (
        not np.array_equal(ranked_by(naive)[:, :50], ranked_by(exact)[:, :50])
        or dtype == torch.float16
    )
    with pytest.raises(InvalidInputError, match="finite"):
        leaders(queries, items * torch.nan, 1, place)


@given(galleries(), st.integers(0, 99))
def test_a_resample_is_ranked_as_if_it_were_sorted(gallery, seed: int) -> None:
    scores, _, k = gallery
    n = scores.shape[1]
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=4)
    for row, order in zip(scores, ranked_by(scores), strict=True):
        for held, top in zip(weights, order[resampled_places(order, weights, k)], strict=True):
            rows = np.repeat(np.arange(n), held)
            assert top.tolist() == rows[np.argsort(-row[rows], kind="stable")][:k].tolist()


def test_a_resample_is_read_only_as_far_as_needed() -> None:
    weights = np.zeros((2, 500), dtype=int)
    weights[0, 400] = weights[1, 0] = 500  # the first row in the first resample is row 401
    assert resampled_places(np.arange(500), weights, 3).tolist() == [[400] * 3, [0] * 3]
    with pytest.raises(ValueError, match=r"k: .* 3, .* got 4"):
        resampled_places(np.arange(5), np.array([[1, 0, 2, 0, 0]]), 4)


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 12), st.integers(1, 5))
def test_ranks_agree_with_a_sort_including_ties_for_any_block_size(
    seed: int, q: int, n: int, codes: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    of_items = torch.randint(codes, (n,), generator=generator)
    query_codes = of_items[torch.randint(n, (q,), generator=generator)]  # a code that some item has
    # Rounding creates many ties.
    queries, items = (torch.randn(size, 4, generator=generator).round() for size in (q, n))
    with patch.object(module, "_SCORES", 3 * n):
        places = first_hits(queries, items, query_codes, of_items).tolist()
    for i, (row, code) in enumerate(zip(queries @ items.T, query_codes, strict=True)):
        order = sorted(range(n), key=lambda j: (-float(row[j]), j))
        assert places[i] == next(place for place, j in enumerate(order) if of_items[j] == code)


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        (["F", "female", "m", "m"], "'F' and 'female' may be one group; use one spelling"),
        (["f", "unknown", "m", "m"], "'unknown' counts as a group"),
    ],
)
def test_groups_that_are_probably_mistaken_trigger_a_warning(groups: list, problem: str) -> None:
    with pytest.warns(SuspectInputWarning, match=problem):
        max_skew([0.4, 0.3, 0.2, 0.1], groups, k=2)
