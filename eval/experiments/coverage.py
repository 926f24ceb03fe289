"""Measure by simulation how often 95% intervals contain the true value, and verdicts are right.

python -m eval.experiments.coverage --json eval/results/coverage.json             # an hour
python -m eval.experiments.coverage --sets 100                                    # a quick test
python -m eval.experiments.coverage verdicts --json eval/results/coverage_verdicts.json

Data sets are sampled from a known distribution, and the package's own code computes the intervals.
If there is no formula for the true value, the mean over all data sets is used, which is the
expected value of such a measurement and, for a gap, depends on the number of images. "Usual" sizes
are 20 prompts with 20 images, galleries of 400 images, 1,000 images for areas under the curve, 400
for probes, calibrations with 50 prompts, 99 images per group, 200 edits of 20 people or one edit of
each of 100 people, and captions of 200 images for each gender. "Large" sizes show how many
prompts or images are needed for means over prompts, rankings and probes. Changes are relative to
"none" on the same images, or between two runs on different images.

Verdicts are simulated for 20 professions with 20 images each, whose shares vary as in the
miniature, 51 queries over a gallery, and the four groups of the miniature's birds. For "no effect",
both sides have the same distribution. "As in README" uses the effects at the beginning of the
README, and "a fifth of it" a fifth of these, also with the sample size of a pilot study, for which
verdicts are "too few to tell". The number of units that this verdict recommends is simulated too.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from unittest.mock import patch

import numpy as np
import torch

from apps.captions.rows import AnswerRows
from apps.diagnose import diagnosis
from apps.edits.edits import interval_over_people
from eval.tables import add_share, parser, run
from vldebias.data import Labels
from vldebias.errors import SuspectInputWarning
from vldebias.measure.classification import agreement, interval_of, worst_areas
from vldebias.measure.metric import Metric, computed
from vldebias.measure.rankings import reach
from vldebias.measure.resampling import (
    Interval,
    recentred_interval,
    resampled_counts,
    wilson_interval,
)
from vldebias.measure.retained import hits_of_value, resampled_shared, shared
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.measure.shares import (
    NOT_LABELLED,
    discrepancies,
    independent,
    log_skew,
    shares_radius,
)
from vldebias.metrics import corrected_shares
from vldebias.report.result import Result
from vldebias.report.table import SQUARED, readable
from vldebias.reranking import Candidates, quota, true_shares
from vldebias.study.tasks.retrieval import Gallery
from vldebias.study.tasks.share_rows import ShareRows

AFTER = "after"
SMALL, USUAL, LARGE = "small", "usual", "large"
RESAMPLES = 200
# Rankings are resampled for each query, and a probe is fitted on each data set.
SLOW = {
    "ranking": 4,
    "retained hits": 4,
    "probe": 10,
    "shares, corrected": 2,
    "re-ranked shares": 2,
}
COVERAGE = Metric(
    "coverage", "share of data sets whose interval holds the truth", "fact", "neither", (0.0, 1.0)
)
Found = Mapping[str, tuple[float, float, float]]  # (value, low, high) of each metric


@dataclass(frozen=True)
class Case:
    """A kind of interval in one setting.

    Attributes:
        draw: A function that samples a data set and returns its intervals.
        truth: The true value of each metric for which there is a formula.
        size: SMALL, USUAL or LARGE.
    """

    kind: str
    name: str
    n: str
    draw: Callable[[np.random.Generator], Found]
    truth: Mapping[str, float]
    size: str


def figures_of(result: TaskResult) -> dict[str, tuple[float, float, float]]:
    """Return the numbers for both methods and the change between them, by name."""
    intervals = {}
    for row in result.rows:
        if row.method == NONE:
            intervals[row.metric] = (row.value, *row.interval)
        elif row.change is not None:
            intervals[f"change of {row.metric}"] = row.change
    return intervals


def seed_of(rng: np.random.Generator) -> int:
    """Sample a seed."""
    return int(rng.integers(1 << 31))


def drawn_task() -> TaskResult:
    """Return an empty task."""
    return TaskResult(TaskProvenance(task="drawn", description=""))


# ---- groups of images, classified correctly or not
# -----------------------------------------------------------------------------------------------

Accuracies = tuple[float, ...]
# The number of images, the sizes of the groups, and their accuracies with and without a method. The
# worst group is clear in the first four settings and tied in the next three. The last three have
# few images or accuracies near 0 or 1.
GROUPS: dict[str, tuple[int, Accuracies, Accuracies, Accuracies]] = {
    "one worst group, sizes of Waterbirds": (
        5794,
        (2255, 2255, 642, 642),
        (0.9, 0.75, 0.39, 0.85),
        (0.85, 0.8, 0.7, 0.8),
    ),
    "one small worst group, sizes of CelebA": (
        19962,
        (9767, 7535, 2480, 180),
        (0.85, 0.83, 0.9, 0.73),
        (0.86, 0.88, 0.9, 0.77),
    ),
    "one worst group of 60 images": (
        400,
        (110, 110, 120, 60),
        (0.9, 0.85, 0.9, 0.4),
        (0.9, 0.85, 0.85, 0.6),
    ),
    "another worst group with the method": (
        4000,
        (1, 1, 1, 1),
        (0.8, 0.85, 0.3, 0.8),
        (0.6, 0.8, 0.75, 0.8),
    ),
    "two groups tied": (1000, (1, 1), (0.6,) * 2, (0.7,) * 2),
    "fourteen groups tied": (1400, (1,) * 14, (0.6,) * 14, (0.7,) * 14),
    "two groups 0.03 apart": (1000, (1, 1), (0.6, 0.63), (0.7, 0.73)),
    "a worst group of 10 images": (
        400,
        (130, 130, 130, 10),
        (0.9, 0.85, 0.9, 0.4),
        (0.9, 0.85, 0.9, 0.6),
    ),
    "worst accuracy 0.005, of 100 images": (
        500,
        (150, 150, 100, 100),
        (0.9, 0.85, 0.9, 0.005),
        (0.9, 0.85, 0.9, 0.005),
    ),
    "all groups near 1": (800, (1,) * 4, (0.99,) * 4, (0.995,) * 4),
}
TOGETHER = 0.6  # from 0, if being correct with and without the method is independent, to 1


def pairs_of_answers(before: Accuracies, after: Accuracies) -> np.ndarray:
    """Return the probabilities (g, 2, 2) of (correct without, correct with) in each group."""
    a, b = np.array(before), np.array(after)
    both = TOGETHER * np.minimum(a, b) + (1 - TOGETHER) * a * b
    return np.stack([1 - a - b + both, b - both, a - both, both], axis=-1).reshape(-1, 2, 2)


def of_groups(rng: np.random.Generator, n: int, cells: np.ndarray) -> Found:
    """Sample n images, at least one in each group, and return the intervals over groups."""
    counts = np.zeros_like(cells)
    while not counts.sum((1, 2)).all():
        counts = rng.multinomial(n, cells.reshape(-1)).reshape(cells.shape)
    drawn = np.concatenate([*resampled_counts(counts, 3 * RESAMPLES, seed_of(rng))])
    intervals = {}
    for metric, statistic in computed("groups"):
        value, ends, change = interval_of(statistic, metric.interval, counts, drawn)
        intervals[metric.name] = (value, *ends)
        intervals[f"change of {metric.name}"] = change
    return intervals


def group_cases() -> Iterator[Case]:
    for name, (n, sizes, before, after) in GROUPS.items():
        weights = np.array(sizes) / sum(sizes)
        truth = {}
        averages = [float(weights @ np.array(accuracies)) for accuracies in (before, after)]
        worst = [min(before), min(after)]
        gaps = [average - low for average, low in zip(averages, worst, strict=True)]
        for metric, (old, new) in {"average": averages, "worst_group": worst, "gap": gaps}.items():
            truth |= {metric: new, f"change of {metric}": new - old}
        cells = pairs_of_answers(before, after) * weights[:, None, None]
        draw = partial(of_groups, n=n, cells=cells)
        size = USUAL if n * weights.min() >= 99 else SMALL
        yield Case("groups", name, f"{n:,} images", draw, truth, size)


# ---- shares, counted by a perfect judge or corrected with human labels
# -----------------------------------------------------------------------------------------------

SHARES = {
    "2 values, even": (0.5, 0.5),
    "2 values, skewed": (0.95, 0.05),
    "5 values, even": (0.2,) * 5,
    "5 values, skewed": (0.6, 0.2, 0.1, 0.07, 0.03),
}
IMAGES, UNKNOWN, RIGHT = 1000, 0.03, 0.8  # images, share without a value, the judge's accuracy


def counted(rng: np.random.Generator, n: int, shares: tuple[float, ...]) -> Found:
    """Sample n images with known values. "Share" is that of the last, rarest value."""
    counts = rng.multinomial(n, shares)
    gap = float(discrepancies(counts[None])[0])
    radius = float(shares_radius(counts[None], resamples=1000)[0])
    last = int(counts[-1])
    return {
        "share": (last / n, *wilson_interval(last, n)),
        "parity gap": (gap, gap - radius, gap + radius),
        "MaxSkew": log_skew(counts / n, radius),
    }


def corrected(rng: np.random.Generator, n: int, shares: tuple[float, ...]) -> Found:
    """Sample images with a judge's answers and n human labels.

    The judge assigns the first value to a third of the images with the second value.
    """
    k = len(shares)
    judge = np.full((k + 1, k + 1), (1 - RIGHT) / k)
    np.fill_diagonal(judge, RIGHT)
    judge[1] = 0
    judge[1, [0, 1, k]] = 1 / 3, 0.6, 2 / 3 - 0.6
    shown = rng.choice(k + 1, size=IMAGES, p=[*(np.array(shares) * (1 - UNKNOWN)), UNKNOWN])
    judged = np.minimum((rng.random(IMAGES)[:, None] > judge.cumsum(1)[shown]).sum(1), k)
    people = np.full(IMAGES, NOT_LABELLED)
    rows = rng.choice(IMAGES, n, replace=False)
    people[rows] = shown[rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspectInputWarning)
        estimates = corrected_shares(judged, people, k + 1, resamples=1000, seed=seed_of(rng))
    *_, last, gap, skew = estimates.figures(k)
    figures = {"share": last, "parity gap": gap, "MaxSkew": skew}
    return {name: (figure.value, figure.low, figure.high) for name, figure in figures.items()}


def share_cases() -> Iterator[Case]:
    for draw, known in ((counted, 1.0), (corrected, 1 - UNKNOWN)):
        for name, shares in SHARES.items():
            even = 1 / len(shares)
            truth = {
                "share": shares[-1] * known,
                "parity gap": float(np.linalg.norm(np.array(shares) - even)),
                "MaxSkew": float(np.log(max(shares) / even)),
            }
            for n, size in ((30, SMALL), (100, USUAL), (300, USUAL)):
                sample = partial(draw, n=n, shares=shares)
                yield Case(f"shares, {draw.__name__}", name, f"{n} labels", sample, truth, size)


# ---- generation: prompts with images
# -----------------------------------------------------------------------------------------------


def of_prompts(
    rng: np.random.Generator, prompts: int, images: int, shares: tuple[float, ...], spread: float
) -> Found:
    """Sample images for prompts with varying shares, with and without a method.

    The method halves the distance from even shares. `spread` is the concentration parameter of the
    Dirichlet distribution. The larger it is, the more similar are the prompts.
    """
    theirs = rng.dirichlet(spread * np.array(shares), size=prompts)
    even = np.full(len(shares), 1 / len(shares))
    counts = {}
    for method, truth in {NONE: theirs, AFTER: (theirs + even) / 2}.items():
        known = rng.multinomial(images, truth)
        counts[method] = np.concatenate([known, np.zeros((prompts, 1))], axis=1)
    names = [str(value) for value in range(len(shares))]
    result = drawn_task()
    rows = ShareRows(result, names, counts, range(prompts), resamples=RESAMPLES, seed=seed_of(rng))
    with patch("vldebias.study.tasks.share_rows.GAPS", ()):  # chance levels do not have intervals
        rows.add_gaps()
    rows.add_means("share", {method: part[:, 0] for method, part in rows.shares.items()})
    figures = figures_of(result)
    del figures["discrepancy_deviation"]
    return figures


def truth_of_prompts(shares: np.ndarray, spread: float) -> dict[str, float]:
    """Return the expected share of the first value and squared gap under a Dirichlet prior."""
    variance = (shares * (1 - shares)).sum() / (spread + 1)
    square = float(((shares - 1 / len(shares)) ** 2).sum() + variance)
    # The method halves all distances from even shares.
    return {
        "share": float(shares[0]),
        "discrepancy_squared": square,
        "change of discrepancy_squared": -0.75 * square,
    }


def prompt_cases() -> Iterator[Case]:
    settings = {
        "two values, even in the mean": ((0.5, 0.5), 2.0),
        "two values, .95 and .05": ((0.95, 0.05), 4.0),
        "five values, skewed": ((0.6, 0.2, 0.1, 0.07, 0.03), 6.0),
    }
    # Large sizes come last, because the seed of a case is its position.
    for sizes in (((8, 8, SMALL), (20, 20, USUAL)), ((50, 20, LARGE), (100, 20, LARGE))):
        for name, (shares, spread) in settings.items():
            for prompts, images, size in sizes:
                draw = partial(
                    of_prompts, prompts=prompts, images=images, shares=shares, spread=spread
                )
                n = f"{prompts} prompts, {images} images each"
                truth = truth_of_prompts(np.array(shares), spread)
                yield Case("means over prompts", name, n, draw, truth, size)


# ---- search
# -----------------------------------------------------------------------------------------------

LEAN, QUERIES = 0.6, 4


class Searches:
    """Galleries with two groups, and queries whose lean to a group is halved by a method."""

    def __init__(self, n: int, share: float) -> None:
        self.n, self.k = n, n // 10
        self.share = share
        self.leans = LEAN * np.random.default_rng(5).normal(size=(QUERIES, 2))

    def images(self, rng: np.random.Generator) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the groups (n,) in a gallery, and the scores (q, n) for each method."""
        group = (rng.random(self.n) < self.share).astype(np.int64)
        while len(np.unique(group)) < 2:
            group = (rng.random(self.n) < self.share).astype(np.int64)
        noise = 0.7 * rng.normal(size=self.n) + rng.normal(size=(QUERIES, self.n))
        lean = self.leans[:, group]
        return group, {NONE: noise + lean, AFTER: noise + lean / 2}

    def skews(self, rng: np.random.Generator) -> Found:
        """Return the results for rankings, as means over the queries."""
        group, scores = self.images(rng)
        gallery = Gallery(
            Labels(group, ("a", "b")), [self.k], resamples=RESAMPLES, seed=seed_of(rng)
        )
        ranked = {name: np.argsort(-of, axis=1, kind="stable") for name, of in scores.items()}
        drawn = gallery.skews(ranked)
        intervals = {}
        for metric in drawn[NONE]:
            means = {method: drawn[method][metric].mean(axis=0) for method in drawn}
            figure = metric.partition("@")[0]
            if figure.endswith("_dataset"):
                continue
            for name, values in (
                (figure, means[NONE]),
                (f"change of {figure}", means[AFTER] - means[NONE]),
            ):
                ends = recentred_interval(float(values[0]), values[1:])
                intervals[name] = (float(values[0]), *ends)
        return intervals

    def retained(self, rng: np.random.Generator) -> Found:
        """Return the share of each group's top hits that are among the method's results."""
        group, scores = self.images(rng)
        first = hits_of_value(self.k, 2)
        # A query's lean shifts all images in a group equally, so a different part of the query is
        # edited.
        moved = scores[NONE] + 0.5 * rng.normal(size=(QUERIES, self.n))
        values, draws = [], []
        for query in range(QUERIES):
            ranked = {
                name: np.argsort(-rows[query], kind="stable")
                for name, rows in ((NONE, scores[NONE]), (AFTER, moved))
            }
            before = ranked[NONE]
            hits = [before[group[before] == code] for code in (0, 1)]
            hits = [rows[: reach(first, len(rows))] for rows in hits if len(rows) > first]
            own = np.concatenate([rows[:first] for rows in hits])
            values.append(shared(own, ranked[AFTER][: self.k]))
            drawn = resampled_shared(
                hits, first, ranked, self.k, self.n, RESAMPLES // 3, 7, labels={}
            )
            draws.append(drawn[AFTER][0])
        mean = float(np.mean(values))
        return {"retained": (mean, *recentred_interval(mean, np.mean(draws, axis=0)))}


