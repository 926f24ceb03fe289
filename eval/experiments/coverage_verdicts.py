"""Measure how often verdicts are wrong without an effect, and how often they detect real effects.

python -m eval.experiments.coverage verdicts --json eval/results/coverage_verdicts.json

The simulations cover 20 professions with 20 images each, whose shares vary as in the miniature, 51
queries over a gallery, and the four groups of the miniature's birds. For "no effect", both sides
have the same distribution. "as in README" uses the effects at the beginning of the README, and "a
fifth of it" a fifth of these with the sample size of a pilot study, for which verdicts are "too few
to tell". The number of units that this verdict recommends is also simulated, to measure how often
it is sufficient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from eval.experiments.coverage_kinds import AFTER, seed_of
from eval.experiments.coverage_shares import simulated
from vldebias.measure.classification import interval_of
from vldebias.measure.metric import computed
from vldebias.measure.resampling import resampled_counts, wilson_interval
from vldebias.metrics import Metric
from vldebias.report.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.report.table import SQUARED, readable
from vldebias.study.shares.rows import ShareRows

RESAMPLES = 400
BLOCK = 100  # data sets per result
PROFESSIONS, IMAGES, QUERIES, BIRDS = 20, 20, 51, 375
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


def drawn_task() -> TaskResult:
    """Return an empty task."""
    return TaskResult(TaskProvenance(task="drawn", description=""))


def people(rng: np.random.Generator, n: int, lean: float, after: float) -> TaskResult:
    """Sample images of n professions that lean to a value, with and without a method.

    `lean` and `after` are the standard deviations of the log odds without and with the method.
    """
    logit = rng.normal(size=n)
    counts = {}
    for method, spread in {NONE: lean, AFTER: after}.items():
        hits = rng.binomial(IMAGES, 1 / (1 + np.exp(-spread * logit)))
        counts[method] = np.stack([hits, IMAGES - hits, np.zeros(n, dtype=int)], axis=1)
    result = drawn_task()
    names = ("female", "male")
    rows = ShareRows(
        result, names, counts, range(n), noun="professions", resamples=RESAMPLES, seed=seed_of(rng)
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
        "max_skew@50", values, n={"queries": n}, resamples=RESAMPLES, seed=seed_of(rng)
    )
    return result


def birds(
    rng: np.random.Generator, n: int, before: tuple[float, ...], after: tuple[float, ...]
) -> TaskResult:
    """Sample n images per group, with the given accuracies without and with a method."""
    cells = []
    for a, b in zip(before, after, strict=True):
        # Images that are correct without a method are more likely to be correct with it.
        both = 0.6 * min(a, b) + 0.4 * a * b
        table = [1 - a - b + both, b - both, a - both, both]
        cells.append(rng.multinomial(n, table).reshape(2, 2))
    counts = np.stack(cells)
    resampled = np.concatenate([*resampled_counts(counts, RESAMPLES, seed_of(rng))])
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


GROUPS = (0.97, 0.99, 0.21, 0.99)
# With this spread, the mean gap for 20 images is about 0.26, and its unbiased square is 0.08.
LEAN = 0.95


def scenarios() -> Iterator[Scenario]:
    kinds: dict[str, tuple[int, dict[str, Draw]]] = {
        "generating people, gap from even shares": (
            PROFESSIONS,
            {
                "no effect": partial(people, lean=LEAN, after=LEAN),
                "as in README": partial(people, lean=LEAN, after=0.0),
                "a fifth of it": partial(people, lean=LEAN, after=0.85),
            },
        ),
        "searching photographs, MaxSkew@50": (
            QUERIES,
            {
                "no effect": partial(search, factor=1.0),
                "as in README": partial(search, factor=0.3),
                "a fifth of it": partial(search, factor=0.86),
            },
        ),
        "classifying birds, worst group": (
            BIRDS,
            {
                "no effect": partial(birds, before=GROUPS, after=GROUPS),
                "as in README": partial(birds, before=GROUPS, after=(0.91, 0.99, 0.68, 0.99)),
                "a fifth of it": partial(birds, before=GROUPS, after=(0.96, 0.99, 0.3, 0.99)),
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


def measure(sets: int) -> Iterator[TaskResult]:
    """Yield a task for each measurement, with a method per scenario and a metric per verdict."""
    done: dict[str, TaskResult] = {}
    for place, scenario in enumerate(scenarios()):
        if scenario.task not in done:
            settings = {"resamples": RESAMPLES, "images each": IMAGES}
            description = "Verdicts of data sets that are drawn from a known truth."
            done[scenario.task] = simulated(scenario.task, description, sets, settings)
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
        share = counts[verdict] / times
        ends = wilson_interval(counts[verdict], times)
        n = {"data sets": times, "units": units}
        result.add(metric, name, share, ends, n=n)
