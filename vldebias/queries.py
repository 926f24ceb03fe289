"""Debias the queries of an existing index: a function that embeds texts, and vectors, are all
that is needed.

    queries = debias_queries(embed, "gender", reference=vectors_of_the_index)
    index.search(queries.embed(["A photo of a doctor."]), 50)

The documents of the index stay as they are, so nothing is embedded or indexed again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.api import fit_projection
from vldebias.errors import AlreadyAttachedError, InvalidInputError
from vldebias.hosts.embedders import EmbeddedTexts, Embedder
from vldebias.hosts.host import SIDES, TEXT
from vldebias.methods import Method, Prompts, Reference
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet, StatedWords, load_prompts
from vldebias.utils.vectors import Vectors, read_vectors

if TYPE_CHECKING:
    from vldebias.report.result import Result

DEBIASED = "debiased"  # the method of `measure`


class _ChromaDefaults:
    """Implement chroma's interface of embedding functions, for embedders of other kinds.

    Chroma cannot build them again from a configuration, and calls that legacy.
    """

    @staticmethod
    def name() -> str:
        return "vldebias"

    @staticmethod
    def is_legacy() -> bool:
        return True

    @staticmethod
    def get_config() -> dict[str, Any]:
        return {}

    @staticmethod
    def build_from_config(config: object) -> Any:
        return NotImplemented

    @staticmethod
    def default_space() -> str:
        return "l2"

    @staticmethod
    def supported_spaces() -> list[str]:
        return ["cosine", "l2", "ip"]

    @staticmethod
    def validate_config(config: object) -> None:
        """Accept any configuration."""

    @staticmethod
    def validate_config_update(before: object, after: object) -> None:
        """Accept any configuration."""


def debias_queries(
    embed: object,
    prompts: Prompts | Edit,
    *,
    reference: object = None,
    method: str | Method | None = None,
    strength: float = 1.0,
    keep_stated: bool = True,
) -> DebiasedQueries:
    """Return what embeds queries with less of the bias that `prompts` describe.

    Args:
        embed: what embeds your queries: a function from a list of texts to their vectors (lists,
            arrays or tensors), such as a call of a hosted service; a model of
            sentence-transformers; LangChain's `Embeddings`; llama-index' `BaseEmbedding`; an
            embedding function of chroma; or a mapping from text to vector.
        prompts: name of a prompt set (`vldebias.list_prompts()`), a path to a YAML file, a
            PromptSet, or a list of these, solved jointly; or an edit that was fitted before
            (`vldebias.load_edit`).
        reference: vectors (n, d) of the index, some hundred to some thousand images or documents,
            without labels. The default needs them.
        method: a Method or a name in `vldebias.methods.METHODS`. None is the default
            (docs/explanation/the-default.md): an edit that closes the gap on reference vectors
            that it was not fitted to; otherwise, or without a reference, no edit, with a sentence
            that says why.
        strength: share of the edit in [0, 1]; 0 gives what `embed` gives.
        keep_stated: leave queries alone that name an attribute word of the set ("a photo of a
            female doctor").

    Raises:
        InvalidInputError: something that embeds no texts, or vectors of another width.
        UnsupportedHostError: a model that `vldebias.debias` is for, or an async function.
        ProjectionMismatchError: an edit of another model.
        AlreadyAttachedError: queries that are debiased already.

    Warns:
        AutoDeclinedWarning: no improvement is predicted, so nothing is changed.

    >>> queries = debias_queries(model, "gender", reference=vectors)  # doctest: +SKIP
    >>> index.search(queries.embed(["A photo of a doctor."]), 50)  # doctest: +SKIP
    """
    if isinstance(embed, DebiasedQueries):
        raise AlreadyAttachedError(
            "embed: got queries that are debiased already; pass what embeds texts without an edit"
        )
    host = EmbeddedTexts(Embedder.from_source(embed))
    if isinstance(prompts, Edit):
        if method is not None or reference is not None:
            raise InvalidInputError(
                "got a fitted edit and method or reference; leave these out, or pass a prompt set"
            )
        host.check(TEXT, prompts)
        fitted = prompts
        names = (fitted.provenance.prompts or "").split("+")
        sets: tuple[PromptSet, ...] = ()
        with suppress(InvalidInputError):  # one of them is not packaged
            sets = tuple(load_prompts(name) for name in names if name)
    else:
        images = _read_reference(reference, host)
        fitted = fit_projection(host, prompts, method=method, reference=images)
        listed: Any = prompts if isinstance(prompts, list | tuple) else [prompts]
        sets = tuple(load_prompts(prompt_set) for prompt_set in listed)
    if TEXT not in SIDES[fitted.side]:
        raise InvalidInputError(
            f"method {fitted.method!r} changes the vectors of images, and an index keeps its own;"
            " choose a method for texts"
        )
    # LangChain's stores check for an instance of its `Embeddings`; no store does before the
    # library is loaded.
    module = sys.modules.get("langchain_core.embeddings")
    if module is not None:
        module.Embeddings.register(DebiasedQueries)
    return DebiasedQueries(host, fitted, sets, strength=strength, keep_stated=keep_stated)


@dataclass(repr=False, eq=False)
class DebiasedQueries:
    """Embed queries with a fitted edit; documents are never edited.

    It takes the place of what embeds texts: pass it to LangChain as `Embeddings`, to chroma as the
    embedding function of a collection, or call `embed` where you embed queries.

    Attributes:
        host: what serves the texts of your embedder.
        fitted: the edit. `fitted.save_pretrained(folder)` saves it, and
            `debias_queries(embed, vldebias.load_edit(folder))` uses it again.
        sets: the prompt sets that it was fitted to; empty where they are not known.
        strength: share of the edit in [0, 1]; it may be set between calls.
        keep_stated: whether queries that name an attribute word stay as they are.
    """

    host: EmbeddedTexts
    fitted: Edit
    sets: tuple[PromptSet, ...]
    strength: float = 1.0
    keep_stated: bool = True

    def __post_init__(self) -> None:
        # A wrong strength is refused before the first query.
        probe = torch.zeros(1, self.fitted.dim)
        self.fitted.check_input(probe, self.strength)
        self._stated = StatedWords(self.fitted.stated_words) if self.fitted.stated_words else None

    def embed(self, texts: str | Sequence[str]) -> Any:
        """Return the vectors of queries, in the form and precision that your embedder gives.

        Args:
            texts: n queries, which give n vectors; or one, which gives its vector.

        Raises:
            InvalidInputError: no texts, or an embedder that gives no vector for each.
        """
        queries = _checked_texts(texts)
        vectors = self.host.embedder.queries(queries)
        if not queries:
            return vectors
        read = read_vectors(vectors, "embed", expected=len(queries))
        edited = self._edited(read, vectors, queries)
        is_text = isinstance(texts, str)
        return edited[0] if is_text and not read.is_single else edited

    def edit(self, vectors: object, texts: str | Sequence[str] | None = None) -> Any:
        """Return query vectors that were embedded before, edited, with their lengths, in their form
        and precision.

        Args:
            vectors: (n, d) or (d,), as an array, a tensor or a list.
            texts: the n queries, so that those which state a value stay as they are. None: all
                vectors are edited.

        Raises:
            InvalidInputError: vectors of another width or type, or another number of texts.
        """
        read = read_vectors(vectors, "vectors")
        queries = None if texts is None else _checked_texts(texts)
        if queries is not None and len(queries) != len(read.rows):
            raise InvalidInputError(
                f"texts: got {len(queries)} for {len(read.rows)} vectors; expected one for each"
            )
        return self._edited(read, vectors, queries)

    def embed_query(self, input: Any) -> Any:
        """Return the edited vector of one query as a list of floats, as LangChain asks for it; of a
        list of queries a list of vectors, as chroma does."""
        if isinstance(input, str):
            return read_vectors(self.embed(input), "embed").rows[0].tolist()
        return list(self.embed(input))

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of documents as lists of floats, never edited, as LangChain asks for
        them."""
        listed = _checked_texts(texts)
        if not listed:
            return []
        vectors = self.host.embedder.documents(listed)
        rows = read_vectors(vectors, "embed", expected=len(listed)).rows
        return cast("list[list[float]]", rows.tolist())

    async def aembed_query(self, text: str) -> list[float]:
        """Do what `embed_query` does, in a thread."""
        return cast("list[float]", await asyncio.to_thread(self.embed_query, text))

    async def aembed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Do what `embed_documents` does, in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    def __call__(self, input: object) -> Any:
        """Return the vectors of documents, never edited, as chroma asks for them."""
        return self.host.embedder.documents(_checked_texts(input))

    def __getattr__(self, name: str) -> Any:
        """Return what chroma asks of an embedding function, from yours where it has it.

        A collection stores the name and configuration of what embeds its documents, so that it
        opens with yours and with this, which leaves documents alone.
        """
        # Only these: copy and pickle ask for other names before `host` is there.
        if name in vars(_ChromaDefaults) and not name.startswith("_"):
            source = self.host.embedder.source
            return getattr(source, name, getattr(_ChromaDefaults, name))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def measure(self, vectors: Any, queries: Sequence[str], labels: Any, **options: Any) -> Result:
        """Measure what the edit does to searches, before it is switched on: skew of the first
        results and what stays of them, with intervals.

        Args:
            vectors: (n, d) of the index, as an array, a tensor, a file or `vldebias.data.Shards`.
            queries: what people search for.
            labels: the value of the attribute of each of the n vectors, "" where it is unknown; or
                column -> values.
            options: of `vldebias.evaluate`, such as k, the number of first results, one or several
                (default: a twentieth of the index, at least 10), prior or seed.

        Returns:
            A `Result` with the methods "none" and "debiased".

        Raises:
            InvalidInputError: labels of another length or of one value, or unknown prompt sets.
        """
        from vldebias.study import evaluate

        if not self.sets:
            raise InvalidInputError(
                f"measure: the edit was fitted to {self.fitted.provenance.prompts!r}, which is not"
                " a prompt set of this package; use vldebias.evaluate with prompts="
            )
        if not isinstance(labels, Mapping):
            labels = {self.sets[0].name: labels}
        # The measurement leaves the same queries alone as `embed` does.
        edit = self.fitted if self.keep_stated else self.fitted.with_provenance(stated_words=())
        if isinstance(vectors, list | tuple):
            vectors = read_vectors(vectors, "vectors").rows
        prompts: Any = self.sets if len(self.sets) > 1 else self.sets[0]
        return evaluate(
            self.host,
            vectors,
            prompts=prompts,
            labels=labels,
            queries=_checked_texts(queries),
            methods={DEBIASED: edit},
            strength=self.strength,
            **options,
        )

    def __repr__(self) -> str:
        label = self.fitted.provenance.prompts or "an edit"
        choice = self.fitted.provenance.choice
        reason = f" {choice.reason}" if choice else ""
        return (
            f"DebiasedQueries({self.host.name}, {label}: {self.fitted.method}, strength"
            f" {self.strength:g}.{reason})"
        )

    def _edited(self, read: Vectors, vectors: object, texts: Sequence[str] | None) -> Any:
        """Return vectors with the edit, those of texts that state a value as they are."""
        if not len(read.rows):
            return vectors
        rows = read.rows.detach()
        self.fitted.check_input(rows, self.strength)
        if self.strength == 0:
            return vectors
        # float16 vectors are edited in float32 and rounded once.
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        edited: Tensor
        if not hasattr(self.fitted, "wordings"):
            edited = self.fitted(wide, self.strength)
        elif texts is not None:
            # Other wordings of each prompt are embedded.
            edited = self.host.reworded(self.fitted, TEXT, wide, texts, self.strength)
        else:
            raise InvalidInputError(
                f"method {self.fitted.method!r} reads texts; pass texts= to edit, or call embed"
            )
        if edited is wide:
            return vectors
        # An index may score by inner products: the length of a query stays what it was.
        lengths = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        edited = normalize(edited, dim=1) * lengths
        stated = self._stated_rows(texts)
        if stated:
            edited[stated] = wide[stated]
        return read.restore(edited.to(rows.dtype))

    def _stated_rows(self, texts: Sequence[str] | None) -> list[int]:
        """Return the rows whose texts name an attribute word."""
        if texts is None or self._stated is None or not self.keep_stated:
            return []
        return [row for row, text in enumerate(texts) if self._stated.find(text)]


def _checked_texts(texts: object) -> list[str]:
    """Return texts as a list; one text alone is a list of it.

    Raises:
        InvalidInputError: something else than texts.
    """
    if isinstance(texts, str):
        return [texts]
    listed = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, bytes) else None
    if listed is None or not all(isinstance(text, str) for text in listed):
        shown = repr(texts)[:100]
        raise InvalidInputError(f"texts: got {shown}; expected a text or a list of texts")
    return listed


def _read_reference(reference: object, host: EmbeddedTexts) -> Any:
    """Return reference vectors as they are fitted to; refuse another width than that of texts."""
    features = reference.features if isinstance(reference, Reference) else reference
    if isinstance(features, list | tuple):
        # A list of arrays of several vectors each is read batch by batch.
        if not features or getattr(features[0], "ndim", 1) != 2:
            features = read_vectors(features, "reference").rows
            reference = features
    # Iterables of batches have none; their widths show when they are read.
    shape = getattr(features, "shape", None)
    if shape is not None and len(shape) == 2 and shape[1] != host.dim(TEXT):
        raise InvalidInputError(
            f"reference: got vectors of width {shape[1]}, and embed gives {host.dim(TEXT)};"
            " expected both of one model"
        )
    return reference