def over_queries(rng: np.random.Generator, queries: int) -> Found:
    """Resample queries with individual MaxSkew values, as in a protocol with many queries."""
    values = {NONE: rng.gamma(2.0, 0.2, size=queries)}
    values[AFTER] = values[NONE] * rng.uniform(0.2, 0.8, size=queries)
    result = drawn_task()
    result.add_resampled(
        "max_skew", values, n={"queries": queries}, resamples=RESAMPLES, seed=seed_of(rng)
    )
    return figures_of(result)


def search_cases() -> Iterator[Case]:
    groups = {"even groups": 0.5, "one in ten of a group": 0.1}
    for name, share in groups.items():
        for n, size in ((100, SMALL), (400, USUAL)):
            searches = Searches(n, share)
            images = f"{n} images, {QUERIES} queries, first {searches.k}"
            yield Case("ranking", name, images, searches.skews, {}, size)
            yield Case("retained hits", name, images, searches.retained, {}, size)
    truth = {"max_skew": 0.4, "change of max_skew": -0.2}
    for queries, size in ((10, SMALL), (51, USUAL), (100, LARGE)):
        draw = partial(over_queries, queries=queries)
        yield Case("ranking, over queries", "skewed", f"{queries} queries", draw, truth, size)
    # These come last, because the seed of a case is its position.
    for name, share in groups.items():
        for n in (1600, 6400):
            searches = Searches(n, share)
            images = f"{n} images, {QUERIES} queries, first {searches.k}"
            yield Case("ranking", name, images, searches.skews, {}, LARGE)


