"""Measure searches of large indexes: what re-ranking leaves of the skew, and what it costs.

    python -m eval.photographs.index --json eval/results/search_index.json
    python -m eval.photographs.index --vectors 10000 --queries 24   # a small run

An index contains 100,000 vectors, each a mixture of two photographs of the same source and gender,
or of two scenes without people, and every pair is used once. The photographs are split in two
halves: one for the index, and one for the sample on which groups and shares are estimated.
Otherwise, the sample would contain near-duplicates of the results, which flatters anything that
learns from images. Indexes of portraits (photographs of one person from the web, and faces) differ
in the share of women (0.5, 0.2 and 0.05) and of scenes (0, 0.5 and 0.9). In indexes of snapshots
(Flickr8k), where people are small, a quarter of the labels are wrong. Filters are subsets of the
even index of portraits. The real photographs themselves are also searched.

The scenes are photographs of the FSA collection and of Flickr8k whose captions are closer to texts
without people, or to a dog, than to people. Captions are compared in the space of a text model, not
of the model that is searched.

"left" is the mean absolute difference between the share of a group among the people in the first 50
results and its share in the index, above chance and divided by that of the unedited search. "stay"
is the share of the first 50 that stay, and "retained" the share of each group's own first hits that
are among the results. These are means over professions and activities.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vldebias
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
from vldebias.reranking.index import ENOUGH_PEOPLE, IndexGroups

VECTORS = 100_000
SAMPLE = 4_000
LISTED = 300  # vectors that a store lists with a filter
FIRST = 50  # number of results
KINDS = ("professions", "activities")
PORTRAITS, SNAPSHOTS = ("web", "faces"), ("snapshots",)
NO_PERSON = "no person"
SCENE = ""  # label of images without people

REFUSED = Metric("refused", "queries returned as found, because labels are unreliable")
COSTS = (STAY, RETAINED, REFUSED)
SEARCH = "queries.search"
FIRST_RESULTS = "rerank, first 10 k results"
WITHIN = "queries.search, within"


@dataclass(frozen=True, eq=False)
class Photos:
    """Image features before the head (n, d), with labels and the source of each photograph."""

    before: Floats
    labels: Strings
    sources: Strings

    def take(self, rows: Rows) -> Photos:
        """Return some of the photographs."""
        return Photos(self.before[rows], self.labels[rows], self.sources[rows])


def photos() -> Photos:
    """Return photographs of women and men, and of scenes without people, with label ""."""
    parts = []
    for file, source in (("mw_dev", "web"), ("utk_dev", "faces"), ("flickr_dev", "snapshots")):
        arrays = arrays_of(file)
        gender = arrays["gender"].astype(str)
        known = gender != ""
        parts.append((arrays["before"][known], gender[known], source))
    for before in (dogs(), farms()):
        parts.append((before, np.full(len(before), SCENE), "scenes"))
    return Photos(
        np.concatenate([before.astype(np.float32) for before, _, _ in parts]),
        np.concatenate([labels for _, labels, _ in parts]),
        np.concatenate([np.full(len(labels), source) for _, labels, source in parts]),
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
    people = [text for text in table if text.startswith("a person ")] + [*queries()["neutral"]]
    arrays = arrays_of("fsa")
    titles = unit(arrays["captions_before"])
    to_things = (titles @ np.stack([table[text] for text in queries()[NO_PERSON]]).T).max(axis=1)
    to_people = (titles @ np.stack([table[text] for text in people]).T).max(axis=1)
    return arrays["before"][(to_things > to_people) & (arrays["gender"].astype(str) == "")]


def mixtures(source: Photos, n: int, women: float, scenes: float, seed: int) -> Photos:
    """Return n mixtures of two photographs each, with given shares of women and of scenes.

    Args:
        source: photographs to mix, of which pairs have the same source and label.
        n: number of mixtures.
        women: share of women among the people.
        scenes: share of mixtures without people.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    n_scenes = round(n * scenes)
    n_women = round((n - n_scenes) * women)
    pairs = []
    counts = {SCENE: n_scenes, "female": n_women, "male": n - n_scenes - n_women}
    for label, count in counts.items():
        members = np.flatnonzero(source.labels == label)
        first = members[rng.integers(len(members), size=3 * count)]
        second = members[rng.integers(len(members), size=3 * count)]
        is_pair = (source.sources[first] == source.sources[second]) & (first != second)
        low, high = np.minimum(first, second), np.maximum(first, second)
        # The second photograph of a pair has the smaller weight, so both orders differ little.
        codes = np.unique(low[is_pair] * len(source.labels) + high[is_pair])
        codes = rng.permutation(codes)[:count]
        pairs.append(np.stack([codes // len(source.labels), codes % len(source.labels)]))
    first, second = rng.permutation(np.concatenate(pairs, axis=1), axis=1)
    weight = rng.uniform(0.5, 0.9, size=(len(first), 1)).astype(np.float32)
    before = weight * source.before[first] + (1 - weight) * source.before[second]
    return Photos(before, source.labels[first], source.sources[first])


@dataclass(frozen=True, eq=False)
class Index:
    """An exact index of unit vectors (n, d), whose best results for a query are found by sorting.

    Attributes:
        vectors: the vectors.
        labels: true label of each vector, or "" for scenes.
        sample: vectors on which groups and shares are estimated.
        listed: vectors that a store lists with the index's filter, or None.
        groups: the groups of the index that is filtered, or None.
    """

    vectors: Floats
    labels: Strings
    sample: Floats
    listed: Floats | None = None
    groups: IndexGroups | None = None

    @property
    def share(self) -> float:
        """Return the share of the first label among people."""
        people = self.labels[self.labels != SCENE]
        return float((people == np.unique(people)[0]).mean())


def fitted(index: Index, attribute: str) -> IndexGroups:
    """Return the groups of an index, estimated on its sample."""
    if index.groups is not None:
        return index.groups
    nobody = queries()[NO_PERSON]
    return IndexGroups.fit(texts(), attribute, index.sample, least=ENOUGH_PEOPLE, nobody=nobody)


class Run:
    """The results of one query, and the methods that re-rank them."""

    def __init__(self, index: Index, vector: Floats) -> None:
        scores = index.vectors @ vector
        self.order = np.argsort(-scores, kind="stable")
        self.scores = scores[self.order]
        self.index = index

    def call(self, vector: NDArray[Any], n: int) -> tuple[Rows, Floats, Floats]:
        """Return the best n results, as an index does."""
        rows = self.order[:n]
        return rows, self.scores[:n], self.index.vectors[rows]


Method = Callable[[Run, str], Any]


def methods(index: Index, attribute: str) -> dict[str, Method]:
    """Return the functions that search an index, by name."""
    table = texts()
    groups = fitted(index, attribute)
    embedder = {text: table[text] for text in table}
    bare = vldebias.debias_queries(embedder, attribute, method="none")

    def search(groups: IndexGroups) -> Method:
        return lambda run, text: bare.search(run.call, text, FIRST, index=groups)

    def first_results(run: Run, text: str) -> Rows:
        rows, scores, vectors = run.call(table[text], 10 * FIRST)
        how = {"features": vectors, "attribute": attribute, "model": table}
        return rows[np.asarray(vldebias.rerank(scores, FIRST, **how))]

    found: dict[str, Method] = {SEARCH: search(groups)}
    if index.listed is not None:
        return found | {WITHIN: search(groups.within(index.listed))}
    return found | {FIRST_RESULTS: first_results}


def measured(
    name: str, index: Index, attribute: str, listed: Mapping[str, Sequence[str]]
) -> TaskResult:
    """Return the results of every method for an index."""
    part = TaskResult(
        TaskProvenance(
            task=name,
            description="skew that is left, results that stay and retained hits",
            settings={"share": round(index.share, 3), "attribute": attribute},
        )
    )
    names = np.unique(index.labels[index.labels != SCENE])
    codes = np.full(len(index.labels), -1)
    for code, label in enumerate(names):
        codes[index.labels == label] = code
    shares = np.bincount(codes[codes >= 0], minlength=len(names)) / (codes >= 0).sum()
    table = texts()
    found: dict[str, list[dict[str, float]]] = {}
    by_name = methods(index, attribute)
    asked = [text for kind in KINDS for text in listed[kind]]
    for text in asked:
        run_of_query = Run(index, table[text])
        bare = run_of_query.order[:FIRST]
        hits = []
        for code in range(len(names)):
            ranked = run_of_query.order[codes[run_of_query.order] == code]
            hits.append(ranked[: max(1, FIRST // len(names))])
        for method in (NONE, *by_name):
            refused = 0.0
            results: Any = bare
            if method != NONE:
                results = by_name[method](run_of_query, text)
                reports = getattr(results, "reports", ())
                refused = float(bool(reports) and "unreliable" in reports[0].about[1])
            ids = np.asarray(results).astype(int)
            row = figures(codes[ids], shares)
            row["stay"] = float(np.isin(bare, ids).mean())
            row["retained"] = float(np.mean([np.isin(own, ids).mean() for own in hits]))
            row["refused"] = refused
            found.setdefault(method, []).append(row)
    n = {"queries": len(asked), "vectors": len(index.vectors)}
    above = np.mean([row["distance"] - row["chance"] for row in found[NONE]])
    for method, rows in found.items():
        remaining = np.mean([row["distance"] - row["chance"] for row in rows])
        values = {metric: float(np.mean([row[metric.name] for row in rows])) for metric in COSTS}
        values[LEFT] = float(remaining / above)
        for metric, value in values.items():
            part.add(metric, method, value, n=n, subset=f"k = {FIRST}")
    return part


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


def with_fewer_queries(most: int) -> dict[str, list[str]]:
    """Return professions and activities, a third of `most` each."""
    chosen = {}
    for kind in KINDS:
        listed = queries()[kind]
        n = max(1, most // 3)
        step = max(1, len(listed) // n)
        chosen[kind] = list(listed[::step][:n])
    return chosen


def indexes(vectors: int) -> Iterator[tuple[str, Index, str]]:
    """Yield every index with its name and prompt set."""
    every = photos()
    for name, sources, compositions in (
        ("portraits", PORTRAITS, ((0.5, 0.0), (0.2, 0.0), (0.05, 0.0), (0.5, 0.5), (0.5, 0.9))),
        ("snapshots", SNAPSHOTS, ((0.5, 0.0), (0.2, 0.0), (0.5, 0.5))),
    ):
        part = every.take(np.flatnonzero(np.isin(every.sources, (*sources, "scenes"))))
        shuffled = np.random.default_rng(0).permutation(len(part.labels))
        halves = part.take(shuffled[::2]), part.take(shuffled[1::2])
        for women, scenes in compositions:
            found = mixtures(halves[0], vectors, women, scenes, seed=2)
            sample = mixtures(halves[1], min(SAMPLE, vectors), women, scenes, seed=3)
            embed = small_model().images
            index = Index(embed(found.before), found.labels, embed(sample.before))
            # There are fewer pairs of women in snapshots than requested.
            yield f"{name}, women {index.share:.0%}, scenes {scenes:.0%}", index, "gender"
            if (name, women, scenes) == ("portraits", 0.5, 0.0):
                yield from filters(found, index)
    yield from collections()


def filters(found: Photos, index: Index) -> Iterator[tuple[str, Index, str]]:
    """Yield subsets of an index as a filter returns them, with vectors that the store lists."""
    rng = np.random.default_rng(3)
    groups = fitted(index, "gender")
    for name, source, women in (
        ("women 20%", "", 0.2),
        ("women 80%", "", 0.8),
        ("web, women 30%", "web", 0.3),
        ("faces, women 10%", "faces", 0.1),
    ):
        allowed = np.flatnonzero((found.sources == source) | (source == ""))
        women_in, men_in = (allowed[found.labels[allowed] == label] for label in ("female", "male"))
        n = int(min(len(women_in) / women, len(men_in) / (1 - women), len(found.labels) / 5))
        rows = np.sort(np.concatenate([women_in[: int(n * women)], men_in[: n - int(n * women)]]))
        # The listed vectors are documents of the index itself, as a store lists them.
        listed = index.vectors[rng.choice(rows, min(LISTED, len(rows)), replace=False)]
        part = Index(index.vectors[rows], index.labels[rows], index.sample, listed, groups)
        yield f"filter: {name}", part, "gender"


def collections() -> Iterator[tuple[str, Index, str]]:
    """Yield real photographs, halved into an index and a sample, for each attribute."""
    every = ("mw_dev", "utk_dev", "flickr_dev")
    for name, column, files in (
        ("photographs", "gender", every),
        ("photographs of one person", "gender", every[:2]),
        ("faces", "age", ("utk_dev",)),
        ("faces", "race", ("utk_dev",)),
    ):
        parts = [photographs(file) for file in files]
        features = np.concatenate([part.features for part in parts])
        labels = np.concatenate([part.labels[column] for part in parts])
        known = np.flatnonzero(labels != "")
        shuffled = np.random.default_rng(4).permutation(known)
        half = len(shuffled) // 2
        index = Index(features[shuffled[:half]], labels[shuffled[:half]], features[shuffled[half:]])
        yield f"{name}, {column}", index, column


def measure(vectors: int, most: int) -> Iterator[TaskResult]:
    """Yield the results for every index."""
    for name, index, attribute in indexes(vectors):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)
            yield measured(name, index, attribute, with_fewer_queries(most))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--vectors", type=int, default=VECTORS, help="size of each index")
    options.add_argument("--queries", type=int, default=96, help="number of queries")
    arguments = options.parse_args()
    if is_present():
        run(
            "search_index",
            lambda: measure(arguments.vectors, arguments.queries),
            arguments.json,
        )


if __name__ == "__main__":
    main()
