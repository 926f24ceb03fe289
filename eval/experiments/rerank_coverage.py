"""Measure by simulation how often the interval for a re-ranked list contains the true share.

python -m eval.experiments.rerank_coverage --json eval/results/rerank_coverage.json

Candidates have a true group, a label that is correct with a given probability, and a score that may
prefer the first group. The quota method re-ranks by the labels. The true groups of some candidates
(a random sample of the results or of all candidates) are checked, and the interval is based on
these, the scores and the labels. The coverage is how often it contains the true share of a group in
the top k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eval.tables import parser, run
from vldebias.measure.resampling import wilson_interval
from vldebias.metrics import Metric
from vldebias.report.result import TaskProvenance, TaskResult
from vldebias.reranking import Candidates, quota, true_shares

SIMULATIONS = 300


@dataclass(frozen=True)
class Setting:
    """A setting of the simulation.

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
        place = "results" if self.among_results else "candidates"
        return (
            f"{self.n:,} candidates {shares}, labels right {self.accuracy:.0%},"
            f" lean {self.lean:g}, k {self.k}, {self.checked} {place} checked"
        )

    def simulate(self, seed: int) -> tuple[float, float]:
        """Return the share of intervals that contain the true share, and their mean width."""
        rng = np.random.default_rng(seed)
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
        expected = true_shares(candidates, first, checked, seed=seed)
        assert expected is not None
        actual = np.bincount(true[first], minlength=g) / self.k
        hits = []
        widths = []
        for share, (_, low, high) in zip(actual, expected.values(), strict=True):
            hits.append(low <= share <= high)
            widths.append(high - low)
        return float(np.mean(hits)), float(np.mean(widths))


EVEN = (0.5, 0.5)
SETTINGS = (
    Setting(1000, EVEN, 0.9, 0.0, 50, 30, True),
    Setting(1000, EVEN, 0.9, 1.0, 50, 30, True),
    Setting(1000, EVEN, 0.9, 1.0, 50, 100, False),
    Setting(1000, EVEN, 0.9, 2.0, 50, 100, False),
    Setting(1000, EVEN, 0.7, 1.0, 50, 100, False),
    Setting(1000, (0.8, 0.2), 0.95, 1.0, 100, 30, True),
    Setting(1000, (0.8, 0.2), 0.95, 1.0, 100, 100, False),
    Setting(300, (0.7, 0.3), 0.9, 0.5, 20, 50, False),
    Setting(1000, (0.4, 0.3, 0.2, 0.1), 0.8, 1.0, 50, 100, False),
    Setting(1000, (0.4, 0.3, 0.2, 0.1), 0.8, 1.0, 50, 30, True),
)


def measured() -> TaskResult:
    """Return the coverage in each setting, with a Wilson interval over the simulations."""
    result = TaskResult(
        TaskProvenance(
            task="coverage of true shares",
            title="True shares of a re-ranked list: how often the interval covers them",
            description=__doc__.splitlines()[0] if __doc__ else "",
            settings={"simulations": SIMULATIONS, "level": 0.95},
        )
    )
    coverage = Metric("coverage", "true shares inside their 95% interval", bounds=(0.0, 1.0))
    width = Metric("width", "mean width of the intervals", bounds=(0.0, 1.0))
    n = {"simulations": SIMULATIONS}
    for setting in SETTINGS:
        hits, widths = np.array([setting.simulate(seed) for seed in range(SIMULATIONS)]).T
        ends = wilson_interval(round(hits.sum()), SIMULATIONS)
        result.add(coverage, "quota", float(hits.mean()), ends, n=n, subset=str(setting))
        error = 1.96 * float(widths.std()) / SIMULATIONS**0.5
        mean = float(widths.mean())
        result.add(width, "quota", mean, (mean - error, mean + error), n=n, subset=str(setting))
    return result


def main() -> None:
    arguments = parser(__doc__).parse_args()
    run("rerank_coverage", lambda: [measured()], arguments.json)


if __name__ == "__main__":
    main()
