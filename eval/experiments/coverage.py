"""Measure by simulation how often the 95% intervals contain the true value.

python -m eval.experiments.coverage all --json eval/results   # all kinds of intervals, verdicts
python -m eval.experiments.coverage --sets 300                # only groups, for a quick test

This module simulates group accuracies. `shares`, `kinds` and `verdicts` are in modules with these
names, and `large` is in the module for `kinds`. A data set consists of n images in random groups.
Each image is classified correctly with and without a method with the probabilities of its group.
The true value for the worst group is the lowest accuracy over the groups, and the true gap is the
difference between the average and this value. Intervals that are expected to work in a setting must
contain the true value in 92-98% of the data sets. Other settings show when, and by how much, a
percentile bootstrap of a minimum fails (ties, tiny groups and accuracies near 0 or 1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from eval.tables import parser, run
from vldebias.measure.classification import Reweighted, Statistic, interval_of, mean_accuracy
from vldebias.measure.metric import Metric, computed
from vldebias.measure.resampling import percentile_interval, resampled_counts, wilson_interval
from vldebias.report.result import TaskProvenance, TaskResult

STATISTICS = {metric.name: (statistic, metric.interval) for metric, statistic in computed("groups")}
LEVEL = 0.95
ALL = (*STATISTICS, *(f"change of {name}" for name in STATISTICS), "average_reweighted")
AVERAGE = ("average", "change of average", "average_reweighted")
REWEIGHTED = "average_reweighted"
HARDEST = "accuracy of the hardest group"
ROUNDING = 1e-9  # rounding errors, as in 0.7 - 0.6 != 0.1, must not matter at interval bounds


@dataclass(frozen=True)
class Setting:
    """A distribution of n images in groups.

    Attributes:
        share: The share of each group.
        before: The accuracy in each group without the method.
        after: The accuracy in each group with the method.
        expected: The intervals that should cover the true value according to theory.
        weights: The weights of the groups in `average_reweighted`, by default the shares.
        together: The correlation between correctness without and with the method, from 0
            (independent) to 1 (the maximum).
    """

    name: str
    n: int
    share: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    expected: tuple[str, ...] = ALL
    together: float = 0.6
    weights: tuple[float, ...] = ()

    def truth(self) -> dict[str, float]:
        """Return the true value of every quantity with an interval."""
        weights = np.array(self.share) / np.sum(self.share)
        means = [float(weights @ np.array(accuracies)) for accuracies in (self.before, self.after)]
        lowest = [min(self.before), min(self.after)]
        both = {
            "worst_group": lowest,
            "average": means,
            "gap": [mean - low for mean, low in zip(means, lowest, strict=True)],
        }
        found = {name: after for name, (_, after) in both.items()}
        found[REWEIGHTED] = float(np.average(self.after, weights=self.weights or self.share))
        return found | {
            f"change of {name}": after - before for name, (before, after) in both.items()
        }

    def cells(self) -> np.ndarray:
        """Return the probabilities (g, 2, 2) of (group, correct without, correct with)."""
        a, b = np.array(self.before), np.array(self.after)
        both = self.together * np.minimum(a, b) + (1 - self.together) * a * b
        table = np.stack(
            [np.stack([1 - a - b + both, b - both], -1), np.stack([a - both, both], -1)], 1
        )
        return table * (np.array(self.share) / np.sum(self.share))[:, None, None]

    def draw(self, sets: int, seed: int) -> Iterator[np.ndarray]:
        """Sample `sets` data sets without empty groups, as counts (g, 2, 2)."""
        rng, cells = np.random.default_rng(seed), self.cells()
        while sets > 0:
            counts = rng.multinomial(self.n, cells.reshape(-1)).reshape(cells.shape)
            if counts.sum((1, 2)).all():
                sets -= 1
                yield counts


SETTINGS = (
    Setting(
        "one worst group, sizes of Waterbirds",
        5794,
        (2255, 2255, 642, 642),
        (0.9, 0.75, 0.39, 0.85),
        (0.85, 0.8, 0.7, 0.8),
    ),
    Setting(
        "one small worst group, sizes of CelebA",
        19962,
        (9767, 7535, 2480, 180),
        (0.85, 0.83, 0.9, 0.73),
        (0.86, 0.88, 0.9, 0.77),
    ),
    Setting(
        "one worst group of 60 images",
        400,
        (110, 110, 120, 60),
        (0.9, 0.85, 0.9, 0.4),
        (0.9, 0.85, 0.85, 0.6),
    ),
    Setting(
        "another worst group with the method",
        4000,
        (1,) * 4,
        (0.8, 0.85, 0.3, 0.8),
        (0.6, 0.8, 0.75, 0.8),
    ),
    Setting(
        "one group", 500, (1,), (0.6,), (0.7,), ("worst_group", "change of worst_group", *AVERAGE)
    ),
    Setting("two groups tied", 1000, (1, 1), (0.6,) * 2, (0.7,) * 2, AVERAGE),
    Setting("four groups tied", 800, (1,) * 4, (0.6,) * 4, (0.7,) * 4, AVERAGE),
    Setting("fourteen groups tied", 1400, (1,) * 14, (0.6,) * 14, (0.7,) * 14, AVERAGE),
    Setting("two groups 0.03 apart", 1000, (1, 1), (0.6, 0.63), (0.7, 0.73), AVERAGE),
    Setting(
        "a worst group of 10 images",
        400,
        (130, 130, 130, 10),
        (0.9, 0.85, 0.9, 0.4),
        (0.9, 0.85, 0.9, 0.6),
        AVERAGE,
    ),
    Setting(
        "worst accuracy 0.04, of 50 images",
        500,
        (150, 150, 150, 50),
        (0.9, 0.85, 0.9, 0.02),
        (0.9, 0.85, 0.9, 0.04),
        AVERAGE,
    ),
    Setting(
        "worst accuracy 0.005, of 100 images",
        500,
        (150, 150, 100, 100),
        (0.9, 0.85, 0.9, 0.005),
        (0.9, 0.85, 0.9, 0.005),
        AVERAGE,
    ),
    Setting(
        "weights on groups near 1",
        4000,
        (1,) * 4,
        (0.9, 0.3, 0.3, 0.9),
        (0.9985, 0.3, 0.3, 0.9985),
        ("average", "change of average"),
        weights=(48, 2, 2, 48),
    ),
    Setting("all groups near 1", 800, (1,) * 4, (0.99,) * 4, (0.995,) * 4, ()),
)


def intervals(
    cells: np.ndarray, weights: np.ndarray, hardest: int, resamples: int, seed: int
) -> dict[str, tuple[float, float, float]]:
    """Return (value, low, high) for every quantity in a data set, with and without corrections."""
    alone, interval_of_name = cells[hardest : hardest + 1], dict[str, tuple[float, float, float]]()
    drawn, drawn_alone = (
        np.concatenate([*resampled_counts(one, resamples, seed)]) for one in (cells, alone)
    )
    reweighted = Reweighted(weights), "weighted mean"
    for name, (statistic, rule) in {**STATISTICS, REWEIGHTED: reweighted}.items():
        value, ends, change = interval_of(statistic, rule, cells, drawn)
        interval_of_name |= {name: (value, *ends)} | (
            {f"change of {name}": change} if name in STATISTICS else {}
        )
        if name in (REWEIGHTED, "worst_group", "gap"):
            interval_of_name[f"{name}, percentile alone"] = (value, *_percentile(statistic, drawn))
    hits, size = int(alone[0, :, 1].sum()), int(alone.sum())
    interval_of_name[f"{HARDEST}, Wilson"] = (hits / size, *wilson_interval(hits, size))
    interval_of_name[f"{HARDEST}, percentile"] = (
        hits / size,
        *_percentile(mean_accuracy, drawn_alone),
    )
    return interval_of_name


def _percentile(statistic: Statistic, drawn: np.ndarray) -> tuple[float, float]:
    return percentile_interval(statistic(drawn[..., 1].sum(-1), drawn.sum((-1, -2))))


def simulate(
    setting: Setting, sets: int, resamples: int, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Return the coverage, bias and mean width of every interval over `sets` data sets."""
    truth, weights = setting.truth(), np.array(setting.weights or setting.share, dtype=float)
    hardest = int(np.argmin(setting.after))
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for i, cells in enumerate(setting.draw(sets, seed)):
        for name, ends in intervals(cells, weights, hardest, resamples, i).items():
            rows[name].append(ends)
    for name in rows.keys() - truth.keys():
        truth[name] = truth.get(name.removesuffix(", percentile alone"), min(setting.after))
    return {name: summary(np.array(ends), truth[name]) for name, ends in rows.items()}


