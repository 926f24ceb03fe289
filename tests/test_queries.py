"""Test `debias_queries` with any embedder: types and lengths are preserved, documents are
unchanged, and the rule for the default applies."""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from tests.refusals import refused
from vldebias.errors import (
    AlreadyAttachedError,
    AutoDeclinedWarning,
    InvalidInputError,
    ProjectionMismatchError,
    SuspectInputWarning,
    UnsupportedHostError,
)
from vldebias.hosts.embedders import EmbeddedTexts, Embedder
from vldebias.methods import load_edit
from vldebias.miniature import load_clip, load_photographs
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import load_prompts, make_prompt_set
from vldebias.queries import DebiasedQueries
from vldebias.report.page import render
from vldebias.report.result import Result

DIM = 24
JOBS = ["doctor", "nurse", "cook", "pilot", "judge", "baker"]
WORDS = {"male": ["male", "man"], "female": ["female", "woman"]}
SET = make_prompt_set("gender", WORDS, JOBS)
QUERIES = ["A photo of a doctor.", "A photo of a female nurse.", "A photo of a pilot."]
STATED = 1  # the query that states a value


def word_vector(word: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 10_000 + sum(map(ord, word)))
    return torch.randn(DIM, dtype=torch.float64, generator=generator)


def rows_of(texts: Sequence[str], seed: int = 0) -> Tensor:
    """Return the mean of one random vector per word, with different lengths."""
    rows = [
        torch.stack([word_vector(w, seed) for w in text.strip(".").split()]).mean(0)
        for text in texts
    ]
    return torch.stack(rows)


def as_lists(texts: Sequence[str]) -> list[list[float]]:
    return rows_of(texts).tolist()  # type: ignore[no-any-return]


def debiased(embed: Any = as_lists, **how: Any) -> DebiasedQueries:
    return vldebias.debias_queries(embed, SET, **{"method": "cali", **how})


class LangChain:
    """Imitate LangChain's Embeddings; `asks` records the calls."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift
        self.asks: list[tuple[str, int]] = []

    def embed_query(self, text: str) -> list[float]:
        self.asks.append(("query", 1))
        return (rows_of([text])[0] + self.shift).tolist()  # type: ignore[no-any-return]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asks.append(("documents", len(texts)))
        return as_lists(texts)


class LlamaIndex:
    def get_query_embedding(self, query: str) -> list[float]:
        return as_lists([query])[0]

    def get_text_embedding_batch(self, texts: list[str]) -> list[list[float]]:
        return as_lists(texts)


class Sentences(torch.nn.Module):
    """Imitate sentence-transformers, which can also be called with tensors."""

    model_name = "sentences-1"

    def encode(self, inputs: list[str]) -> np.ndarray[Any, Any]:
        return rows_of(inputs).float().numpy()

    def forward(self, tensors: Any) -> Any:
        raise AssertionError("texts are embedded by encode")


class Chroma:
    """Imitate chroma's embedding functions: return a list of arrays."""

    def embed_query(self, input: list[str]) -> list[np.ndarray[Any, Any]]:
        return self(input)

    def __call__(self, input: list[str]) -> list[np.ndarray[Any, Any]]:
        return list(rows_of(input).float().numpy())


class Table(dict[str, list[float]]):
    """Map every text to a vector."""

    def __contains__(self, text: object) -> bool:
        return True

    def __getitem__(self, text: str) -> list[float]:
        return as_lists([text])[0]


