"""How often does the interval of a re-ranking cover the true share? By simulation.

python -m eval.experiments.rerank_coverage --json eval/results/rerank_coverage.json

Candidates have a true group, a label that is right as often as the setting says, and a score that
may prefer the first group. The quota re-ranks by the labels; the interval knows the scores, the
labels and the accuracy; counted is whether it holds the true share of each group among the first
k. With `sample` the accuracy is not known but counted on so many labelled images of each group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eval.tables import parser, run
from vldebias.measure.resampling import wilson_interval
from vldebias.metrics import Metric
from vldebias.report.result import TaskProvenance, TaskResult
from vldebias.reranking import Candidates, expected_shares, quota

SIMULATIONS = 1000


@dataclass(frozen=True)
class Setting:
    """What is simulated: candidates, shares of the groups among them, accuracy of the labels, how
    far scores prefer the first group (in deviations), first results, labelled images a group."""

    n: int
    shares: tuple[float, ...]
    accuracy: float
    lean: float
    k: int
    sample: int = 0

    def __str__(self) -> str:
        shares = "/".join(f"{share:.0%}" for share in self.shares)
        known = f"from {self.sample} images" if self.sample else "known"
        return (
            f"{self.n:,} candidates {shares}, labels right {self.accuracy:.0%} ({known}),"
            f" lean {self.lean:g}, k {self.k}"
        )

    def covered(self, seed: int) -> float:
        """Return the share of the groups whose true share the interval holds, in one simulation."""
        rng = np.random.default_rng(seed)
        g = len(self.shares)
        confusion = np.full((g, g), (1 - self.accuracy) / (g - 1))
        confusion[np.arange(g), np.arange(g)] = self.accuracy
        true = rng.choice(g, size=self.n, p=self.shares)
        labels = (rng.random(self.n)[:, None] > confusion.cumsum(axis=1)[true]).sum(axis=1)
        scores = rng.normal(size=self.n) + self.lean * (true == 0)
        names = [str(group) for group in range(g)]
        first = quota(Candidates(scores, labels, names, np.full(g, 1 / g)), self.k)
        accuracy = confusion
        if self.sample:
            accuracy = np.stack([rng.multinomial(self.sample, row) for row in confusion])
        expected = expected_shares(scores, labels, first, names, accuracy, seed=seed)
        actual = np.bincount(true[first], minlength=g) / self.k
        hits = []
        for share, (_, low, high) in zip(actual, expected.values(), strict=True):
            hits.append(low <= share <= high)
        return float(np.mean(hits))


EVEN = (0.5, 0.5)
SETTINGS = (
    Setting(1000, EVEN, 0.9, 0.0, 50),
    Setting(1000, EVEN, 0.9, 1.0, 50),
    Setting(1000, EVEN, 0.9, 1.0, 50, 100),
    Setting(1000, EVEN, 0.8, 1.0, 50),
    Setting(1000, (0.8, 0.2), 0.95, 1.0, 100),
    Setting(300, (0.7, 0.3), 0.9, 0.5, 20),
)


def measured() -> TaskResult:
    """Return the coverage in each setting, with Wilson's interval of as many simulations."""
    result = TaskResult(
        TaskProvenance(
            task="coverage of promised shares",
            title="Shares that a re-ranking promises: how often the interval holds",
            description=__doc__.splitlines()[0] if __doc__ else "",
            settings={"simulations": SIMULATIONS, "level": 0.95},
        )
    )
    metric = Metric("coverage", "true shares inside their 95 % interval", bounds=(0.0, 1.0))
    for setting in SETTINGS:
        hits = float(np.sum([setting.covered(seed) for seed in range(SIMULATIONS)]))
        ends = wilson_interval(round(hits), SIMULATIONS)
        n = {"simulations": SIMULATIONS}
        result.add(metric, "quota", hits / SIMULATIONS, ends, n=n, subset=str(setting))
    return result


def main() -> None:
    arguments = parser(__doc__).parse_args()
    run("rerank_coverage", lambda: [measured()], arguments.json)


if __name__ == "__main__":
    main()
