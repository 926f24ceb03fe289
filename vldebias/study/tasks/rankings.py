"""Rank the images of a gallery for every query under every method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.data import UnitRows
from vldebias.hosts import Host
from vldebias.measure.rankings import reach
from vldebias.methods import Rerank
from vldebias.prompts import PromptSet
from vldebias.report.result import NONE
from vldebias.reranking import RERANKERS, Candidates
from vldebias.reranking.groups import Groups, pool_shares

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]

BLOCK = 1 << 13  # rows in float64 at once


class Rankings:
    """Hold the queries and images under every method, and rank the images by cosine.

    queries: method -> (q, d). images: method -> (n, d), of all images. known: (n,) whether the
    group of an image is known. reranked: method -> re-ranked rows (q, m) among those of known
    group. labels: method -> zero-shot labels (known,), each of which keeps its places in the
    re-ranked list.
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
        """Return the images of known group under a method."""
        images = self.images[method]
        # A selection is a copy of indices; with all labels known the gallery is read where it lies.
        return images if self.known.all() else images.picked(self.known)

    def rerank(
        self,
        methods: Sequence[Rerank],
        texts: Host,
        sets: Sequence[PromptSet],
        prior: Literal["uniform", "dataset"],
        k: int,
    ) -> None:
        """Re-rank the results of the methods that re-rank, with or without an edit.

        The labels are zero-shot, as a user has them. Shares are even, or those of the candidates
        where the gallery's own are the prior.

        Args:
            methods: methods that re-rank.
            texts: the model, which embeds texts.
            sets: prompt sets of the attributes.
            prior: even shares, or those of the candidates.
            k: the largest number of first results that is looked at.
        """
        groups = Groups.zero_shot(self.known_images(NONE).split(BLOCK), sets, texts)
        shares = np.full(len(groups.names), 1 / len(groups.names))
        if prior == "dataset":
            shares = pool_shares(groups.codes, len(groups.names))
        n = len(groups.codes)
        # Each label needs rows for its places in every resample (`reach`).
        length = min(n, len(groups.names) * 2 * reach(k, n))
        for method in methods:
            name = method.name
            blocks_of_images = list(self.known_images(name).split(BLOCK))
            lists = []
            for query in self.queries[name]:
                blocks = [block.double() @ query.double() for block in blocks_of_images]
                scores = torch.cat(blocks).numpy().round(12)
                found = Candidates(scores, groups.codes, groups.names, shares)
                lists.append(RERANKERS[method.order](found, length))
            self.reranked[name] = np.stack(lists)
            # The quota gives a label as many places in any resample; the other orders are read as
            # they are.
            if method.order == "quota":
                self.labels[name] = groups.codes

    def first(self, k: int) -> dict[str, Rows]:
        """Return method -> first rows (q, m) of each query, among the images of known group.

        There are more than k: a resample lacks a part of the first k and moves later ones up
        (`reach`).
        """
        # Images that several methods share are read once for all queries.
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

    def first_inside(self, rows: Rows, k: int) -> dict[str, Rows]:
        """Return method -> first rows (q, m) of each query among some images, by their position
        there.

        Args:
            rows: of these images, among all images.
            k: number of first results.
        """
        rows_of_method = {}
        for method, queries in self.queries.items():
            # By position in all images, since some methods edit images too.
            images = self.images[method].picked(rows)
            rows_of_method[method] = images.top(queries, reach(k, len(rows)))
        # A re-ranked list has its images of these in its own order; the others follow.
        known_rows = np.flatnonzero(self.known)
        for method, lists in self.reranked.items():
            orders = []
            for listed, base in zip(lists, rows_of_method[NONE], strict=True):
                inside = np.searchsorted(rows, known_rows[listed])
                inside = inside[np.isin(known_rows[listed], rows)]
                rest = base[~np.isin(base, inside)]
                orders.append(np.concatenate([inside, rest])[: len(base)])
            rows_of_method[method] = np.stack(orders)
        return rows_of_method

    def image_cosines(self) -> dict[str, float]:
        """Return the mean cosine of an image with itself under each method that edits images."""
        bare = self.images[NONE]
        cosines = {}
        for method, edited in self.images.items():
            if edited is not bare:
                total = 0.0
                for before, after in zip(bare.split(), edited.split(), strict=True):
                    total += float((before.double() * after.double()).sum())
                cosines[method] = total / len(edited)
        return cosines
