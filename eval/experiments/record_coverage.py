"""Test whether the intervals in records contain known shares despite judge errors.

python -m eval.experiments.record_coverage --json eval/results/record_coverage.json

The miniature pipeline generates a pool of images for 20 professions that are held out from its
fits, with women and with men, and of images without people. The true value of an image is the value
that its prompt states, so any different answer of a judge counts as an error. 1,000 runs resample
images from the pool so that the shares equal those in images of 20 occupations from Stable
Diffusion 1.5 (Fair Diffusion), and one image in twenty does not show a person. The judge labels all
images, and people, who do not make errors, label a random sample. The coverage is how often the
interval for the share of women contains the true share.

The packaged judge classifies the images at their original size, and at 8 and 7 pixels. At the
smallest size, it answers "male" or "unknown" for many women, so that shares without human labels
are biased. This takes about four minutes on one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image

from eval.tables import add_share, parser, run
from vldebias.auditing.line import FOLDER
from vldebias.hosts.loading import load_host
from vldebias.judge.judges import Judge, MiniatureJudge
from vldebias.judge.plan import OTHERS
from vldebias.judge.stored import SURE, decide
from vldebias.measure.metric import Metric
from vldebias.prompts import load_prompts
from vldebias.records.figures import share_with_interval
from vldebias.report.result import NONE, TaskProvenance, TaskResult

RUNS = 1000
STEPS = 8
GUIDANCE = 3.0
PER_VALUE = 40  # number of images in the pool per profession and value
BATCH = 40
# Side lengths in pixels of the images for the judge. The pipeline generates 64 pixels.
SIDES = {"as generated": 64, "8 pixels": 8, "7 pixels": 7}
NOBODY = 0.05  # true share of images without a person
VALUES = ("female", "male")
UNKNOWN = 2
# Numbers of images per profession, and of human labels in a run.
DESIGNS = ((8, 0), (8, 40), (8, 80), (24, 0), (24, 80), (24, 240))
CORRECTED = "corrected by people"
Codes = NDArray[np.int64]

COVERAGE = Metric("coverage", "runs whose interval contains the planted share", bounds=(0.0, 1.0))
WIDTH = Metric("interval_width", "mean width of the intervals", bounds=(0.0, 1.0))
BIAS = Metric("bias", "mean of the estimate less the planted share", bounds=(-1.0, 1.0))


def generated(prompts: Sequence[str]) -> list[Image.Image]:
    """Generate one image per prompt, where image i uses the noise for seed i."""
    pipe = load_host(pipeline="miniature").host
    pipe.set_progress_bar_config(disable=True)
    images = []
    for start in range(0, len(prompts), BATCH):
        batch = list(prompts[start : start + BATCH])
        noise = [torch.Generator("cpu").manual_seed(start + i) for i in range(len(batch))]
        output = pipe(batch, num_inference_steps=STEPS, guidance_scale=GUIDANCE, generator=noise)
        images += output.images
    return images


def answers(judge: Judge, images: Sequence[Image.Image]) -> Codes:
    """Return the judge's answers as codes of VALUES, or UNKNOWN."""
    rows = np.concatenate(
        [judge.predict(images[i : i + BATCH])["gender"] for i in range(0, len(images), BATCH)]
    )
    columns = [judge.names["gender"].index(value) for value in VALUES]
    codes = decide(rows[:, columns], VALUES, SURE).codes
    return np.where(codes < 0, UNKNOWN, codes)


def reduced(images: Sequence[Image.Image], side: int) -> list[Image.Image]:
    """Reduce images to a lower resolution unless they already have this size."""
    return [image.resize((side, side)).resize(image.size) for image in images]


def planted_shares(professions: int, seed: int = 0) -> NDArray[np.float64]:
    """Return shares of women for a random sample of occupations in Stable Diffusion 1.5."""
    counts = pd.read_csv(FOLDER / "fair-diffusion.csv", comment="#")
    shares = (counts.female / (counts.female + counts.male)).to_numpy()
    return np.random.default_rng(seed).choice(shares, professions, replace=False)


