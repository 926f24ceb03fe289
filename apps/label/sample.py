"""Sample images for labelling: uncertainty sampling with inverse-probability weights.

The strata are the judge's answers for each method, split at the judge's median confidence. Labels
are allocated by stratum size and the judge's uncertainty (Neyman, 1934). They are allocated one by
one with the Huntington-Hill method, so that a larger sample contains any smaller one. Each answer
is weighted by the inverse sampling probability of its image, so estimates are unbiased for any
judge.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pandas as pd

from vldebias.errors import InvalidInputError, warn
from vldebias.judge.plan import PLAN, GeneratedImages, PlannedImage
from vldebias.judge.stored import last_judgements
from vldebias.utils.files import read_json, write_atomically
from vldebias.utils.formats import check_format
from vldebias.utils.schema import Strict

from ..shares.answers import AnnotationLog
from .study import ImageFolder, Question

ENDING = ".sample.json"
LEAST = 2  # minimum number of labels per stratum with enough images
ERROR = 0.05  # minimum assumed error rate of a judge


class LabelSample(Strict):
    """Store a sample of images to label, saved next to the answers.

    Attributes:
        attribute: the attribute whose answers determine the strata.
        judge: name of the judge.
        strata: the images in each stratum, in random order.
        turns: the stratum from which each successive image is labelled, for all images.
        labels: number of sampled images.
    """

    format_version: Literal[1] = 1
    attribute: str
    judge: str
    strata: tuple[tuple[str, ...], ...]
    turns: tuple[int, ...]
    labels: int

    @classmethod
    def draw(
        cls, images: pd.DataFrame, labels: int, *, attribute: str, judge: str, seed: int = 0
    ) -> LabelSample:
        """Sample images, including at least LEAST from each stratum.

        If there are too few labels for the finest strata, coarser strata are used.

        Args:
            images: one row per image with the columns `path`; `within`, a group such as a method,
                for which separate results are reported; `said`, the judge's answer; and `sure`, its
                probability.
            labels: number of images to sample.
            seed: seed for the order within each stratum.
            attribute: the attribute whose answers determine the strata.
            judge: name of the judge.
        """
        # Sort by a hash, so that the order does not change if more images are generated.
        order = images.path.map(lambda path: hashlib.sha256(f"{seed}\0{path}".encode()).digest())
        shuffled = images.loc[order.sort_values().index]
        strata = _strata(shuffled, labels)
        turns = _turns(strata)
        paths = tuple(tuple(stratum.path) for stratum in strata)
        return cls(
            attribute=attribute,
            judge=judge,
            strata=paths,
            turns=turns,
            labels=max(labels, _least(strata)),
        )

    @property
    def weights(self) -> Mapping[str, float]:
        """Return each sampled image's inverse sampling probability, by path."""
        counts = Counter(self.turns[: self.labels])
        weights: dict[str, float] = {}
        for number, stratum in enumerate(self.strata):
            sampled_paths = stratum[: counts[number]]
            weights |= dict.fromkeys(sampled_paths, len(stratum) / max(counts[number], 1))
        return weights


def _strata(images: pd.DataFrame, labels: int) -> list[pd.DataFrame]:
    """Return the finest strata for which there are enough labels, or a single stratum otherwise.

    Args:
        images: one row per image, in random order.
        labels: number of labels.
    """
    # Every stratum needs two labels, because the variance cannot be estimated from one.
    answers = [rows for _, rows in images.groupby(["within", "said"])]
    halves = [half for rows in answers for half in _halves(rows)]
    parts = [rows for _, rows in images.groupby("within")]
    for strata in (halves, answers, parts):
        if _least(strata) <= labels:
            return strata
    return [images]


