"""Run the index calls and the sampling on the page on indexes with faiss, qdrant and chroma."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vldebias
from tests.reranking.test_index_search import QUERY, SET, Index, embed

pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "index-queries.md"
K = 20


def store(name: str, vectors: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the names that the page's call for a store uses."""
    if name == "faiss":
        index = pytest.importorskip("faiss").IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        return {"index": index}
    if name == "qdrant":
        qdrant = pytest.importorskip("qdrant_client")
        client = qdrant.QdrantClient(":memory:")
        size = qdrant.models.VectorParams(
            size=vectors.shape[1], distance=qdrant.models.Distance.DOT
        )
        client.create_collection("images", vectors_config=size)
        points = []
        for row, vector in enumerate(vectors.tolist()):
            points.append(qdrant.models.PointStruct(id=row, vector=vector))
        client.upsert("images", points)
        return {"client": client, "name": "images", "models": qdrant.models}
    collection = (
        pytest.importorskip("chromadb")
        .EphemeralClient()
        .create_collection(
            "images", configuration={"hnsw": {"space": "ip"}}, embedding_function=None
        )
    )
    collection.add(ids=list(map(str, range(len(vectors)))), embeddings=vectors)
    return {"collection": collection}


@pytest.mark.parametrize("name", ["faiss", "qdrant", "chroma"])
def test_the_printed_call_finds_what_an_exact_index_finds(name: str) -> None:
    world = Index()
    # The rows are sorted by group, so the first ones are no sample.
    order = np.argsort(world.is_female, kind="stable")
    world.vectors, world.is_female = world.vectors[order], world.is_female[order]
    vectors = world.vectors.astype(np.float32)
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = store(name, vectors) | {"np": np}
    for part in ("def faiss_call", "def faiss_sample"):
        (block,) = [block for block in blocks if part in block]
        exec(compile(block, PAGE.name, "exec"), names)
    sample = names[f"{name}_sample"](1000)
    # Stores round vectors.
    rows = np.argmax(np.asarray(sample, np.float32) @ vectors.T, axis=1)
    assert len(set(rows.tolist())) == 1000
    # Six standard errors of a random sample.
    assert world.is_female[rows].mean() == pytest.approx(world.is_female.mean(), abs=0.08)
    queries = vldebias.debias_queries(embed, SET, reference=sample)
    share = queries.index.share_of_name()["female"]
    # The estimate itself is about 0.02 too high here.
    assert share == pytest.approx(world.is_female.mean(), abs=0.1)
    found = queries.search(names[f"{name}_call"], QUERY, K)
    exact = queries.search(world.call, QUERY, K)
    # An approximate index may miss some.
    assert len(set(map(int, found.tolist())) & set(exact.tolist())) >= 0.8 * K
