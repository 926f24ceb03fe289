"""Wrap functions and objects from other libraries that embed text.

This module supports objects from LangChain, llama-index, sentence-transformers and chroma, plain
functions, and mappings from text to vector. None of these libraries is imported; an interface is
recognised by its method names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import (
    InvalidInputError,
    ProjectionMismatchError,
    UnsupportedHostError,
    one_line,
    warn_of_input,
)
from vldebias.hosts.edits import TEXT
from vldebias.hosts.host import BATCH, TEXTS, Host, numbers_of
from vldebias.projection.edit import Edit
from vldebias.projection.fingerprint import Fingerprint
from vldebias.prompts import PromptSet
from vldebias.utils.text_rows import MissingTextsError, check_present
from vldebias.utils.vectors import read_vectors

if TYPE_CHECKING:
    from vldebias.wording.stated import StatedValues

Embed = Callable[[list[str]], object]
# Maximum relative distance at which a text's query and document embeddings count as equal.
SAME = 1e-4


@dataclass(frozen=True)
class Embedder:
    """Describe how a function or an object embeds text.

    Attributes:
        name: name of the function or class, for messages.
        queries: function from a list of n texts to their n vectors as search queries, in the
            library's format.
        documents: function from a list of n texts to their n vectors as indexed documents.
        single: whether `queries` embeds one text at a time, so that a service receives one request
            per text.
        batch: number of texts per call while an edit is fitted or measured, because services have
            limits.
        model_id: name of the model, if the object has one.
        source: the function or object itself.
    """

    name: str
    queries: Embed
    documents: Embed
    single: bool = False
    batch: int = BATCH
    model_id: str | None = None
    source: object = None

    @classmethod
    def from_source(cls, embed: object) -> Embedder:
        """Return an `Embedder` for a function, a library's object or a mapping.

        Raises:
            UnsupportedHostError: If it is a model (use `vldebias.debias` instead) or an async
                function.
            InvalidInputError: If it does not embed text.
        """
        if isinstance(embed, Mapping):
            return _mapping_embedder(embed)
        name = getattr(embed, "__qualname__", type(embed).__name__)
        model_id = getattr(embed, "model_name", None)
        model_id = model_id if isinstance(model_id, str) else None
        # Strings have an `encode` method that is unrelated to embeddings.
        methods = None if isinstance(embed, str | bytes) else _methods_of(embed)
        if methods is not None:
            queries, documents, single = methods
            return cls(name, queries, documents, single=single, model_id=model_id, source=embed)
        if isinstance(embed, torch.nn.Module):
            raise UnsupportedHostError(
                f"embed: got {name}, a model; attach to it with vldebias.debias(model, attribute),"
                " or pass a function from a list of texts to their vectors"
            )
        raise InvalidInputError(
            f"embed: got {name}; expected a function from a list of texts to their vectors, a"
            " mapping from text to vector, or a LangChain, llama-index, sentence-transformers or"
            " chroma object that embeds text"
        )


def _has(embed: object, *names: str) -> bool:
    """Return whether an object has all these methods."""
    return all(callable(getattr(embed, name, None)) for name in names)


def _methods_of(embed: Any) -> tuple[Embed, Embed, bool] | None:
    """Return functions for queries and documents, and whether the former takes one query at a time.

    The first matching interface is used, because some objects match several: a
    sentence-transformers model can also be called with tensors, and a chroma function has an
    `embed_query` for lists. Returns None if the object does not embed text.
    """
    if _has(embed, "embed_query", "embed_documents"):  # LangChain
        return _one_by_one(embed, "embed_query"), embed.embed_documents, True
    if _has(embed, "get_query_embedding", "get_text_embedding_batch"):  # llama-index
        return _one_by_one(embed, "get_query_embedding"), embed.get_text_embedding_batch, True
    if _has(embed, "encode"):
        # sentence-transformers had only `encode` before release 5.
        queries = getattr(embed, "encode_query", embed.encode)
        documents = getattr(embed, "encode_document", embed.encode)
        return queries, documents, False
    if callable(embed) and _has(embed, "embed_query"):  # chroma
        return embed.embed_query, embed, False
    if not callable(embed) or isinstance(embed, torch.nn.Module | type):
        return None
    called = embed if inspect.isroutine(embed) else type(embed).__call__
    if inspect.iscoroutinefunction(called):
        raise UnsupportedHostError(
            "embed: got an async function; expected a function that returns vectors, such as"
            " lambda texts: asyncio.run(embed(texts))"
        )
    return embed, embed, False


def _one_by_one(embed: object, method: str) -> Embed:
    """Return a function that calls a method once per text."""
    return lambda texts: [getattr(embed, method)(text) for text in texts]


def _mapping_embedder(vectors: Mapping[str, object]) -> Embedder:
    """Return the embedder for a mapping from text to vector."""

    def look_up(texts: list[str]) -> list[object]:
        check_present(texts, vectors, "add their vectors, or pass a function that embeds texts")
        return [vectors[text] for text in texts]

    # Use one batch, so that all missing texts are reported at once.
    batch = max(len(vectors), BATCH**2)
    return Embedder("mapping", look_up, look_up, batch=batch, source=vectors)


class EmbeddedTexts(Host):
    """Provide an `Embedder`'s vectors for fitting and measuring; nothing can be attached.

    Each text is requested once, in batches, when a method needs it.

    Args:
        embedder: the function or service that embeds texts.
        sets: the prompt sets whose values `stated` recognises in several languages.
    """

    name, library = "function that embeds texts", "function"
    roles = (TEXT,)
    exclusive_modules = ()

    def __init__(self, embedder: Embedder, sets: Sequence[PromptSet] = ()) -> None:
        self.embedder = embedder
        self._sets = tuple(sets)
        self._stated_values: dict[tuple[str, ...], StatedValues] = {}
        self.name = embedder.name
        self.model_id = embedder.model_id
        self._embed: Embed | None = None

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        # Embed each text once, because a service is slow and may charge for it.
        different = list(dict.fromkeys(prompts))
        embedder = self.embedder
        if self._embed is None:
            embed = embedder.queries
            if embedder.single:
                # Embed queries as documents, which works in batches, if both give the same vectors.
                text = [TEXTS[0]]
                as_query = read_vectors(embedder.queries(text), "embed", expected=1).rows
                as_document = read_vectors(embedder.documents(text), "embed", expected=1).rows
                is_alike = as_query.shape == as_document.shape and bool(
                    (as_query - as_document).norm() <= SAME * as_query.norm()
                )
                if is_alike:
                    embed = embedder.documents
            self._embed = embed
        blocks = []
        for start in range(0, len(different), embedder.batch):
            batch = different[start : start + embedder.batch]
            try:
                embedded = self._embed(batch)
            except (AttributeError, TypeError) as error:
                raise InvalidInputError(
                    f"embed: got a list of texts, and raised {one_line(error)};"
                    " expected a function of a list of texts, such as lambda texts: [embed(text)"
                    " for text in texts], or lambda texts: model.encode_text(tokenizer(texts))"
                ) from error
            vectors = read_vectors(embedded, "embed", expected=len(batch))
            blocks.append(vectors.rows.detach().cpu().double())
        rows = torch.cat(blocks)
        # Edits depend on the direction of a vector, so it must be finite and not zero.
        bad = int((~rows.isfinite().all(1) | ~rows.any(1)).sum())
        if bad:
            raise InvalidInputError(
                f"embed: {bad} of {len(rows)} texts have vectors that are zero or not finite;"
                " expected finite, non-zero vectors"
            )
        unit = normalize(rows, dim=1)
        return {(role, text): row for text, row in zip(different, unit, strict=True)}

    def stated(self, texts: Sequence[str], edit: Edit) -> list[bool]:
        """Return, for each text, whether it states a value or is about a named person.

        Nothing is stated for an edit without attribute words, as with `keep_stated=False`.

        Args:
            texts: texts (b,) as they are embedded.
            edit: the edit, whose words state the attribute.
        """
        from vldebias.wording.stated import StatedValues  # loads the rules for English

        words = edit.stated_words
        if not words:
            return [False] * len(texts)
        if words not in self._stated_values:
            self._stated_values[words] = StatedValues(words, self._sets)
        return list(map(self._stated_values[words].find, texts))

    def dim(self, role: str) -> int:
        """Return the width of the vectors."""
        source = self.embedder.source
        if isinstance(source, Mapping) and source:
            # A mapping may lack the probe text, so use one of its own texts.
            return self.embed([next(iter(source))], role).shape[-1]
        return super().dim(role)

    def fingerprint(self, role: str | None = None) -> Fingerprint | None:
        """Return numbers derived from three text embeddings, or None if a mapping lacks them.

        There are no weights to read, so only embeddings identify the model.
        """
        try:
            rows = self.embed(TEXTS, TEXT)
        except MissingTextsError:
            return None
        width = rows.shape[1]
        return Fingerprint(
            structure="embeddings of texts",
            tensors=((float(width), 0.0),),
            texts=numbers_of(rows),
        )

    def check(self, role: str, edit: Edit) -> None:
        """Reject an edit that was fitted for a different width, tensor or model.

        An edit that was fitted on the underlying model itself is accepted: the embeddings of three
        texts show whether the vectors come from that model.

        Args:
            role: the tensor that the edit would change.
            edit: the fitted edit.

        Raises:
            ProjectionMismatchError: If the edit does not fit; the message gives the reason.

        Warns:
            SuspectInputWarning: If the edit has no text embeddings to compare.
        """
        fitted = edit.provenance.fingerprint
        width = self.dim(role)
        here = self.fingerprint()
        if edit.dim != width:
            why = f"has dim {edit.dim}, but the vectors have {width}"
        elif edit.space is not None and not edit.space.endswith(f".{role}"):
            why = f"belongs to space {edit.space!r}, not to text embeddings"
        elif fitted is not None and here is not None and not fitted.same_texts(here):
            why = (
                f"was fitted on a different model ({edit.model_id or 'unnamed'}): the embeddings of"
                " three texts differ"
            )
        elif fitted is None or not fitted.texts:
            warn_of_input(
                f"{self.name}: the edit stores no text embeddings, so there is no way to check that"
                " it was fitted on this model; fit it with vldebias.debias_queries(embed, prompts)",
            )
            return
        else:
            return
        raise ProjectionMismatchError(
            f"{self.name}: the edit {why}; fit it again with vldebias.debias_queries(embed,"
            " prompts)"
        )


class ChromaFunction:
    """Implement chroma's interface of embedding functions around any embedder.

    A collection stores the name and configuration of its embedding function, so it can be opened
    with your function or with a wrapper of it, which does not change documents. Attributes that
    chroma expects are therefore taken from your embedder, or from defaults if it has none.

    Attributes:
        host: a wrapper around your embedder.
    """

    host: EmbeddedTexts

    def __getattr__(self, name: str) -> object:
        # Ignore other names, because copy and pickle look some up before `host` exists.
        if name in _CHROMA_DEFAULTS:
            return getattr(self.host.embedder.source, name, _CHROMA_DEFAULTS[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


# Chroma's interface for other embedders. Chroma calls such functions "legacy", since it cannot
# rebuild them from a configuration.
_CHROMA_DEFAULTS: dict[str, Callable[..., object]] = {
    "name": lambda: "vldebias",
    "is_legacy": lambda: True,
    "get_config": dict,
    "build_from_config": lambda config: NotImplemented,
    "default_space": lambda: "l2",
    "supported_spaces": lambda: ["cosine", "l2", "ip"],
    "validate_config": lambda config: None,
    "validate_config_update": lambda before, after: None,
}
