"""Measure the coverage of intervals for shares, gaps and MaxSkew despite judge errors.

    python -m eval.experiments.coverage_shares --json eval/results/coverage_shares.json
    python -m eval.experiments.coverage_shares --sets 100     # a quick test

The first command takes about four minutes on one core.

"counted" has n images with known values, as counted by a perfect judge, and four times as many data
sets. "corrected" has 1,000 images, a judge that assigns the first value to a third of the images
with the second value, and annotators who label n random images. 3% of the images do not show a
value. Coverage for shares is that of the value with the lowest coverage. "gallery" is the MaxSkew
of the top fifth of n images, averaged over 8 queries that prefer random groups. The groups have the
shares of the task, and the true value is the mean over 2,000 galleries of the same size.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import numpy as np

from eval.tables import parser, run
from vldebias.data import Labels
from vldebias.errors import SuspectInputWarning
from vldebias.measure.resampling import recentred_interval, wilson_interval
from vldebias.measure.shares import NOT_LABELLED, discrepancies, log_skew, shares_radius
from vldebias.metrics import Metric, corrected_shares
from vldebias.report.result import TaskProvenance, TaskResult
from vldebias.study.tasks.retrieval import Gallery

TRUTH = {
    "2 values, even": (0.5, 0.5),
    "2 values, skewed": (0.95, 0.05),
    "5 values, even": (0.2,) * 5,
    "5 values, skewed": (0.6, 0.2, 0.1, 0.07, 0.03),
}
LABELS, IMAGES, UNKNOWN, RIGHT = (30, 100, 300), 1000, 0.03, 0.8
GALLERIES, QUERIES, LEAN, TRUTHS = (100, 400), 8, 0.3, 2000
COVERAGE = Metric(
    "coverage", "share of data sets whose interval holds the truth", "fact", "neither", (0.0, 1.0)
)
WIDTH = Metric("width", "mean width of the intervals", "fact", "neither")
GAP, SKEW = "parity gap", "MaxSkew"
Bounds = tuple[float, float]
Found = dict[
    str, Bounds
]  # the intervals for the share of each value, for the gap from even shares, and for MaxSkew


def counted(truth: np.ndarray, n: int, rng: np.random.Generator) -> Found:
    """Return intervals for n images with known values."""
    counts = rng.multinomial(n, truth)
    gap, reach = (
        float(discrepancies(counts[None])[0]),
        float(shares_radius(counts[None], resamples=1000)[0]),
    )
    intervals: Found = {f"share {i}": wilson_interval(int(c), n) for i, c in enumerate(counts)}
    return intervals | {GAP: (gap - reach, gap + reach), SKEW: log_skew(counts / n, reach)[1:]}


def corrected(truth: np.ndarray, n: int, rng: np.random.Generator) -> Found:
    """Return intervals based on a judge's answers for many images and n human labels."""
    k = len(truth)
    judge = np.full((k + 1, k + 1), (1 - RIGHT) / k)
    np.fill_diagonal(judge, RIGHT)
    judge[1] = 0
    judge[1, [0, 1, k]] = 1 / 3, 0.6, 2 / 3 - 0.6
    shown = rng.choice(k + 1, size=IMAGES, p=[*(truth * (1 - UNKNOWN)), UNKNOWN])
    judged = np.minimum((rng.random(IMAGES)[:, None] > judge.cumsum(1)[shown]).sum(1), k)
    people, labelled_rows = np.full(IMAGES, NOT_LABELLED), rng.choice(IMAGES, n, replace=False)
    people[labelled_rows] = shown[labelled_rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspectInputWarning)
        estimates = corrected_shares(
            judged, people, k + 1, resamples=1000, seed=int(rng.integers(1 << 30))
        )
    names = [*(f"share {i}" for i in range(k)), GAP, SKEW]
    return {
        name: (figure.low, figure.high)
        for name, figure in zip(names, estimates.figures(k), strict=True)
    }