def _halves(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Split rows at the judge's median confidence."""
    middle = rows.sure.median()
    if rows.sure.max() > middle:
        above = rows.sure > middle
    else:  # many images have the same confidence
        above = rows.sure >= middle
    return [half for half in (rows[above], rows[~above]) if len(half)]


def _least(strata: Sequence[pd.DataFrame]) -> int:
    """Return the number of labels needed for strata: LEAST each, or one for a single stratum."""
    if len(strata) == 1:
        return 1
    return sum(min(LEAST, len(stratum)) for stratum in strata)


def _turns(strata: Sequence[pd.DataFrame]) -> tuple[int, ...]:
    """Return the stratum of each image to label, in order.

    LEAST images from each stratum come first. The others are ordered by the size of their stratum
    and the judge's uncertainty.
    """
    needs: list[tuple[float, int]] = []
    for number, stratum in enumerate(strata):
        size = len(stratum)
        # The standard deviation of a Bernoulli variable is sqrt(p (1 - p)).
        wrong = min(max(1 - stratum.sure.mean(), ERROR), 0.5)
        spread = size * (wrong * (1 - wrong)) ** 0.5
        needs += [(-float("inf"), number)] * min(LEAST, size)
        # Huntington and Hill: the next label goes to the stratum with the largest
        # size * deviation / sqrt(n (n + 1)).
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
    """Return the sampled images with their weights, or None if images are not sampled.

    Args:
        images: the images in the study.
        question: the question whose attribute determines the strata.
        log: the answer file. A sample stored next to it may be enlarged, but is never reduced.
        limit: number of images to sample. If None, all images are used.
        way: "judge" for uncertainty sampling, which requires that a judge has labelled the images
            and that all existing answers have weights; "turn" to go through all prompts in turn.
        seed: seed for the sample.

    Raises:
        InvalidInputError: If `way` is unknown, or if the stored sample is for a different attribute
            or for different images.
    """
    if way not in ("judge", "turn"):
        raise InvalidInputError(f"--sample: expected judge or turn, got {way!r}")
    file = log.path.with_suffix(ENDING)
    earlier: LabelSample | None = None
    sample: LabelSample | None = None
    if file.is_file():
        content = read_json(file)
        check_format(content, file, missing=1)
        earlier = LabelSample.build(content)
        if way == "turn" or earlier.attribute != question.attribute:
            raise InvalidInputError(
                f"{file}: the file already contains a sample for {earlier.attribute}, chosen by the"
                f" judge {earlier.judge}; put --attribute {earlier.attribute} before the others"
                " and leave out `--sample turn`, or choose a different --out"
            )
        labels = max(earlier.labels, limit or len(earlier.turns))
        sample = earlier.model_copy(update={"labels": labels})
    elif limit is not None and way == "judge":
        # Do not sample if there are already answers without weights.
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
    """Raise an error if no prompt in a sample has an image from every method.

    Methods are compared on the same prompts, so the answers could not be evaluated.
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
        f"--questions: in a sample of {sample.labels} images, no prompt has an image from every"
        f" method ({', '.join(sorted(methods))}), so the methods could not be compared; expected at"
        f" least {needed} images, with one question per attribute, or --sample turn"
    )


def _some_prompt_has(methods: set[str], records: Sequence[PlannedImage]) -> bool:
    """Return whether any prompt has an image from every method."""
    methods_of_prompt: dict[str, set[str]] = {}
    for record in records:
        methods_of_prompt.setdefault(record.prompt, set()).add(record.variant)
    return methods in methods_of_prompt.values()


def _only_sampled(images: ImageFolder, sample: LabelSample, file: Path) -> ImageFolder:
    """Return a sample's images with their weights.

    Raises:
        InvalidInputError: If a sampled image is not in the folder.
    """
    weights = sample.weights
    records = tuple(record for record in images.everything if record.path in weights)
    missing = sorted(set(weights) - {record.path for record in records})
    if missing:
        raise InvalidInputError(
            f"{file}: {len(missing)} of its images are not in {images.root}, such as {missing[0]}"
        )
    return replace(images, records=records, weights=weights, judge=sample.judge)


def _draw(images: ImageFolder, question: Question, labels: int, seed: int) -> LabelSample | None:
    """Sample by the last judge's answers, or return None if this is impossible or unnecessary."""
    # If every annotator sees every image, no sample is needed.
    if labels >= len(images.records):
        return None
    # No judge labels images that no evaluation has generated.
    if not (images.root / PLAN).is_file():
        return None
    generated = GeneratedImages.open(images.root)
    last = last_judgements(generated, question.attribute, question.values)
    if last is None:
        warn(
            f"{images.root}: no judge has labelled {question.attribute}, so images are chosen from"
            " all prompts in turn, as with --sample turn"
        )
        return None
    table = pd.DataFrame(generated.images)
    # Results are reported per method, and separately for held-out prompts.
    table["within"] = table.variant + ", " + table.part
    judge, table["said"], table["sure"] = last
    askable = table[table.path.isin([record.path for record in images.records])]
    return LabelSample.draw(askable, labels, attribute=question.attribute, judge=judge, seed=seed)
