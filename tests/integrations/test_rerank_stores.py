"""Test `rerank` with results from current vector stores: `make test-integrations`.

Each test runs the line printed on the re-ranking page, on a small vector index.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vldebias
from vldebias.errors import InvalidInputError
from vldebias.reranking.stores import langchain_compressor, llama_index_postprocessor

pytest.importorskip("faiss", reason="make test-integrations installs it")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "rerank.md"
N = 240
K = 50
ROWS = (
    "faiss",
    "qdrant",
    "chroma",
    "sentence-transformers",
    "LangChain",
    "llama-index",
    "a file",
)


def printed_lines() -> dict[str, str]:
    """Return the first expression in each row of the page's table, by first column."""
    table = PAGE.read_text(encoding="utf-8").partition("| library |")[2].partition("\n\n")[0]
    line_of_row = {}
    for line in table.splitlines()[2:]:
        _, name, use, _ = line.split("|")
        line_of_row[name.strip()] = re.findall(r"`([^`]+)`", use)[0]
    return line_of_row


def run(row: str, **names: Any) -> Any:
    """Return the result of the line on the page."""
    return eval(compile(printed_lines()[row], PAGE.name, "eval"), {"vldebias": vldebias, **names})


class World:
    """Provide documents from two groups, and a query that leans towards one of them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.labels = np.array(["male", "female"])[np.arange(N) % 2]
        vectors = rng.normal(size=(N, 16)).astype(np.float32)
        vectors[:, 0] += np.where(self.labels == "male", 0.7, 0.0)
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        query = np.zeros(16, dtype=np.float32)
        query[:3] = 0.8, 0.5, 0.3
        self.query = query / np.linalg.norm(query)
        scores = self.vectors @ self.query
        self.order = np.argsort(-scores, kind="stable")
        self.expected = vldebias.rerank(scores, K, labels=self.labels).tolist()


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    plain = made.labels[made.order[:K]]
    assert (plain == "male").sum() > 30, "the plain search leans"
    assert (made.labels[made.expected] == "male").sum() == K / 2
    return made


def test_every_row_on_the_page_has_a_test() -> None:
    assert tuple(printed_lines()) == ROWS


def test_faiss_results_are_reranked(world: World) -> None:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(16)
    index.add(world.vectors)
    scores, rows = index.search(np.stack([world.query, -world.query]), N)
    found = run("faiss", scores=scores, rows=rows, labels_of_index=world.labels)
    assert found.shape == (2, K)
    assert found[0].tolist() == world.expected


def test_qdrant_results_are_reranked(world: World) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    client = qdrant.QdrantClient(":memory:")
    size = qdrant.models.VectorParams(size=16, distance="Cosine")
    client.create_collection("people", vectors_config=size)
    points = []
    for row, (vector, label) in enumerate(zip(world.vectors, world.labels, strict=True)):
        payload = {"gender": str(label)}
        points.append(qdrant.models.PointStruct(id=row, vector=vector.tolist(), payload=payload))
    client.upsert("people", points)
    found = client.query_points("people", query=world.query, limit=N, with_payload=True).points
    assert run("qdrant", points=found).tolist() == world.expected


def test_chroma_results_are_reranked(world: World, tmp_path: Path) -> None:
    chromadb = pytest.importorskip("chromadb")
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(str(tmp_path), settings=settings)
    configuration = {"hnsw": {"space": "cosine", "ef_search": 400, "max_neighbors": 64}}
    collection = client.create_collection(
        "people", embedding_function=None, configuration=configuration
    )
    names = [str(row) for row in range(N)]
    metadata = [{"gender": str(label)} for label in world.labels]
    collection.add(ids=names, embeddings=world.vectors, metadatas=metadata)
    hits = collection.query(query_embeddings=[world.query], n_results=N)
    positions = run("chroma", hits=hits)
    assert [int(hits["ids"][0][position]) for position in positions] == world.expected


def test_sentence_transformers_results_are_reranked(world: World) -> None:
    util = pytest.importorskip("sentence_transformers.util")
    (hits,) = util.semantic_search(world.query[None], world.vectors, top_k=N)
    found = run("sentence-transformers", hits=hits, labels_of_index=world.labels)
    assert found.tolist() == world.expected


def test_langchain_results_are_reranked(world: World) -> None:
    documents_module = pytest.importorskip("langchain_core.documents")
    documents = []
    for row in world.order.tolist():
        metadata = {"gender": str(world.labels[row]), "row": row}
        documents.append(documents_module.Document(page_content=f"no. {row}", metadata=metadata))
    names = {"langchain_compressor": langchain_compressor, "text": "a nurse"}
    found = run("LangChain", documents=documents, **names)
    assert [document.metadata["row"] for document in found] == world.expected
    compressor = langchain_compressor("gender", k=K)
    assert isinstance(compressor, documents_module.BaseDocumentCompressor)
    again = asyncio.run(compressor.acompress_documents(documents, "a nurse"))
    assert [document.metadata["row"] for document in again] == world.expected
    assert compressor.compress_documents([], "a nurse") == []
    with pytest.raises(InvalidInputError, match="no result has 'sex'"):
        langchain_compressor("sex", k=K).compress_documents(documents, "a nurse")


def test_langchain_reranks_in_a_chain_with_a_custom_store(world: World) -> None:
    vectorstores = pytest.importorskip("langchain_core.vectorstores")
    embeddings = pytest.importorskip("langchain_core.embeddings")
    runnables = pytest.importorskip("langchain_core.runnables")

    class Local(embeddings.Embeddings):  # type: ignore[misc]
        def embed_query(self, text: str) -> list[float]:
            return world.query.tolist()  # type: ignore[no-any-return]

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [world.vectors[int(text)].tolist() for text in texts]

    store = vectorstores.InMemoryVectorStore(Local())
    metadata = [{"gender": str(label)} for label in world.labels]
    store.add_texts([str(row) for row in range(N)], metadatas=metadata)
    compressor = langchain_compressor("gender", k=K)
    retriever = store.as_retriever(search_kwargs={"k": N})
    chain = retriever | runnables.RunnableLambda(
        lambda documents: compressor.compress_documents(documents, "a nurse")
    )
    found = chain.invoke("a nurse")
    assert [int(document.page_content) for document in found] == world.expected


def test_llama_index_results_are_reranked(world: World) -> None:
    schema = pytest.importorskip("llama_index.core.schema")
    types = pytest.importorskip("llama_index.core.postprocessor.types")
    scores = world.vectors @ world.query
    nodes = []
    for row in world.order.tolist():
        node = schema.TextNode(
            text=str(row), id_=str(row), metadata={"gender": str(world.labels[row])}
        )
        nodes.append(schema.NodeWithScore(node=node, score=float(scores[row])))
    found = run("llama-index", nodes=nodes, llama_index_postprocessor=llama_index_postprocessor)
    assert [int(node.node_id) for node in found] == world.expected
    processor = llama_index_postprocessor("gender", k=K, shares={"male": 0.2, "female": 0.8})
    assert isinstance(processor, types.BaseNodePostprocessor)
    genders = [node.metadata["gender"] for node in processor.postprocess_nodes(nodes)]
    assert genders.count("female") == 40


def test_ten_lines_of_code_support_any_other_store(world: World, capsys: Any) -> None:
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "def search" in block]
    assert len(block.splitlines()) <= 11

    class Result:
        def __init__(self, row: int, score: float) -> None:
            self.row = row
            self.score = score
            self.metadata = {"gender": str(world.labels[row])}

    class Store:
        def query(self, vector: Any, limit: int) -> list[Result]:
            scores = world.vectors @ vector
            return [Result(row, float(scores[row])) for row in world.order[:limit]]

    names: dict[str, Any] = {"vldebias": vldebias}
    exec(compile(block, PAGE.name, "exec"), names)
    found = names["search"](Store(), world.query, K)
    assert [result.row for result in found] == world.expected
    assert "true shares" in capsys.readouterr().out