def expected(setting: Setting, name: str) -> bool:
    """Return whether an interval should cover the true value according to theory."""
    return name in setting.expected or name.endswith("Wilson")


def summary(rows: np.ndarray, true: float) -> dict[str, float]:
    """Summarise the (value, low, high) from many data sets."""
    value, low, high = rows.T
    below, above = high < true - ROUNDING, low > true + ROUNDING
    covered = 1 - float(below.mean() + above.mean())
    return {
        "truth": round(true, 6),
        "coverage": round(covered, 4),
        "interval_below": round(float(below.mean()), 4),
        "interval_above": round(float(above.mean()), 4),
        "bias": round(float(value.mean() - true), 5),
        "width": round(float((high - low).mean()), 5),
    }


def measure(sets: int, resamples: int, seed: int) -> Iterator[TaskResult]:
    """Yield a task for each setting, with a method for each interval."""
    for i, setting in enumerate(SETTINGS):
        found = simulate(setting, sets, resamples, seed + i)
        provenance = TaskProvenance(
            task=setting.name,
            title=f"Intervals that should cover in {LEVEL:.0%}: {setting.name}",
            description="How often intervals of data sets from a known truth hold it.",
            model="none",
            split="simulated",
            methods={name: {"expected": expected(setting, name)} for name in found},
            seeds=[seed + i],
            n={"data sets": sets, "images": setting.n},
            settings=asdict(setting) | {"level": LEVEL, "resamples": resamples},
        )
        done = TaskResult(provenance)
        for name, figures in found.items():
            for metric, value in figures.items():
                of_interval = Metric(metric, metric.replace("_", " "), "fact", "neither")
                done.add(of_interval, name, value, n={"data sets": sets})
        yield done


