"""Test pages of results: none is shown twice, none is left out, and pages do not change."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vldebias
from tests.reranking.test_index_search import QUERY, STATED, Index, embed
from vldebias.errors import InvalidInputError
from vldebias.queries import DebiasedQueries

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
LABELS = list("mmmfmfffmmfmmmmf")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["m", "f", ""]), min_size=2, max_size=30), st.integers(1, 12))
def test_pages_contain_every_candidate_once(labels: list[str], k: int) -> None:
    if not any(labels):
        return
    scores = np.random.default_rng(len(labels)).normal(size=len(labels)).round(1)
    first = vldebias.rerank(scores, k, labels=[*labels, "m"][: len(labels)], shares="pool")
    n_pages = -(-len(labels) // k)
    pages = [first.page(number).tolist() for number in range(1, n_pages + 1)]
    assert pages[0] == first.tolist()
    assert all(len(page) == k for page in pages[:-1])
    assert sorted(chain(*pages)) == list(range(len(labels)))
    assert first.page(n_pages + 1).tolist() == []


def test_every_page_has_the_requested_shares() -> None:
    first = vldebias.rerank(range(len(LABELS), 0, -1), 4, labels=LABELS, shares="even")
    for number in (1, 2, 3):
        page = first.page(number)
        assert page.report.counts == {"f": 2, "m": 2}
        assert page.page(1).tolist() == first.tolist()


@pytest.mark.parametrize("number", [0, -1, 1.5, True, None])
def test_page_numbers_are_checked(number: object) -> None:
    first = vldebias.rerank(range(16, 0, -1), 4, labels=LABELS)
    with pytest.raises(InvalidInputError, match="page: expected a whole number"):
        first.page(number)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="a slice has no pages"):
        first[:2].page(2)


@pytest.mark.parametrize("query", [QUERY, STATED])
def test_pages_of_an_index_have_no_doubles_and_no_gaps(
    index: Index, queries: DebiasedQueries, query: str
) -> None:
    few = 90

    def call(vector: np.ndarray, n: int) -> tuple[np.ndarray, ...]:
        return index.call(vector, min(n, few))

    first = queries.search(call, query, 20)
    pages = [first.page(number).tolist() for number in range(1, 6)]
    assert pages[0] == first.tolist()
    assert pages[1] == queries.search(call, query, 20, page=2).tolist()
    assert sorted(chain(*pages)) == sorted(index.call(embed([query])[0], few)[0].tolist())
    assert first.page(6).tolist() == []


@pytest.mark.parametrize("query", [QUERY, STATED])
def test_a_page_far_behind_the_last_one_is_empty_and_asks_the_index_no_more_often(
    index: Index, queries: DebiasedQueries, query: str
) -> None:
    asked: list[int] = []

    def call(vector: np.ndarray, n: int) -> tuple[np.ndarray, ...]:
        asked.append(n)
        return index.call(vector, min(n, 90))

    found = queries.search(call, query, 20, page=10_000_000)
    assert found.shape == (0,)
    assert len(asked) <= 3
    first = vldebias.rerank(range(len(LABELS), 0, -1), 4, labels=LABELS)
    assert first.page(10_000_000).tolist() == []


def test_every_page_of_an_index_has_its_shares(index: Index, queries: DebiasedQueries) -> None:
    first = queries.search(index.call, QUERY, 40)
    for number in (1, 2, 3):
        share = index.is_female[np.asarray(first.page(number))].mean()
        assert abs(share - 0.25) <= 0.1, number


def test_the_first_page_does_not_depend_on_how_many_results_are_read(
    index: Index, queries: DebiasedQueries
) -> None:
    shown = queries.search(index.call, QUERY, 20).tolist()
    for page in (2, 7):
        seen: list[int] = []
        found = queries.search(index.call, QUERY, 20)
        for number in range(1, page + 1):
            seen += found.page(number).tolist()
        assert len(set(seen)) == 20 * page
        assert seen[:20] == shown
