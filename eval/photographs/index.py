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

"left" is the mean absolute difference between the share of a group among the people in the first k
results and its share in the index, above chance and divided by that of the unedited search. "stay"
is the share of the first k that stay, and "retained" the share of each group's own first hits that
are among the results. These are means over professions and activities. A kind of queries, which
includes others, is harmed if the 95% interval for the change of the difference is above 0 (queries
resampled).

The time is that of one search, divided by that of a bare call of the same index, on one thread and
by faiss if it is installed (otherwise, a matrix product and torch's `topk`).
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
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
from eval.tables import medians, parser, run
from vldebias.errors import VldebiasWarning
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.metrics import Metric
from vldebias.reranking import Positions, index_search
from vldebias.reranking.index import ENOUGH_PEOPLE, IndexGroups

VECTORS = 100_000
SAMPLE = 4_000
LISTED = 300  # vectors that a store lists with a filter
FIRST = (10, 20, 50)
KINDS = ("professions", "activities")  # kinds over which "left" and the costs are averaged
PORTRAITS, SNAPSHOTS = ("web", "faces"), ("snapshots",)
RESAMPLES = 500
REPETITIONS = 9
NO_PERSON = "no person"
SCENE = ""  # label of images without people

TITLES = {
    "left": Metric("left", "share of the skew above chance that is left", "bias", "lower"),
    "stay": Metric("stay", "share of the first k that stay", "utility", "higher"),
    "retained": Metric("retained", "retained hits", "utility", "higher"),
    "ndkl": Metric("ndkl", "NDKL", "bias", "lower"),
    "harmed": Metric("harmed", "kinds of queries that are surely worse", "fact", "lower"),
    "kinds": Metric("kinds", "kinds of queries"),
    "read": Metric("read", "results read per query"),
    "refused": Metric("refused", "queries returned as found, because labels are unreliable"),
}

RATIO = Metric("times_a_call", "times a bare call of the index", "fact", "lower")
COSTS = ("stay", "retained", "ndkl", "read", "refused")
SEARCH = "queries.search"
FIXED = "20 k results, all images with a group"
FIRST_RESULTS = "rerank, first 10 k results"
WITH_INDEX = "rerank, first 10 k results, index="
WHOLE = "rerank, whole collection"
WITHIN = "queries.search, within"
KNOWN = "queries.search, within, known shares"
TRUE = "rerank, first 10 k results, true labels"


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
        self.n_read = 0

    def call(self, vector: NDArray[Any], n: int) -> tuple[Rows, Floats, Floats]:
        """Return the best n results, as an index does."""
        self.n_read = max(self.n_read, n)
        rows = self.order[:n]
        return rows, self.scores[:n], self.index.vectors[rows]


Method = Callable[[Run, str, int], Any]


def methods(index: Index, attribute: str) -> dict[str, Method]:
    """Return the functions that search an index, by name."""
    table = texts()
    groups = fitted(index, attribute)
    embedder = {text: table[text] for text in table}
    bare = vldebias.debias_queries(embedder, attribute, method="none")
    everyone = replace(groups, person=None)
    if index.groups is None:
        everyone = IndexGroups.fit(
            table, attribute, index.sample, least=ENOUGH_PEOPLE, nobody=["no such text"]
        )

    def search(groups: IndexGroups) -> Method:
        return lambda run, text, k: bare.search(run.call, text, k, index=groups)

    def fixed(run: Run, text: str, k: int) -> Positions:
        first, most = index_search.FIRST, index_search.MOST
        index_search.FIRST = index_search.MOST = 20
        try:
            return bare.search(run.call, text, k, index=everyone)
        finally:
            index_search.FIRST, index_search.MOST = first, most

    def first_results(run: Run, text: str, k: int, **how: Any) -> Rows:
        rows, scores, vectors = run.call(table[text], 10 * k)
        if not how:
            how = {"attribute": attribute, "model": table}
        if "labels" not in how:
            how = {**how, "features": vectors}
        else:
            how = {"labels": [label or None for label in index.labels[rows]]}
            if not any(how["labels"]):
                return rows[:k]  # there are no people among the results
        return rows[np.asarray(vldebias.rerank(scores, k, **how))]

    found: dict[str, Method] = {SEARCH: search(groups), FIXED: fixed}
    if index.listed is not None:
        found[WITHIN] = search(groups.within(index.listed))
        names = np.unique(index.labels[index.labels != SCENE])
        shares = dict(zip(map(str, names), [index.share, 1 - index.share], strict=True))
        found[KNOWN] = search(groups.within(index.listed, shares))
        return found
    found[FIRST_RESULTS] = first_results
    found[TRUE] = lambda run, text, k: first_results(run, text, k, labels=True)
    found[WITH_INDEX] = lambda run, text, k: first_results(run, text, k, index=groups)
    if len(index.vectors) < 10_000:
        positions = IndexGroups.fit(table, attribute, index.vectors)
        found[WHOLE] = lambda run, text, k: vldebias.rerank(
            index.vectors @ table[text], k, features=index.vectors, index=positions
        )
    return found


def measured(
    name: str,
    index: Index,
    attribute: str,
    listed: Mapping[str, Sequence[str]],
    first: Sequence[int],
) -> TaskResult:
    """Return the results of every method for an index."""
    part = TaskResult(
        TaskProvenance(
            task=name,
            description="skew that is left, results that stay, retained hits and prefixes",
            settings={"share": round(index.share, 3), "attribute": attribute},
        )
    )
    names = np.unique(index.labels[index.labels != SCENE])
    codes = np.full(len(index.labels), -1)
    for code, label in enumerate(names):
        codes[index.labels == label] = code
    shares = np.bincount(codes[codes >= 0], minlength=len(names)) / (codes >= 0).sum()
    table = texts()
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    kinds: list[str] = []
    by_name = methods(index, attribute)
    for kind, asked in listed.items():
        for text in asked:
            run_of_query = Run(index, table[text])
            kinds.append(kind)
            for k in first:
                bare = run_of_query.order[:k]
                hits = []
                for code in range(len(names)):
                    ranked = run_of_query.order[codes[run_of_query.order] == code]
                    hits.append(ranked[: max(1, k // len(names))])
                for method in (NONE, *by_name):
                    if k == min(first) and method not in (NONE, SEARCH, FIXED, WITHIN):
                        continue
                    run_of_query.n_read = 0
                    refused = 0.0
                    results: Any = bare
                    if method != NONE:
                        results = by_name[method](run_of_query, text, k)
                        reports = getattr(results, "reports", ())
                        refused = float(bool(reports) and "unreliable" in reports[0].about[1])
                    ids = np.asarray(results).astype(int)
                    row = figures(codes[ids], shares)
                    row["stay"] = float(np.isin(bare, ids).mean())
                    row["retained"] = float(np.mean([np.isin(own, ids).mean() for own in hits]))
                    row["read"] = run_of_query.n_read
                    row["refused"] = refused
                    found.setdefault((method, k), []).append(row)
    is_counted = np.isin(kinds, KINDS)
    n = {"queries": int(is_counted.sum()), "vectors": len(index.vectors)}
    for (method, k), rows in found.items():
        column = {figure: np.array([row[figure] for row in rows]) for figure in rows[0]}
        bare_rows = found[NONE, k]
        before = np.array([row["distance"] for row in bare_rows])
        above = before - [row["chance"] for row in bare_rows]
        remaining = column["distance"] - column["chance"]
        values = {figure: float(column[figure][is_counted].mean()) for figure in COSTS}
        values["left"] = float(remaining[is_counted].mean() / above[is_counted].mean())
        values["harmed"], values["kinds"] = harmed(column["distance"] - before, kinds)
        for figure, value in values.items():
            part.add(TITLES[figure], method, value, n=n, subset=f"k = {k}")
    return part


def figures(codes: NDArray[np.integer], shares: Floats) -> dict[str, float]:
    """Return the distance of a list's shares from the index's, by chance too, and its NDKL.

    Args:
        codes: group of each result (k,), or -1 for scenes.
        shares: the groups' shares (g,) in the index.
    """
    people = codes[codes >= 0]
    n = max(len(people), 1)
    observed = np.bincount(people, minlength=len(shares)) / n
    counts = np.eye(len(shares))[people].cumsum(axis=0)
    total = weight = 0.0
    for place, count in enumerate(counts, start=1):
        p = count / place
        kl = float((p[p > 0] * np.log(p[p > 0] / shares[p > 0])).sum())
        total += kl / np.log2(place + 1)
        weight += 1 / np.log2(place + 1)
    return {
        "distance": float(np.abs(observed - shares).mean()) if len(people) else 0.0,
        "chance": by_chance(n, tuple(shares)) if len(people) else 0.0,
        "ndkl": total / weight if weight else 0.0,
    }


@cache
def by_chance(n: int, shares: tuple[float, ...]) -> float:
    """Return the mean distance of the shares of n people who are sampled at random."""
    counts = np.random.default_rng(n).multinomial(n, shares, size=4000)
    return float(np.abs(counts / n - shares).mean())


def harmed(changes: NDArray[np.float64], kinds: Sequence[str]) -> tuple[int, int]:
    """Return how many kinds of queries get surely worse, and the number of kinds."""
    rng = np.random.default_rng(0)
    number = 0
    for kind in dict.fromkeys(kinds):
        own = changes[np.array(kinds) == kind]
        draws = own[rng.integers(len(own), size=(RESAMPLES, len(own)))].mean(axis=1)
        number += bool(np.quantile(draws, 0.025) > 0)
    return number, len(set(kinds))


def with_fewer_queries(most: int) -> dict[str, list[str]]:
    """Return queries about people by kind. Two thirds of them are professions and activities."""
    kinds = {kind: listed for kind, listed in queries().items() if kind != NO_PERSON}
    chosen = {}
    for kind, listed in kinds.items():
        n = max(1, most // 3 if kind in KINDS else most // 3 // (len(kinds) - len(KINDS)))
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


def timed(vectors: int) -> TaskResult:
    """Return the time of a search, divided by that of a bare call of a flat index or of HNSW."""
    result = TaskResult(TaskProvenance(task="time", description="one search, one thread"))
    torch.set_num_threads(1)
    found = mixtures(photos(), vectors, 0.5, 0.0, seed=2)
    index = Index(small_model().images(found.before), found.labels, np.empty(0))
    table = texts()
    queries_of_index = vldebias.debias_queries(
        dict(table), "gender", method="none", reference=index.vectors[::20]
    )
    (text, *_) = with_fewer_queries(3)["professions"]
    for name, call in calls(index.vectors).items():
        for k in FIRST:
            seconds = medians(
                {
                    "bare": partial(call, table[text], k),
                    "search": partial(queries_of_index.search, call, text, k),
                },
                REPETITIONS,
                time.process_time,
            )
            ratio = seconds["search"] / seconds["bare"]
            result.add(RATIO, name, ratio, n={"vectors": vectors}, subset=f"k = {k}")
    return result


def calls(vectors: Floats) -> dict[str, index_search.IndexCall]:
    """Return functions that search the vectors, by the kind of index."""
    if importlib.util.find_spec("faiss") is None:
        rows = torch.from_numpy(vectors)

        def by_torch(vector: NDArray[Any], n: int) -> tuple[Rows, Floats, Floats]:
            scores, best = (rows @ torch.from_numpy(vector)).topk(n)
            return best.numpy(), scores.numpy(), vectors[best.numpy()]

        return {"flat, torch": by_torch}
    import faiss

    faiss.omp_set_num_threads(1)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    hnsw = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    found = {}
    for name, index in (("flat, faiss", flat), ("HNSW, faiss", hnsw)):
        index.add(vectors)

        def by_faiss(vector: NDArray[Any], n: int, index: Any = index) -> tuple[Any, Any, Any]:
            scores, best = index.search(vector[None], n)
            is_found = best[0] >= 0
            rows = best[0][is_found]
            return rows, scores[0][is_found], index.reconstruct_batch(rows)

        found[name] = by_faiss
    return found


def measure(vectors: int, most: int) -> Iterator[TaskResult]:
    """Yield the results for every index."""
    for name, index, attribute in indexes(vectors):
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)
            part = measured(name, index, attribute, with_fewer_queries(most), FIRST)
        part.provenance.settings["seconds"] = round(time.process_time() - begin, 1)
        yield part
    yield timed(vectors)


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