# ---- areas, agreement, probes
# -----------------------------------------------------------------------------------------------


def areas(rng: np.random.Generator, n: int, positive: float, apart: tuple[float, float]) -> Found:
    """Sample margins of two groups, with and without a method that reduces `apart` by a fifth."""
    group = np.arange(n) % 2
    is_positive = rng.random(n) < positive
    noise = rng.normal(size=n)
    means = np.array(apart)[group] * is_positive
    both = {NONE: noise + means, AFTER: 0.8 * noise + 0.6 * rng.normal(size=n) + 0.8 * means}
    values, draws, counts = worst_areas(
        both, is_positive, group, resamples=RESAMPLES, seed=seed_of(rng)
    )
    result = drawn_task()
    result.add_draws("worst_group_auc", values, draws, n=counts)
    return figures_of(result)


def answers(rng: np.random.Generator, units: int, right: float, share: float) -> Found:
    """Sample answers by three annotators who are right with some probability or else guess."""
    true = rng.random(units) < share
    labels = np.where(rng.random((3, units)) < right, true, rng.random((3, units)) < 0.5)
    if np.unique(labels).size < 2:
        return answers(rng, units, right, share)
    figure = agreement(labels.astype(int), resamples=RESAMPLES, seed=seed_of(rng))
    return {"alpha": tuple(figure.alpha), "percent agreement": tuple(figure.percent)}


