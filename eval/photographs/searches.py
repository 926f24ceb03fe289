"""Measure which query edits make searches worse, on real photographs with many kinds of queries.

The miniature's portraits are also measured, with two kinds of queries.

Every gallery contains equally many images for each value. The reference is a third of all images,
without labels, and does not share images with the gallery. Galleries and references are sampled
twice. A kind of query in a gallery (a cell) is made worse if the 95% interval for the change in
MaxSkew@k is above 0, and the same applies to individual searches. k is a twentieth of the gallery,
and at least 10.

In addition to the defaults, the result contains candidates for a text-only default: removing the
direction of the values (`difference`, which sets every query to 0 along it), removing half of it,
moving every query to the mean of the class prompts instead of 0, or moving only queries that are
further from this mean than class prompts usually are.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

import vldebias
from eval.experiments import embeddings, search_cells
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
from eval.tables import add_share, stored
from vldebias.errors import VldebiasWarning
from vldebias.hosts.edits import TEXT
from vldebias.measure.rows import Measurement, TaskProvenance, TaskResult
from vldebias.methods import Problem
from vldebias.metrics import Metric
from vldebias.projection.edit import Edit
from vldebias.projection.provenance import Provenance
from vldebias.prompts import PromptSet, load_prompts

RESAMPLES = 200
LEAST = 100  # minimum number of images in a gallery
PHOTOGRAPHS = "photographs"
MINIATURE = "miniature"
DEFAULT = "default, texts alone"
REFERENCE = "default, reference="
BY_NAME = "difference, reference="
BY_TEXTS = "difference, texts alone"
HALF = "difference, half"
RECENTRED = "difference, re-centred on the class prompts"
TRIMMED = "difference, of leaning queries alone"
METHODS = (DEFAULT, REFERENCE, BY_NAME, BY_TEXTS, HALF, RECENTRED, TRIMMED)
SKEW = Metric("max_skew", "MaxSkew@k", "bias", "lower")
STAY = Metric("stay", "share of the first k that stay", "utility", "higher")
RETAINED = Metric("retained", "retained hits", "utility", "higher")
WORSE = Metric("worse", "made worse", "fact", "lower")
WORSE_TWICE = Metric("worse_twice", "made worse in both draws", "fact", "lower")
BETTER = Metric("better", "made better", "fact", "higher")
REMOVED = Metric("removed", "share of the skew above chance that is removed", "fact", "higher")
PROMISED = Metric("promised", "change of the gap in the test of the default")
GAP = Metric("gap_change", "measured change of the gap")
GAP_SHARE = Metric("gap_change_share", "measured change of the gap, as a share of it")
UNCHANGED = Metric("unchanged", "queries that stay bit for bit")


@dataclass(frozen=True, eq=False, repr=False)
class Recentred(Edit):
    """Move text embeddings along some directions towards a centre, unless they are close to it.

    Attributes:
        directions: The orthonormal directions (r, d).
        centre: The centre (r,).
        spread: The units (r,) for distances.
        width: The distance up to which embeddings are unchanged, in these units.
        share: The share of the remaining distance to remove, in [0, 1].
    """

    kind = "recentred"
    axes: ClassVar = {"directions": "r d", "centre": "r", "spread": "r"}

    directions: Tensor
    centre: Tensor
    spread: Tensor
    provenance: Provenance
    width: float = 0.0
    share: float = 1.0

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        rows = z.double()
        length = rows.norm(dim=-1, keepdim=True)
        offset = rows / length @ self.directions.T - self.centre
        distance = (offset / self.spread).norm(dim=-1, keepdim=True).clamp(min=1e-12)
        beyond = (1 - self.width / distance).clamp(min=0)
        moved = self.share * beyond * offset @ self.directions
        return (rows - strength * length * moved).to(z.dtype)


@dataclass(frozen=True, eq=False)
class Cell:
    """A gallery with labels for an attribute, and an unlabelled reference.

    `world` is "photographs" or "miniature", and `kinds` contains queries by kind.
    """

    name: str
    draw: int
    column: str
    prompt_set: str | PromptSet
    table: Mapping[str, Floats]
    gallery: Photographs
    reference: Photographs
    kinds: Mapping[str, Sequence[str]]
    world: str = PHOTOGRAPHS

    @property
    def task(self) -> str:
        """Return the name of the cell in results."""
        return f"{self.world}: {self.name}, {self.column}, draw {self.draw}"

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
    for draw in draws:
        yield from _miniature(draw)


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


def _miniature(draw: int) -> Iterator[Cell]:
    """Yield an even gallery of portraits for each prompt set, as in `search_cells`."""
    found: dict[str, list[tuple[str, search_cells.Cell]]] = {}
    for cell in search_cells.miniature(draw):
        prompts, kind, gallery = cell.name.split("; ")
        # The test and the centre require class prompts.
        if gallery == "even" and cell.prompt_set.classes:
            found.setdefault(prompts, []).append((kind, cell))
    for prompts, searches in found.items():
        kinds = {kind: cell.queries for kind, cell in searches}
        _, first = searches[0]
        listed = [*dict.fromkeys(chain(first.prompt_set.texts, *kinds.values()))]
        table = dict(zip(listed, first.texts.embed(listed).float().numpy(), strict=True))
        images = []
        for part in (first.gallery, first.reference):
            values = part.column(first.column)
            labels = {first.column: np.array(values.names)[values.codes]}
            images.append(Photographs(prompts, part.unit[:].numpy(), labels))
        yield Cell(
            prompts,
            draw,
            first.column,
            first.prompt_set,
            table,
            images[0],
            images[1],
            kinds,
            MINIATURE,
        )


def edits(cell: Cell) -> dict[str, Edit]:
    """Return the edits that are fitted to the prompts or the reference of a cell, by method."""
    reference = cell.reference.features
    by_texts = Problem(cell.table, cell.prompt_set)
    by_images = Problem(cell.table, cell.prompt_set, reference=reference)
    # `Problem.fit` returns an edit that changes nothing if the default declines.
    fitted = {
        DEFAULT: by_texts.fit("default", TEXT),
        REFERENCE: by_images.fit("default+reference", TEXT),
        BY_NAME: by_images.fit("difference+equalise", TEXT),
        BY_TEXTS: by_texts.fit("difference", TEXT),
    }
    return fitted | _by_texts(cell)


def _by_texts(cell: Cell) -> dict[str, Edit]:
    """Return candidates to replace `difference` as the text-only default."""
    prompt_set = load_prompts(cell.prompt_set)

    def embedded(listed: Sequence[str]) -> Tensor:
        rows = torch.tensor(np.stack([cell.table[text] for text in listed])).double()
        return torch.nn.functional.normalize(rows, dim=1)

    means = [embedded(listed).mean(0) for listed in prompt_set.by_value().values()]
    unit = torch.nn.functional.normalize(torch.stack(means), dim=1)
    directions = torch.linalg.svd(unit - unit.mean(0), full_matrices=False)[2][: len(unit) - 1]
    along = embedded([*prompt_set.classes, *prompt_set.held_out_classes]) @ directions.T
    nothing = torch.zeros(len(directions), dtype=torch.float64)

    def recentred(centre: Tensor, width: float = 0.0, share: float = 1.0) -> Recentred:
        provenance = Provenance("recentred")
        return Recentred(directions, centre, along.std(0), provenance, width, share)

    return {
        HALF: recentred(nothing, share=0.5),
        RECENTRED: recentred(along.mean(0)),
        TRIMMED: recentred(along.mean(0), width=0.5),
    }


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
            description="MaxSkew by kind of query, and promised and measured gaps",
            settings={"k": cell.k, "world": cell.world, "attribute": cell.column},
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)
        fitted = edits(cell)
        singles: list[Measurement] = []
        for kind, listed in cell.kinds.items():
            singles += _add_kind(part, cell, kind, listed, fitted)
        for method in fitted:
            changes = [row.change for row in singles if row.method == method and row.change]
            n = {"searches": len(changes)}
            add_share(part, WORSE, method, sum(change[1] > 0 for change in changes), n)
            add_share(part, BETTER, method, sum(change[2] < 0 for change in changes), n)
        _add_gaps(part, cell, fitted)
        _add_stated(part, cell)
    return part


def _add_kind(
    part: TaskResult,
    cell: Cell,
    kind: str,
    listed: Sequence[str],
    fitted: Mapping[str, Edit],
) -> list[Measurement]:
    """Measure a kind of queries with every method, and return the rows for individual queries."""
    result = vldebias.evaluate(
        cell.table,
        cell.gallery.features,
        attribute={cell.column: cell.prompt_set},
        labels={cell.column: cell.labels},
        queries=listed,
        k=cell.k,
        methods=dict(fitted),
        resamples=RESAMPLES,
    )
    singles = []
    for row in result.rows:
        if row.metric == f"max_skew@{cell.k}" and row.subset:
            singles.append(row)
        elif row.metric == f"max_skew@{cell.k}":
            details = {"n": row.n, "change": row.change, "subset": kind}
            part.add(SKEW, row.method, row.value, row.interval, **details)
        elif not row.subset and row.method in fitted:
            for metric in (RETAINED, STAY):
                if row.metric == f"{metric.name}@{cell.k}":
                    part.add(metric, row.method, row.value, row.interval, n=row.n, subset=kind)
    return singles


def tallies(parts: Sequence[TaskResult]) -> Iterator[TaskResult]:
    """Yield counts of cells by world, attribute and kind of query, and of individual searches."""
    by_group: dict[str, list[tuple[TaskResult, str]]] = {}
    by_world: dict[str, list[TaskResult]] = {}
    for part in parts:
        settings = part.provenance.settings
        world = settings["world"]
        by_world.setdefault(world, []).append(part)
        for kind in dict.fromkeys(row.subset for row in part.rows if row.metric == SKEW.name):
            for group in (world, f"{world}, {settings['attribute']}", f"{world}, {kind}"):
                by_group.setdefault(group, []).append((part, kind))
    for group, members in by_group.items():
        yield _tally_of_cells(group, members)
    for world, members_of_world in by_world.items():
        tally = TaskResult(
            TaskProvenance(task=f"single searches: {world}", description="counts of searches")
        )
        for method in METHODS:
            for metric in (WORSE, BETTER):
                counts = [
                    (round(row.value * row.n["searches"]), row.n["searches"])
                    for part in members_of_world
                    for row in part.rows
                    if (row.metric, row.method) == (metric.name, method)
                ]
                hits, searches = map(sum, zip(*counts, strict=True))
                add_share(tally, metric, method, hits, {"searches": searches})
        yield tally


def _tally_of_cells(group: str, members: Sequence[tuple[TaskResult, str]]) -> TaskResult:
    """Count the cells that each method makes worse or better, and sum the skew that it removes."""
    tally = TaskResult(
        TaskProvenance(task=f"cells: {group}", description="counts of kinds of queries")
    )
    for method in METHODS:
        outcomes: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
        sums = []
        for part, kind in members:
            rows = {
                row.method: row
                for row in part.rows
                if row.metric == SKEW.name and row.subset == kind
            }
            change = rows[method].change
            assert change is not None
            place = part.provenance.task.rpartition(", draw ")[0]
            outcomes.setdefault((place, kind), []).append((change[1] > 0, change[2] < 0))
            above_chance = rows["none"].value - rows["random"].value
            sums.append((-change[0], max(above_chance, 0.0)))
        of_draws = [outcome for draws in outcomes.values() for outcome in draws]
        n = {"cells": len(of_draws)}
        add_share(tally, WORSE, method, sum(worse for worse, _ in of_draws), n)
        add_share(tally, BETTER, method, sum(better for _, better in of_draws), n)
        twice = sum(all(worse for worse, _ in draws) for draws in outcomes.values())
        add_share(tally, WORSE_TWICE, method, twice, {"kinds in galleries": len(outcomes)})
        share, interval = _resampled_share(sums)
        tally.add(REMOVED, method, share, interval, n=n)
    return tally


def _resampled_share(sums: Sequence[tuple[float, float]]) -> tuple[float, tuple[float, float]]:
    """Return the removed share of the removable skew with an interval over cells."""
    values = np.array(sums)
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(values), size=(1000, len(values)))
    totals = values[drawn].sum(1)
    shares = totals[:, 0] / np.maximum(totals[:, 1], 1e-9)
    low, high = np.percentile(shares, [2.5, 97.5])
    removed, removable = values.sum(0)
    return float(removed / max(removable, 1e-9)), (float(low), float(high))


def _add_gaps(part: TaskResult, cell: Cell, fitted: Mapping[str, Edit]) -> None:
    """Compare the change in the gap in the default method's test with that between true values.

    The gap for a prompt is the largest difference between the mean scores of two values, divided by
    the standard deviation of its scores. It is averaged over the class prompts, as in the test.
    """
    prompt_set = load_prompts(cell.prompt_set)
    listed = [*dict.fromkeys((*prompt_set.classes, *prompt_set.held_out_classes))]
    before = torch.tensor(np.stack([cell.table[text] for text in listed])).double()
    measured = _gaps(cell, before)
    n = {"images": len(cell.gallery), "class prompts": len(listed)}
    for method, edit in fitted.items():
        choice = edit.provenance.choice
        if choice is not None and choice.change is not None:
            part.add(PROMISED, method, choice.change[0], choice.change[1:], n=n)
        changes = _gaps(cell, edit(before)) - measured
        part.add(GAP, method, *_centred(changes), n=n)
        part.add(GAP_SHARE, method, *_centred(changes / measured[0]), n=n)


def _gaps(cell: Cell, rows: Tensor) -> np.ndarray:
    """Return the mean gap of queries (q, d) in the gallery, followed by its resamples (1 + b,)."""
    scores = cell.gallery.features @ torch.nn.functional.normalize(rows, dim=1).float().numpy().T
    _, codes = np.unique(cell.labels, return_inverse=True)
    members = [np.flatnonzero(codes == code) for code in range(codes.max() + 1)]
    rng = np.random.default_rng(0)
    means = []
    for indices in members:
        size = len(indices)
        drawn = rng.multinomial(size, np.full(size, 1 / size), size=RESAMPLES)
        weights = np.concatenate([np.ones((1, size)), drawn]) / size
        means.append(weights @ scores[indices])
    stacked = np.stack(means)  # (values, 1 + b, q)
    largest = stacked.max(0) - stacked.min(0)
    gaps: np.ndarray = (largest / scores.std(0)).mean(1)
    return gaps


def _centred(values: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Return the value with the interval from its resamples, centred on the value."""
    low, high = np.percentile(values[1:] - values[1:].mean() + values[0], [2.5, 97.5])
    return float(values[0]), (float(low), float(high))


def _add_stated(part: TaskResult, cell: Cell) -> None:
    """Count unchanged queries among those that state a value, and among all at strength 0."""
    prompt_set = load_prompts(cell.prompt_set)
    stated: list[str] = []
    if prompt_set.stated_words:  # an edit without such words changes every query
        stated = [text for group in prompt_set.variants for text in group]
    neutral = [text for listed in cell.kinds.values() for text in listed]
    debiased = vldebias.debias_queries(cell.table, cell.prompt_set, method="difference")

    def same(listed: Sequence[str]) -> int:
        before = [cell.table[text] for text in listed]
        return sum(map(np.array_equal, debiased.embed(listed), before))

    if stated:
        n = {"queries": len(stated)}
        add_share(part, UNCHANGED, BY_TEXTS, same(stated), n, "queries that state a value")
    debiased.strength = 0.0
    n = {"queries": len(neutral)}
    add_share(part, UNCHANGED, BY_TEXTS, same(neutral), n, "strength 0")
