"""Rank gallery images for every query and method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.data import Embeddings
from vldebias.data.rows import UnitRows
from vldebias.hosts import Host
from vldebias.measure.rankings import reach
from vldebias.measure.rows import NONE
from vldebias.methods import Declaration, Rerank
from vldebias.methods.few_labels import is_gender
from vldebias.methods.reference import place_of
from vldebias.prompts import PromptSet
from vldebias.reranking import quota
from vldebias.reranking.candidates import UNKNOWN, Candidates
from vldebias.reranking.groups import POOL, Groups
from vldebias.reranking.index import IndexGroups
from vldebias.reranking.index_search import search_page
from vldebias.utils.arrays import Mask, Rows

BLOCK = 1 << 13  # rows converted to float64 at a time
LABELS = 20  # labelled images from which re-ranking learns an attribute other than gender
QUERIES_AT_ONCE = 8  # queries whose scores are kept at a time, because reading rows takes long


@dataclass(frozen=True, kw_only=True)
class Search(Rerank):
    """Search the gallery as `DebiasedQueries.search` searches an index.

    Attributes:
        index: the groups and their shares in the index.
        stated: queries that state a value, whose results keep their order.
    """

    index: IndexGroups
    stated: frozenset[str]

    @property
    def declaration(self) -> Declaration:
        """Return the declaration of re-ranking, under the name "search"."""
        return replace(
            super().declaration,
            name="search",
            title="results of queries.search",
            about="re-ranks search results to the groups' shares in the index",
        )


@dataclass(frozen=True)
class LabelledImages:
    """A few labelled images that are not measured.

    Attributes:
        mask: mask (n,) of these images among those of the task.
        features: their features (m, d).
        values: name of a prompt set -> the value of each image (m,).
    """

    mask: Mask
    features: Tensor
    values: Mapping[str, NDArray[np.str_]]

    @classmethod
    def draw(
        cls,
        methods: Iterable[object],
        images: Embeddings,
        columns: Sequence[str],
        sets: Sequence[PromptSet],
        seed: int,
        k: int,
    ) -> LabelledImages | None:
        """Draw labelled images for attributes other than gender, 20 or two of each value.

        Args:
            methods: the compared methods, of which some may re-rank by predicted groups.
            images: the images of a task, with a label column for each attribute.
            columns: the columns of the attributes.
            sets: their prompt sets.
            seed: random seed.
            k: the largest number of results that is measured.

        Returns:
            The images, or None if no method re-ranks, all attributes are gender, a label is not a
            value of its set, a tenth of the images are too few, or fewer than k would be left.
        """
        if not any(
            isinstance(method, Rerank) and not isinstance(method, Search) for method in methods
        ):
            return None
        pairs = [
            (images.column(column), prompt_set)
            for column, prompt_set in zip(columns, sets, strict=False)
            if not is_gender(prompt_set.attributes)
        ]
        names = [place_of(name, attribute) for labels, attribute in pairs for name in labels.names]
        if not pairs or len(columns) != len(sets) or None in names:
            return None
        known = np.logical_and.reduce([labels.known for labels, _ in pairs])
        order = np.random.default_rng(seed).permutation(np.flatnonzero(known))
        n = LABELS
        for labels, _ in pairs:
            for code in np.unique(labels.codes[order]):
                # The place of the second image with this value.
                n = max(n, *(np.flatnonzero(labels.codes[order] == code)[:2] + 1))
        if 10 * n > len(order) or len(order) - n < k:
            return None
        mask = np.zeros(len(images), dtype=bool)
        mask[order[:n]] = True
        values = {
            attribute.name: np.array(labels.names)[labels.codes[mask]]
            for labels, attribute in pairs
        }
        return cls(mask, images.unit.select(mask)[:], values)


@dataclass
class Rankings:
    """Rank images by cosine similarity, with queries and images as edited by each method.

    Attributes:
        queries: method -> queries (q, d).
        images: method -> all images (n, d).
        known: boolean mask (n,) of the images whose group is known.
        reranked: method -> re-ranked rows (q, m), as positions among the images with a known group.
        labels: method -> predicted labels (known,) for each query, for methods that reserve ranks
            for each label and for its images near the border. None if the query's results keep
            their order.
        labelled: labelled images outside the gallery from which groups are learned, or None.
        used: a sentence about what re-ranking predicts the groups from, or "".
    """

    queries: Mapping[str, Tensor]
    images: Mapping[str, UnitRows]
    known: Mask
    reranked: dict[str, Rows] = field(default_factory=dict)
    labels: dict[str, list[NDArray[np.integer] | None]] = field(default_factory=dict)
    labelled: LabelledImages | None = None
    used: str = ""

    def known_images(self, method: str) -> UnitRows:
        """Return the images with a known group, as edited by a method."""
        images = self.images[method]
        # Do not select rows if all groups are known, because a selection copies the indices.
        return images if self.known.all() else images.select(self.known)

    def rerank(
        self,
        methods: Iterable[object],
        texts: Host,
        sets: Sequence[PromptSet],
        queries: Sequence[str],
        k: int,
    ) -> None:
        """Re-rank the results of every query with each of the given methods.

        Groups are predicted, because users have labels for a few images at most. The target is the
        shares of the groups in the gallery, as in `vldebias.rerank`. As there, the order does not
        change if the predictions cannot be trusted.

        Args:
            methods: the compared methods, of which only those that re-rank are used.
            texts: the model, used to embed text.
            sets: prompt sets of the attributes.
            queries: the queries (q,).
            k: the largest number of top results that is measured.
        """
        for method in methods:
            if isinstance(method, Search):
                self.search(method, queries, k)
        reranking = [
            method
            for method in methods
            if isinstance(method, Rerank) and not isinstance(method, Search)
        ]
        if not reranking:
            return
        images = self.known_images(NONE)
        n = len(images)
        sample: Iterable[Any] = images.split(BLOCK)
        columns = {}
        if self.labelled is not None:
            sample = chain(sample, [self.labelled.features])
            columns = {
                name: np.concatenate([np.full(n, ""), values])
                for name, values in self.labelled.values.items()
            }
        fitted = IndexGroups.fit(texts, sets, sample, labels=columns)
        groups = fitted.predict(images.split(BLOCK))
        self.used = f"Re-ranking by {fitted.basis}."
        if groups.doubt:
            self.used = f"Re-ranking keeps the order ({groups.doubt})."
        rows = np.arange(n)
        # Each label needs enough rows to fill its ranks in every resample (`reach`), and so do its
        # images near the border.
        length = min(n, len(groups.names) * 4 * reach(k, n))
        for method in reranking:
            name = method.name
            lists = []
            for vectors in self.queries[name].double().split(QUERIES_AT_ONCE):
                scores = np.empty((len(vectors), n))
                start = 0
                for block in self.known_images(name).split(BLOCK):
                    stop = start + len(block)
                    images_of_block = block.double()
                    for query, scores_of_query in zip(vectors, scores, strict=True):
                        scores_of_query[start:stop] = (images_of_block @ query).numpy()
                    start = stop
                for scores_of_query in scores:
                    found = groups.candidates(scores_of_query.round(12), rows, POOL)
                    lists.append(found.ranked[:length] if groups.doubt else quota(found, length))
            self.reranked[name] = np.stack(lists)
            # A quota reserves the same ranks for a label in every resample, so store the labels.
            if not groups.doubt:
                self.labels[name] = [_parts(groups)] * len(lists)

    def search(self, method: Search, queries: Sequence[str], k: int) -> None:
        """Search for every query by exact search in the gallery, and store the results.

        The first k results are those that `DebiasedQueries.search` returns. For resamples, which
        omit some of them, they are followed by other rows by quota.

        Args:
            method: the search.
            queries: the queries (q,).
            k: the largest number of top results that is measured.
        """
        images = self.known_images(NONE)
        features = np.concatenate([block.double().numpy() for block in images.split(BLOCK)])
        index = method.index
        groups = index.predict(features)
        length = min(len(features), len(groups.names) * 4 * reach(k, len(features)))
        lists = []
        labels: list[NDArray[np.integer] | None] = []
        for query, vector in zip(queries, self.queries[NONE], strict=True):
            scores = (features @ vector.double().numpy()).round(12)
            found = groups.candidates(scores, np.arange(len(scores)), index.share_of_name())
            found = replace(found, near_shares=index.near_shares)
            page = search_page(index, partial(_best, found, features), vector.numpy(), k, page=1)
            top = page.keys[page.order].astype(np.intp)
            is_kept = query in method.stated or bool(groups.doubt)
            lists.append(found.ranked[:length] if is_kept else _followed(found, top, length))
            labels.append(None if is_kept else _parts(groups))
        self.reranked[method.name] = np.stack(lists)
        self.labels[method.name] = labels

    def first(self, k: int) -> dict[str, Rows]:
        """Return each method's top rows (q, m) per query, among images with a known group.

        m is larger than k because each resample omits some of the first k rows, and later rows move
        up (`reach`).
        """
        # If several methods share their images, read the images only once, for all queries.
        methods_of_images: dict[UnitRows, list[str]] = {}
        for method, images in self.images.items():
            methods_of_images.setdefault(images, []).append(method)
        rows_of_method: dict[str, Rows] = {}
        for methods in methods_of_images.values():
            images = self.known_images(methods[0])
            queries = torch.cat([self.queries[method] for method in methods])
            order = images.top(queries, reach(k, len(images)))
            rows_of_method |= zip(methods, np.split(order, len(methods)), strict=True)
        rows_of_method |= self.reranked
        return {method: rows_of_method[method] for method in self.images}

    def unedited(self, rows: Rows, k: int) -> Rows:
        """Return the top rows (q, m) per query within a subset, in the search without a method.

        Args:
            rows: the subset, as positions among the images with a known group. So is the result.
            k: number of top results.
        """
        images = self.images[NONE].select(np.flatnonzero(self.known)[rows])
        return rows[images.top(self.queries[NONE], reach(k, len(rows)))]

    def image_cosines(self) -> dict[str, float]:
        """Return the mean cosine between original and edited images for methods that edit them."""
        original = self.images[NONE]
        cosines = {}
        for method, edited in self.images.items():
            if edited is not original:
                total = 0.0
                for before, after in zip(original.split(), edited.split(), strict=True):
                    total += float((before.double() * after.double()).sum())
                cosines[method] = total / len(edited)
        return cosines


def _parts(groups: Groups) -> NDArray[np.integer]:
    """Return the label of each image (n,), with other numbers for images near the border."""
    if groups.is_near is None:
        return groups.codes
    return np.where(groups.codes == UNKNOWN, UNKNOWN, 2 * groups.codes + groups.is_near)


def _followed(found: Candidates, top: Rows, length: int) -> Rows:
    """Return rows, followed by the other candidates by quota, up to a given length."""
    rest = np.setdiff1d(np.arange(len(found)), top)
    return np.concatenate([top, rest[quota(found.subset(rest), length - len(top))]])


def _best(
    found: Candidates, features: NDArray[np.floating], _: object, n: int
) -> tuple[object, object, object]:
    """Return the rows, scores and vectors of the best n candidates, as an index does."""
    rows = found.ranked[:n]
    return rows, found.scores[rows], features[rows]