def probes(rng: np.random.Generator, n: int, share: float, apart: float, reader: str) -> Found:
    """Sample features, the first of which depends on the image's value."""
    codes = (rng.random(n) < share).astype(np.int64)
    while np.bincount(codes, minlength=2).min() < 5:
        codes = (rng.random(n) < share).astype(np.int64)
    features = torch.from_numpy(rng.normal(size=(n, 16)))
    features[:, 0] += apart * torch.from_numpy(codes)
    # The result for permuted labels does not have an interval.
    with patch.object(diagnosis, "PERMUTATIONS", 2):
        probe = diagnosis.readable(features, codes, reader, seed=seed_of(rng), resamples=RESAMPLES)
    low, high = np.quantile(probe.draws, [0.025, 0.975]).tolist()
    return {f"{reader}_probe": (probe.accuracy, low, high)}


def reader_cases() -> Iterator[Case]:
    normal = NormalDist()
    settings = {
        "even classes": (0.5, (1.2, 1.0)),
        "one in ten positive": (0.1, (1.2, 1.0)),
        "area .99": (0.5, (3.6, 3.3)),
    }
    for name, (positive, apart) in settings.items():
        before = min(normal.cdf(delta / 2**0.5) for delta in apart)
        after = min(normal.cdf(0.8 * delta / 2**0.5) for delta in apart)
        truth = {"worst_group_auc": before, "change of worst_group_auc": after - before}
        for n, size in ((100, SMALL), (1000, USUAL)):
            draw = partial(areas, n=n, positive=positive, apart=apart)
            yield Case("area under the curve", name, f"{n:,} images", draw, truth, size)
    for name, (right, share) in {"even": (0.7, 0.5), "one in twenty": (0.9, 0.05)}.items():
        for units, size in ((50, SMALL), (300, USUAL)):
            draw = partial(answers, units=units, right=right, share=share)
            yield Case("agreement", name, f"{units} images, 3 people", draw, {}, size)
    for sizes in (((100, SMALL), (400, USUAL)), ((1600, LARGE), (6400, LARGE))):
        for name, (share, apart) in {"even": (0.5, 1.0), "one in ten": (0.1, 1.0)}.items():
            for n, size in sizes:
                readers = ["linear"]
                if n >= 400 and share == 0.5:
                    readers.append("neighbour")
                for reader in readers:
                    draw = partial(probes, n=n, share=share, apart=apart, reader=reader)
                    yield Case("probe", name, f"{n} images", draw, {}, size)