def one_run(
    rng: np.random.Generator,
    judged_of: tuple[NDArray[np.int64], Codes],
    shares: NDArray[np.float64],
    images: int,
    labels: int,
) -> tuple[float, float, float]:
    """Return the estimated share and its interval (low, high) in one run.

    `judged_of` contains the judge's answers for the pool (professions, values, PER_VALUE), and for
    the images without a person.
    """
    people_pool, nobody_pool = judged_of
    truths = []
    judged = []
    for profession, share in enumerate(shares):
        truth = np.where(rng.random(images) < share, 0, 1)
        truth[rng.random(images) < NOBODY] = UNKNOWN
        picks = rng.integers(PER_VALUE, size=images)
        answer = nobody_pool[rng.integers(len(nobody_pool), size=images)]
        is_person = truth != UNKNOWN
        answer[is_person] = people_pool[profession, truth[is_person], picks[is_person]]
        truths.append(truth)
        judged.append(answer)
    counts = np.stack([np.bincount(answer, minlength=3) for answer in judged]).astype(float)
    people = None
    if labels:
        chosen = rng.choice(len(shares) * images, labels, replace=False)
        people = np.zeros((3, 3))
        np.add.at(people, (np.concatenate(judged)[chosen], np.concatenate(truths)[chosen]), 1)
    return share_with_interval(counts, 0, people)


def measure() -> Iterator[TaskResult]:
    """Measure the coverage for each judge and design."""
    professions = load_prompts("professions-gender").held_out_class_names
    prompts = [
        f"A photo of a {value} {profession}."
        for profession in professions
        for value in VALUES
        for _ in range(PER_VALUE)
    ]
    nobody = [text for text in OTHERS["without a person"] for _ in range(PER_VALUE)]
    pool = generated([*prompts, *nobody])
    shares = planted_shares(len(professions))
    planted = float(shares.mean())
    judge = MiniatureJudge().ready()
    for name, side in SIDES.items():
        codes = answers(judge, reduced(pool, side))
        people_pool = codes[: len(prompts)].reshape(len(professions), len(VALUES), PER_VALUE)
        nobody_pool = codes[len(prompts) :]
        truth = np.arange(len(VALUES))[None, :, None]
        errors = {
            f"planted {value}": {
                "read as the other": round(float((people_pool[:, i] == 1 - i).mean()), 4),
                "unknown": round(float((people_pool[:, i] == UNKNOWN).mean()), 4),
            }
            for i, value in enumerate(VALUES)
        }
        out = TaskResult(
            TaskProvenance(
                task=name,
                title="Planted shares recovered",
                description=__doc__.split("\n\n")[2].replace("\n", " "),
                model="miniature",
                split=f"{len(professions)} professions, {PER_VALUE} images each and value",
                seeds=[0],
                n={"runs": RUNS, "images in the pool": len(pool)},
                methods={CORRECTED: {"title": CORRECTED}},
                settings={
                    "planted share of women": round(planted, 4),
                    "judge": judge.name,
                    "images read right": round(float((people_pool == truth).mean()), 4),
                    "errors of the judge": errors,
                    "pictures of nobody read as a value": round(
                        float((nobody_pool != UNKNOWN).mean()), 4
                    ),
                },
            )
        )
        for images, labels in DESIGNS:
            rng = np.random.default_rng([images, labels])
            runs = [
                one_run(rng, (people_pool, nobody_pool), shares, images, labels)
                for _ in range(RUNS)
            ]
            share, low, high = np.array(runs).T
            method = CORRECTED if labels else NONE
            subset = f"{images} images of each prompt, {labels} labels"
            hits = int(((low <= planted) & (planted <= high)).sum())
            n = {"runs": RUNS}
            add_share(out, COVERAGE, method, hits, n, subset)
            for metric, values in ((WIDTH, high - low), (BIAS, share - planted)):
                half = 1.96 * float(values.std(ddof=1)) / RUNS**0.5
                mean = float(values.mean())
                out.add(metric, method, mean, (mean - half, mean + half), n=n, subset=subset)
        yield out


def main() -> None:
    """Run the experiment."""
    run("record_coverage", measure, parser(__doc__).parse_args().json)


if __name__ == "__main__":
    main()
