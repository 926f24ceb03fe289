"""Intervals of retrieval skew: do they cover, and what does resampling along the ranking save?

python -m eval.benchmarks.skew                                      # print the tables
python -m eval.benchmarks.skew --json eval/results/bench_skew.json

Coverage. Galleries of n images are drawn from a made-up population: q queries score an image by its group (a lean of
the query to the group), a part that the queries share, and noise. The truth is the expected mean MaxSkew@k of a gallery
of n images, from many galleries. Counted is how often a 95 % interval over images holds it: as percentiles of the
resampled values, and re-centred as `vldebias.evaluation.retrieval` does. "limit" is MaxSkew@k of a gallery a
hundred times as large at the same k / n: what the interval is not about.

Time. One query's MaxSkew@k, MinSkew@k and NDKL@k on resampled galleries, along the ranking against a sort and three
calls for each resample, in CPU time on one thread; the ratio of two times from one run is what carries over.
"""

from __future__ import annotations

import argparse
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from eval.experiments.records import records
from vldebias.data import Labels
from vldebias.evaluation.result import Result
from vldebias.evaluation.retrieval import Gallery, SkewOptions
from vldebias.metrics import max_skew, min_skew, ndkl
from vldebias.metrics.bootstrap import recentred_interval as recentred
from vldebias.metrics.bootstrap import resampled_weights
from vldebias.metrics.rankings import rankings


@dataclass(frozen=True)
class Population:
    """Where galleries come from. lean: standard deviation of a query's lean to a group, in units of the noise."""

    name: str
    groups: int
    lean: float
    queries: int = 10
    images: int = 2000
    k: int = 200

    def gallery(self, rng: np.random.Generator, times: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Groups (n,) and scores (q, n) of a gallery, `times` as large as usual."""
        leans = np.random.default_rng(5).normal(size=(self.queries, self.groups)) * self.lean
        n = times * self.images
        group = rng.integers(self.groups, size=n)
        return group, leans[:, group] + 0.7 * rng.normal(size=n) + rng.normal(size=(self.queries, n))

    def open(self, rng: np.random.Generator, resamples: int, times: int = 1) -> tuple[Gallery, np.ndarray]:
        """A gallery and the rankings (q, n) of the queries on it."""
        group, scores = self.gallery(rng, times)
        labels = Labels(group, tuple(map(str, range(self.groups))))
        options = SkewOptions(k=times * self.k, resamples=resamples, seed=int(rng.integers(1 << 31)))
        return Gallery(labels, options), rankings(scores)

    def skews(self, rng: np.random.Generator, times: int = 1) -> np.ndarray:
        """MaxSkew of every query on a new gallery."""
        gallery, ranked = self.open(rng, 1, times)
        return gallery.values(ranked)[f"max_skew@{times * self.k}"]


POPULATIONS = (
    Population("two groups, skewed", 2, 0.5),
    Population("two groups, nearly fair", 2, 0.1),
    Population("two groups, fair", 2, 0.0),
    Population("seven groups, skewed", 7, 0.4),
    Population("seven groups, fair", 7, 0.0),
    Population("two groups, skewed, k = 20", 2, 0.5, queries=20, k=20),
)
TIMED = ((2000, 200, 2), (10_954, 1000, 7), (10_954, 1000, 126))  # images, k, groups


def coverage(population: Population, galleries: int, resamples: int = 400, truths: int = 1500) -> dict[str, Any]:
    """Share of 95 % intervals over images that hold the truth; excess: resampled mean minus value."""
    rng = np.random.default_rng(0)
    expected = np.mean([population.skews(rng) for _ in range(truths)], axis=0)
    limit = float(population.skews(rng, 100).mean())
    metric, held, excess, widths = f"max_skew@{population.k}", [], [], []
    for _ in range(galleries):
        gallery, ranked = population.open(rng, resamples)
        value = gallery.values(ranked)[metric]
        drawn = gallery.resampled({"none": ranked})["none"][metric]
        mean = drawn.mean(axis=0)
        own = recentred(float(value.mean()), mean)
        intervals = ((tuple(np.quantile(mean, [0.025, 0.975])), expected.mean()), (own, expected.mean()))
        first = (recentred(float(value[0]), drawn[0]), expected[0])
        held.append([low <= truth <= high for (low, high), truth in (*intervals, first)])
        excess.append(mean.mean() - value.mean())
        widths.append(own[1] - own[0])
    plain, moved, one = np.mean(held, axis=0).tolist()
    held_by = {"percentile": plain, "recentred": moved, "one_query": one, "width": float(np.mean(widths))}
    found = {"truth": float(expected.mean()), "limit": limit, "excess": float(np.mean(excess)), **held_by}
    return {"population": population.name, "galleries": galleries, **found}


def timing(images: int, k: int, groups: int, resamples: int = 100) -> dict[str, Any]:
    """CPU seconds per thousand resamples, both giving the same numbers up to `difference`."""
    rng = np.random.default_rng(0)
    scores, group = rng.normal(size=(1, images)), rng.integers(groups, size=images)
    gallery = Gallery(Labels(group, tuple(map(str, range(groups)))), SkewOptions(k=k, resamples=resamples))
    ranked = rankings(scores)
    floor = 1 / (2 * k)
    start = time.process_time()
    fast = gallery.resampled({"none": ranked})["none"]
    middle = time.process_time()
    slow = []
    for weights in np.concatenate(list(resampled_weights(images, resamples, 0))):
        rows = np.repeat(np.arange(images), weights)
        one = (scores[0, rows], group[rows], k)
        found = (max_skew(*one, n_groups=groups), min_skew(*one, floor=floor, n_groups=groups))
        slow.append((*found, ndkl(*one, n_groups=groups)))
    end = time.process_time()
    both = np.stack([fast[f"{metric}@{k}"][0] for metric in ("max_skew", "min_skew", "ndkl")], 1)
    along, sorting = (1000 * t / resamples for t in (middle - start, end - middle))
    found = {"along": along, "sorting": sorting, "ratio": sorting / along}
    return {"images": images, "k": k, "groups": groups, **found, "difference": float(np.abs(both - slow).max())}


def show(title: str, found: list[dict[str, Any]]) -> None:
    table = Table(*(name.replace("_", " ") for name in found[0]), title=title)
    for row in found:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--galleries", type=int, default=1000, help="simulated galleries (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    covered = [coverage(population, arguments.galleries) for population in POPULATIONS]
    show("95 % intervals over images, mean MaxSkew@k over queries", covered)
    timed = [timing(*sizes) for sizes in TIMED]
    show("CPU seconds per 1000 resamples of one query", timed)
    if arguments.json:
        settings = {"populations": [asdict(one) for one in POPULATIONS], "machine": platform.machine()}
        times = [{"what": "one query", **one} for one in timed]
        parts = [
            records("coverage", "95 % intervals over images, mean MaxSkew@k", covered, "population", **settings),
            records("time", "CPU seconds per 1000 resamples", times, "what", ("images", "k", "groups")),
        ]
        Result.of("bench_skew", parts, seconds=None).write(arguments.json)


if __name__ == "__main__":
    main()