# ---- two runs
# -----------------------------------------------------------------------------------------------


def two_runs(rng: np.random.Generator, n: int, before: float, after: float) -> Found:
    """Sample two runs with different images, and compare a share between them."""
    intervals = []
    for share in (before, after):
        hits = int(rng.binomial(n, share))
        intervals.append(Interval(hits / n, *wilson_interval(hits, n)))
    return {"change between runs": independent(intervals[1], intervals[0])}


def run_cases() -> Iterator[Case]:
    for name, (before, after) in {"middle": (0.7, 0.5), "near 1": (0.98, 0.99)}.items():
        for n, size in ((50, SMALL), (400, USUAL)):
            draw = partial(two_runs, n=n, before=before, after=after)
            truth = {"change between runs": after - before}
            yield Case("two runs", name, f"{n} images each", draw, truth, size)


# ---- re-ranked lists
# -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reranked:
    """A list that a quota re-ranks by labels, and candidates whose true group is checked.

    Attributes:
        n: The number of candidates.
        shares: The shares of the groups.
        accuracy: The share of correct labels.
        lean: The number of standard deviations by which scores prefer the first group.
        k: The number of results.
        checked: The number of candidates to check.
        among_results: Whether to sample them from the results instead of all candidates.
    """

    n: int
    shares: tuple[float, ...]
    accuracy: float
    lean: float
    k: int
    checked: int
    among_results: bool

    def __str__(self) -> str:
        shares = "/".join(f"{share:.0%}" for share in self.shares)
        return (
            f"{self.n:,} candidates {shares}, labels right {self.accuracy:.0%},"
            f" lean {self.lean:g}, k {self.k}"
        )

    def draw(self, rng: np.random.Generator) -> Found:
        """Sample a list, and return the error of the first group's share with its interval."""
        g = len(self.shares)
        confusion = np.full((g, g), (1 - self.accuracy) / (g - 1))
        confusion[np.arange(g), np.arange(g)] = self.accuracy
        true = rng.choice(g, size=self.n, p=self.shares)
        labels = (rng.random(self.n)[:, None] > confusion.cumsum(axis=1)[true]).sum(axis=1)
        scores = rng.normal(size=self.n) + self.lean * (true == 0)
        names = [str(group) for group in range(g)]
        candidates = Candidates(scores, labels, names, np.full(g, 1 / g))
        first = quota(candidates, self.k)
        rows = rng.permutation(first if self.among_results else self.n)[: self.checked]
        checked = np.full(self.n, -1)
        checked[rows] = true[rows]
        expected = true_shares(candidates, first, checked, seed=seed_of(rng))
        assert expected is not None
        # The true share differs between lists, so the interval is shifted by it.
        truth = float((true[first] == 0).mean())
        value, low, high = expected[names[0]]
        return {"true share": (value - truth, low - truth, high - truth)}


