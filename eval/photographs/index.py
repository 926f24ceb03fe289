"""Measure what re-ranking leaves of the skew of searches, and what it costs.

    python -m eval.photographs.index --before eval/results/search_before.json \
        --json eval/results/search_index.json
    python -m eval.photographs.index --vectors 10000   # a small run
    python -m eval.photographs.index --only "rare|filter" ...   # a file keeps its other rows

Large indexes contain blends of three photographs of the same source and gender, or of three scenes
without people. The photographs are split in two halves: one for the index, and one for the sample
on which groups and shares are estimated. Otherwise, the sample would contain near-duplicates of the
results, which flatters anything that learns from images. "rare" indexes have a small group, and
filters are subsets of an index. Real photographs, captions, and whole collections, which are
re-ranked without an index, are also searched. "other" cells have groups other than two genders,
without labels and with 20 and 100 of them, which are drawn from the sample or the collection.

Half of the indexes use the small model, and half another one ("B"): the canonical correlations of
photographs and captions of Flickr8k, of which every other photograph is used.

The scenes are photographs of the FSA collection and of Flickr8k whose captions are closer to texts
without people, or to a dog, than to people. Captions are compared in the space of a text model, not
of the model that is searched.

"left" is the mean absolute difference between the share of a group among the people in the first k
results and its share in the index, above chance and divided by that of the unedited search. "stay"
is the share of the first k that stay, "retained" the share of each group's own first hits that are
among the results, and "worse" the share of queries for which the difference rises by more than
0.05. "labels alone" is the simplest rule: a quota by zero-shot labels. `--before` is a result of
another version of the package, with which the differences are compared query by query.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vldebias
from eval.experiments import embeddings
from eval.photographs import (
    Floats,
    Rows,
    Strings,
    is_present,
    photographs,
    queries,
    small_model,
    text_vectors,
    texts,
    unit,
)
from eval.photographs import _arrays as arrays_of
from eval.photographs.searches import LEFT, RETAINED, STAY
from eval.tables import parser, run
from vldebias.errors import VldebiasWarning
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.metrics import Metric
from vldebias.miniature import load_photographs
from vldebias.prompts import PromptSet
from vldebias.report.result import Result
from vldebias.reranking import Candidates, quota
from vldebias.reranking.index import ENOUGH_PEOPLE, NOBODY, IndexGroups

VECTORS = 100_000
SAMPLE = 4_000
LISTED = 300  # vectors that a store lists with a filter
FIRST = (10, 50, 200)  # numbers of results
QUERIES = 40  # number of queries per index
RESAMPLES = 2000
WORSE_BY = 0.05  # a query is worse if its difference rises by more than this
WEB, FACES, SNAPSHOTS = "web", "faces", "snapshots"
OTHER_FACES = "faces, not white"
NO_PERSON, NEUTRAL = "no person", "neutral"
SCENE = ""  # label of images without people

DISTANCE = Metric("distance", "difference between shares of the results and the index", "bias")
WORSE = Metric("worse", f"queries that get worse by more than {WORSE_BY}", "fact", "lower")
REFUSED = Metric("refused", "queries returned as found, because labels are unreliable")
HELD = Metric("held", "share of the first group that the package holds")
TRUE = Metric("true", "its true share")
SURELY_WORSE = Metric("surely worse", "cells whose difference surely rose since before")
SURELY_BETTER = Metric("surely better", "cells whose difference surely fell since before")
ERROR = Metric("error", "mean error of the share that the package holds")
SEARCH = "queries.search"
RERANK = "rerank"
LABELS = "labels alone"
WITHIN = "queries.search, within"
OURS, BEFORE = "this version", "before"


@dataclass(frozen=True, eq=False)
class Model:
    """A model that embeds image features (n, 1280), and its vectors (d,) of texts."""

    images: Callable[[Floats], Floats]
    table: Mapping[str, Floats]


@cache
def shipped() -> Model:
    """Return the small model."""
    return Model(small_model().images, texts())


@cache
def correlated() -> Model:
    """Return the model of canonical correlations of photographs and their captions."""
    before = arrays_of("flickr_train")["before"][::2].astype(np.float64)
    captions = unit(arrays_of("captions_train")["before"][::2].astype(np.float64).mean(axis=1))
    mean, centre = before.mean(axis=0), captions.mean(axis=0)
    x, y = before - mean, captions - centre
    whitening = [_inverse_root(part.T @ part / len(part)) for part in (x, y)]
    left, sizes, right = np.linalg.svd(whitening[0] @ (x.T @ y / len(x)) @ whitening[1])
    width = 256
    scale = np.sqrt(sizes[:width])
    of_images = whitening[0] @ left[:, :width] * scale
    of_texts = whitening[1] @ right[:width].T * scale
    table = {text: unit((row - centre) @ of_texts) for text, row in text_vectors().items()}
    return Model(lambda features: unit((features - mean) @ of_images), table)


def _inverse_root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse square root of a covariance matrix, shrunk towards its mean variance."""
    ridge = 3 * np.trace(covariance) / len(covariance)
    values, vectors = np.linalg.eigh(covariance + ridge * np.eye(len(covariance)))
    return vectors @ np.diag(values**-0.5) @ vectors.T