PARTS = ("groups", "shares", "kinds", "large", "verdicts")
# The file for each part in the results folder.
FILES = {
    "groups": "coverage",
    "shares": "coverage_shares",
    "kinds": "coverage_kinds",
    "large": "coverage_large",
    "verdicts": "coverage_verdicts",
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "parts", nargs="*", default=["groups"], help=f"{', '.join(PARTS)}, or all (default: groups)"
    )
    options.add_argument("--sets", type=int, default=1000, help="data sets per setting")
    options.add_argument(
        "--resamples", type=int, default=600, help="bootstrap resamples per data set, of groups"
    )
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    parts = PARTS if args.parts == ["all"] else args.parts
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        options.error(f"unknown parts {unknown}, expected any of {', '.join(PARTS)}, or all")
    # The other parts import what they need from this module.
    from eval.experiments import coverage_kinds, coverage_shares, coverage_verdicts

    measures = {
        "groups": lambda: measure(args.sets, args.resamples, args.seed),
        # The numbers of data sets depend on the speed of each part.
        "shares": lambda: coverage_shares.measure(args.sets // 2),
        "kinds": lambda: coverage_kinds.measure(args.sets),
        "large": lambda: coverage_kinds.measure(args.sets, (coverage_kinds.LARGE,)),
        "verdicts": lambda: coverage_verdicts.measure(args.sets),
    }
    for part in parts:
        path = args.json
        # If there are several parts, each is written to its own file in the folder.
        if path is not None and path.is_dir():
            path = path / f"{FILES[part]}.json"
        run(FILES[part], measures[part], path)


if __name__ == "__main__":
    main()
