"""Sample the images that people label: uncertainty sampling with inverse-probability weights.

The strata are the judge's answers under each method, each cut at the median of its confidence.
Labels are shared out by how many images a stratum has and how unsure the judge is of them (Neyman,
1934), one after the other by the rule of Huntington and Hill, so that a larger sample holds the
smaller one. What follows from it is unbiased whatever the judge does, since every image has a known
probability to be asked about and answers count one over it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from vldebias.errors import InvalidInputError, warn
from vldebias.files import read_json, write_atomically
from vldebias.judge.answers import AnnotationLog
from vldebias.judge.plan import PLAN, GeneratedImages
from vldebias.judge.scores import last_judgements
from vldebias.schema import Strict

from .study import ImageFolder, Question

ENDING = ".sample.json"
LEAST = 2  # labels of each stratum, where it has as many images
ERROR = 0.05  # a judge that is surer than this is asked about as if it were not


class LabelSample(Strict):
    """Hold a sample of images to label, as it is stored next to the answers.

    attribute: the one whose answers set the strata. judge: the name of its judge. strata: their
    images, in random order. turns: the stratum of the next image to label, for all images. labels:
    how many of these are sampled.
    """

    attribute: str
    judge: str
    strata: tuple[tuple[str, ...], ...]
    turns: tuple[int, ...]
    labels: int

    @classmethod
    def draw(cls, images: pd.DataFrame, labels: int, *, seed: int = 0, **about: str) -> LabelSample:
        """Return a sample of so many images, at least LEAST of each stratum.

        images: a row each with its path; `within`, the part with figures of its own, such as a
        method; `said`, the
            answer of the judge, and `sure`, its probability of that. about: attribute and judge.
        """
        order = images.path.map(lambda path: hashlib.sha256(f"{seed}\0{path}".encode()).digest())
        strata, needs = list[tuple[str, ...]](), list[tuple[float, int]]()
        for _, rows in images.loc[order.sort_values().index].groupby(["within", "said"]):
            middle = rows.sure.median()
            above = (
                rows.sure > middle if rows.sure.max() > middle else rows.sure >= middle
            )  # many may be alike
            for chosen in filter(len, (rows[above], rows[~above])):
                wrong, size = min(max(1 - chosen.sure.mean(), ERROR), 0.5), len(chosen)
                worth = [
                    size * (wrong * (1 - wrong)) ** 0.5 / (n * (n + 1)) ** 0.5
                    for n in range(LEAST, size)
                ]
                needs += [
                    (-one, len(strata)) for one in (*[float("inf")] * min(LEAST, size), *worth)
                ]
                strata.append(tuple(chosen.path))
        turns = tuple(stratum for _, stratum in sorted(needs))
        least = sum(min(LEAST, len(one)) for one in strata)
        return cls(strata=tuple(strata), turns=turns, labels=max(labels, least), **about)

    @property
    def weights(self) -> Mapping[str, float]:
        """Return path -> weight for each sampled image: one over its sampling probability."""
        counts = Counter(self.turns[: self.labels])
        return {
            path: len(one) / counts[i]
            for i, one in enumerate(self.strata)
            for path in one[: counts[i]]
        }


def sampled(
    images: ImageFolder,
    question: Question,
    log: AnnotationLog,
    most: int | None,
    *,
    way: str = "judge",
    seed: int = 0,
) -> ImageFolder | None:
    """Return the sampled images with their weights; None if the prompts take turns.

    most: number of images; None: all. A sample that lies beside the log is made larger, and never
    smaller.
    way: "judge", where one answered and nobody has answered in turn, or "turn": the first of each
    prompt. Another way, and a sample of another attribute or of other images, raise
    InvalidInputError.
    """
    if way not in ("judge", "turn"):
        raise InvalidInputError(f"--sample: expected judge or turn, got {way!r}")
    kept = log.path.with_suffix(ENDING)
    there = LabelSample.build(read_json(kept)) if kept.is_file() else None
    if there is None:
        in_turn = way == "turn" or any(answer.weight is None for answer in log.answers().values())
        found = None if most is None or in_turn else _draw(images, question, most, seed)
    elif way == "turn" or there.attribute != question.attribute:
        raise InvalidInputError(
            f"{kept}: holds a sample for {there.attribute}, made with judge {there.judge}; put"
            f" --attribute {there.attribute} first and leave out --sample turn, or choose another"
            " --out"
        )
    else:
        found = there.model_copy(update={"labels": max(there.labels, most or len(there.turns))})
    if found is None:
        return None
    weights = found.weights
    records = tuple(record for record in images.everything if record.path in weights)
    if lost := sorted(set(weights) - {record.path for record in records}):
        raise InvalidInputError(
            f"{kept}: {len(lost)} of its images are not in {images.root}, such as {lost[0]}"
        )
    if found != there:
        write_atomically(kept, found.model_dump_json() + "\n")
    return replace(
        images, records=records, weights=weights, strata=len(found.strata), judge=found.judge
    )


def _draw(images: ImageFolder, question: Question, labels: int, seed: int) -> LabelSample | None:
    """Sample by the answers of the last judge; None if none answered, or if every image is asked
    about."""
    if labels >= len(images.records):
        return None
    drawn = GeneratedImages.open(images.root) if (images.root / PLAN).is_file() else None
    if (
        drawn is None
        or (last := last_judgements(drawn, question.attribute, question.values)) is None
    ):
        warn(
            f"{images.root}: no judge answered {question.attribute}, so prompts take turns, as with"
            " --sample turn"
        )
        return None
    table = pd.DataFrame(drawn.images)
    table["within"] = table.variant + ", " + table.part
    judge, table["said"], table["sure"] = last
    asked = table[table.path.isin([record.path for record in images.records])]
    return LabelSample.draw(asked, labels, attribute=question.attribute, judge=judge, seed=seed)