@dataclass(frozen=True, eq=False)
class Photos:
    """Image features before the head (n, d), with labels and the source of each photograph."""

    before: Floats
    labels: Strings
    sources: Strings

    def take(self, rows: Rows) -> Photos:
        """Return some of the photographs."""
        return Photos(self.before[rows], self.labels[rows], self.sources[rows])


@cache
def photos() -> Photos:
    """Return photographs of women and men, and of scenes without people, with label ""."""
    parts = []
    files = {
        "mw_dev": WEB,
        "utk_dev": FACES,
        "flickr_dev": SNAPSHOTS,
        # Photographs that the model B has not seen.
        "flickr_train": SNAPSHOTS,
    }
    for file, source in files.items():
        arrays = arrays_of(file)
        gender = arrays["gender"].astype(str)
        known = gender != ""
        if file == "flickr_train":
            known[::2] = False
        sources = np.full(len(gender), source)
        if source == FACES:
            is_white = np.isin(arrays["race"].astype(str), ("White", "Others"))
            sources = np.where(is_white, FACES, OTHER_FACES)
        parts.append((arrays["before"][known], gender[known], sources[known]))
    for before in (dogs(), farms()):
        parts.append((before, np.full(len(before), SCENE), np.full(len(before), "scenes")))
    return Photos(
        np.concatenate([before.astype(np.float32) for before, _, _ in parts]),
        np.concatenate([labels for _, labels, _ in parts]),
        np.concatenate([sources for _, _, sources in parts]),
    )


def dogs() -> Floats:
    """Return the Flickr8k photographs whose captions are closest to a dog, among activities."""
    table = text_vectors()
    activities = [text for text in table if text.startswith("a person ")]
    vectors = np.stack([table[text] for text in activities])
    captions = unit(arrays_of("captions_dev")["before"]).mean(axis=1)
    nearest = (captions @ vectors.T).argmax(axis=1)
    is_dog = np.array(["dog" in activities[place] for place in nearest])
    arrays = arrays_of("flickr_dev")
    return arrays["before"][is_dog & (arrays["gender"].astype(str) == "")]


def farms() -> Floats:
    """Return the FSA photographs whose titles are closer to texts without people than to people."""
    table = text_vectors()
    people = [text for text in table if text.startswith("a person ")] + [*queries()[NEUTRAL]]
    arrays = arrays_of("fsa")
    titles = unit(arrays["captions_before"])
    to_things = (titles @ np.stack([table[text] for text in queries()[NO_PERSON]]).T).max(axis=1)
    to_people = (titles @ np.stack([table[text] for text in people]).T).max(axis=1)
    return arrays["before"][(to_things > to_people) & (arrays["gender"].astype(str) == "")]


