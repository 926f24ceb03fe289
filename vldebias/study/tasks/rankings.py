"""Rank gallery images for every query and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.data.rows import UnitRows
from vldebias.hosts import Host
from vldebias.measure.rankings import reach
from vldebias.measure.rows import NONE
from vldebias.methods import Rerank
from vldebias.prompts import PromptSet
from vldebias.reranking import RERANKERS, expected, quota
from vldebias.reranking.groups import POOL
from vldebias.reranking.index import IndexGroups
from vldebias.utils.arrays import Mask, Rows

BLOCK = 1 << 13  # rows converted to float64 at a time


class Rankings:
    """Rank images by cosine similarity, with queries and images as edited by each method.

    Attributes:
        queries: method -> queries (q, d).
        images: method -> all images (n, d).
        known: boolean mask (n,) of the images whose group is known.
        reranked: method -> re-ranked rows (q, m), as positions among the images with a known group.
        labels: method -> zero-shot labels (known,), for methods that reserve ranks for each label.
    """

    def __init__(
        self, queries: Mapping[str, Tensor], images: Mapping[str, UnitRows], known: Mask
    ) -> None:
        self.queries = queries
        self.images = images
        self.known = known
        self.reranked: dict[str, Rows] = {}
        self.labels: dict[str, NDArray[np.integer]] = {}

    def known_images(self, method: str) -> UnitRows:
        """Return the images with a known group, as edited by a method."""
        images = self.images[method]
        # Do not select rows if all groups are known, because a selection copies the indices.
        return images if self.known.all() else images.select(self.known)

    def rerank(
        self, methods: Sequence[Rerank], texts: Host, sets: Sequence[PromptSet], k: int
    ) -> None:
        """Re-rank the results of every query with each of the given methods.

        Labels are predicted zero-shot, because users do not have ground-truth labels. The target is
        the shares of the groups in the gallery, as in `vldebias.rerank`. As there, the order does
        not change if the labels cannot be trusted.

        Args:
            methods: methods that re-rank.
            texts: the model, used to embed text.
            sets: prompt sets of the attributes.
            k: the largest number of top results that is measured.
        """
        images = self.known_images(NONE)
        fitted = IndexGroups.fit(texts, sets, images.split(BLOCK))
        groups = fitted.predict(images.split(BLOCK))
        default = quota if groups.probabilities is None else expected
        n = len(groups.codes)
        rows = np.arange(n)
        # Each label needs enough rows to fill its ranks in every resample (`reach`).
        length = min(n, len(groups.names) * 2 * reach(k, n))
        for method in methods:
            name = method.name
            order = default if method.order == "default" else RERANKERS[method.order]
            blocks_of_images = list(self.known_images(name).split(BLOCK))
            lists = []
            for query in self.queries[name]:
                blocks = [block.double() @ query.double() for block in blocks_of_images]
                scores = torch.cat(blocks).numpy().round(12)
                found = groups.candidates(scores, rows, POOL)
                if groups.doubt:
                    lists.append(found.ranked[:length])
                elif order is expected:
                    # This order fixes the group counts of the first k, so add rows only after k.
                    top = expected(found, k)
                    rest = np.setdiff1d(rows, top)
                    following = quota(found.subset(rest), length - k)
                    lists.append(np.concatenate([top, rest[following]]))
                else:
                    lists.append(order(found, length))
            self.reranked[name] = np.stack(lists)
            # All orders except FA*IR reserve the same ranks for a label in every resample, so store
            # the labels.
            if method.order != "fair" and not groups.doubt:
                self.labels[name] = groups.codes

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