EVEN = (0.5, 0.5)
RERANKED = (
    Reranked(1000, EVEN, 0.9, 0.0, 50, 30, True),
    Reranked(1000, EVEN, 0.9, 1.0, 50, 30, True),
    Reranked(1000, EVEN, 0.9, 1.0, 50, 100, False),
    Reranked(1000, EVEN, 0.9, 2.0, 50, 100, False),
    Reranked(1000, EVEN, 0.7, 1.0, 50, 100, False),
    Reranked(1000, (0.8, 0.2), 0.95, 1.0, 100, 30, True),
    Reranked(1000, (0.8, 0.2), 0.95, 1.0, 100, 100, False),
    Reranked(300, (0.7, 0.3), 0.9, 0.5, 20, 50, False),
    Reranked(1000, (0.4, 0.3, 0.2, 0.1), 0.8, 1.0, 50, 100, False),
    Reranked(1000, (0.4, 0.3, 0.2, 0.1), 0.8, 1.0, 50, 30, True),
)


def reranked_cases() -> Iterator[Case]:
    for setting in RERANKED:
        place = "results" if setting.among_results else "candidates"
        n = f"{setting.checked} {place} checked"
        truth = {"true share": 0.0}
        yield Case("re-ranked shares", str(setting), n, setting.draw, truth, USUAL)


# ---- edits of people, captions
# -----------------------------------------------------------------------------------------------


def edited(rng: np.random.Generator, people: int, each: int, rate: float, spread: float) -> Found:
    """Sample edits of people, whose own rates of a change vary unless `spread` is 0."""
    rates = np.full(people, rate)
    if spread:
        rates = rng.beta(rate * spread, (1 - rate) * spread, people)
    means = rng.binomial(each, rates) / each
    return {"changed": interval_over_people(means, is_share=True, n_edits=people * each)}


def captioned(rng: np.random.Generator, n: int, wrong: tuple[float, float]) -> Found:
    """Sample captions of n images of men and n of women, some of which state the other gender."""
    labels = np.repeat(["male", "female"], n)
    is_wrong = rng.random(2 * n) < np.repeat(wrong, n)
    said = np.where(is_wrong, labels[::-1], labels)
    rows = AnswerRows(drawn_task(), {NONE: said}, labels, ("male", "female"))
    with patch("apps.captions.rows.RESAMPLES", RESAMPLES):
        rows.add_clear(np.full(2 * n, ""))
    return {
        row.metric: (row.value, *row.interval)
        for row in rows.result.rows
        if row.metric in ("said_wrong", "said_gap") and not row.subset
    }


def stated_cases() -> Iterator[Case]:
    people = ((8, 5, SMALL), (20, 1, SMALL), (20, 10, USUAL), (40, 10, USUAL), (100, 1, USUAL))
    for rate, spread in ((0.05, 0), (0.02, 2), (0.1, 4), (0.3, 2)):
        vary = f", varies (beta, {spread})" if spread else ""
        for n, each, size in people:
            draw = partial(edited, people=n, each=each, rate=rate, spread=spread)
            name = f"rate {rate:g}{vary}"
            count = f"{n} people with {each} edits"
            yield Case("edits of people", name, count, draw, {"changed": rate}, size)
    for wrong in ((0.02, 0.14), (0.01, 0.01), (0.3, 0.5)):
        for n, size in ((20, SMALL), (200, USUAL)):
            draw = partial(captioned, n=n, wrong=wrong)
            truth = {"said_wrong": sum(wrong) / 2, "said_gap": wrong[1] - wrong[0]}
            name = f"wrong about {wrong[0]:g} of men, {wrong[1]:g} of women"
            yield Case("captions", name, f"{n} images of each", draw, truth, size)


FAMILIES = (
    group_cases,
    share_cases,
    prompt_cases,
    search_cases,
    reader_cases,
    run_cases,
    reranked_cases,
    stated_cases,
)


