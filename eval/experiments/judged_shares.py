"""How often do shares that people correct hold the truth, whatever the judge does? Simulated, with a worked example.

python -m eval.experiments.judged_shares --json eval/results/judged_shares.json   # two minutes
python -m eval.experiments.judged_shares --sets 50                                # to have a look

A data set is images that a judge reads with the errors of its row, some of them labelled by lot. The worked example is
one of 2,000 images whose judge calls two of five women men: with people on 200 the corrected figure is right.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eval.experiments.embeddings import protocol
from eval.experiments.run import parser, run
from vldebias.evaluation.corrected import JudgedImages, corrected_block
from vldebias.evaluation.result import TaskResult
from vldebias.metrics.corrected import NOT_LABELLED, corrected_shares, rated
from vldebias.metrics.metric import Metric

BIASED = ((0.96, 0.02, 0.02), (0.4, 0.57, 0.03), (0.3, 0.3, 0.4))
LABELS = (50, 100, 200, 500)
IMAGES = 3000


@dataclass(frozen=True)
class Setting:
    """shares: of what is true, unknown last. judge: what it says of each (rows)."""

    name: str
    shares: tuple[float, ...]
    judge: tuple[tuple[float, ...], ...]

    def draw(self, rng: np.random.Generator, images: int) -> tuple[np.ndarray, np.ndarray]:
        """What is true of each image, and what the judge says."""
        truth = rng.choice(len(self.shares), size=images, p=self.shares)
        said = (rng.random(images)[:, None] > np.cumsum(self.judge, axis=1)[truth]).sum(1)
        return truth, np.minimum(said, len(self.shares) - 1)


SETTINGS = (
    Setting("women called men", (0.57, 0.4, 0.03), BIASED),
    Setting("women called men, even", (0.485, 0.485, 0.03), BIASED),
    Setting("a rare value", (0.05, 0.93, 0.02), BIASED),
    Setting("the opposite", (0.6, 0.37, 0.03), ((0.1, 0.9, 0.0), (0.8, 0.2, 0.0), (0.5, 0.5, 0.0))),
    Setting("knows nothing", (0.6, 0.38, 0.02), ((0.5, 0.5, 0.0),) * 3),
)


def simulate(setting: Setting, labels: int, sets: int, seed: int) -> dict[str, dict[str, float]]:
    """Coverage and mean width of the share of the first value, the discrepancy and the judge alone."""
    rng, found = np.random.default_rng(seed), defaultdict(list)
    share, told = setting.shares[0], np.array(setting.shares[:2]) / sum(setting.shares[:2])
    gap = float(np.linalg.norm(told - 0.5))
    for _ in range(sets):
        truth, said = setting.draw(rng, IMAGES)
        people = np.full(IMAGES, NOT_LABELLED)
        chosen = rng.choice(IMAGES, labels, replace=False)
        people[chosen] = truth[chosen]
        mended = corrected_shares(said, people, 3)
        alone = corrected_shares(np.zeros(IMAGES, int), people, 3)
        for name, one, true in (
            ("share, corrected", mended.interval(0), share),
            ("share, people alone", alone.interval(0), share),
            ("discrepancy, corrected", mended.discrepancy(2), gap),
            ("share, judge alone", corrected_shares(said, said, 3).interval(0), share),
        ):
            found[name].append((one.low - 1e-9 <= true <= one.high + 1e-9, one.high - one.low, one.value - true))
    return {
        name: dict(zip(("coverage", "width", "bias"), np.mean(rows, axis=0).round(5).tolist(), strict=True))
        for name, rows in found.items()
    }


def example(seed: int = 0) -> TaskResult:
    """2,000 images of ten prompts, people on 200 of them."""
    rng = np.random.default_rng(seed)
    truth, said = SETTINGS[1].draw(rng, 2000)
    people, chosen = np.full(2000, NOT_LABELLED), rng.choice(2000, 200, replace=False)
    people[chosen] = truth[chosen]
    n = {"images": 2000, "labels": 200}
    about = protocol("example", "A worked example", __doc__ or "", n, {"none": {}}, split="simulated", seeds=[seed])
    about = about.model_copy(update={"model": "none", "prompts": "", "settings": {"truth": SETTINGS[1].shares}})
    images = JudgedImages(np.arange(2000) % 10, said, rated(people, 3))
    done = corrected_block(TaskResult(about), ("male", "female"), {"": {"none": images}})
    assert done is not None
    return done


def measure(sets: int, seed: int) -> Iterator[TaskResult]:
    """The example, then a task per setting: a method per interval, a subset per number of labels."""
    yield example()
    for i, setting in enumerate(SETTINGS):
        n, title = {"data sets": sets, "images": IMAGES}, f"95 % intervals: {setting.name}"
        about = protocol(setting.name, title, __doc__ or "", n, {}, split="simulated", seeds=[seed + i])
        settings = {"truth": setting.shares, "judge": setting.judge}
        done = TaskResult(about.model_copy(update={"model": "none", "prompts": "", "settings": settings}))
        for labels in LABELS:
            for name, figures in simulate(setting, labels, sets, seed + i).items():
                for metric, value in figures.items():
                    kind = Metric(metric, metric, "fact", "neither")
                    done.add(kind, name, value, n={"data sets": sets}, subset=f"{labels} labels")
        yield done


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--sets", type=int, default=1000, help="data sets per setting and number of labels")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    run("judged_shares", lambda: measure(given.sets, given.seed), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