KINDS: dict[str, Callable[[], Any]] = {
    "function": lambda: as_lists,
    "partial": lambda: partial(as_lists),
    "LangChain": LangChain,
    "LlamaIndex": LlamaIndex,
    "Sentences": Sentences,
    "Chroma": Chroma,
    "mapping": Table,
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_interface_gives_the_same_edit_and_vectors(kind: Callable[[], Any]) -> None:
    plain = debiased()
    queries = debiased(kind())
    assert torch.allclose(queries.fitted.matrix(), plain.fitted.matrix(), atol=1e-5)
    expected = np.array(plain.embed(QUERIES))
    got = np.stack([np.asarray(row) for row in queries.embed(QUERIES)])
    assert np.allclose(got, expected, atol=1e-5)
    assert not np.allclose(got[0], as_lists(QUERIES)[0], atol=1e-3)


def test_vectors_equal_those_of_the_attached_model() -> None:
    model, _, tokenize = load_clip()

    def embed(texts: list[str]) -> Tensor:
        with torch.no_grad():
            return model.encode_text(tokenize(texts))

    plain = embed(QUERIES)
    queries = vldebias.debias_queries(embed, "gender", method="cali")
    with vldebias.debias(model, "gender", tokenizer=tokenize, method="cali") as attached:
        expected = embed(QUERIES)
    got = torch.as_tensor(queries.embed(QUERIES))
    assert torch.allclose(normalize(got, dim=1), normalize(expected, dim=1), atol=1e-5)
    assert torch.allclose(got.norm(dim=1), plain.norm(dim=1), rtol=1e-5)
    assert torch.equal(got[STATED], plain[STATED])
    # An edit fitted on the model itself also applies to its vectors.
    again = vldebias.debias_queries(embed, attached.projections["text"])
    assert np.allclose(again.embed(QUERIES), got, atol=1e-5)


def forms() -> dict[str, Any]:
    rows = rows_of(QUERIES)
    read_only = rows.float().numpy()
    read_only.setflags(write=False)
    return {
        "lists": rows.tolist(),
        "float64": rows.numpy(),
        "float32": rows.float().numpy(),
        "float16": rows.half().numpy(),
        "read-only": read_only,
        "reversed": rows.float().numpy()[::-1][::-1],
        "big-endian": rows.numpy().astype(">f4"),
        "tensor": rows.float(),
        "half": rows.half(),
        "bfloat16": rows.bfloat16(),
        "arrays": list(rows.float().numpy()),
        "tensors": list(rows.float()),
    }


def plain_row(vector: Any) -> Tensor:
    array = vector.float() if isinstance(vector, Tensor) else vector
    return torch.tensor(np.asarray(array).tolist(), dtype=torch.float64)


@pytest.mark.parametrize("name", forms())
def test_stores_receive_arrays_from_any_embedder(name: str) -> None:
    queries = debiased(lambda texts: forms()[name] if texts == QUERIES else rows_of(texts).tolist())
    embedded = queries.embed(QUERIES)
    assert type(embedded) is np.ndarray
    assert embedded.shape == (len(QUERIES), DIM)
    expected = torch.stack([plain_row(row) for row in queries.edit(forms()[name], QUERIES)])
    assert np.array_equal(embedded.astype(np.float64), expected)


def test_float16_vectors_near_the_largest_number_keep_their_direction() -> None:
    rows = (6e4 * rows_of(QUERIES).sign()).half()
    queries = debiased()
    exact = normalize(queries.edit(rows.double(), QUERIES), dim=1)
    for vectors in (rows, rows.numpy()):
        edited = torch.as_tensor(queries.edit(vectors, QUERIES))
        assert edited.dtype == torch.float16
        assert torch.allclose(normalize(edited.double(), dim=1), exact, atol=1e-3)


@pytest.mark.parametrize("name", forms())
def test_types_precisions_and_lengths_are_preserved(name: str) -> None:
    vectors = forms()[name]
    queries = debiased()
    edited = queries.edit(vectors, QUERIES)
    assert type(edited) is type(vectors)
    assert type(edited[0]) is type(vectors[0])
    assert getattr(edited, "dtype", None) == getattr(vectors, "dtype", None)
    before = torch.stack([plain_row(row) for row in vectors])
    after = torch.stack([plain_row(row) for row in edited])
    # One of the types is bfloat16, which rounds by up to 0.4%.
    assert torch.allclose(after.norm(dim=1), before.norm(dim=1), rtol=1e-2)
    assert torch.equal(after[STATED], before[STATED])
    assert not torch.allclose(after[0], before[0], atol=1e-2)
    edited_row = queries.edit(vectors[0], QUERIES[0])
    assert np.shape(edited_row) == (DIM,)
    assert torch.allclose(plain_row(edited_row), after[0], atol=1e-2)


def test_one_string_gives_one_vector_and_an_empty_list_gives_none() -> None:
    queries = debiased()
    assert np.allclose(queries.embed(QUERIES[0]), queries.embed(QUERIES)[0])
    assert debiased(lambda texts: [] if not texts else as_lists(texts)).embed([]).shape == (0, DIM)


def test_strength_scales_the_edit_and_zero_changes_nothing() -> None:
    queries = debiased(strength=0.0)
    assert np.array_equal(queries.embed(QUERIES), as_lists(QUERIES))
    queries.strength = 1.0
    full = np.array(queries.embed(QUERIES))
    queries.strength = 0.5
    half = np.array(queries.embed(QUERIES))
    plain = np.array(as_lists(QUERIES))
    assert (np.linalg.norm(half - plain, axis=1) <= np.linalg.norm(full - plain, axis=1)).all()
    with pytest.raises(InvalidInputError, match="strength"):
        debiased(strength=2)


def test_values_stated_in_other_languages_are_only_edited_on_request(tmp_path: Path) -> None:
    texts = ["eine Ärztin", "ein Arzt", "ropa femenina", "un médecin dans son bureau"]
    plain = as_lists(texts)
    queries = debiased()
    folder = queries.fitted.save_pretrained(tmp_path / "edit")
    loaded = vldebias.debias_queries(as_lists, load_edit(folder))
    for embedded in (queries.embed(texts), loaded.embed(texts), queries.edit(plain, texts)):
        kept = [
            np.array_equal(row, row_before) for row, row_before in zip(embedded, plain, strict=True)
        ]
        assert kept == [True, False, True, False]
    # Vectors without text are edited, since their text is unknown.
    for everything in (debiased(keep_stated=False).embed(texts), queries.edit(plain)):
        assert not any(map(np.array_equal, everything, plain))


def test_an_edit_without_attribute_words_changes_every_query() -> None:
    edit = debiased().fitted.with_provenance(stated_words=())
    queries = vldebias.debias_queries(as_lists, edit)
    assert not np.array_equal(queries.embed(["a woman"]), as_lists(["a woman"]))


@refused(
    (lambda texts: as_lists(texts)[0], r"got 1 vectors for \d+ texts"),
    (lambda texts: as_lists(texts)[:1], r"got 1 vectors for \d+ texts"),
    (lambda texts: 1.0, "got float"),
)
def test_an_embedder_that_returns_one_vector_for_a_list_is_rejected(embed: Any) -> None:
    vldebias.debias_queries(embed, SET, reference=gallery()[0])


def test_documents_are_never_edited() -> None:
    queries = debiased(LangChain())
    assert queries.embed_documents(QUERIES) == as_lists(QUERIES)
    assert queries.embed_documents([]) == []
    assert asyncio.run(queries.aembed_documents(QUERIES)) == as_lists(QUERIES)
    assert queries.embed_query(QUERIES[0]) == queries.embed(QUERIES[0]).tolist()
    assert asyncio.run(queries.aembed_query(QUERIES[0])) == queries.embed_query(QUERIES[0])
    chroma = debiased(Chroma())
    assert np.array_equal(chroma(QUERIES), Chroma()(QUERIES))
    assert all(isinstance(row, np.ndarray) for row in chroma.embed_query(QUERIES))
    # This is one string, not a list of letters.
    assert np.array_equal(chroma(QUERIES[0]), Chroma()(QUERIES[:1]))


def test_chroma_receives_the_function_that_embeds_documents() -> None:
    class Named(Chroma):
        def name(self) -> str:
            return "named"

    assert debiased(Named()).name() == "named"
    assert (debiased().name(), debiased().is_legacy()) == ("vldebias", True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = debiased().nothing


def test_a_service_embeds_each_text_once_and_in_batches() -> None:
    batches: list[list[str]] = []

    def embed(texts: list[str]) -> list[list[float]]:
        batches.append(texts)
        return as_lists(texts)

    vldebias.debias_queries(embed, load_prompts("gender"), method="cali")
    texts = list(chain(*batches))
    assert len(texts) == len(set(texts))
    assert max(map(len, batches)) <= 64


def test_langchain_is_called_in_batches_if_queries_are_embedded_like_documents() -> None:
    alike = LangChain()
    debiased(alike)
    assert [kind for kind, _ in alike.asks].count("query") == 1
    shifted = LangChain(shift=0.5)
    debiased(shifted)
    assert [n for kind, n in shifted.asks if kind == "documents"] == [1]


def test_without_a_method_queries_stay_and_the_call_that_re_ranks_is_named() -> None:
    with pytest.warns(AutoDeclinedWarning, match=r"pass reference=.* and call queries\.search\("):
        queries = vldebias.debias_queries(as_lists, SET)
    assert queries.fitted.method == "default: none"
    assert "name a method" in repr(queries)
    with pytest.warns(AutoDeclinedWarning, match=r"Re-rank the results: call queries\.search\("):
        assert np.array_equal(queries.embed(QUERIES), as_lists(QUERIES))
    sampled = vldebias.debias_queries(as_lists, SET, reference=gallery()[0])
    assert re.search(r"labels; \w+ \d+%, \w+ \d+% of the collection\)$", repr(sampled))
    unedited = vldebias.debias_queries(as_lists, SET, method="none")
    assert np.array_equal(unedited.embed(QUERIES), as_lists(QUERIES))


def test_an_edit_is_fitted_to_reference_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.arange(400) % 2
    people = rows_of(["man", "woman"])[values]
    vectors = people + 0.2 * torch.randn(400, DIM, dtype=torch.float64, generator=generator)
    for reference in (vectors, vectors.float().numpy(), vectors.tolist(), list(vectors.split(100))):
        queries = debiased(reference=reference)
        assert queries.fitted.method == "cali+equalise"
        assert queries.fitted.provenance.uses_images


@pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning")  # the text is noise
def test_a_mapping_only_needs_the_texts_in_the_prompt_set() -> None:
    table = {text: rows_of([text])[0].numpy() for text in load_prompts("gender").texts}
    vectors = gallery()[0]
    with pytest.warns(SuspectInputWarning, match="fewer than 50 of 200 images look like male"):
        queries = vldebias.debias_queries(table, "gender", reference=vectors, method="difference")
    assert queries.fitted.method == "difference+equalise"
    with pytest.warns(AutoDeclinedWarning):
        assert vldebias.debias_queries(table, "gender").fitted.dim == DIM
    with pytest.raises(InvalidInputError, match="got vectors of width 12"):
        vldebias.debias_queries(table, "gender", reference=vectors[:, :12])
    with pytest.warns(SuspectInputWarning, match="stores no text embeddings"):
        again = vldebias.debias_queries(table, queries.fitted)
    assert again.fitted.dim == DIM


def test_saved_edits_can_only_be_attached_to_the_same_model(tmp_path: Path) -> None:
    queries = debiased()
    queries.fitted.save_pretrained(tmp_path)
    loaded: Any = load_edit(tmp_path)
    again = vldebias.debias_queries(LangChain(), loaded)
    assert np.allclose(again.embed(QUERIES), queries.embed(QUERIES))
    with pytest.raises(ProjectionMismatchError, match="three texts differ"):
        vldebias.debias_queries(partial(rows_of, seed=1), loaded)
    with pytest.raises(ProjectionMismatchError, match="has dim 24, but the vectors have 12"):
        vldebias.debias_queries(lambda texts: rows_of(texts)[:, :12], loaded)
    with pytest.raises(ProjectionMismatchError, match=r"belongs to space 'diffusers\.sequence'"):
        vldebias.debias_queries(as_lists, loaded.with_provenance(space="diffusers.sequence"))
    with pytest.raises(InvalidInputError, match="remove these"):
        vldebias.debias_queries(as_lists, loaded, method="cali")
    with pytest.warns(SuspectInputWarning, match="stores no text embeddings"):
        vldebias.debias_queries(as_lists, loaded.with_provenance(fingerprint=None))


def gallery(n: int = 200) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Return vectors for images of men and women in all jobs, and their gender."""
    generator = torch.Generator().manual_seed(1)
    texts = [f"{'man' if i % 2 else 'woman'} {JOBS[i // 2 % 6]}" for i in range(n)]
    noise = torch.randn(n, DIM, dtype=torch.float64, generator=generator)
    labels = ["male" if i % 2 else "female" for i in range(n)]
    return (rows_of(texts) + 0.1 * noise).numpy(), labels


def test_measure_reports_the_effect_before_it_is_enabled() -> None:
    vectors, labels = gallery()
    queries = debiased()
    searches = [f"A photo of a {job}." for job in ("doctor", "nurse", "cook", "female pilot")]
    result = queries.measure(vectors, searches, labels, k=10)
    assert {row.method for row in result.rows} >= {"none", "debiased"}
    table = {text: rows_of([text])[0] for text in {*searches, *SET.texts}}
    expected = vldebias.evaluate(
        table, vectors, attribute=SET, labels=labels, queries=searches, k=10, methods=["cali"]
    )
    for metric in ("max_skew@10", "ndkl@10", "retained@10"):
        row = result.row("retrieval gender", metric, "debiased")
        expected_row = expected.row("retrieval gender", metric, "cali")
        assert row.value == pytest.approx(expected_row.value, abs=1e-9)
        assert row.interval == pytest.approx(expected_row.interval, abs=1e-9)
    listed = queries.measure(vectors.tolist(), searches, {"gender": labels}, k=10)
    assert listed.row("retrieval gender", "ndkl@10", "debiased").value == pytest.approx(
        result.row("retrieval gender", "ndkl@10", "debiased").value
    )
    queries.strength = 0.0
    repeated = queries.measure(vectors, searches, labels, k=10)
    row = repeated.row("retrieval gender", "max_skew@10", "debiased")
    assert row.change == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("keep_stated", [True, False])
def test_measure_edits_stated_queries_only_on_request(keep_stated: bool) -> None:
    vectors, labels = gallery()
    searches = ["A photo of a nurse.", "A photo of a female doctor."]
    result = debiased(keep_stated=keep_stated).measure(vectors, searches, labels, k=10)
    row = result.row("retrieval gender", "max_skew@10", "debiased", subset=searches[1])
    assert (row.change[0] == 0) is keep_stated


SEARCHES = ["A photo of a farmer.", "A photo of a nurse.", "A photo of a female doctor."]


@pytest.fixture(scope="module")
def photographs_measured() -> tuple[DebiasedQueries, Result]:
    """Return queries with the groups' shares of an index, and what `measure` reports on them."""
    photographs = load_photographs()
    queries = vldebias.debias_queries(
        photographs.encoder.encode, "gender", reference=photographs.reference.features
    )
    gender = photographs.gallery.labels["gender"]
    labels = [gender.names[code] for code in gender.codes]
    return queries, queries.measure(photographs.gallery.features, SEARCHES, labels, k=20)


def test_measure_measures_the_results_that_search_returns(
    photographs_measured: tuple[DebiasedQueries, Result],
) -> None:
    queries, result = photographs_measured
    images = load_photographs().gallery
    vectors = normalize(torch.as_tensor(np.asarray(images.features)).double(), dim=1).numpy()

    def call(vector: Any, n: int) -> tuple[Any, Any, Any]:
        scores = vectors @ np.asarray(vector)
        rows = np.argsort(-scores)[:n]
        return rows, scores[rows], vectors[rows]

    gender = images.labels["gender"]
    found = queries.search(call, SEARCHES, 20)
    row_of_query = {row["query"]: row for row in result.provenance[0].settings["leaning"]}
    for query, rows in zip(SEARCHES, found, strict=True):
        row = row_of_query[query]
        code = list(gender.names).index(row["group"])
        top = call(queries.host.embedder.queries([query])[0], 20)[0]
        assert row["share"]["none"] == np.mean(gender.codes[top] == code)
        assert row["share"]["search"] == np.mean(gender.codes[rows] == code)
        assert row["stay"]["search"] == len(set(rows) & set(top)) / 20
        distances = [abs(np.mean(gender.codes[listed] == code) - 0.5) for listed in (rows, top)]
        assert row["worse"]["search"] == (distances[0] - distances[1] > 0.05)
    are_worse = [row["worse"]["search"] for row in row_of_query.values()]
    worse = result.row("retrieval gender", "queries_worse@20", "search")
    assert worse.value == pytest.approx(np.mean(are_worse))
    assert worse.n == {"queries": len(SEARCHES)}
    skews = [
        2 * max(row["share"]["search"], 1 - row["share"]["search"]) for row in row_of_query.values()
    ]
    measured = result.row("retrieval gender", "max_skew@20", "search").value
    assert measured == pytest.approx(np.log(skews).mean())
    shares = [row["share"]["none"] for row in result.provenance[0].settings["leaning"]]
    assert shares == sorted(shares, reverse=True)


def test_measure_leaves_stated_queries_as_found_in_every_resample(
    photographs_measured: tuple[DebiasedQueries, Result],
) -> None:
    _, result = photographs_measured
    row = result.row("retrieval gender", "max_skew@20", "search", subset=SEARCHES[2])
    assert row.change == (0.0, 0.0, 0.0)
    changed = result.row("retrieval gender", "max_skew@20", "search", subset=SEARCHES[0])
    assert changed.change[1] < changed.change[0] < 0


def test_measure_without_an_edit_or_shares() -> None:
    vectors, labels = gallery()
    searches = ["A photo of a doctor.", "A photo of a nurse."]
    queries = debiased(method="none", reference=vectors)
    methods = {row.method for row in queries.measure(vectors, searches, labels, k=10).rows}
    assert methods == {"none", "search", "random"}
    methods = {row.method for row in debiased().measure(vectors, searches, labels, k=10).rows}
    assert methods == {"none", "debiased", "random"}


def test_the_page_lists_the_queries_that_lean_most(
    photographs_measured: tuple[DebiasedQueries, Result], tmp_path: Path
) -> None:
    _, result = photographs_measured
    page = render(result, tmp_path / "log.html", run_folder=tmp_path).read_text(encoding="utf-8")
    rows = result.provenance[0].settings["leaning"]
    table = page.partition("Queries that lean most: in the first 20 results, ")[2]
    assert table.startswith(f"{sum(row['beyond_chance'] for row in rows)} of 3 favour a group")
    places = [table.index(f'<th scope="row">{row["query"]}</th>') for row in rows]
    assert places == sorted(places)
    first = table[places[0] : places[1]]
    assert f"{rows[0]['share']['none']:.0%}" in first
    assert f"{rows[0]['share']['search']:.0%}" in first
    assert f"{rows[0]['stay']['search']:.0%}" in first
    assert 'href="log-queries.csv"' in table
    worse = sum(row["worse"]["search"] for row in rows)
    assert f"With search, {worse} of 3 queries get worse" in table
    frame = pd.read_csv(tmp_path / "log-queries.csv")
    assert frame["query"].tolist() == [row["query"] for row in rows]
    assert frame["share search"].tolist() == [row["share"]["search"] for row in rows]


def test_the_page_folds_all_but_ten_queries(tmp_path: Path) -> None:
    vectors, labels = gallery()
    searches = [f"A {word} {job}." for word in ("new", "tall") for job in JOBS]
    result = debiased(reference=vectors).measure(vectors, searches, labels, k=10, resamples=50)
    page = render(result, tmp_path / "log.html", run_folder=tmp_path).read_text(encoding="utf-8")
    shown, _, folded = page.partition("<summary>2 more</summary>")
    rows = result.provenance[0].settings["leaning"]
    assert all(f'<th scope="row">{row["query"]}</th>' in shown for row in rows[:10])
    assert all(f'<th scope="row">{row["query"]}</th>' in folded for row in rows[10:])


@refused(
    (dict, "expected a function"),
    ({}, r"180 of 180 prompts are missing"),
    (lambda texts: as_lists(texts[1:]), r"63 vectors for 64 texts"),
    (lambda texts: [[1.0, 2.0], [1.0]] * (len(texts) // 2), "not vectors of the same width"),
    (lambda texts: np.ones((len(texts), 4), dtype=np.int8), "before they are quantised"),
    (lambda texts: np.ones((len(texts), 4, 4)), r"expected floats \(d,\) or \(n, d\)"),
    (lambda texts: np.full((len(texts), 4), np.nan), "zero or not finite"),
    (lambda texts: "vectors", "got str"),
    (lambda texts: torch.eye(len(texts)).to_sparse(), r"a sparse tensor.*vectors\.to_dense\(\)"),
)
def test_objects_that_do_not_embed_text_are_rejected(embed: Any) -> None:
    vldebias.debias_queries(embed, "gender", method="cali")


def test_async_functions_and_debiased_queries_are_rejected() -> None:
    async def embed(texts: list[str]) -> list[list[float]]:
        return as_lists(texts)

    with pytest.raises(UnsupportedHostError, match="async function"):
        debiased(embed)
    with pytest.raises(AlreadyAttachedError, match="debiased already"):
        debiased(debiased())
    with pytest.raises(InvalidInputError, match="vectors of width 7, but embed returns width 24"):
        debiased(reference=np.ones((10, 7)))
    edit = debiased().fitted
    object.__setattr__(edit, "side", "image")
    with pytest.raises(InvalidInputError, match="vectors of an index are fixed"):
        vldebias.debias_queries(as_lists, edit)


@refused(
    (rows_of(QUERIES)[:, :5], None, r"expected float embeddings \(\.\.\., 24\)"),
    (rows_of(QUERIES), QUERIES[:2], "got 2 texts for 3 vectors"),
    (rows_of(QUERIES), 5, "expected a string or a list of strings"),
    (rows_of(QUERIES).long(), None, "expected floats"),
    (None, None, "got NoneType"),
    ([QUERIES], None, "not vectors of the same width"),
)
def test_mismatched_vectors_are_rejected(vectors: Any, texts: Any) -> None:
    debiased().edit(vectors, texts)


@refused(
    (5, "expected a string"),
    ([1], "expected a string"),
)
def test_anything_but_strings_is_rejected(texts: Any) -> None:
    debiased().embed(texts)


def test_edits_that_average_several_wordings_embed_all_of_them() -> None:
    queries = debiased(method="each-value")
    vectors = as_lists(QUERIES)
    edited = queries.embed(QUERIES)
    wordings = rows_of(["A photo of a male doctor.", "A photo of a female doctor."])
    mean = normalize(normalize(wordings, dim=1).mean(0), dim=0)
    cosine = float(mean @ normalize(torch.from_numpy(edited[0]), dim=0))
    assert cosine == pytest.approx(1, abs=1e-6)
    assert edited[STATED].tolist() == vectors[STATED]
    with pytest.raises(InvalidInputError, match="pass texts= to edit"):
        queries.edit(vectors)


def test_embedder_attributes_are_forwarded() -> None:
    host = EmbeddedTexts(Embedder.from_source(Sentences()))
    assert (host.name, host.model_id) == ("Sentences", "sentences-1")
    queries = debiased(Sentences())
    assert queries.fitted.model_id == "sentences-1"
    assert isinstance(queries.fitted, CalibratedProjection)
    assert "Sentences, gender: cali, strength 1" in repr(queries)
