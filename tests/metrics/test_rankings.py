"""Skew of many rankings at once against one at a time, and resampled galleries against a sort of each."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy, ks_1samp, uniform
from torch import Tensor
from torchmetrics.retrieval import RetrievalHitRate

from vldebias.errors import InvalidInputError
from vldebias.metrics import max_skew, min_skew, ndkl
from vldebias.metrics import rankings as module
from vldebias.metrics.rankings import first_hits, random_rankings, rankings, resampled_places, top_rankings
from vldebias.metrics.skew import log_ratios, ndkls

laws = settings(max_examples=60, deadline=None, derandomize=True)
G = 3


@st.composite
def galleries(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Scores (q, n) with many ties, groups (n,) of which some may be empty, k."""
    q, n = draw(st.integers(1, 4)), draw(st.integers(1, 25))
    levels = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 2.0]), min_size=n, max_size=n)
    scores = np.array([draw(levels) for _ in range(q)])
    groups = np.array(draw(st.lists(st.integers(0, G - 1), min_size=n, max_size=n)))
    return scores, groups, draw(st.integers(1, n))


@laws
@given(galleries())
def test_rankings_are_sorted_and_ties_keep_the_order_of_the_rows(gallery) -> None:
    scores, _, _ = gallery
    for row, order in zip(scores, rankings(scores), strict=True):
        assert order.tolist() == sorted(range(len(row)), key=lambda i: (-row[i], i))


@laws
@given(galleries(), st.integers(0, 5))
def test_random_ties_are_broken_by_one_order_of_the_rows(gallery, seed: int) -> None:
    scores, _, _ = gallery
    (order,) = rankings(np.zeros((1, scores.shape[1])), ties="random", seed=seed)
    place = np.argsort(order)
    for row, found in zip(scores, rankings(scores, ties="random", seed=seed), strict=True):
        assert found.tolist() == sorted(range(len(row)), key=lambda i: (-row[i], place[i]))


def test_random_ties_depend_on_the_seed() -> None:
    orders = {tuple(rankings(np.zeros((1, 50)), ties="random", seed=seed)[0]) for seed in range(3)}
    assert len(orders) == 3
    assert tuple(range(50)) not in orders


@laws
@given(galleries(), st.sampled_from([0.0, 0.1, 0.6]), st.sampled_from([None, (0.5, 0.3, 0.2)]))
def test_skews_of_many_are_those_of_each(gallery, floor: float, prior) -> None:
    scores, groups, k = gallery
    p = np.full(G, 1 / G) if prior is None else np.array(prior)
    ratios = log_ratios(groups[rankings(scores)], k, p, floor=floor)
    naive = {"prior": p, "floor": floor, "n_groups": G}
    assert ratios.max(1) == pytest.approx([max_skew(row, groups, k, **naive) for row in scores])
    assert ratios.min(1) == pytest.approx([min_skew(row, groups, k, **naive) for row in scores])


@laws
@given(galleries(), st.sampled_from([(1 / 3, 1 / 3, 1 / 3), (0.5, 0.3, 0.2)]))
def test_ndkl_of_many_is_that_of_each_and_its_definition(gallery, prior) -> None:
    scores, groups, k = gallery
    ranked = groups[rankings(scores)]
    found = ndkls(ranked.astype(np.uint8), k, np.array(prior))
    assert found == pytest.approx([ndkl(row, groups, k, prior=prior, n_groups=G) for row in scores], abs=1e-12)
    weights = [1 / math.log2(i + 1) for i in range(1, k + 1)]
    for row, value in zip(ranked, found, strict=True):
        shares = [np.bincount(row[:i], minlength=G) / i for i in range(1, k + 1)]
        parts = [w * entropy(share, prior) for w, share in zip(weights, shares, strict=True)]
        assert value == pytest.approx(sum(parts) / sum(weights), abs=1e-12)


