"""Provide an exact index, and queries that search it."""

import pytest

import vldebias
from tests.reranking.test_index_search import SET, Index, embed
from vldebias.queries import DebiasedQueries


@pytest.fixture(scope="module")
def index() -> Index:
    return Index()


@pytest.fixture(scope="module")
def queries(index: Index) -> DebiasedQueries:
    return vldebias.debias_queries(embed, SET, reference=index.vectors[:2000])
