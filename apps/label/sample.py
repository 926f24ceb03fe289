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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from vldebias.errors import InvalidInputError, warn
from vldebias.judge.answers import AnnotationLog
from vldebias.judge.plan import PLAN, GeneratedImages, PlannedImage
from vldebias.judge.stored import last_judgements
from vldebias.utils.files import read_json, write_atomically
from vldebias.utils.schema import Strict

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
    def draw(cls, images: pd.DataFrame, labels: int, *, seed: int = 0, **facts: str) -> LabelSample:
        """Return a sample of so many images, at least LEAST of each stratum.

        Where there are too few labels for the finest strata, coarser ones are taken.

        Args:
            images: a row each with its path; `within`, the part with figures of its own, such as a
                method; `said`, the answer of the judge, and `sure`, its probability of that.
            labels: number of images to sample.
            seed: of the order inside the strata.
            facts: attribute and judge.
        """
        # By a hash of seed and path: images that come later do not move the others.
        order = images.path.map(lambda path: hashlib.sha256(f"{seed}\0{path}".encode()).digest())
        shuffled = images.loc[order.sort_values().index]
        strata = _strata(shuffled, labels)
        turns = _turns(strata)
        paths = tuple(tuple(stratum.path) for stratum in strata)
        return cls(strata=paths, turns=turns, labels=max(labels, _least(strata)), **facts)

    @property
    def weights(self) -> Mapping[str, float]:
        """Return path -> weight for each sampled image: one over its sampling probability."""
        counts = Counter(self.turns[: self.labels])
        weights: dict[str, float] = {}
        for number, stratum in enumerate(self.strata):
            sampled_paths = stratum[: counts[number]]
            # One over the probability: images of the stratum
            # over those of them that are asked about.
            weights |= dict.fromkeys(sampled_paths, len(stratum) / max(counts[number], 1))
        return weights


def _strata(images: pd.DataFrame, labels: int) -> list[pd.DataFrame]:
    """Return the finest strata for which so many labels are enough; at worst a single one.

    images: a row each, in random order.
    """
    # From fine to coarse: a stratum with one label has no variance to compute an interval from.
    answers = [rows for _, rows in images.groupby(["within", "said"])]
    halves = [half for rows in answers for half in _halves(rows)]
    parts = [rows for _, rows in images.groupby("within")]
    for strata in (halves, answers, parts):
        if _least(strata) <= labels:
            return strata
    return [images]


