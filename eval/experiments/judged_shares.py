"""How often do shares that people correct hold the truth, whatever the judge does? Simulated, with a worked example.

python -m eval.experiments.judged_shares --json eval/results/judged_shares.json   # two minutes
python -m eval.experiments.judged_shares --sets 50                                # to have a look

"unsure of women" has a confidence, by which the images to label are drawn too (`vldebias.evaluation.sampling`).
A data set is images that a judge reads with the errors of its row, some of them labelled by lot. The worked example is
one of 2,000 images whose judge calls two of five women men: with people on 200 the corrected figure is right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from eval.experiments.embeddings import protocol
from eval.experiments.run import parser, run
from eval.tables import fills, read, table
from vldebias.evaluation.corrected import JudgedImages, corrected_block
from vldebias.evaluation.report.words import number
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.sampling import LabelSample
from vldebias.metrics.corrected import NOT_LABELLED, corrected_shares, rated
from vldebias.metrics.metric import Metric, metric_of

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
UNSURE = Setting("unsure of women", (0.4, 0.6), ((0.98, 0.02), (0.194, 0.806)))  # see `unsure`; in the mean


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
    return means(found)


def means(found: Mapping[str, Sequence[tuple[float, ...]]]) -> dict[str, dict[str, float]]:
    """Interval -> how often it held the truth, how wide it was and by how much its middle was off, in the mean."""
    return {
        name: dict(zip(("coverage", "width", "bias"), np.mean(rows, axis=0).round(5).tolist(), strict=True))
        for name, rows in found.items()
    }


def unsure(labels: int, sets: int, seed: int) -> dict[str, dict[str, float]]:
    """A judge that is unsure of more women than men, and then calls them men: labels by lot, and by its confidence."""
    rng, found = np.random.default_rng(seed), defaultdict(list)
    paths, share = [str(i) for i in range(IMAGES)], UNSURE.shares[0]
    for one in range(sets):
        truth = rng.choice(2, size=IMAGES, p=UNSURE.shares)
        sure = np.where(rng.random(IMAGES) < np.where(truth == 1, 0.3, 0.1), 0.6, 0.99)
        wrong = rng.random(IMAGES) < np.where((truth == 1) & (sure < 0.9), 0.6, 0.02)
        said = np.where(wrong, 1 - truth, truth)
        by_lot = np.full(IMAGES, NOT_LABELLED)
        chosen = rng.choice(IMAGES, labels, replace=False)
        by_lot[chosen] = truth[chosen]
        names = np.array(["male", "female"])[said].tolist()
        how = {"attribute": "gender", "judge": UNSURE.name, "seed": one}
        sample = LabelSample.draw(paths, [""] * IMAGES, names, sure, labels, **how).weights
        weights = np.array([sample.get(path, 0.0) for path in paths])
        by_sample = np.where(weights > 0, truth, NOT_LABELLED)
        for name, mended in (
            ("share, corrected", corrected_shares(said, by_lot, 2)),
            ("share, corrected, drawn by its confidence", corrected_shares(said, by_sample, 2, weights=weights)),
        ):
            interval = mended.interval(0)
            held = interval.low - 1e-9 <= share <= interval.high + 1e-9
            found[name].append((held, interval.high - interval.low, interval.value - share))
    return means(found)


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
    for i, setting in enumerate((*SETTINGS, UNSURE)):
        n, title = {"data sets": sets, "images": IMAGES}, f"95 % intervals: {setting.name}"
        about = protocol(setting.name, title, __doc__ or "", n, {}, split="simulated", seeds=[seed + i])
        settings = {"truth": setting.shares, "judge": setting.judge}
        done = TaskResult(about.model_copy(update={"model": "none", "prompts": "", "settings": settings}))
        for labels in LABELS:
            simulated = unsure if setting is UNSURE else partial(simulate, setting)
            for name, figures in simulated(labels, sets, seed + i).items():
                for metric, value in figures.items():
                    kind = Metric(metric, metric, "fact", "neither")
                    done.add(kind, name, value, n={"data sets": sets}, subset=f"{labels} labels")
        yield done


@fills("docs/how-to/correct-the-judge.md", "judged_example")
def judged_example() -> str:
    """What a judge says, what people make of it, and the difference."""
    rows = {(r.metric, r.subset): r for r in read("judged_shares").rows if r.task == "example corrected"}
    figures = (
        ("share", "male"),
        ("share", "female"),
        ("discrepancy", ""),
        ("max_skew", ""),
        ("discrepancy_squared", ""),
    )
    lines = [["figure", "by the judge", "corrected by people", "the judge moves it by"]]
    for metric, subset in figures:
        name = ", ".join(filter(None, (metric_of(metric).title, subset)))
        lines.append([name, *(number(rows[start + metric, subset]) for start in ("", "corrected_", "judge_moves_"))])
    return table(*lines, note="value [95 % interval]; from `eval/results/judged_shares.json`.")


@fills("docs/how-to/correct-the-judge.md", "judged_coverage")
def judged_coverage() -> str:
    """Coverage of every kind of interval by the number of labels."""
    rows = [row for row in read("judged_shares").rows if row.metric in ("coverage", "width")]
    found = {(r.task, r.method, r.subset, r.metric): r for r in rows}
    labels = list(dict.fromkeys(row.subset for row in rows))
    lines = [["judge", "interval", *labels]]
    for task, method in dict.fromkeys((row.task, row.method) for row in rows):
        pairs = ([found[task, method, one, metric].value for metric in ("coverage", "width")] for one in labels)
        lines.append([task, method, *(f"{covered:.3f} ({width:.3f})" for covered, width in pairs)])
    sets = next(iter(rows[0].n.values()))
    note = f"share of {sets} data sets whose 95 % interval holds the truth (mean width)"
    return table(*lines, note=f"{note}; from `eval/results/judged_shares.json`.")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sets", type=int, default=1000, help="data sets per setting and number of labels")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    run("judged_shares", lambda: measure(given.sets, given.seed), given.json)


if __name__ == "__main__":
    main()
