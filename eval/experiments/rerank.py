"""Compare editing queries with re-ranking results, on searches of photographs.

    python -m eval.experiments.rerank --json eval/results/rerank.json
    python -m eval.experiments.rerank --work DIR   # store each gallery, and resume after a break

The collections are those in $VLDEBIAS_REAL. Each gallery is searched with equally many images of
each value, and with one value thinned to 20% (for two values, each of them in turn), in several
draws. k is a twentieth of the gallery, and at least 10. MaxSkew is measured against the gallery's
own shares, and chance is a random ranking.

"left" is the skew above chance after a method, divided by that of the search. Skew below chance
counts as 0. There is no such ratio if the skew of the search is less than 0.02 above chance.
"retained" is the share of each value's own first hits that are among the first k, and "stay" the
share of the first k that stay. A kind of queries is worse if the 95% interval for the change in
its mean MaxSkew is above 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

import vldebias
from eval.experiments import embeddings
from eval.photographs import is_present
from eval.photographs.searches import LEFT, RETAINED, SKEW, STAY, Cell, celeba, photographs
from eval.tables import parser, run, stored
from vldebias.errors import VldebiasWarning
from vldebias.hosts.edits import TEXT
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.methods import Problem
from vldebias.metrics import Metric
from vldebias.projection.edit import Edit
from vldebias.study.tasks import images

RESAMPLES = 200
DRAWS = 4  # number of samples of the thinned value
QUERIES = 60  # number of queries per gallery, spread over all kinds
LEAST = 0.02  # minimum skew above chance of a search, for the share that is left
RANDOM = "random"
METHODS = {"query edit": "difference", "re-rank": "rerank"}
"""Title -> name in evaluations. "re-rank" is what `vldebias.rerank` does by default."""
FIGURES = {
    "left": LEFT,
    "retained": RETAINED,
    "stay": STAY,
    "kinds worse": Metric("kinds_worse", "kinds of queries that are surely worse", "fact", "lower"),
    "kinds": Metric("kinds", "kinds of queries"),
}
WORST = Metric("left_most", "the same in the worst gallery", "bias", "lower")


def cells() -> Iterator[Cell]:
    """Yield an even gallery for each collection and attribute."""
    if is_present("photos"):
        # Faces of one age or race, whose galleries are small, are left out.
        yield from (cell for cell in photographs(0) if not cell.name.startswith("faces, "))
    if is_present(embeddings.FILE):
        yield from celeba(0)


def with_fewer_queries(cell: Cell) -> Cell:
    """Return the cell with about `QUERIES` queries, equally many of each kind."""
    most = QUERIES // len(cell.kinds)
    kinds = {kind: listed[:: -(-len(listed) // most)] for kind, listed in cell.kinds.items()}
    return replace(cell, kinds=kinds)


def composed(cell: Cell) -> Iterator[tuple[str, Cell]]:
    """Yield an even gallery, and those in which one value has a share of 20%."""
    yield "even", cell
    rng = np.random.default_rng(0)
    values = np.unique(cell.labels)
    for value in values if len(values) == 2 else values[:1]:
        members = np.flatnonzero(cell.labels == value)
        size = len(members) * (len(values) - 1) // 4
        for draw in range(DRAWS):
            few = rng.permutation(members)[:size]
            rows = np.sort(np.concatenate([few, np.flatnonzero(cell.labels != value)]))
            yield f"20% {value}, draw {draw}", replace(cell, gallery=cell.gallery.take(rows))


def measured(cell: Cell, composition: str, fit: Callable[[], Edit]) -> TaskResult:
    """Return the results of each method in a gallery, given a function that fits the edit."""
    part = TaskResult(
        TaskProvenance(
            task=f"{cell.name}, {cell.column}, {composition}",
            description="MaxSkew and retained hits of the first k",
            settings={
                "k": cell.k,
                "attribute": cell.column,
                "composition": "even" if composition == "even" else "20 : 80",
            },
        )
    )
    fitted = {NONE: None, "difference": fit()}
    skews: dict[str, list[float]] = {}
    figures: dict[str, dict[str, list[float]]] = {}
    for listed in cell.kinds.values():
        # The edit only depends on the reference, so do not fit it again for every kind of queries.
        with patch.object(images, "fit_method", lambda *given, **_: fitted[given[2].name]):
            result = vldebias.evaluate(
                cell.table,
                cell.gallery.features,
                attribute={cell.column: cell.prompt_set},
                labels={cell.column: cell.labels},
                queries=listed,
                k=cell.k,
                methods=list(METHODS.values()),
                prior="dataset",
                resamples=RESAMPLES,
            )
        for row in result.rows:
            if row.metric == f"max_skew@{cell.k}" and row.subset:
                skews.setdefault(row.method, []).append(row.value)
            elif row.metric == f"max_skew@{cell.k}" and row.method == RANDOM:
                skews.setdefault(RANDOM, []).extend([row.value] * len(listed))
            elif row.metric == f"max_skew@{cell.k}" and row.change:
                found = figures.setdefault(row.method, {})
                found.setdefault("kinds worse", []).append(row.change[1] > 0)
            elif row.metric in (f"retained@{cell.k}", f"stay@{cell.k}") and not row.subset:
                found = figures.setdefault(row.method, {})
                name = row.metric.partition("@")[0]
                found.setdefault(name, []).extend([row.value] * len(listed))
    n = {"queries": len(skews[NONE]), "images": len(cell.gallery)}
    mean = {method: float(np.mean(values)) for method, values in skews.items()}
    above = mean[NONE] - mean[RANDOM]
    for method in (NONE, RANDOM):
        part.add(SKEW, method, mean[method], n=n)
    for title, name in METHODS.items():
        part.add(SKEW, title, mean[name], n=n)
        values = {
            "retained": np.mean(figures[name]["retained"]),
            "stay": np.mean(figures[name]["stay"]),
            "kinds worse": sum(figures[name]["kinds worse"]),
            "kinds": len(cell.kinds),
        }
        if above >= LEAST:
            values["left"] = max(mean[name] - mean[RANDOM], 0.0) / above
        for figure, value in values.items():
            part.add(FIGURES[figure], title, float(value), n=n)
    return part


def tallies(parts: Sequence[TaskResult]) -> Iterator[TaskResult]:
    """Yield the means over galleries, for each attribute and composition."""
    groups: dict[str, list[TaskResult]] = {}
    for part in parts:
        settings = part.provenance.settings
        name = f"collections, {settings['attribute']}, {settings['composition']}"
        groups.setdefault(name, []).append(part)
    for name, members in groups.items():
        tally = TaskResult(TaskProvenance(task=f"all: {name}", description="means over galleries"))
        n = {"galleries": len(members)}
        figures = [_figures(part) for part in members]
        for title in METHODS:
            for figure in ("retained", "stay"):
                values = [found[title, figure] for found in figures]
                tally.add(FIGURES[figure], title, float(np.mean(values)), n=n)
            for figure in ("kinds worse", "kinds"):
                total = sum(found[title, FIGURES[figure].name] for found in figures)
                tally.add(FIGURES[figure], title, total, n=n)
        for title in METHODS:
            left = [found[title, "left"] for found in figures if (title, "left") in found]
            if left:
                n_left = {"galleries": len(left)}
                tally.add(FIGURES["left"], title, float(np.mean(left)), n=n_left)
                tally.add(WORST, title, max(left), n=n_left)
        yield tally


def _figures(part: TaskResult) -> dict[tuple[str, str], float]:
    return {(row.method, row.metric): row.value for row in part.rows}


def measure(work: Path | None) -> Iterator[TaskResult]:
    """Yield the results for each gallery, and then the means.

    `work` is a folder that stores the results for each gallery.
    """
    parts = []
    for even in map(with_fewer_queries, cells()):
        problem = Problem(even.table, even.prompt_set, reference=even.reference.features)
        fit = cache(partial(problem.fit, "difference+equalise", TEXT))
        for composition, cell in composed(even):
            path = work and work / f"{cell.name}-{cell.column}-{composition}.json"
            part = stored(path, partial(measured, cell, composition, fit))
            parts.append(part)
            yield part
    yield from tallies(parts)


def main() -> None:
    """Measure every gallery."""
    options = parser(__doc__)
    options.add_argument("--work", type=Path, help="folder for finished galleries")
    args = options.parse_args()
    if args.work:
        args.work.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)
        run("rerank", lambda: measure(args.work), args.json)


if __name__ == "__main__":
    main()