def simulate(case: Case, sets: int, seed: int) -> dict[str, float]:
    """Return the coverage of each metric over `sets` data sets."""
    rng = np.random.default_rng(seed)
    drawn = defaultdict[str, list[tuple[float, float, float]]](list)
    for _ in range(sets):
        for name, figures in case.draw(rng).items():
            drawn[name].append(figures)
    coverage = {}
    for name, rows in drawn.items():
        values, low, high = np.array(rows).T
        true = case.truth.get(name, float(values.mean()))
        coverage[name] = float(((low <= true + 1e-9) & (true <= high + 1e-9)).mean())
    return coverage


def measure(sets: int) -> Iterator[TaskResult]:
    """Yield a task for each kind of interval, with a subset for each setting and size."""
    done: dict[str, TaskResult] = {}
    for cases in FAMILIES:
        for place, case in enumerate(cases()):
            if case.kind not in done:
                settings = {"level": 0.95, "resamples": RESAMPLES, USUAL: [], LARGE: []}
                done[case.kind] = simulated(case.kind, sets, settings)
            result = done[case.kind]
            subset = f"{case.name}; {case.n}"
            if case.size != SMALL:
                result.provenance.settings[case.size].append(subset)
            times = sets // SLOW.get(case.kind, 1)
            for name, covered in simulate(case, times, 100 + place).items():
                hits = round(covered * times)
                add_share(result, COVERAGE, name, hits, {"data sets": times}, subset)
    yield from done.values()


def simulated(task: str, sets: int, settings: Mapping[str, object]) -> TaskResult:
    """Return an empty result for a task with simulated data sets."""
    provenance = TaskProvenance(
        task=task,
        description="Intervals or verdicts of data sets that are drawn from a known truth.",
        model="none",
        split="simulated",
        seeds=[0],
        n={"data sets": sets},
        settings=dict(settings),
    )
    return TaskResult(provenance)


# ---- verdicts
# -----------------------------------------------------------------------------------------------

VERDICT_RESAMPLES = 400
BLOCK = 100  # data sets per result
PROFESSIONS, EACH, PROTOCOL, BIRDS = 20, 20, 51, 375
LEADS = ("discrepancy", SQUARED, "max_skew@50", "worst_group")  # metrics with conclusions
VERDICTS = ("better", "worse", "no clear change", "too few to tell", "nothing to remove")
Draw = Callable[[np.random.Generator, int], TaskResult]


@dataclass(frozen=True)
class Scenario:
    """A measurement with its number of units and a function that samples it."""

    task: str
    name: str
    n: int
    draw: Draw


def people(rng: np.random.Generator, n: int, lean: float, after: float) -> TaskResult:
    """Sample images of n professions that lean to a value, with and without a method.

    `lean` and `after` are the standard deviations of the log odds with and without the method.
    """
    logit = rng.normal(size=n)
    counts = {}
    for method, spread in {NONE: lean, AFTER: after}.items():
        hits = rng.binomial(EACH, 1 / (1 + np.exp(-spread * logit)))
        counts[method] = np.stack([hits, EACH - hits, np.zeros(n, dtype=int)], axis=1)
    result = drawn_task()
    names = ("female", "male")
    rows = ShareRows(
        result,
        names,
        counts,
        range(n),
        noun="professions",
        resamples=VERDICT_RESAMPLES,
        seed=seed_of(rng),
    )
    rows.add_gaps()
    return result


def search(rng: np.random.Generator, n: int, factor: float) -> TaskResult:
    """Sample the noisy MaxSkew of n queries around 0.48, which a method multiplies by a factor."""
    values = {NONE: np.abs(0.48 + 0.19 * rng.normal(size=n))}
    values[AFTER] = np.abs(factor * values[NONE] + 0.12 * rng.normal(size=n))
    if factor == 1:
        # Both sides have noise of the same size, because a difference would be an effect.
        values[NONE] = np.abs(values[NONE] + 0.12 * rng.normal(size=n))
    result = drawn_task()
    result.add_resampled(
        "max_skew@50", values, n={"queries": n}, resamples=VERDICT_RESAMPLES, seed=seed_of(rng)
    )
    return result


def birds(
    rng: np.random.Generator, n: int, before: tuple[float, ...], after: tuple[float, ...]
) -> TaskResult:
    """Sample n images per group, with the given accuracies with and without a method."""
    cells = pairs_of_answers(before, after).reshape(-1, 4)
    counts = rng.multinomial(n, cells).reshape(-1, 2, 2)
    resampled = np.concatenate([*resampled_counts(counts, VERDICT_RESAMPLES, seed_of(rng))])
    result = drawn_task()
    # For "none", both sides are the images that are correct without a method.
    sides = {NONE: (unchanged(counts), unchanged(resampled)), AFTER: (counts, resampled)}
    units = {"images": 4 * n, "smallest group": n}
    for metric, statistic in computed("groups"):
        for method, both in sides.items():
            value, interval, change = interval_of(statistic, metric.interval, *both)
            result.add(metric.name, method, value, interval, n=units, change=change)
    return result


