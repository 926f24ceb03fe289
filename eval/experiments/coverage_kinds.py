"""Measure by simulation how often the other 95% intervals in reports contain the true value.

python -m eval.experiments.coverage kinds --json eval/results/coverage_kinds.json   # three minutes
python -m eval.experiments.coverage kinds --sets 100                # a quick test
python -m eval.experiments.coverage large --json eval/results/coverage_large.json   # larger sizes

Data sets are sampled from a known distribution, and the package's own code computes the intervals.
If there is no formula for the true value, the mean over all data sets is used, which is the
expected value of such a measurement and, for a gap, depends on the number of images. "Usual" sizes
are 20 prompts with 20 images, galleries of 400 images, 1,000 images for areas under the curve, 400
for probes, and calibrations with 50 prompts. "Large" sizes, which are a separate part, show how
many prompts or images are needed for means over prompts, rankings and probes. Changes are relative
to "none" on the same images, or between two runs on different images.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from unittest.mock import patch

import numpy as np
import torch

from eval.experiments.coverage_shares import COVERAGE, WIDTH, simulated
from vldebias.auditing.line import ShareLine
from vldebias.data import Labels
from vldebias.measure.classification import agreement, worst_areas
from vldebias.measure.kept import hits_of_value, resampled_kept_shares
from vldebias.measure.rankings import reach
from vldebias.measure.resampling import Interval, recentred_interval, wilson_interval
from vldebias.measure.shares import independent
from vldebias.report.result import NONE, TaskProvenance, TaskResult
from vldebias.study import diagnosis
from vldebias.study.shares.rows import ShareRows
from vldebias.study.tasks.retrieval import Gallery

AFTER = "after"
SMALL, USUAL, LARGE = SIZES = ("small", "usual", "large")
RESAMPLES = 200
# Rankings are resampled for each query, and a probe is fitted on each data set.
SLOW = {"ranking": 4, "hits kept": 4, "probe": 10}
Found = Mapping[str, tuple[float, float, float]]  # (value, low, high) of each figure


@dataclass(frozen=True)
class Case:
    """A kind of interval in one setting.

    Attributes:
        draw: A function that samples a data set and returns its intervals.
        truth: The true value of each figure for which there is a formula.
        size: One of `SIZES`.
    """

    kind: str
    name: str
    n: str
    draw: Callable[[np.random.Generator], Found]
    truth: Mapping[str, float]
    size: str


def figures_of(result: TaskResult) -> dict[str, tuple[float, float, float]]:
    """Return the figures for both methods and the change between them, by name."""
    intervals = {}
    for row in result.rows:
        if row.method == NONE:
            intervals[row.metric] = (row.value, *row.interval)
        elif row.change is not None:
            intervals[f"change of {row.metric}"] = row.change
    return intervals


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
    result = TaskResult(TaskProvenance(task="drawn", description=""))
    rows = ShareRows(result, names, counts, range(prompts), resamples=RESAMPLES, seed=seed_of(rng))
    with patch("vldebias.study.shares.rows.GAPS", ()):  # chance levels do not have intervals
        rows.add_gaps()
    rows.add_means("share", {method: part[:, 0] for method, part in rows.shares.items()})
    figures = figures_of(result)
    del figures["discrepancy_deviation"]
    return figures


def seed_of(rng: np.random.Generator) -> int:
    """Return a seed for a named case."""
    return int(rng.integers(1 << 31))


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
        """Return the figures for rankings, as means over the queries."""
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

    def kept(self, rng: np.random.Generator) -> Found:
        """Return the share of each group's top hits that the method keeps."""
        group, scores = self.images(rng)
        first = hits_of_value(self.k, 2)
        # A query's lean shifts all images in a group equally, so a different part of the query is
        # edited.
        moved = scores[NONE] + 0.5 * rng.normal(size=(QUERIES, self.n))
        values, draws = [], []
        for code in (0, 1):
            rows = np.flatnonzero(group == code)
            if len(rows) <= first:
                continue
            for query in range(QUERIES):
                length = reach(first, len(rows))
                before = np.argsort(-scores[NONE][query, rows], kind="stable")[:length]
                after = np.argsort(-moved[query, rows], kind="stable")[:length]
                values.append(len(np.intersect1d(before[:first], after[:first])) / first)
                drawn = resampled_kept_shares(
                    before, {AFTER: after}, first, len(rows), RESAMPLES // 3, 7 * code
                )
                draws.append(drawn[AFTER])
        mean = float(np.mean(values))
        return {"kept": (mean, *recentred_interval(mean, np.mean(draws, axis=0)))}


