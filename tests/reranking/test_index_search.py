"""Test `search`, which re-ranks an index's results to the groups' shares in the whole index."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vldebias
from vldebias.errors import InvalidInputError, ProjectionMismatchError, SuspectInputWarning
from vldebias.queries import DebiasedQueries

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.AutoDeclinedWarning")
D = 32
N = 4000
SHARE_OF_WOMEN = 0.25
SET = vldebias.make_prompt_set("gender", {"male": ["man"], "female": ["woman"]}, ["pilot", "nurse"])
QUERY = "A photo of a pilot."  # prefers men
STATED = "A photo of a woman who is a pilot."


def vector_of(text: str, seed: int = 0) -> np.ndarray:
    """Return a text's vector, which leans to one side of the gender direction."""
    rng = np.random.default_rng([seed, *text.encode()])
    side = 1.0 if "man" in text or "male" in text else 0.1
    if "woman" in text or "female" in text:
        side = -1.0
    return 0.2 * rng.normal(size=D) + side * np.eye(D)[0]


def embed(texts: list[str]) -> np.ndarray:
    return np.stack([vector_of(text) for text in texts]).astype(np.float32)


class Index:
    """An exact index, of which a quarter of the vectors show women."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.is_female = rng.random(N) < SHARE_OF_WOMEN
        side = np.where(self.is_female, -1.0, 1.0)
        vectors = 0.4 * rng.normal(size=(N, D)) + side[:, None] * np.eye(D)[0]
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self.asked: list[int] = []

    def call(self, vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        self.asked.append(n)
        scores = self.vectors @ vector
        rows = np.argsort(-scores, kind="stable")[:n]
        return rows, scores[rows], self.vectors[rows]


@pytest.fixture(scope="module")
def index() -> Index:
    return Index()


@pytest.fixture(scope="module")
def queries(index: Index) -> DebiasedQueries:
    return vldebias.debias_queries(embed, SET, reference=index.vectors[:2000])


def test_results_have_the_shares_of_the_index(index: Index, queries: DebiasedQueries) -> None:
    k = 40
    found = queries.search(index.call, QUERY, k)
    before = index.call(vector_of(QUERY), k)[0]
    assert index.asked[0] == 5 * k
    assert index.asked[1:-1] == [5 * k * 2 ** i for i in range(1, len(index.asked) - 1)]
    assert index.is_female[before].mean() < 0.1
    assert abs(index.is_female[np.asarray(found)].mean() - SHARE_OF_WOMEN) <= 0.05
    line = str(found.report).splitlines()[0]
    assert line.startswith("A photo of a pilot.: first 40 by expected, index shares, zero-shot")


def test_a_query_that_states_a_value_is_returned_as_found(
    index: Index, queries: DebiasedQueries
) -> None:
    found = queries.search(index.call, [QUERY, STATED], 20)
    assert found.shape == (2, 20)
    assert found[1].tolist() == index.call(embed([STATED])[0], 20)[0].tolist()
    assert "as found, because the query is stated" in str(found.reports[1])
    assert "fewer than requested" not in str(found.reports[1])
    assert "true shares unknown" in str(found.reports[0])
    assert found.reports[1].short == {}
    assert found.reports[1].to_dict()["target"] == "stated"
    assert found.reports[0].to_dict()["method"] == "expected"


def test_text_ids_and_short_lists_are_padded(index: Index, queries: DebiasedQueries) -> None:
    def call(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, 7 if vector[0] > 0 else 10)
        return [f"image {row}" for row in rows], scores.tolist(), vectors.tolist()

    found = queries.search(call, [QUERY, STATED], 10)
    assert found[0].tolist()[7:] == [-1, -1, -1]
    assert all(str(key).startswith("image ") for key in found[1])


def test_the_fitted_shares_are_saved_and_refused_for_another_model(
    index: Index, queries: DebiasedQueries, tmp_path: Path
) -> None:
    file = tmp_path / "gender-index.safetensors"
    assert queries.index is not None
    queries.index.save(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = vldebias.debias_queries(embed, SET, index=file)
    found = again.search(index.call, QUERY, 20)
    assert found.tolist() == queries.search(index.call, QUERY, 20).tolist()

    def other(texts: list[str]) -> np.ndarray:
        return np.stack([vector_of(text, seed=1) for text in texts])

    with pytest.raises(ProjectionMismatchError, match="different model"):
        vldebias.debias_queries(other, SET, index=file)
    ages = vldebias.make_prompt_set("age", {"old": ["elder"], "young": ["youth"]}, ["pilot"])
    with pytest.raises(InvalidInputError, match="but the prompt sets have"):
        vldebias.debias_queries(embed, ages, index=file)
    with pytest.raises(InvalidInputError, match="expected a file from"):
        vldebias.debias_queries(embed, SET, index=tmp_path / "none.safetensors")
    queries.fitted.save_pretrained(tmp_path / "edit")
    (edit_file,) = (tmp_path / "edit").glob("*.safetensors")
    with pytest.raises(InvalidInputError, match="got other tensors"):
        vldebias.debias_queries(embed, SET, index=edit_file)


def test_stored_probabilities_replace_the_vectors(index: Index, queries: DebiasedQueries) -> None:
    """Stores that return no vectors may keep the probabilities under a neutral name."""
    assert queries.index is not None
    groups = queries.index.predict(index.vectors)
    stored = dict(zip(groups.names, groups.probabilities.T, strict=True))
    rows, scores, _ = index.call(embed([QUERY])[0], 800)
    shares = dict(zip(groups.names, queries.index.expected_shares, strict=True))
    found = vldebias.rerank(scores, 40, ids=rows, probabilities=stored, shares=shares)
    assert abs(index.is_female[np.asarray(found)].mean() - SHARE_OF_WOMEN) <= 0.1


def test_padding_and_empty_results_are_no_results(index: Index, queries: DebiasedQueries) -> None:
    def padded(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, 30)
        return (
            [*rows, -1, -1],
            [*scores, -3e38, -3e38],
            np.concatenate([vectors, np.zeros((2, D))]),
        )

    with pytest.warns(SuspectInputWarning, match="in the first 30; up to 400 results"):
        found = queries.search(padded, QUERY, 40)
    assert sorted(found.tolist()) == sorted(index.call(embed([QUERY])[0], 30)[0].tolist())
    both = queries.search(lambda vector, n: ([], [], []), [QUERY, STATED], 10)
    assert both.shape == (2, 0)


@pytest.mark.parametrize("k", [None, 0, 2.5])
def test_the_number_of_results_is_checked(index: Index, queries: DebiasedQueries, k: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected a whole number of 1 or more, got"):
        queries.search(index.call, QUERY, k)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids, scores, vectors: (ids, scores, None), "return vectors too"),
        (lambda ids, scores, vectors: (ids, scores), "expected ids, scores and vectors"),
        (lambda ids, scores, vectors: (ids[:-1], scores, vectors), "got shapes"),
        (lambda ids, scores, vectors: (ids, -scores, vectors), "return -distance"),
        (lambda ids, scores, vectors: (ids, scores * np.nan, vectors), "finite"),
        (lambda ids, scores, vectors: (ids, scores, vectors[:, 1:]), "expected the same model"),
    ],
)
def test_other_results_are_rejected(
    index: Index, queries: DebiasedQueries, change: Any, words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        queries.search(lambda vector, n: change(*index.call(vector, n)), QUERY, 10)


def test_search_needs_a_reference(index: Index) -> None:
    with pytest.raises(InvalidInputError, match="pass reference="):
        vldebias.debias_queries(embed, SET).search(index.call, QUERY, 10)
