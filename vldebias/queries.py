"""Debias the queries of an existing index, given only an embedding function and vectors.

    queries = debias_queries(embed, "gender", reference=vectors_of_the_index)
    queries.search(index_call, ["A photo of a doctor."], 50)

The indexed documents do not change, so nothing has to be embedded or indexed again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch.nn.functional import normalize

from vldebias.errors import (
    AlreadyAttachedError,
    AutoDeclinedWarning,
    InvalidInputError,
    check_arguments,
    check_kind,
    warn,
    warn_of_input,
)
from vldebias.hosts.edits import SIDES, TEXT, except_stated
from vldebias.hosts.embedders import ChromaFunction, EmbeddedTexts, Embedder
from vldebias.methods import Method, Problem, Reference, get_method
from vldebias.methods.presets import NOTHING, unedited_queries
from vldebias.projection.edit import Edit, Rewording, rounded
from vldebias.prompts import PromptSet, load_prompts
from vldebias.reranking import Positions
from vldebias.reranking.entry import codes_of, read_checked, warn_of_short
from vldebias.reranking.index import ENOUGH_PEOPLE, IndexGroups
from vldebias.reranking.index_search import MOST, IndexCall, search_page
from vldebias.reranking.report import check_count
from vldebias.utils.vectors import read_vectors

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from vldebias.report.result import Result
    from vldebias.study.inputs import Columns, Images
    from vldebias.typing import AttributeLike, ById, EmbedderLike, Features

DEBIASED = "debiased"  # method name in `measure` results
AnyVectors = TypeVar("AnyVectors")


@check_arguments()
def debias_queries(
    embed: EmbedderLike,
    attribute: AttributeLike | Edit,
    *,
    reference: Reference | Features | ArrayLike | None = None,
    method: str | Method | None = None,
    strength: float = 1.0,
    keep_stated: bool = True,
    index: str | Path | None = None,
) -> DebiasedQueries:
    """Wrap a query embedder to reduce the bias described by a prompt set.

    See also docs/how-to/index-queries.md.

    Args:
        embed: the embedder. Accepts a sentence-transformers model, LangChain's `Embeddings`,
            llama-index's `BaseEmbedding`, a chroma embedding function, a mapping from text to
            vector, or a function (such as a call to a hosted service) from a list of texts to their
            vectors, as lists, arrays or tensors.
        attribute: the name of a prompt set (`vldebias.list_prompts()`), a path to a YAML file, a
            PromptSet, a list of these (solved jointly), or a fitted edit (`vldebias.load_edit`).
        reference: vectors (n, d) of a few thousand indexed images or documents, in which the
            groups' shares are counted for `search`. For attributes other than gender, label 20 of
            them or more: Reference(vectors, labels={"race": [...]}), with "" for the others.
        method: a Method, or a name in `vldebias.methods.METHODS`, to edit queries. If None, queries
            are not edited, because `search` leaves less skew by re-ranking the results.
        strength: the strength of the edit in [0, 1]. If 0, the output of `embed` is returned
            unchanged.
        keep_stated: whether to leave queries that state a value unchanged: those with one of the
            set's attribute words ("a female doctor"), and for sets about people, those that state a
            value in another language ("eine Ärztin") or are about a named person ("Marie Curie").
        index: a file from `queries.index.save`, with the groups' shares in the index for `search`.
            If None, the shares are counted in `reference`.

    Returns:
        A wrapper that embeds queries with the edit, and searches an index with re-ranking.

    Raises:
        InvalidInputError: If `embed` does not embed text, or its vectors do not have the expected
            width.
        UnsupportedHostError: If `embed` is a model for `vldebias.debias`, or an async function.
        ProjectionMismatchError: If the edit was fitted for a different model.
        AlreadyAttachedError: If `embed` is already debiased.

    Warns:
        AutoDeclinedWarning: If nothing can be done, because `method`, `reference` and `index` are
            missing.
        SuspectInputWarning: If the groups' labels cannot be trusted, so that the results of
            searches keep their order.

    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> def embed(texts):  # your embedder, such as SentenceTransformer(...).encode
    ...     return model.encode_text(tokenizer(texts)).detach().numpy()
    >>> queries = debias_queries(embed, "gender", method="difference")
    >>> queries.embed(["A photo of a doctor."]).shape  # the vectors to search the index with
    (1, 256)
    """
    if isinstance(embed, DebiasedQueries):
        raise AlreadyAttachedError(
            "embed: got DebiasedQueries, which are debiased already; pass the original embedder"
        )
    sets = _sets_of(attribute)
    host = EmbeddedTexts(Embedder.from_source(embed), sets)
    if isinstance(attribute, Edit):
        if method is not None or reference is not None:
            raise InvalidInputError(
                "got a fitted edit with method or reference; remove these, or pass a prompt set"
            )
        host.check(TEXT, attribute)
        fitted = attribute
    else:
        images = _read_reference(reference, host)
        problem = Problem(host, attribute, reference=images)
        if method is None:
            fitted = unedited_queries(problem, TEXT)
            if reference is None and index is None:
                _warn_of_no_edit(
                    fitted,
                    "pass reference=, a few thousand vectors of your index, and call"
                    " queries.search(index_call, text, k)",
                )
        else:
            fitted = problem.fit(get_method(method, reference=images), TEXT)
    if TEXT not in SIDES[fitted.side]:
        raise InvalidInputError(
            f"method {fitted.method!r} edits image vectors, but the vectors of an index are fixed;"
            " choose a method that edits text"
        )
    # LangChain's vector stores require an `Embeddings` instance, which only matters once the
    # library is imported.
    module = sys.modules.get("langchain_core.embeddings")
    if module is not None:
        module.Embeddings.register(DebiasedQueries)
    groups = None
    if index is not None:
        names = [list(prompt_set.attributes) for prompt_set in sets]
        groups = IndexGroups.load(index, host, names)
    elif reference is not None and all(prompt_set.attributes for prompt_set in sets):
        sample = images if isinstance(images, Reference) else Reference(cast("Features", images))
        blocks = (batch.numpy() for batch in sample.batches())
        groups = IndexGroups.fit(host, sets, blocks, least=ENOUGH_PEOPLE, labels=sample.labels)
        groups = replace(groups, fingerprint=host.fingerprint())
    if groups is not None and groups.doubt:
        warn_of_input(f"search keeps the order of the index: {groups.doubt}")
    return DebiasedQueries(host, fitted, sets, strength, keep_stated, groups)


@dataclass(repr=False, eq=False)
class DebiasedQueries(ChromaFunction):
    """Embed queries with a fitted edit, without editing documents.

    Use it instead of your embedder: pass it to LangChain as `Embeddings`, to chroma as a
    collection's embedding function, or call `embed` to embed queries.

    Attributes:
        host: a wrapper around your embedder.
        fitted: the edit. `fitted.save_pretrained(folder)` saves it, and `debias_queries(embed,
            vldebias.load_edit(folder))` reuses it.
        sets: the prompt sets that the edit was fitted to, or an empty tuple if unknown.
        strength: the strength of the edit in [0, 1], which may be changed between calls.
        keep_stated: whether to leave queries that state a value unchanged.
        index: the groups' shares in the index, for `search`, or None if there was no reference.

    >>> import numpy as np
    >>> import vldebias
    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> def embed(texts):
    ...     return model.encode_text(tokenizer(texts)).detach().numpy()
    >>> queries = vldebias.debias_queries(embed, "gender", method="difference")
    >>> queries.embed(["A photo of a doctor.", "A photo of a woman."]).shape
    (2, 256)
    """

    host: EmbeddedTexts
    fitted: Edit
    sets: tuple[PromptSet, ...]
    strength: float = 1.0
    keep_stated: bool = True
    index: IndexGroups | None = None

    def __post_init__(self) -> None:
        # Report an invalid strength before the first query.
        check_kind("keep_stated", self.keep_stated, bool, "True or False")
        probe = torch.zeros(1, self.fitted.dim)
        self.fitted.check_input(probe, self.strength)

    def embed(self, texts: str | Sequence[str]) -> NDArray[np.floating]:
        """Embed queries with the edit.

        Args:
            texts: a query, or a list of n queries.

        Returns:
            An array (d,) for a single query, or (n, d) for a list, in the embedder's precision
            (bfloat16 as float32).

        Raises:
            InvalidInputError: If `texts` are not strings, or the embedder does not return one
                vector per text.
        """
        queries = _checked_texts(texts)
        if not queries:
            return np.empty((0, self.fitted.dim))
        read = read_vectors(self.host.embedder.queries(queries), "embed", expected=len(queries))
        rows = self._edited(read.rows.detach(), queries).cpu()
        vectors = (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()
        return vectors[0] if isinstance(texts, str) else vectors

    def search(
        self,
        index_call: IndexCall,
        texts: str | Sequence[str],
        k: int,
        *,
        page: int = 1,
        index: IndexGroups | None = None,
        checked: ById[Hashable] | None = None,
    ) -> Positions:
        """Search an index, and re-rank the results to the groups' shares in the index.

        The queries are not edited. The index is asked for 5 k results and their vectors, from which
        the groups are estimated, and for up to 320 k if a group has too few of them. For prompt
        sets about people, results that show nobody keep their places. For queries that state a
        value, and if the groups' labels cannot be trusted, the index's own order is returned.

        Args:
            index_call: function that takes a query vector (d,) and a number n, and returns the ids
                (n,), the scores (n,) and the vectors (n, d) of the best n results, best first.
                Higher scores are better.
            texts: a query, or a list of q queries.
            k: number of results per query and page.
            page: number of the page, from 1. No result is on two pages.
            index: the groups behind a filter, from `queries.index.within`, for an `index_call` with
                this filter. If None, those of the whole index.
            checked: true groups by id of randomly sampled results that were checked by hand. The
                results' `to_check` returns a sample to check. The report then contains the true
                shares with intervals.

        Returns:
            The ids (k,) of one query or (q, k) of a list, best first. Missing results have id -1.
            The attribute `reports` has one `Report` per query.

        Raises:
            InvalidInputError: If `debias_queries` got neither `reference` nor `index`, or
                `index_call` does not return ids, scores and vectors.

        Warns:
            SuspectInputWarning: If a group has too few results for its share, or the vectors that
                `index_call` returns have no direction or do not belong to the results.
        """
        check_count(k, "k")
        check_count(page, "page")
        groups = self.index if index is None else index
        if groups is None:
            raise InvalidInputError(
                "search needs the groups' shares in the index; pass reference=, a few thousand of"
                " its vectors, or index=, a saved file, to debias_queries"
            )
        queries = _checked_texts(texts)
        vectors = read_vectors(self.host.embedder.queries(queries), "embed", expected=len(queries))
        are_stated = [False] * len(queries)
        if self.keep_stated:
            are_stated = self.host.stated(queries, self.fitted)
        rows = vectors.rows.detach().cpu().numpy()
        reports = [
            search_page(groups, index_call, vector, k, page=page, query=query, is_stated=is_stated)
            for query, vector, is_stated in zip(queries, rows, are_stated, strict=True)
        ]
        if checked is not None:
            keys = np.concatenate([report.keys for report in reports])
            code_of_checked = read_checked(checked, groups.names, keys)
            reports = [
                replace(report, checked=codes_of(report.keys, code_of_checked))
                for report in reports
            ]
        problem = next((report.problem for report in reports if report.problem), "")
        if problem:
            warn_of_input(problem)
        warn_of_short(reports, f"{MOST} results were read for each one that is shown")
        return Positions.from_reports(
            reports,
            is_single=isinstance(texts, str),
            page=lambda number: self.search(
                index_call, texts, k, page=number, index=index, checked=checked
            ),
        )

    def edit(self, vectors: AnyVectors, texts: str | Sequence[str] | None = None) -> AnyVectors:
        """Edit query vectors, preserving their norms, type and precision.

        Args:
            vectors: vectors (n, d) or (d,), as an array, a tensor or a list.
            texts: the n queries, used to leave queries that state a value unchanged. If None, all
                vectors are edited.

        Returns:
            The edited vectors.

        Raises:
            InvalidInputError: If the vectors have the wrong width or type, or their number differs
                from the number of texts.
        """
        read = read_vectors(vectors, "vectors")
        queries = None if texts is None else _checked_texts(texts)
        if queries is not None and len(queries) != len(read.rows):
            raise InvalidInputError(
                f"texts: got {len(queries)} texts for {len(read.rows)} vectors; expected one text"
                " per vector"
            )
        rows = read.rows.detach()
        edited = self._edited(rows, queries)
        return vectors if edited is rows else cast("AnyVectors", read.restore(edited))

    def embed_query(self, input: str | Sequence[str]) -> list[float] | list[object]:
        """Embed one query as a list of floats (LangChain), or a list of queries (chroma)."""
        vectors = self.embed(input)
        return cast("list[float]", vectors.tolist()) if isinstance(input, str) else list(vectors)

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed documents without the edit, as lists of floats (LangChain)."""
        listed = _checked_texts(texts)
        if not listed:
            return []
        vectors = self.host.embedder.documents(listed)
        rows = read_vectors(vectors, "embed", expected=len(listed)).rows
        return cast("list[list[float]]", rows.tolist())

    async def aembed_query(self, text: str) -> list[float]:
        """Embed one query asynchronously, by running `embed_query` in a thread."""
        return cast("list[float]", await asyncio.to_thread(self.embed_query, text))

    async def aembed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed documents asynchronously, by running `embed_documents` in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    def __call__(self, input: object) -> object:
        """Embed documents without the edit (chroma)."""
        return self.host.embedder.documents(_checked_texts(input))

    def measure(
        self, vectors: Images, queries: Sequence[str], labels: Columns, **options: Any
    ) -> Result:
        """Measure the effect of `search` and of the edit on queries before deploying them.

        Reports the skew of the top results and how many of them are retained, with intervals, and
        which queries lean towards which group. `search` is measured by exact search in `vectors`.

        Args:
            vectors: vectors (n, d) of the index, as an array, a tensor, a file or
                `vldebias.data.Shards`.
            queries: typical search queries.
            labels: the attribute value of each of the n vectors ("" if unknown), or a mapping from
                column to values.
            options: the options of `vldebias.evaluate`, such as prior, seed or k, the number of top
                results (one or several; default: a twentieth of the index, at least 10).

        Returns:
            A `Result` with the methods "none", "search" if the groups' shares are known, and
            "debiased" if an edit was fitted.

        Raises:
            InvalidInputError: If labels have the wrong length or only one value, or the prompt sets
                are unknown.
        """
        from vldebias.study.evaluating import evaluate
        from vldebias.study.tasks.rankings import Search

        if not self.sets:
            raise InvalidInputError(
                f"measure: the edit was fitted to {self.fitted.provenance.attribute!r}, which is"
                " not a prompt set of this package; use vldebias.evaluate with attribute="
            )
        if not isinstance(labels, Mapping):
            labels = {self.sets[0].name: labels}
        # Without stated words, the edit applies to all queries, as in `embed`.
        edit = self.fitted if self.keep_stated else self.fitted.with_provenance(stated_words=())
        if isinstance(vectors, list | tuple):
            vectors = read_vectors(vectors, "vectors").rows
        attribute: Any = self.sets if len(self.sets) > 1 else self.sets[0]
        texts = _checked_texts(queries)
        methods: dict[str, Any] = {}
        if self.index is not None:
            # An edit's words state the attribute, as in `search`.
            stated = frozenset(compress(texts, self.host.stated(texts, edit)))
            methods["search"] = Search(index=self.index, stated=stated)
        if self.fitted.method not in ("none", NOTHING) or self.index is None:
            methods[DEBIASED] = edit
        return evaluate(
            self.host,
            vectors,
            attribute=attribute,
            labels=labels,
            queries=texts,
            methods=methods,
            strength=self.strength,
            **options,
        )

    def __repr__(self) -> str:
        label = self.fitted.provenance.attribute or "an edit"
        if self.index is not None and self.fitted.method == NOTHING:
            what = self.index.used
            if self.index.doubt:
                what = f"search keeps the order of the index: {self.index.doubt}"
            return f"DebiasedQueries({self.host.name}, {label}: {what})"
        choice = self.fitted.provenance.choice
        reason = f" {choice.reason}" if choice else ""
        return (
            f"DebiasedQueries({self.host.name}, {label}: {self.fitted.method}, strength"
            f" {self.strength:g}.{reason})"
        )

    def _edited(self, rows: Tensor, texts: Sequence[str] | None) -> Tensor:
        """Edit vectors (n, d), except those whose text states a value."""
        if self.fitted.method == NOTHING:
            _warn_of_no_edit(self.fitted, "call queries.search(index_call, text, k)")
        if not len(rows):
            return rows
        self.fitted.check_input(rows, self.strength)
        if self.strength == 0:
            return rows
        # float16 vectors are edited in float32 and rounded once.
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        if texts is None and isinstance(self.fitted, Rewording):
            raise InvalidInputError(
                f"method {self.fitted.method!r} needs the texts; pass texts= to edit, or call embed"
            )
        edited = self.host.edit_rows(self.fitted, TEXT, wide, texts or (), self.strength)
        if edited is wide:
            return rows
        # Preserve the query's norm, since an index may score by inner product.
        lengths = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        edited = normalize(edited, dim=1) * lengths
        if texts is not None and self.keep_stated:
            edited = except_stated(self.host.stated(texts, self.fitted), wide, edited)
        return rounded(edited, rows)


