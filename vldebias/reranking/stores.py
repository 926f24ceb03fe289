"""Provide re-ranking components for LangChain and llama-index.

The classes are defined on first use, because these libraries are optional. For other stores, pass
scores and labels to `vldebias.rerank` (see docs/how-to/rerank.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

from vldebias.errors import InvalidInputError, need
from vldebias.reranking.entry import Reranker, rerank
from vldebias.reranking.index import IndexGroups

if TYPE_CHECKING:
    from langchain_core.documents import BaseDocumentCompressor, Document
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import NodeWithScore

T = TypeVar("T")


class RerankOptions(TypedDict, total=False):
    """Store options to pass to `vldebias.rerank`."""

    shares: str | Mapping[str, float]
    index: IndexGroups | str | Path
    method: str | Reranker


def langchain_compressor(
    attribute: str | Sequence[str], k: int | None = None, **options: Unpack[RerankOptions]
) -> BaseDocumentCompressor:
    """Return a LangChain `BaseDocumentCompressor` that re-ranks retrieved documents.

    A document's group is `metadata[attribute]`. Documents without it keep their places. The score
    is `metadata["score"]` if every document has one. Otherwise, documents are scored by rank.

    Args:
        attribute: metadata key for the group, or several keys to cross.
        k: number of documents to return. If None, all are returned.
        options: `shares`, `index` and `method`, as for `vldebias.rerank`.

    Returns:
        A compressor whose `compress_documents` returns the first k documents in their new order.

    >>> compressor = langchain_compressor("gender", k=10)  # doctest: +SKIP
    >>> compressor.compress_documents(documents, "a nurse")  # doctest: +SKIP
    """
    base = need("langchain_core.documents").BaseDocumentCompressor

    class RerankedDocuments(base):  # type: ignore[misc, valid-type]
        """Re-rank retrieved documents, so that each group gets its share."""

        def compress_documents(
            self, documents: Sequence[Document], query: str, callbacks: object = None
        ) -> Sequence[Document]:
            """Return the first k documents in their new order."""
            metadata = [document.metadata for document in documents]
            scores = [values.get("score") for values in metadata]
            return _reranked(documents, scores, metadata, attribute, k, options)

    return RerankedDocuments()


def llama_index_postprocessor(
    attribute: str | Sequence[str], k: int | None = None, **options: Unpack[RerankOptions]
) -> BaseNodePostprocessor:
    """Return a llama-index `BaseNodePostprocessor` that re-ranks retrieved nodes.

    A node's group is `metadata[attribute]`. Nodes without it keep their places. The retriever's
    scores are used if every node has one. Otherwise, nodes are scored by rank.

    Args:
        attribute: metadata key for the group, or several keys to cross.
        k: number of nodes to return. If None, all are returned.
        options: `shares`, `index` and `method`, as for `vldebias.rerank`.

    Returns:
        A postprocessor whose `postprocess_nodes` returns the first k nodes in their new order.

    >>> processor = llama_index_postprocessor("gender", k=10)  # doctest: +SKIP
    >>> index.as_query_engine(node_postprocessors=[processor])  # doctest: +SKIP
    """
    base = need("llama_index.core.postprocessor.types").BaseNodePostprocessor

    class RerankedNodes(base):  # type: ignore[misc, valid-type]
        """Re-rank retrieved nodes, so that each group gets its share."""

        def _postprocess_nodes(
            self, nodes: list[NodeWithScore], query_bundle: object = None
        ) -> list[NodeWithScore]:
            """Return the first k nodes in their new order."""
            metadata = [node.node.metadata for node in nodes]
            scores = [node.score for node in nodes]
            return _reranked(nodes, scores, metadata, attribute, k, options)

    return RerankedNodes()


def _reranked(
    results: Sequence[T],
    scores: Sequence[float | None],
    metadata: Sequence[Mapping[str, object]],
    attribute: str | Sequence[str],
    k: int | None,
    options: RerankOptions,
) -> list[T]:
    """Return the first k results in their new order.

    Raises:
        InvalidInputError: If no result has the attribute in its metadata.
    """
    if not results:
        return []
    names = [attribute] if isinstance(attribute, str) else list(attribute)
    labels = {}
    for name in names:
        labels[name] = [values.get(name) for values in metadata]
        if all(label in (None, "") for label in labels[name]):
            keys = sorted(set().union(*metadata))
            raise InvalidInputError(
                f"attribute: no result has {name!r} in its metadata; expected one of {keys}"
            )
    values = [score for score in scores if score is not None]
    if len(values) < len(scores):
        values = [-place for place in range(len(results))]
    positions = rerank(values, k, labels=labels, **options)
    return [results[position] for position in positions.tolist()]