def test_each_ranking_may_have_its_own_prior() -> None:
    groups = np.array([[0, 1, 1, 0], [0, 0, 0, 0], [0, 1, 0, 1]])
    priors = np.array([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]])
    ratios, divergences = log_ratios(groups, 3, priors), ndkls(groups, 3, priors)
    for i in (0, 2):
        assert ratios[i] == pytest.approx(log_ratios(groups[i : i + 1], 3, priors[i])[0])
        assert divergences[i] == pytest.approx(ndkls(groups[i : i + 1], 3, priors[i])[0])
    assert ratios[1, 0] == 0
    assert np.isnan(ratios[1, 1])  # a group that has no prior takes no part
    assert np.isnan(log_ratios(groups, 3, priors, floor=0.1)[1, 1])
    assert divergences[1] == 0


@laws
@given(galleries(), st.randoms(use_true_random=False))
def test_a_resample_ranks_as_if_it_were_sorted_anew(gallery, random) -> None:
    scores, _, k = gallery
    n = scores.shape[1]
    drawn = np.array([[random.randrange(n) for _ in range(n)] for _ in range(4)])
    weights = np.stack([np.bincount(row, minlength=n) for row in drawn])
    for row, order in zip(scores, rankings(scores), strict=True):
        for held, top in zip(weights, order[resampled_places(order, weights, k)], strict=True):
            rows = np.repeat(np.arange(n), held)
            assert top.tolist() == rows[np.argsort(-row[rows], kind="stable")][:k].tolist()


def test_a_resample_is_read_as_far_as_it_has_to_be() -> None:
    weights = np.zeros((2, 500), dtype=int)
    weights[0, 400] = weights[1, 0] = 500  # the first row that the first resample holds is the 401st
    assert resampled_places(np.arange(500), weights, 3).tolist() == [[400] * 3, [0] * 3]


def test_a_resample_holds_as_many_rows_as_are_asked_for() -> None:
    with pytest.raises(InvalidInputError, match="k: expected at most the 3 rows that a resample holds, got 4"):
        resampled_places(np.arange(5), np.array([[1, 0, 2, 0, 0]]), 4)


@laws
@given(galleries(), st.sampled_from(["stable", "random"]))
def test_top_rankings_are_the_beginning_of_the_rankings(gallery, ties: str) -> None:
    scores, _, k = gallery
    queries, items = torch.eye(len(scores)), torch.tensor(scores.T, dtype=torch.float32)
    top = top_rankings(queries, items, k, ties=ties, seed=4)
    assert np.array_equal(top, rankings(scores, ties=ties, seed=4)[:, :k])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_top_rankings_are_exact_where_float32_cannot_tell(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows that differ in the eighth digit, rows that are equal, and more of them than there are candidates at first.
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1, 16, generator=generator, dtype=torch.float64)
    items = base + 1e-8 * torch.randn(3000, 16, generator=generator, dtype=torch.float64)
    items[1000:1500] = items[0]
    items, queries = items.to(dtype), torch.randn(3, 16, generator=generator, dtype=torch.float64).to(dtype)
    exact = (queries.double() @ items.double().T).numpy().round(12)
    monkeypatch.setattr(module, "_SCORES", 3 * 700)  # several blocks
    for ties in ("stable", "random"):
        assert np.array_equal(top_rankings(queries, items, 50, ties=ties), rankings(exact, ties=ties)[:, :50])
    naive = (queries.float() @ items.float().T).numpy()
    assert not np.array_equal(rankings(naive)[:, :50], rankings(exact)[:, :50]) or dtype == torch.float16


def test_random_rankings_are_prefixes_of_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    (rows,) = random_rankings(9, 6, 3000, seed=1)
    assert rows.shape == (3000, 6)
    assert all(len(set(row)) == 6 for row in rows.tolist())
    assert np.bincount(rows[:, 5], minlength=9) / 3000 == pytest.approx(1 / 9, abs=0.02)
    monkeypatch.setattr(module, "_BLOCK", 9 * 500)
    assert np.array_equal(np.concatenate(list(random_rankings(9, 6, 3000, seed=1))), rows)