def unchanged(counts: np.ndarray) -> np.ndarray:
    """Return counts (..., 2, 2) for a method that classifies the same images correctly."""
    right = counts.sum(-1)
    table = np.zeros_like(counts)
    table[..., 0, 0] = right[..., 0]
    table[..., 1, 1] = right[..., 1]
    return table


OF_BIRDS = (0.97, 0.99, 0.21, 0.99)
# With this spread, the mean gap for 20 images is about 0.26, and its unbiased square is 0.08.
SPREAD = 0.95


def scenarios() -> Iterator[Scenario]:
    kinds: dict[str, tuple[int, dict[str, Draw]]] = {
        "generating people, gap from even shares": (
            PROFESSIONS,
            {
                "no effect": partial(people, lean=SPREAD, after=SPREAD),
                "as in README": partial(people, lean=SPREAD, after=0.0),
                "a fifth of it": partial(people, lean=SPREAD, after=0.85),
            },
        ),
        "searching photographs, MaxSkew@50": (
            PROTOCOL,
            {
                "no effect": partial(search, factor=1.0),
                "as in README": partial(search, factor=0.3),
                "a fifth of it": partial(search, factor=0.86),
            },
        ),
        "classifying birds, worst group": (
            BIRDS,
            {
                "no effect": partial(birds, before=OF_BIRDS, after=OF_BIRDS),
                "as in README": partial(birds, before=OF_BIRDS, after=(0.91, 0.99, 0.68, 0.99)),
                "a fifth of it": partial(birds, before=OF_BIRDS, after=(0.96, 0.99, 0.3, 0.99)),
            },
        ),
    }
    for task, (n, draws) in kinds.items():
        for name, draw in draws.items():
            yield Scenario(task, name, n, draw)
            if name != "as in README":
                # A pilot study has a quarter of the units.
                yield Scenario(task, f"{name}, a pilot", n // 4, draw)


def judged(
    scenario: Scenario, rng: np.random.Generator, n: int, sets: int
) -> tuple[list[str], list[int]]:
    """Return the verdicts for data sets with n units, and the recommended numbers of units."""
    verdicts, asked = [], []
    for start in range(0, sets, BLOCK):
        parts = []
        # Several data sets share one result, because building a data frame is slow.
        for number in range(start, min(start + BLOCK, sets)):
            part = scenario.draw(rng, n)
            part.provenance.task = f"data set {number}"
            part.rows = [row for row in part.rows if row.metric in LEADS]
            for row in part.rows:
                row.task = part.provenance.task
            parts.append(part)
        frame = readable(Result.from_tasks("drawn", parts, seconds=None))
        for row in frame[(frame.method == AFTER) & (frame.metric != SQUARED)].itertuples():
            verdicts.append(row.verdict)
            # Use the recommendation in the row, as conclusions do.
            if row.enough is not None:
                asked.append(row.enough)
    return verdicts, asked


def measure_verdicts(sets: int) -> Iterator[TaskResult]:
    """Yield a task for each measurement, with a method per scenario and a metric per verdict."""
    done: dict[str, TaskResult] = {}
    for place, scenario in enumerate(scenarios()):
        if scenario.task not in done:
            settings = {"resamples": VERDICT_RESAMPLES, "images each": EACH}
            done[scenario.task] = simulated(scenario.task, sets, settings)
        result = done[scenario.task]
        rng = np.random.default_rng(300 + place)
        verdicts, asked = judged(scenario, rng, scenario.n, sets)
        add_verdicts(result, scenario.name, verdicts, scenario.n)
        # Simulate the recommended number if many data sets recommend one and there is an effect.
        if len(asked) < sets / 4 or scenario.name.startswith("no effect"):
            continue
        enough = int(np.median(asked))
        tried, _ = judged(scenario, rng, enough, sets // 4)
        add_verdicts(result, f"{scenario.name}, with what would do", tried, enough)
    yield from done.values()


def add_verdicts(result: TaskResult, name: str, verdicts: list[str], units: int) -> None:
    """Add the share of data sets with each verdict."""
    counts = Counter(verdicts)
    times = len(verdicts)
    for verdict in VERDICTS:
        metric = Metric(verdict.replace(" ", "_"), verdict, "fact", "neither", (0.0, 1.0))
        n = {"data sets": times, "units": units}
        add_share(result, metric, name, counts[verdict], n)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("part", nargs="?", choices=["intervals", "verdicts"], default="intervals")
    options.add_argument("--sets", type=int, default=1000, help="data sets per setting")
    args = options.parse_args()
    if args.part == "verdicts":
        run("coverage_verdicts", lambda: measure_verdicts(args.sets), args.json)
    else:
        run("coverage", lambda: measure(args.sets), args.json)


if __name__ == "__main__":
    main()