def over_queries(rng: np.random.Generator, queries: int) -> Found:
    """Resample queries with individual MaxSkew values, as in a protocol with many queries."""
    values = {NONE: rng.gamma(2.0, 0.2, size=queries)}
    values[AFTER] = values[NONE] * rng.uniform(0.2, 0.8, size=queries)
    result = TaskResult(TaskProvenance(task="drawn", description=""))
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
            yield Case("hits kept", name, images, searches.kept, {}, size)
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
    result = TaskResult(TaskProvenance(task="drawn", description=""))
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


# ---- audit, two runs
# -----------------------------------------------------------------------------------------------


def audit(
    rng: np.random.Generator, prompts: int, images: int, slope: float, middle: float
) -> Found:
    """Sample prompts whose shares depend on their lean, including one to predict."""
    lean = rng.normal(size=prompts + 1)
    logit = middle + slope * lean + 0.6 * rng.normal(size=prompts + 1)
    share = rng.binomial(images, 1 / (1 + np.exp(-logit))) / images
    line = ShareLine(lean[:-1], share[:-1])
    low, high = line.interval(lean[-1:])
    # The true value of a prediction differs between data sets, so the interval is shifted by it.
    truth = float(share[-1])
    return {"predicted share": (0.0, float(low[0]) - truth, float(high[0]) - truth)}


def two_runs(rng: np.random.Generator, n: int, before: float, after: float) -> Found:
    """Sample two runs with different images, and compare a share between them."""
    intervals = []
    for share in (before, after):
        hits = int(rng.binomial(n, share))
        intervals.append(Interval(hits / n, *wilson_interval(hits, n)))
    return {"change between runs": independent(intervals[1], intervals[0])}


def audit_cases() -> Iterator[Case]:
    settings = {
        "shares about even": (1.0, 0.0),
        "shares near 0": (1.0, -3.0),
        "texts say nothing": (0.0, 0.0),
    }
    for name, (slope, middle) in settings.items():
        for prompts, size in ((20, SMALL), (50, USUAL)):
            draw = partial(audit, prompts=prompts, images=12, slope=slope, middle=middle)
            truth = {"predicted share": 0.0}
            yield Case("prediction of the audit", name, f"{prompts} prompts", draw, truth, size)
    for name, (before, after) in {"middle": (0.7, 0.5), "near 1": (0.98, 0.99)}.items():
        for n, size in ((50, SMALL), (400, USUAL)):
            draw = partial(two_runs, n=n, before=before, after=after)
            truth = {"change between runs": after - before}
            yield Case("two runs", name, f"{n} images each", draw, truth, size)


FAMILIES = (prompt_cases, search_cases, reader_cases, audit_cases)


def simulate(case: Case, sets: int, seed: int) -> dict[str, tuple[float, float]]:
    """Return the coverage and mean width of each figure over `sets` data sets."""
    rng = np.random.default_rng(seed)
    drawn = defaultdict[str, list[tuple[float, float, float]]](list)
    for _ in range(sets):
        for name, figures in case.draw(rng).items():
            drawn[name].append(figures)
    intervals = {}
    for name, rows in drawn.items():
        values, low, high = np.array(rows).T
        true = case.truth.get(name, float(values.mean()))
        held = (low <= true + 1e-9) & (true <= high + 1e-9)
        intervals[name] = (float(held.mean()), float((high - low).mean()))
    return intervals


ABOUT = "How often intervals of data sets from a known truth hold it."


def measure(sets: int, sizes: Collection[str] = (SMALL, USUAL)) -> Iterator[TaskResult]:
    """Yield a task for each kind of interval, with a subset for each setting and size."""
    done: dict[str, TaskResult] = {}
    for cases in FAMILIES:
        for place, case in enumerate(cases()):
            if case.size not in sizes:
                continue
            if case.kind not in done:
                settings = {"level": 0.95, "resamples": RESAMPLES, "usual": []}
                done[case.kind] = simulated(case.kind, ABOUT, sets, settings)
            result = done[case.kind]
            subset = f"{case.name}; {case.n}"
            if case.size == USUAL:
                result.provenance.settings["usual"].append(subset)
            times = sets // SLOW.get(case.kind, 1)
            n = {"data sets": times}
            for name, (covered, width) in simulate(case, times, 100 + place).items():
                ends = wilson_interval(round(covered * times), times)
                result.add(COVERAGE, name, covered, ends, n=n, subset=subset)
                result.add(WIDTH, name, width, n=n, subset=subset)
    yield from done.values()
