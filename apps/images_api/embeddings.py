"""Edit the query embeddings that a service returns, and leave documents unchanged."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.hosts.host import PROBE, TEXTS
from vldebias.methods import load_edit
from vldebias.queries import DebiasedQueries, debias_queries

from .bodies import check_parts
from .order import Json, RefusedError

QUERY_TYPES = ("query", "search_query")  # values of `input_type` that mark queries
CHECKED = (PROBE, *TEXTS)  # strings whose embeddings identify a model
_MOST_MODELS = 32  # maximum number of models whose checks are cached
_MOST_PARTS = 8_000_000  # enough numbers in a response for 2,000 texts with 4,000 dimensions
_PATH = re.compile(r"(queries/)?(?:openai/(?:deployments/[^/]+/)?)?(?:v\d\w*/)?embeddings")


class QueryEdits:
    """Edit query embeddings, after checking that they come from the edit's model.

    Args:
        folder: The folder of an edit, as written by `save_pretrained`.

    Raises:
        InvalidInputError: If the folder does not contain an edit, or if the edit also needs the
            embeddings of alternative wordings of each query.
    """

    def __init__(self, folder: str | Path) -> None:
        edit = load_edit(folder)
        if isinstance(edit, dict):
            raise InvalidInputError(
                f"--edit: {folder} contains the edits of a pipeline ({', '.join(edit)}); expected a"
                " folder with one edit that was fitted on text embeddings"
            )
        self.edit = edit
        if hasattr(self.edit, "wordings"):
            raise InvalidInputError(
                f"--edit: the method {self.edit.method!r} also embeds alternative versions of each"
                " query; use an edit of a different method, or vldebias.debias_queries in your"
                " program"
            )
        self.queries_of_model: dict[str, DebiasedQueries] = {}

    def reads(self, path: str) -> bool:
        """Return whether a path such as "queries/v1/embeddings" is for embeddings."""
        return _PATH.fullmatch(path) is not None

    def checked(self, answer: bytes | bytearray) -> DebiasedQueries:
        """Check that a model embeds the strings in `CHECKED` like the edit's model.

        Args:
            answer: The service's response to a request for the embeddings of `CHECKED`.

        Returns:
            The edit for this model's query embeddings.

        Raises:
            RefusedError: If the model or the number of dimensions differs.
        """
        rows, _ = vectors_of(read_vectors_answer(answer), len(CHECKED))
        try:
            return debias_queries(dict(zip(CHECKED, rows, strict=True)), self.edit)
        except VldebiasError as error:
            raise RefusedError(400, str(error), param="model", code="edit_mismatch") from None

    def remember(self, model: str, queries: DebiasedQueries) -> None:
        """Remember that a model was checked.

        Args:
            model: The service's name for the model.
            queries: The edit for this model's query embeddings, see `checked`.
        """
        self.queries_of_model[model] = queries
        # Limit the cache, because clients can send any number of model names.
        while len(self.queries_of_model) > _MOST_MODELS:
            del self.queries_of_model[next(iter(self.queries_of_model))]


def edited_answer(
    queries: DebiasedQueries, content: bytes | bytearray, texts: Sequence[str] | None
) -> bytes:
    """Edit the vectors in a response and keep its format.

    Args:
        queries: The edit for the model, see `QueryEdits.checked`.
        content: The response.
        texts: The queries, or None if the client sent tokens. Queries that state a value are left
            unchanged.

    Raises:
        RefusedError: If the edit does not match the vectors, or if there are no vectors.
    """
    answer = read_vectors_answer(content)
    rows, are_encoded = vectors_of(answer, None if texts is None else len(texts))
    try:
        edited = queries.edit(rows, texts)
    except VldebiasError as error:
        raise RefusedError(400, str(error), param="input", code="edit_mismatch") from None
    for item, row in zip(_in_order(answer["data"]), edited, strict=True):
        if are_encoded:
            item["embedding"] = base64.b64encode(row.astype("<f4").tobytes()).decode()
        else:
            item["embedding"] = row.tolist()
    return json.dumps(answer).encode()


def is_of_queries(path: str, body: Mapping[str, object]) -> bool:
    """Return whether a request contains queries, according to its path or `input_type`.

    Args:
        path: The path of the request.
        body: The fields in the request.
    """
    return path.startswith("queries/") or body.get("input_type") in QUERY_TYPES


def texts_of(body: Mapping[str, object]) -> list[str] | None:
    """Return the strings in a request, or None if they are tokens."""
    inputs = body.get("input")
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, list) and all(isinstance(text, str) for text in inputs):
        return inputs
    return None


def read_vectors_answer(content: bytes | bytearray) -> Any:
    """Parse a response as JSON.

    Raises:
        RefusedError: If it is not JSON.
    """
    try:
        check_parts(content, _MOST_PARTS)
        return json.loads(content)
    except (ValueError, RecursionError):
        raise _no_embeddings() from None


def vectors_of(answer: Json, count: int | None = None) -> tuple[np.ndarray, bool]:
    """Return the vectors in a response, and whether they are base64-encoded.

    Args:
        answer: The parsed response.
        count: The expected number of vectors. If None, at least one is expected.

    Returns:
        The vectors (n, d) in float32, ordered by index, and whether they are base64-encoded.

    Raises:
        RefusedError: If the number of embeddings in the response is wrong, or if embeddings are not
            finite.
    """
    rows = []
    are_encoded = False
    try:
        for item in _in_order(answer["data"]):
            vector = item["embedding"]
            are_encoded = isinstance(vector, str)
            if are_encoded:
                rows.append(np.frombuffer(base64.b64decode(vector), dtype="<f4"))
            else:
                rows.append(np.asarray(vector, dtype=np.float32))
        vectors = np.stack(rows).astype(np.float32)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise _no_embeddings() from None
    has_right_shape = vectors.ndim == 2 and count in (None, len(vectors))
    if not has_right_shape or not np.isfinite(vectors).all():
        raise _no_embeddings()
    return vectors, are_encoded


def _in_order(items: list[Json]) -> list[Json]:
    """Sort the items in a response by index, because servers may return them in any order."""
    return sorted(items, key=lambda item: item.get("index", 0))


def _no_embeddings() -> RefusedError:
    message = "the upstream server's response contains no readable embeddings"
    return RefusedError(502, message, code="upstream_form")