def blends(source: Photos, n: int, women: float, scenes: float, seed: int) -> Photos:
    """Return n blends of three photographs each, with given shares of women and of scenes.

    Args:
        source: photographs to blend, three of the same source and label.
        n: number of blends.
        women: share of women among the people.
        scenes: share of blends without people.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    n_scenes = round(n * scenes)
    n_women = round((n - n_scenes) * women)
    triples = []
    counts = {SCENE: n_scenes, "female": n_women, "male": n - n_scenes - n_women}
    for label, count in counts.items():
        members = np.flatnonzero(source.labels == label)
        for name in np.unique(source.sources[members]) if count else ():
            rows = members[source.sources[members] == name]
            size = round(count * len(rows) / len(members))
            places = rng.integers(len(rows), size=(2 * size + 100, 3))
            is_distinct = (np.diff(np.sort(places, axis=1), axis=1) > 0).all(axis=1)
            triples.append(rows[places[is_distinct][:size]])
    chosen = rng.permutation(np.concatenate(triples))
    weights = rng.dirichlet([4.0, 1.5, 0.8], size=len(chosen)).astype(np.float32)
    before = np.einsum("nt,ntd->nd", weights, source.before[chosen])
    return Photos(before, source.labels[chosen[:, 0]], source.sources[chosen[:, 0]])


@dataclass(frozen=True, eq=False)
class Cell:
    """An exact index or a collection of unit vectors (n, d), and the queries for it.

    Attributes:
        name: kind and name, such as "index: portraits".
        vectors: the vectors.
        labels: true label of each vector, or "" for scenes.
        table: vectors of the texts.
        attributes: one or several prompt sets or their names.
        texts: the queries.
        sample: vectors on which groups and shares are estimated, or None for a collection.
        listed: vectors that a store lists with the index's filter, or None.
        groups: the groups of the index that is filtered, or None.
        given: for each prompt set, the labels of some vectors of the sample or collection.
    """

    name: str
    vectors: Floats
    labels: Strings
    table: Mapping[str, Floats]
    attributes: Sequence[str | PromptSet]
    texts: Sequence[str]
    sample: Floats | None = None
    listed: Floats | None = None
    groups: IndexGroups | None = None
    given: Mapping[str, Strings] = field(default_factory=dict)

    def fitted(self) -> IndexGroups:
        """Return the groups of the index, estimated on its sample, or those of the collection."""
        if self.groups is not None:
            return self.groups
        nobody = NOBODY if NOBODY[0] in self.table else queries()[NO_PERSON]
        if self.sample is None:
            return IndexGroups.fit(self.table, [*self.attributes], self.vectors, labels=self.given)
        how = {"least": ENOUGH_PEOPLE, "nobody": nobody, "labels": self.given}
        return IndexGroups.fit(self.table, [*self.attributes], self.sample, **how)


class Run:
    """The results of one query, best first."""

    def __init__(self, cell: Cell, text: str) -> None:
        vector = cell.table[text].astype(np.float64)
        scores = (cell.vectors @ (vector / np.linalg.norm(vector)).astype(np.float32)).astype(float)
        self.order = np.argsort(-scores, kind="stable")
        self.scores = scores[self.order]
        self.vectors = cell.vectors

    def call(self, vector: NDArray[Any], n: int) -> tuple[Rows, Floats, Floats]:
        """Return the best n results, as an index does."""
        rows = self.order[:n]
        return rows, self.scores[:n], self.vectors[rows]


Method = Callable[[Run, str, int], tuple[Rows, bool]]
"""Function of a query and k that returns the results, and whether the labels were refused."""


def methods(cell: Cell, groups: IndexGroups) -> dict[str, Method]:
    """Return the functions that search, by name."""
    codes = groups.predict(cell.vectors).codes
    whole = replace(groups) if cell.listed is None else groups.within(cell.listed)

    def labels(run: Run, _: str, k: int) -> tuple[Rows, bool]:
        ranked = codes[run.order]
        # The shares of the labels, which earlier versions kept besides others.
        found = Candidates(run.scores, ranked, groups.names, whole.shares)
        return run.order[quota(found, k)], False

    def collection(run: Run, _: str, k: int) -> tuple[Rows, bool]:
        attribute: Any = [*cell.attributes]
        how = {"features": run.vectors[run.order], "attribute": attribute, "model": cell.table}
        if cell.given:
            how["labels"] = {name: values[run.order] for name, values in cell.given.items()}
        positions = vldebias.rerank(run.scores, k, **how)
        return run.order[np.asarray(positions)], positions.report.about[0] == NONE

    if cell.sample is None and cell.groups is None:
        return {RERANK: collection, LABELS: labels}
    bare = vldebias.debias_queries(dict(cell.table), [*cell.attributes], method="none")

    def search(groups: IndexGroups) -> Method:
        def found(run: Run, text: str, k: int) -> tuple[Rows, bool]:
            ids = bare.search(run.call, text, k, index=groups)
            return np.asarray(ids).astype(int), bool(groups.doubt)

        return found

    found = {SEARCH: search(groups), LABELS: labels}
    if cell.listed is not None:
        return {SEARCH: search(groups), WITHIN: search(whole), LABELS: labels}
    return found


def measured(cell: Cell, before: Mapping[str, Any]) -> TaskResult:
    """Return the results of every method for an index or a collection.

    Args:
        cell: the index or the collection.
        before: the differences of another version's results, by method and k.
    """
    groups = cell.fitted()
    names = [name for name in groups.names if (cell.labels == name).any()]
    codes = np.full(len(cell.labels), -1)
    for code, label in enumerate(names):
        codes[cell.labels == label] = code
    shares = np.bincount(codes[codes >= 0], minlength=len(names)) / (codes >= 0).sum()
    by_name = methods(cell, groups)
    rows: dict[tuple[str, int], list[dict[str, float]]] = {}
    for text in cell.texts:
        run_of_query = Run(cell, text)
        for k in FIRST:
            if 4 * k > len(cell.vectors):
                continue
            bare = run_of_query.order[:k]
            hits = []
            for code, share in enumerate(shares):
                ranked = run_of_query.order[codes[run_of_query.order] == code]
                hits.append(ranked[: max(1, round(k * share))])
            for method in (NONE, *by_name):
                ids, is_refused = bare, False
                if method != NONE:
                    ids, is_refused = by_name[method](run_of_query, text, k)
                row = figures(codes[ids], shares)
                row["stay"] = float(np.isin(bare, ids).mean())
                row["retained"] = float(np.mean([np.isin(own, ids).mean() for own in hits]))
                row["refused"] = float(is_refused)
                rows.setdefault((method, k), []).append(row)
    differences = {}
    for (method, k), listed in rows.items():
        differences.setdefault(method, {})[str(k)] = [round(row["distance"], 6) for row in listed]
    settings = {"attribute": "+".join(map(str, groups.names)), "differences": differences}
    part = TaskResult(TaskProvenance(task=cell.name, description="skew", settings=settings))
    n = {"queries": len(cell.texts), "vectors": len(cell.vectors)}
    part.add(TRUE, NONE, float(shares[0]), n=n)
    held = (groups if cell.listed is None else groups.within(cell.listed)).share_of_name()
    part.add(HELD, SEARCH, held[names[0]] / sum(held[name] for name in names), n=n)
    for (method, k), listed in rows.items():
        bare = rows[NONE, k]
        place = {"n": n, "subset": f"k = {k}"}
        remaining = np.mean([row["distance"] - row["chance"] for row in listed])
        above = np.mean([row["distance"] - row["chance"] for row in bare])
        rises = [row["distance"] - old["distance"] for row, old in zip(listed, bare, strict=True)]
        values = {}
        for metric in (STAY, RETAINED, REFUSED):
            values[metric] = float(np.mean([row[metric.name] for row in listed]))
        values[WORSE] = float(np.mean(np.array(rises) > WORSE_BY))
        values[LEFT] = float(remaining / above)
        for metric, value in values.items():
            part.add(metric, method, value, **place)
        distances = [row["distance"] for row in listed]
        old = before.get(method, {}).get(str(k))
        change = None if old is None else change_of(np.array(distances) - np.array(old))
        part.add(DISTANCE, method, float(np.mean(distances)), change=change, **place)
    return part


def change_of(changes: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean of paired changes, and its 95% interval over queries."""
    rng = np.random.default_rng(0)
    drawn = changes[rng.integers(len(changes), size=(RESAMPLES, len(changes)))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(changes.mean()), float(low), float(high)


def figures(codes: NDArray[np.integer], shares: Floats) -> dict[str, float]:
    """Return the distance of a list's shares from the index's, measured and by chance.

    Args:
        codes: group of each result (k,), or -1 for scenes.
        shares: the groups' shares (g,) in the index.
    """
    people = codes[codes >= 0]
    if not len(people):
        return {"distance": 0.0, "chance": 0.0}
    observed = np.bincount(people, minlength=len(shares)) / len(people)
    return {
        "distance": float(np.abs(observed - shares).mean()),
        "chance": by_chance(len(people), tuple(shares)),
    }


@cache
def by_chance(n: int, shares: tuple[float, ...]) -> float:
    """Return the mean distance of the shares of n people who are sampled at random."""
    counts = np.random.default_rng(n).multinomial(n, shares, size=4000)
    return float(np.abs(counts / n - shares).mean())


def asked(seed: int) -> list[str]:
    """Sample queries of all kinds that show a person."""
    kinds = [kind for kind in queries() if kind not in ("professions", "activities", NO_PERSON)]
    listed = [text for kind in kinds for text in queries()[kind]]
    chosen = np.random.default_rng(seed).permutation(len(listed))[:QUERIES]
    return [listed[place] for place in chosen]


# Name of the index, sources, whether the model is B, and shares of women and of scenes.
PORTRAITS = (WEB, FACES, OTHER_FACES)
ALL_FACES = PORTRAITS[1:]
INDEXES = (
    ("index: portraits, women 50%", PORTRAITS, False, 0.5, 0.0),
    ("index: portraits, women 20%", PORTRAITS, True, 0.2, 0.0),
    ("index: portraits, women 70%, scenes 30%", PORTRAITS, True, 0.7, 0.3),
    ("index: faces, women 40%", ALL_FACES, True, 0.4, 0.0),
    ("index: faces not labelled white, women 55%", PORTRAITS[2:], False, 0.55, 0.0),
    ("index: web, women 60%, scenes 50%", (WEB,), False, 0.6, 0.5),
    ("index: snapshots, women 50%", (SNAPSHOTS,), True, 0.5, 0.0),
    ("index: snapshots, women 30%, scenes 50%", (SNAPSHOTS,), True, 0.3, 0.5),
    ("index: all photographs, women 40%, scenes 20%", (*PORTRAITS, SNAPSHOTS), False, 0.4, 0.2),
    ("index: portraits, women 50%, scenes 90%", PORTRAITS, True, 0.5, 0.9),
    ("index: portraits, women 35%, scenes 95%", PORTRAITS, False, 0.35, 0.95),
    ("rare: portraits, women 2%", PORTRAITS, True, 0.02, 0.0),
    ("rare: portraits, women 4%", PORTRAITS, False, 0.04, 0.0),
    ("rare: portraits, men 3%", PORTRAITS, True, 0.97, 0.0),
    ("rare: faces, women 6%", ALL_FACES, False, 0.06, 0.0),
    ("rare: web, women 8%, scenes 30%", (WEB,), True, 0.08, 0.3),
    ("rare: web, men 10%", (WEB,), False, 0.9, 0.0),
    ("rare: snapshots, women 10%", (SNAPSHOTS,), True, 0.1, 0.0),
    ("rare: faces not labelled white, men 5%", PORTRAITS[2:], True, 0.95, 0.0),
)


def cells(vectors: int) -> Iterator[Cell]:
    """Yield every index and collection."""
    every = photos()
    for seed, (name, sources, is_other, women, scenes) in enumerate(INDEXES):
        part = every.take(np.flatnonzero(np.isin(every.sources, (*sources, "scenes"))))
        shuffled = np.random.default_rng(100 + seed).permutation(len(part.labels))
        halves = part.take(shuffled[::2]), part.take(shuffled[1::2])
        found = blends(halves[0], vectors, women, scenes, seed=200 + seed)
        sample = blends(halves[1], min(SAMPLE, vectors), women, scenes, seed=300 + seed)
        model = correlated() if is_other else shipped()
        cell = Cell(
            name,
            model.images(found.before),
            found.labels,
            model.table,
            ("gender",),
            asked(seed),
            model.images(sample.before),
        )
        yield cell
        if seed == 0:
            yield from filters(found, cell)
    yield from real_photographs()
    yield from collections()


def filters(found: Photos, index: Cell) -> Iterator[Cell]:
    """Yield subsets of an index as a filter returns them, with vectors that the store lists."""
    rng = np.random.default_rng(3)
    groups = index.fitted()
    for name, sources, women in (
        ("women 75%", PORTRAITS, 0.75),
        ("web, women 35%", (WEB,), 0.35),
        ("faces, women 15%", ALL_FACES, 0.15),
    ):
        allowed = np.flatnonzero(np.isin(found.sources, sources))
        women_in, men_in = (allowed[found.labels[allowed] == label] for label in ("female", "male"))
        n = int(min(len(women_in) / women, len(men_in) / (1 - women), len(found.labels) / 5))
        rows = np.sort(np.concatenate([women_in[: int(n * women)], men_in[: n - int(n * women)]]))
        # The listed vectors are documents of the index itself, as a store lists them.
        listed = index.vectors[rng.choice(rows, min(LISTED, len(rows)), replace=False)]
        yield replace(
            index,
            name=f"filter: {name}",
            vectors=index.vectors[rows],
            labels=index.labels[rows],
            sample=None,
            listed=listed,
            groups=groups,
        )


def real_photographs() -> Iterator[Cell]:
    """Yield real photographs and captions, halved into an index and a sample."""
    every = photos()
    people = every.take(np.flatnonzero(every.labels != SCENE))
    model = correlated()
    age = photographs("utk_dev")
    captions = [unit(arrays_of(f"captions_{part}")["before"][:, -1]) for part in ("train", "dev")]
    mentioned = [photographs(f"flickr_{part}").labels["gender"] for part in ("train", "dev")]
    for name, vectors, labels, table, attribute in (
        ("index: real photographs", model.images(people.before), people.labels, model.table, ""),
        (
            "index: captions",
            np.concatenate(captions),
            np.concatenate(mentioned),
            text_vectors(),
            "",
        ),
        ("other: faces, age", age.features, age.labels["age"], texts(), "age"),
        ("other: faces, race", age.features, age.labels["race"], texts(), "race"),
    ):
        shuffled = np.random.default_rng(5).permutation(np.flatnonzero(labels != ""))
        half = len(shuffled) // 2
        cell = Cell(
            name,
            vectors[shuffled[:half]],
            labels[shuffled[:half]],
            table,
            (attribute or "gender",),
            asked(50),
            vectors[shuffled[half:]],
        )
        yield cell
        if attribute:
            yield from with_labels(cell, {attribute: labels[shuffled[half:]]})


def collections() -> Iterator[Cell]:
    """Yield whole collections, which are re-ranked without an index."""
    model = correlated()
    for seed, (source, women) in enumerate(((FACES, 0.5), (SNAPSHOTS, 0.35), (WEB, 0.25))):
        every = photos()
        members = every.take(np.flatnonzero(np.char.startswith(every.sources, source)))
        rows = composed(members.labels, {"female": women, "male": 1 - women}, seed)
        part = members.take(rows)
        yield Cell(
            f"collection: {source}, women {women:.0%}",
            model.images(part.before),
            part.labels,
            model.table,
            ("gender",),
            asked(60 + seed),
        )
    if is_present(embeddings.FILE):
        yield from celeba()
    packaged = load_photographs()
    column = packaged.gallery.column("gender")
    listed = asked(70)
    wanted = [*vldebias.load_prompts("gender").texts, *NOBODY, *listed]
    vectors = np.asarray(packaged.encoder.encode(wanted), np.float32)
    yield Cell(
        "collection: packaged photographs",
        np.asarray(packaged.gallery.features, np.float32),
        np.array(column.names)[column.codes],
        dict(zip(wanted, vectors, strict=True)),
        ("gender",),
        listed,
    )


def composed(labels: Strings, shares: Mapping[str, float], seed: int) -> Rows:
    """Return as many rows as possible with the given shares."""
    rng = np.random.default_rng(seed)
    members = {label: rng.permutation(np.flatnonzero(labels == label)) for label in shares}
    size = min(len(members[label]) / share for label, share in shares.items())
    return np.sort(np.concatenate([members[a][: int(size * p)] for a, p in shares.items()]))


def celeba() -> Iterator[Cell]:
    """Yield CelebA with CLIP ViT-B/32, by gender, by age, and by both."""
    gallery = embeddings.celeba()
    host = gallery.texts
    aged = [text for text in host.rows if " old " in text]  # type: ignore[attr-defined]
    age = PromptSet(
        name="young-old",
        attributes={"young": ("young",), "old": ("old",)},
        variants=tuple((text.replace("an old", "a young"), text) for text in aged),
    )
    table = {text: unit(row.numpy()) for text, row in host.rows.items()}  # type: ignore[attr-defined]
    values = {}
    for name in ("gender", "age"):
        column = gallery.images.column(name)
        values[name] = np.array(column.names)[column.codes]
    both = np.array([f"{g}/{a}" for g, a in zip(values["gender"], values["age"], strict=True)])
    chosen = np.random.default_rng(6).permutation(len(gallery.queries))[:QUERIES]
    listed = [gallery.queries[place] for place in chosen]
    features = unit(gallery.rows.numpy())
    for name, labels, sets, shares in (
        ("collection: CelebA", values["gender"], (gallery.prompt_set,), (0.3, 0.7)),
        ("other: CelebA, age", values["age"], (age,), (0.3, 0.7)),
        ("other: CelebA, gender and age", both, (gallery.prompt_set, age), ()),
    ):
        rows = np.arange(len(labels))
        if shares:
            rows = composed(labels, dict(zip(np.unique(labels), shares, strict=True)), seed=7)
        cell = Cell(name, features[rows], labels[rows], table, sets, listed)
        yield cell
        if not name.startswith("collection"):
            yield from with_labels(cell, {"young-old": values["age"][rows]})


def with_labels(cell: Cell, labels: Mapping[str, Strings]) -> Iterator[Cell]:
    """Yield a cell with 20 and with 100 labels, which are drawn at random."""
    for number in (20, 100):
        given = {}
        for name, values in labels.items():
            order = np.random.default_rng(number).permutation(len(values))
            given[name] = values.copy()
            given[name][order[number:]] = ""
        yield replace(cell, name=f"{cell.name}, {number} labels", given=given)


def tally(parts: Sequence[TaskResult], before: Sequence[TaskResult]) -> Iterator[TaskResult]:
    """Yield means over cells, and counts of cells that changed surely since another version.

    Filters count with `within`, as the documentation recommends.
    """
    kinds = {"indexes and collections": ("index", "filter", "collection"), "rare groups": ("rare",)}
    for title, chosen in kinds.items():
        part = TaskResult(TaskProvenance(task=f"all: {title}", description="means over cells"))
        for k in FIRST:
            found: dict[tuple[str, Metric], list[float]] = {}
            changes = []
            for version, tasks in ((OURS, parts), (BEFORE, before)):
                for task in tasks:
                    kind = task.provenance.task.partition(":")[0]
                    if kind not in chosen:
                        continue
                    ours = (WITHIN,) if kind == "filter" else (SEARCH, RERANK)
                    for row in task.rows:
                        if row.subset != f"k = {k}" or row.method not in (*ours, LABELS):
                            continue
                        name = LABELS if row.method == LABELS else version
                        if (version, name) == (BEFORE, LABELS):
                            continue
                        for metric in (LEFT, STAY, RETAINED, WORSE):
                            if row.metric == metric.name:
                                found.setdefault((name, metric), []).append(row.value)
                        if row.metric == DISTANCE.name and name == OURS and row.change:
                            changes.append(row.change)
            for (name, metric), values in found.items():
                n = {"cells": len(values)}
                part.add(metric, name, float(np.mean(values)), n=n, subset=f"k = {k}")
            if changes:
                n = {"cells": len(changes)}
                for metric, count in (
                    (SURELY_WORSE, sum(low > 0 for _, low, _ in changes)),
                    (SURELY_BETTER, sum(high < 0 for _, _, high in changes)),
                ):
                    part.add(metric, OURS, count, n=n, subset=f"k = {k}")
        for version, tasks in ((OURS, parts), (BEFORE, before)):
            errors = []
            for task in tasks:
                kind = task.provenance.task.partition(":")[0]
                # The shares behind a filter are those of the listed vectors.
                if kind in chosen and kind != "filter":
                    value = {row.metric: row.value for row in task.rows if not row.subset}
                    errors.append(abs(value[HELD.name] - value[TRUE.name]))
            if errors:
                part.add(ERROR, version, float(np.mean(errors)), n={"cells": len(errors)})
        yield part


def measure(
    vectors: int, before: Path | None, only: str, file: Path | None
) -> Iterator[TaskResult]:
    """Yield the results for every index and collection, and then the means.

    Args:
        vectors: size of each index.
        before: a result of another version, or None.
        only: regular expression for the names of the cells to measure.
        file: the result that is written, or None. Its results for other cells are kept.
    """
    earlier = tasks_of(before)
    kept = tasks_of(file if only and file and file.exists() else None)
    parts = []
    for cell in cells(vectors):
        if not re.search(only, cell.name):
            if cell.name in kept:
                parts.append(kept[cell.name])
                yield parts[-1]
            continue
        old = earlier[cell.name].provenance.settings if cell.name in earlier else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)
            part = measured(cell, old.get("differences", {}))
        parts.append(part)
        yield part
    yield from tally(parts, [*earlier.values()])


def tasks_of(file: Path | None) -> dict[str, TaskResult]:
    """Return the parts of a result by task."""
    if file is None:
        return {}
    result = Result.read(file)
    parts = {}
    for provenance in result.provenance:
        rows = [row for row in result.rows if row.task == provenance.task]
        if not provenance.task.startswith("all:"):
            parts[provenance.task] = TaskResult(provenance, rows)
    return parts


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--vectors", type=int, default=VECTORS, help="size of each index")
    options.add_argument("--before", type=Path, help="result of another version, to compare with")
    options.add_argument("--only", default="", help="regular expression for names; keeps others")
    arguments = options.parse_args()
    if is_present():
        run(
            "search_index",
            lambda: measure(arguments.vectors, arguments.before, arguments.only, arguments.json),
            arguments.json,
        )


if __name__ == "__main__":
    main()