def _warn_of_no_edit(edit: Edit, remedy: str) -> None:
    """Warn that queries are not edited by default, and say how to re-rank instead."""
    warn(
        f"{edit.provenance.choice.attribute if edit.provenance.choice else 'queries'}: queries are"
        f" not edited without method=. Re-rank the results: {remedy}; or name a method"
        " (method='difference') and measure it",
        AutoDeclinedWarning,
    )


def _sets_of(attribute: AttributeLike | Edit) -> tuple[PromptSet, ...]:
    """Return the prompt sets; for a fitted edit, those it was fitted to, if they are built in."""
    if isinstance(attribute, Edit):
        names = (attribute.provenance.attribute or "").split("+")
        with suppress(InvalidInputError):
            return tuple(load_prompts(name) for name in names if name)
        return ()
    listed = attribute if isinstance(attribute, list | tuple) else [attribute]
    return tuple(load_prompts(cast("str | PromptSet", prompt_set)) for prompt_set in listed)


def _checked_texts(texts: object) -> list[str]:
    """Return texts as a list.

    Raises:
        InvalidInputError: If `texts` is neither a string nor a list of strings.
    """
    if isinstance(texts, str):
        return [texts]
    listed = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, bytes) else None
    if listed is None or not all(isinstance(text, str) for text in listed):
        shown = repr(texts)[:100]
        raise InvalidInputError(f"texts: got {shown}; expected a string or a list of strings")
    return listed


def _read_reference(
    reference: Reference | Features | ArrayLike | None, host: EmbeddedTexts
) -> Reference | Features | None:
    """Return reference vectors after checking that their width matches the text vectors' width."""
    features = reference.features if isinstance(reference, Reference) else reference
    if isinstance(features, list | tuple):
        # A list of 2-d arrays is treated as batches.
        if not features or getattr(features[0], "ndim", 1) != 2:
            features = read_vectors(features, "reference").rows
            reference = features
    # Iterables of batches have no shape, so their widths are only checked during iteration.
    shape = getattr(features, "shape", None)
    if shape is not None and len(shape) == 2 and shape[1] != host.dim(TEXT):
        raise InvalidInputError(
            f"reference: got vectors of width {shape[1]}, but embed returns width {host.dim(TEXT)};"
            " expected the same model for both"
        )
    return cast("Reference | Features | None", reference)