def _halves(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows above the judge's median confidence, and the others."""
    middle = rows.sure.median()
    if rows.sure.max() > middle:
        above = rows.sure > middle
    else:  # many may be alike
        above = rows.sure >= middle
    return [half for half in (rows[above], rows[~above]) if len(half)]


def _least(strata: Sequence[pd.DataFrame]) -> int:
    """Return how many labels the strata need: LEAST of each; a single stratum needs one."""
    if len(strata) == 1:
        return 1
    return sum(min(LEAST, len(stratum)) for stratum in strata)


def _turns(strata: Sequence[pd.DataFrame]) -> tuple[int, ...]:
    """Return the stratum of the next image to label, for all images: first LEAST of each, then by
    size and by how unsure the judge is."""
    needs: list[tuple[float, int]] = []
    for number, stratum in enumerate(strata):
        size = len(stratum)
        # The deviation of a yes or no with this chance is sqrt(p (1 - p)).
        wrong = min(max(1 - stratum.sure.mean(), ERROR), 0.5)
        spread = size * (wrong * (1 - wrong)) ** 0.5
        needs += [(-float("inf"), number)] * min(LEAST, size)
        # Huntington and Hill: the next label goes where size *
        # deviation / sqrt(n (n + 1)) is largest.
        needs += [(-spread / (n * (n + 1)) ** 0.5, number) for n in range(LEAST, size)]
    return tuple(number for _, number in sorted(needs))


def sampled(
    images: ImageFolder,
    question: Question,
    log: AnnotationLog,
    limit: int | None,
    *,
    way: str = "judge",
    seed: int = 0,
) -> ImageFolder | None:
    """Return the sampled images with their weights; None if the prompts take turns.

    limit: number of images; None: all. A sample that lies beside the log is made larger, and never
    smaller.
    way: "judge", where one answered and nobody has answered in turn, or "turn": the first of each
    prompt. Another way, and a sample of another attribute or of other images, raise
    InvalidInputError.
    """
    if way not in ("judge", "turn"):
        raise InvalidInputError(f"--sample: expected judge or turn, got {way!r}")
    file = log.path.with_suffix(ENDING)
    earlier = LabelSample.build(read_json(file)) if file.is_file() else None
    sample: LabelSample | None = None
    if earlier is not None:
        if way == "turn" or earlier.attribute != question.attribute:
            raise InvalidInputError(
                f"{file}: holds a sample for {earlier.attribute}, made with judge {earlier.judge};"
                f" put --attribute {earlier.attribute} first and leave out --sample turn, or choose"
                " another --out"
            )
        labels = max(earlier.labels, limit or len(earlier.turns))
        sample = earlier.model_copy(update={"labels": labels})
    elif limit is not None and way == "judge":
        # Not where somebody has answered about images that were not sampled.
        if all(answer.weight is not None for answer in log.answers().values()):
            sample = _draw(images, question, limit, seed)
    if sample is None:
        return None
    chosen = _only_sampled(images, sample, file)
    if earlier is None:
        _check_comparable(chosen, images, sample)
    if sample != earlier:
        write_atomically(file, sample.model_dump_json() + "\n")
    return chosen


def _check_comparable(chosen: ImageFolder, images: ImageFolder, sample: LabelSample) -> None:
    """Refuse a sample in which no prompt has an image of every method.

    Figures of methods are compared prompt by prompt, so nothing could be computed from its answers.
    """
    methods = {record.variant for record in images.records}
    if _some_prompt_has(methods, chosen.records):
        return
    needed = sample.labels
    while not _some_prompt_has(methods, chosen.records):
        needed += 1
        larger = sample.model_copy(update={"labels": needed})
        chosen = replace(
            chosen,
            records=tuple(record for record in images.records if record.path in larger.weights),
        )
    raise InvalidInputError(
        f"--questions: in a sample of {sample.labels} images no prompt has an image of every"
        f" method ({', '.join(sorted(methods))}), so the methods could not be compared; expected at"
        f" least {needed} images, with one question for each attribute, or --sample turn"
    )


def _some_prompt_has(methods: set[str], records: Sequence[PlannedImage]) -> bool:
    """Return whether some prompt has an image of each of the methods."""
    methods_of_prompt: dict[str, set[str]] = {}
    for record in records:
        methods_of_prompt.setdefault(record.prompt, set()).add(record.variant)
    return methods in methods_of_prompt.values()


def _only_sampled(images: ImageFolder, sample: LabelSample, file: Path) -> ImageFolder:
    """Return the images of a sample, with their weights.

    Raises:
        InvalidInputError: an image of the sample is not in the folder.
    """
    weights = sample.weights
    records = tuple(record for record in images.everything if record.path in weights)
    missing = sorted(set(weights) - {record.path for record in records})
    if missing:
        raise InvalidInputError(
            f"{file}: {len(missing)} of its images are not in {images.root}, such as {missing[0]}"
        )
    return replace(
        images, records=records, weights=weights, strata=len(sample.strata), judge=sample.judge
    )


def _draw(images: ImageFolder, question: Question, labels: int, seed: int) -> LabelSample | None:
    """Sample by the answers of the last judge; None if none answered, or if every image is asked
    about."""
    # Everybody sees everything, and no weights are needed.
    if labels >= len(images.records):
        return None
    generated = None
    last = None
    if (images.root / PLAN).is_file():
        generated = GeneratedImages.open(images.root)
        last = last_judgements(generated, question.attribute, question.values)
    if generated is None or last is None:
        warn(
            f"{images.root}: no judge answered {question.attribute}, so prompts take turns, as with"
            " --sample turn"
        )
        return None
    table = pd.DataFrame(generated.images)
    # Figures are told for each method, and apart for held-out prompts.
    table["within"] = table.variant + ", " + table.part
    judge, table["said"], table["sure"] = last
    askable = table[table.path.isin([record.path for record in images.records])]
    return LabelSample.draw(askable, labels, attribute=question.attribute, judge=judge, seed=seed)