class Population:
    """Galleries with given group shares, and queries that lean to random groups."""

    def __init__(self, truth: np.ndarray, n: int, lean: float = LEAN) -> None:
        self.truth, self.n, self.k = truth, n, n // 5
        self.leans = lean * np.random.default_rng(5).normal(size=(QUERIES, len(truth)))

    def open(self, rng: np.random.Generator, resamples: int) -> tuple[Gallery, np.ndarray]:
        """Sample a gallery with images from all groups, and return it with the rankings (q, n)."""
        group = rng.choice(len(self.truth), size=self.n, p=self.truth)
        while len(np.unique(group)) < len(self.truth):
            group = rng.choice(len(self.truth), size=self.n, p=self.truth)
        scores = (
            self.leans[:, group]
            + 0.7 * rng.normal(size=self.n)
            + rng.normal(size=(QUERIES, self.n))
        )
        labels = Labels(group, tuple(map(str, range(len(self.truth)))))
        gallery = Gallery(labels, [self.k], resamples=resamples, seed=int(rng.integers(1 << 31)))
        return gallery, np.argsort(-scores, axis=1, kind="stable")

    def value(self, gallery: Gallery, ranked: np.ndarray) -> float:
        """Return the mean MaxSkew over queries."""
        return float(gallery.skews({"none": ranked})["none"][f"max_skew@{self.k}"][:, 0].mean())

    def interval(self, rng: np.random.Generator) -> Bounds:
        """Return the interval over images in a new gallery."""
        gallery, ranked = self.open(rng, 500)
        drawn = gallery.skews({"none": ranked})["none"][f"max_skew@{self.k}"].mean(axis=0)
        return recentred_interval(float(drawn[0]), drawn[1:])


def simulated(task: str, description: str, sets: int, settings: Mapping[str, object]) -> TaskResult:
    """Return an empty result for a task with simulated data sets."""
    provenance = TaskProvenance(
        task=task,
        description=description,
        model="none",
        split="simulated",
        seeds=[0],
        n={"data sets": sets},
        settings=dict(settings),
    )
    return TaskResult(provenance)


def measure(sets: int) -> Iterator[TaskResult]:
    """Yield a task for each distribution, with a method for each estimator and size."""
    for name, shares in TRUTH.items():
        truth = np.array(shares)
        gap, skew = (
            float(np.linalg.norm(truth - 1 / len(truth))),
            float(np.log(truth.max() * len(truth))),
        )
        settings = {"shares": list(shares), "unknown": UNKNOWN, "judge right": RIGHT, "level": 0.95}
        settings |= {"queries": QUERIES, "lean": LEAN, "k": "a fifth of the gallery"}
        description = "How often intervals of data sets that are drawn from a known truth hold it."
        done = simulated(name, description, sets, settings)
        for way, draw in (("counted", counted), ("corrected", corrected)):
            images = truth if way == "counted" else truth * (1 - UNKNOWN)
            true = {f"share {i}": share for i, share in enumerate(images.tolist())} | {
                GAP: gap,
                SKEW: skew,
            }
            for n in LABELS:
                rng, times = np.random.default_rng(n), 4 * sets if way == "counted" else sets
                drawn = [draw(truth, n, rng) for _ in range(times)]
                add(
                    done,
                    f"{way}, {n} labels",
                    {of: [one[of] for one in drawn] for of in drawn[0]},
                    true,
                )
        for n in GALLERIES:
            population, rng = Population(truth, n), np.random.default_rng(n)
            true = {
                SKEW: float(
                    np.mean([population.value(*population.open(rng, 1)) for _ in range(TRUTHS)])
                )
            }
            add(
                done,
                f"gallery of {n}",
                {SKEW: [population.interval(rng) for _ in range(2 * sets)]},
                true,
            )
        yield done


def add(
    done: TaskResult, method: str, intervals: dict[str, list[Bounds]], true: dict[str, float]
) -> None:
    """Add rows for coverage and mean width, using the lowest coverage of any value for shares."""
    cells: dict[str, list[tuple[float, float]]] = {}
    for name, ends in intervals.items():
        low, high = np.array(ends).T
        held = float(((low <= true[name] + 1e-9) & (true[name] <= high + 1e-9)).mean())
        width = float((high - np.maximum(low, 0)).mean())
        cells.setdefault("share" if name.startswith("share") else name, []).append((held, width))
    for subset, rows in cells.items():
        covered, width = (
            min(held for held, _ in rows),
            float(np.mean([width for _, width in rows])),
        )
        times = len(next(iter(intervals.values())))
        n = {"data sets": times}
        done.add(
            COVERAGE,
            method,
            covered,
            wilson_interval(round(covered * times), times),
            n=n,
            subset=subset,
        )
        done.add(WIDTH, method, width, subset=subset, n=n)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sets", type=int, default=500, help="data sets per setting")
    args = options.parse_args()
    run("coverage_shares", lambda: measure(args.sets), args.json)


if __name__ == "__main__":
    main()
