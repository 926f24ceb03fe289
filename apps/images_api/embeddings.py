"""Edit the embeddings of queries on their way back from a service; documents stay as they are."""

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

from .order import RefusedError

Json = dict[str, Any]

QUERY_TYPES = ("query", "search_query")  # of `input_type`, as services call it
CHECKED = (PROBE, *TEXTS)  # texts whose embeddings tell one model from another
_PATH = re.compile(r"(queries/)?(?:v\d+\w*/)?embeddings")


class QueryEdits:
    """Edit vectors of queries, after a check that they are of the model that the edit was fitted
    on.

    folder: of an edit, as `save_pretrained` writes it.

    Raises:
        InvalidInputError: a folder without an edit, or an edit that reads other wordings of a
            query, which a service would have to embed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.edit = load_edit(folder)
        if hasattr(self.edit, "wordings"):
            raise InvalidInputError(
                f"--edit: the method {self.edit.method!r} embeds other wordings of each query; use"
                " an edit of another method, or vldebias.debias_queries in your program"
            )
        self._queries_of_model: dict[str, DebiasedQueries] = {}

    def reads(self, path: str) -> bool:
        """Return whether a path gives embeddings: "v1/embeddings", "queries/v1/embeddings"."""
        return _PATH.fullmatch(path) is not None

    def checks(self, model: str) -> bool:
        """Return whether the vectors of this model were compared with the edit's already."""
        return model in self._queries_of_model

    def check(self, model: str, answer: bytes) -> None:
        """Compare the embeddings of some texts with those of the model of the edit.

        Args:
            model: its name at the service.
            answer: of the service to a request for the embeddings of `CHECKED`.

        Raises:
            RefusedError: another number of dimensions, or another model.
        """
        rows, _ = vectors_of(json.loads(answer))
        try:
            queries = debias_queries(dict(zip(CHECKED, rows, strict=True)), self.edit)
        except VldebiasError as error:
            raise RefusedError(400, str(error), param="model", code="edit_mismatch") from None
        self._queries_of_model[model] = queries

    def edited(self, model: str, content: bytes, texts: Sequence[str] | None) -> bytes:
        """Return an answer of the service with edited vectors, in the form that it had.

        Args:
            model: its name at the service.
            content: of the answer.
            texts: the queries, of which those that state a value stay as they are; None where the
                client sent tokens.

        Raises:
            RefusedError: vectors that the edit does not fit.
        """
        answer = json.loads(content)
        rows, are_encoded = vectors_of(answer)
        try:
            edited = self._queries_of_model[model].edit(rows, texts)
        except VldebiasError as error:
            raise RefusedError(400, str(error), param="input", code="edit_mismatch") from None
        for item, row in zip(answer["data"], edited, strict=True):
            if are_encoded:
                item["embedding"] = base64.b64encode(row.astype("<f4").tobytes()).decode()
            else:
                item["embedding"] = row.tolist()
        return json.dumps(answer).encode()


def path_of_service(path: str) -> str:
    """Return the path as the service has it: without the part that says that texts are queries."""
    return path.removeprefix("queries/")


def is_of_queries(path: str, body: Mapping[str, Any]) -> bool:
    """Return whether the texts of a request are queries, by its path or its `input_type`."""
    return path.startswith("queries/") or body.get("input_type") in QUERY_TYPES


def texts_of(body: Mapping[str, Any]) -> list[str] | None:
    """Return the texts of a request; None where they are tokens."""
    inputs = body.get("input")
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, list) and all(isinstance(text, str) for text in inputs):
        return inputs
    return None


def vectors_of(answer: Any) -> tuple[np.ndarray, bool]:
    """Return the vectors (n, d) of an answer in float32, and whether they are written in base64.

    Raises:
        RefusedError: an answer of another form.
    """
    rows = []
    are_encoded = False
    try:
        for item in sorted(answer["data"], key=lambda item: item.get("index", 0)):
            vector = item["embedding"]
            are_encoded = isinstance(vector, str)
            if are_encoded:
                rows.append(np.frombuffer(base64.b64decode(vector), dtype="<f4"))
            else:
                rows.append(np.asarray(vector, dtype=np.float32))
        return np.stack(rows).astype(np.float32), are_encoded
    except (KeyError, TypeError, ValueError):
        message = "the upstream server's answer has no embeddings that can be read"
        raise RefusedError(502, message, code="upstream_form") from None