def test_few_of_many_are_drawn_one_by_one_and_are_random_too() -> None:
    (rows,) = random_rankings(10_050, 200, 400, seed=1)
    assert rows.shape == (400, 200)
    assert all(len(set(row)) == 200 for row in rows.tolist())
    for place in (0, 199):
        assert ks_1samp(rows[:, place] / 10_050, uniform.cdf).pvalue > 1e-3
    shared = [len(np.intersect1d(one, other)) for one, other in zip(rows[::2], rows[1::2], strict=True)]
    assert np.mean(shared) == pytest.approx(200 * 200 / 10_050, abs=0.6)  # hypergeometric


# --- where the first relevant item stands


def random_problem(seed: int, q: int, n: int, codes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randint(codes, (n,), generator=generator)
    asked = items[torch.randint(n, (q,), generator=generator)]  # a code that some item has
    return torch.randn(q, 4, generator=generator), torch.randn(n, 4, generator=generator), asked, items


@pytest.mark.parametrize("k", [1, 3, 10])
def test_recall_agrees_with_torchmetrics(k: int) -> None:
    queries, items, asked, codes = random_problem(0, 40, 60, 15)
    metric = RetrievalHitRate(top_k=k)
    scores, target = queries @ items.T, asked[:, None] == codes
    rows = torch.arange(40)[:, None].expand(40, 60)
    expected = metric(scores.flatten(), target.flatten(), indexes=rows.flatten())
    found = (first_hits(queries, items, asked, codes) < k).float().mean()
    assert found == pytest.approx(float(expected))
    assert 0 < found < 1


@laws
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 12), st.integers(1, 5))
def test_ranks_agree_with_a_sort_ties_included(seed: int, q: int, n: int, codes: int) -> None:
    queries, items, asked, of_items = random_problem(seed, q, n, codes)
    queries, items = queries.round(), items.round()  # many ties
    found = first_hits(queries, items, asked, of_items).tolist()
    for i, (row, code) in enumerate(zip(queries @ items.T, asked, strict=True)):
        order = sorted(range(n), key=lambda j: (-float(row[j]), j))
        assert found[i] == next(place for place, j in enumerate(order) if of_items[j] == code)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(1, 50, 30, 10)
    whole = first_hits(*problem)
    monkeypatch.setattr(module, "_SCORES", 30 * 7)
    assert torch.equal(first_hits(*problem), whole)


def test_errors() -> None:
    with pytest.raises(InvalidInputError, match=r"scores: expected \(q, n\) without NaN, got shape \(3,\)"):
        rankings(np.zeros(3))
    with pytest.raises(InvalidInputError, match="scores: expected"):
        rankings(np.array([[0.0, np.nan]]))
    with pytest.raises(InvalidInputError, match="ties: expected 'stable' or 'random', got 'best'"):
        rankings(np.zeros((1, 3)), ties="best")
    for measure in (log_ratios, ndkls):
        for k in (0, 3):
            with pytest.raises(InvalidInputError, match=rf"k: expected an integer between 1 and the 2 rows .* {k}"):
                measure(np.zeros((1, 2), dtype=int), k, np.ones(1))
    eye = torch.eye(3)
    with pytest.raises(InvalidInputError, match=r"expected \(q, d\) and \(n, d\), got \(3, 3\) and \(2, 2\)"):
        top_rankings(eye, torch.eye(2), 1)
    with pytest.raises(InvalidInputError, match=r"k: expected 1 .. 3, the rows that are ranked, got 4"):
        top_rankings(eye, eye, 4)
    with pytest.raises(InvalidInputError, match="queries and items: expected finite values"):
        top_rankings(eye, eye * torch.nan, 1)
    queries, items, asked, codes = random_problem(2, 4, 6, 3)
    with pytest.raises(InvalidInputError, match=r"expected \(q, d\) and \(n, d\), got \(4, 4\) and \(6, 3\)"):
        first_hits(queries, items[:, :3], asked, codes)
    with pytest.raises(InvalidInputError, match=r"one per query \(4\) and item \(6\), got \(3,\) and \(6,\)"):
        first_hits(queries, items, asked[:3], codes)
    with pytest.raises(InvalidInputError, match="no item is relevant to 1 of 4 queries"):
        first_hits(queries, items, torch.tensor([99, *asked[1:]]), codes)
