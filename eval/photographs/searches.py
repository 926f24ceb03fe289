"""Measure how often re-ranking and query edits make searches of real photographs worse.

Every gallery contains equally many images for each value. The reference is a third of all images,
without labels, and does not share images with the gallery. Galleries and references are sampled
twice. A kind of query in a gallery (a cell) is made worse if the 95% interval for the change in
MaxSkew@k is above 0, and the same applies to individual searches. k is a twentieth of the gallery,
and at least 10.

Re-ranking, the default for searches, is compared with three query edits: removing the direction of
the values (`difference`, which sets every query to 0 along it), with and without images, or moving
every query to the mean of the class prompts instead of 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

import vldebias
from eval.experiments import embeddings
from eval.photographs import (
    Floats,
    Photographs,
    Strings,
    caption_index,
    galleries,
    is_present,
    queries,
    split,
    texts,
)
from eval.tables import add_share, resampled_ratio, stored
from vldebias.errors import VldebiasWarning
from vldebias.hosts.edits import TEXT
from vldebias.measure.rows import NONE, Measurement, TaskProvenance, TaskResult
from vldebias.methods import Problem
from vldebias.metrics import Metric
from vldebias.projection.edit import Edit
from vldebias.projection.provenance import Provenance
from vldebias.prompts import PromptSet, load_prompts

RESAMPLES = 200
LEAST = 100  # minimum number of images in a gallery
PHOTOGRAPHS = "photographs"
RERANK = "rerank"
BY_IMAGES = "difference, reference="
BY_TEXTS = "difference, texts alone"
RECENTRED = "difference, re-centred on the class prompts"
METHODS = (RERANK, BY_IMAGES, BY_TEXTS, RECENTRED)
SKEW = Metric("max_skew", "MaxSkew@k", "bias", "lower")
STAY = Metric("stay", "share of the first k that stay", "utility", "higher")
RETAINED = Metric("retained", "retained hits", "utility", "higher")
LEFT = Metric("left", "share of the skew above chance that is left", "bias", "lower")
WORSE = Metric("worse", "made worse", "fact", "lower")
BETTER = Metric("better", "made better", "fact", "higher")
REMOVED = Metric("removed", "share of the skew above chance that is removed", "fact", "higher")
UNCHANGED = Metric("unchanged", "queries that stay bit for bit")


@dataclass(frozen=True, eq=False, repr=False)
class Recentred(Edit):
    """Move text embeddings along some directions to a centre.

    Attributes:
        directions: The orthonormal directions (r, d).
        centre: The centre (r,).
    """

    kind = "recentred"
    axes: ClassVar = {"directions": "r d", "centre": "r"}

    directions: Tensor
    centre: Tensor
    provenance: Provenance

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        rows = z.double()
        length = rows.norm(dim=-1, keepdim=True)
        offset = rows / length @ self.directions.T - self.centre
        moved = offset @ self.directions
        return (rows - strength * length * moved).to(z.dtype)


@dataclass(frozen=True, eq=False)
class Cell:
    """A gallery with labels for an attribute, an unlabelled reference, and queries by kind."""

    name: str
    draw: int
    column: str
    prompt_set: str | PromptSet
    table: Mapping[str, Floats]
    gallery: Photographs
    reference: Photographs
    kinds: Mapping[str, Sequence[str]]

    @property
    def task(self) -> str:
        """Return the name of the cell in results."""
        return f"{PHOTOGRAPHS}: {self.name}, {self.column}, draw {self.draw}"

    @property
    def labels(self) -> Strings:
        """Return each photograph's value (n,) of the attribute."""
        return self.gallery.labels[self.column]

    @property
    def k(self) -> int:
        """Return the number of top results."""
        return max(10, len(self.gallery) // 20)


def cells(draws: Sequence[int]) -> Iterator[Cell]:
    """Yield every gallery in every draw."""
    if is_present("photos"):
        for draw in draws:
            yield from photographs(draw)
    if is_present(embeddings.FILE):
        for draw in draws:
            yield from celeba(draw)


def photographs(draw: int) -> Iterator[Cell]:
    """Yield the galleries of photographs, including subsets of faces, and captions."""
    found = galleries()
    parts = dict(found)
    faces = found["faces"]
    for column in ("age", "race"):
        for value in np.unique(faces.labels[column]):
            if value:
                rows = np.flatnonzero(faces.labels[column] == value)
                parts[f"faces, {value}"] = faces.take(rows)
    asked = queries()
    for name, photos in parts.items():
        gallery, reference = split(photos, "gender", draw)
        if len(gallery) >= LEAST:
            yield Cell(name, draw, "gender", "gender", texts(), gallery, reference, asked)
    for column in ("age", "race"):
        gallery, reference = split(faces, column, draw)
        yield Cell("faces", draw, column, column, texts(), gallery, reference, asked)
    table, documents = caption_index()
    gallery, reference = split(documents, "gender", draw)
    yield Cell("captions", draw, "gender", "gender", table, gallery, reference, asked)


def celeba(draw: int) -> Iterator[Cell]:
    """Yield CelebA, embedded with CLIP ViT-B/32, with professions as queries."""
    data = embeddings.celeba()
    table = {text: row.numpy() for text, row in data.texts.rows.items()}
    prompts = replace(data.prompt_set, classes=data.queries, class_names=data.queries)
    values = data.images.column("gender")
    labels = {"gender": np.array(values.names)[values.codes]}
    photos = Photographs("CelebA", data.images.unit[:].numpy(), labels)
    gallery, reference = split(photos, "gender", draw)
    kinds = {"professions": data.queries}
    yield Cell("CelebA", draw, "gender", prompts, table, gallery, reference, kinds)


def methods(cell: Cell) -> dict[str, str | Edit]:
    """Return re-ranking, and the edits that are fitted to the prompts or reference of a cell."""
    by_texts = Problem(cell.table, cell.prompt_set)
    by_images = Problem(cell.table, cell.prompt_set, reference=cell.reference.features)
    return {
        RERANK: "rerank",
        BY_IMAGES: by_images.fit("difference+equalise", TEXT),
        BY_TEXTS: by_texts.fit("difference", TEXT),
        RECENTRED: _recentred(cell),
    }


def _recentred(cell: Cell) -> Recentred:
    """Return the edit that moves queries to the mean of the class prompts."""
    prompt_set = load_prompts(cell.prompt_set)

    def embedded(listed: Sequence[str]) -> Tensor:
        rows = torch.tensor(np.stack([cell.table[text] for text in listed])).double()
        return torch.nn.functional.normalize(rows, dim=1)

    means = [embedded(listed).mean(0) for listed in prompt_set.by_value().values()]
    unit = torch.nn.functional.normalize(torch.stack(means), dim=1)
    directions = torch.linalg.svd(unit - unit.mean(0), full_matrices=False)[2][: len(unit) - 1]
    along = embedded([*prompt_set.classes, *prompt_set.held_out_classes]) @ directions.T
    return Recentred(directions, along.mean(0), Provenance("recentred"))


def measure(draws: Sequence[int], work: Path | None = None) -> Iterator[TaskResult]:
    """Yield a part for each gallery, and then the counts over all galleries.

    `work` is a folder that stores the part for each gallery, so that it is measured only once.
    """
    parts = []
    for cell in cells(draws):
        path = work / f"{cell.task.replace(': ', '-').replace(', ', '-')}.json" if work else None
        part = stored(path, partial(_measure_cell, cell))
        parts.append(part)
        yield part
    yield from tallies(parts)


def _measure_cell(cell: Cell) -> TaskResult:
    """Return the rows for a gallery."""
    part = TaskResult(
        TaskProvenance(
            task=cell.task,
            description="MaxSkew by kind of query",
            settings={"k": cell.k, "attribute": cell.column},
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)
        compared = methods(cell)
        singles: list[Measurement] = []
        for kind, listed in cell.kinds.items():
            singles += _add_kind(part, cell, kind, listed, compared)
        for method in compared:
            changes = [row.change for row in singles if row.method == method and row.change]
            n = {"searches": len(changes)}
            add_share(part, WORSE, method, sum(change[1] > 0 for change in changes), n)
            add_share(part, BETTER, method, sum(change[2] < 0 for change in changes), n)
        _add_stated(part, cell)
    return part


def _add_kind(
    part: TaskResult,
    cell: Cell,
    kind: str,
    listed: Sequence[str],
    compared: Mapping[str, str | Edit],
) -> list[Measurement]:
    """Measure a kind of queries with every method, and return the rows for individual queries."""
    result = vldebias.evaluate(
        cell.table,
        cell.gallery.features,
        attribute={cell.column: cell.prompt_set},
        labels={cell.column: cell.labels},
        queries=listed,
        k=cell.k,
        methods=dict(compared),
        resamples=RESAMPLES,
    )
    singles = []
    for row in result.rows:
        if row.metric == f"max_skew@{cell.k}" and row.subset:
            singles.append(row)
        elif row.metric == f"max_skew@{cell.k}":
            details = {"n": row.n, "change": row.change, "subset": kind}
            part.add(SKEW, row.method, row.value, row.interval, **details)
        elif not row.subset and row.method in (NONE, *compared):
            for metric in (RETAINED, STAY):
                if row.metric == f"{metric.name}@{cell.k}":
                    part.add(metric, row.method, row.value, row.interval, n=row.n, subset=kind)
    return singles


def tallies(parts: Sequence[TaskResult]) -> Iterator[TaskResult]:
    """Yield counts of cells, and of individual searches."""
    yield _tally_of_cells(parts)
    tally = TaskResult(
        TaskProvenance(task=f"single searches: {PHOTOGRAPHS}", description="counts of searches")
    )
    for method in METHODS:
        for metric in (WORSE, BETTER):
            counts = [
                (round(row.value * row.n["searches"]), row.n["searches"])
                for part in parts
                for row in part.rows
                if (row.metric, row.method) == (metric.name, method)
            ]
            hits, searches = map(sum, zip(*counts, strict=True))
            add_share(tally, metric, method, hits, {"searches": searches})
    yield tally


def _tally_of_cells(parts: Sequence[TaskResult]) -> TaskResult:
    """Count the cells that each method makes worse or better, and sum the skew that it removes."""
    tally = TaskResult(
        TaskProvenance(task=f"cells: {PHOTOGRAPHS}", description="counts of kinds of queries")
    )
    skews = [row for part in parts for row in part.rows if row.metric == SKEW.name]
    row_of = {(row.task, row.subset, row.method): row for row in skews}
    cells_of_parts = dict.fromkeys((row.task, row.subset) for row in skews)
    for method in METHODS:
        changes = []
        sums = []
        for cell in cells_of_parts:
            change = row_of[*cell, method].change
            assert change is not None
            changes.append(change)
            above_chance = row_of[*cell, NONE].value - row_of[*cell, "random"].value
            sums.append((-change[0], max(above_chance, 0.0)))
        n = {"cells": len(changes)}
        add_share(tally, WORSE, method, sum(low > 0 for _, low, _ in changes), n)
        add_share(tally, BETTER, method, sum(high < 0 for _, _, high in changes), n)
        share, interval = resampled_ratio(np.array(sums), 1000)
        tally.add(REMOVED, method, share, interval, n=n)
    return tally


def _add_stated(part: TaskResult, cell: Cell) -> None:
    """Count the queries that state a value and stay unchanged."""
    prompt_set = load_prompts(cell.prompt_set)
    if not prompt_set.stated_words:  # an edit without such words changes every query
        return
    stated = [text for group in prompt_set.variants for text in group]
    debiased = vldebias.debias_queries(cell.table, cell.prompt_set, method="difference")
    before = [cell.table[text] for text in stated]
    same = sum(map(np.array_equal, debiased.embed(stated), before))
    n = {"queries": len(stated)}
    add_share(part, UNCHANGED, BY_TEXTS, same, n, "queries that state a value")
