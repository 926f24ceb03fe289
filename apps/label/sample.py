"""The sample that people label: drawn by the judge's answers once, kept beside theirs, and only ever made larger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.evaluation.annotations import kept_judgements, labelled_images
from vldebias.evaluation.answers import AnnotationLog, read_annotations
from vldebias.evaluation.corrected import JudgedImages
from vldebias.evaluation.drawing import DrawnSet, by_variant
from vldebias.evaluation.judges import NO_VALUE, SURE, kept_judge
from vldebias.evaluation.plan import PLAN
from vldebias.evaluation.sampling import LabelSample

from .engine import Labelling
from .study import ImageFolder, Question

WAYS = ("auto", "judge", "turn")
ENDING = ".sample.json"


def sampled(
    images: ImageFolder, question: Question, log: AnnotationLog, most: int | None, *, way: str = "auto", seed: int = 0
) -> ImageFolder | None:
    """The images that are drawn for labelling, with their weights; None where they are to be taken in turn.

    Args:
        images: all that may be labelled. question: by whose judge they are drawn. log: the sample lies beside it.
        most: so many images; None: every one. A sample that is there is made larger, and never smaller.
        way: "judge": by lot, more where the judge is unsure. "turn": the first of each prompt. "auto": as the sample
            that is there, else by the judge where one answered and nobody has answered in turn.

    Raises:
        InvalidInputError: another way; no judge to draw by; answers that were given in turn, which have no weights.
    """
    if way not in WAYS:
        raise InvalidInputError(f"--sample: expected one of {', '.join(WAYS)}, got {way!r}")
    kept = log.path.with_suffix(ENDING)
    if way == "turn":
        if kept.is_file():
            raise InvalidInputError(f"--sample turn: {kept} is a sample that was begun; choose another --out")
        return None
    there = LabelSample.read(kept) if kept.is_file() else None
    if there is None:
        in_turn = any(answer.weight is None for answer in log.answers().values())
        found = None if most is None or in_turn else _draw(images, question, most, seed)
        if found is None and way == "judge":
            raise InvalidInputError(_why_not(images, question, log.path, most, in_turn))
        if found is None:
            return None
    else:
        if there.attribute != question.attribute:
            raise InvalidInputError(
                f"{kept}: is a sample by what {there.judge} says of {there.attribute}, and {question.attribute} is "
                f"asked for; name {there.attribute} first, or choose another --out"
            )
        size = len(there.population) if most is None else most
        found = there.of_size(max(size, len(there.weights)))
    weights = found.weights
    records = tuple(record for record in images.everything if record.path in weights)
    if len(records) < len(weights):
        lost = sorted(set(weights) - {record.path for record in records})
        raise InvalidInputError(f"{kept}: {len(lost)} of its images are not in {images.root}, such as {lost[0]}")
    if found != there:
        found.write(kept)
    return replace(images, records=records, weights=weights, strata=len(found.strata), judge=found.judge)


def _draw(images: ImageFolder, question: Question, labels: int, seed: int) -> LabelSample | None:
    """By the answers of the last judge; None where none answered, or every image is asked about anyway."""
    if not (images.root / PLAN).is_file() or labels >= len(images.records):
        return None
    drawn = DrawnSet.open(images.root)
    judge = kept_judge(drawn, question.attribute, question.values)
    if judge is None:
        return None
    said, sure = judge.said(question.attribute, question.values, SURE)
    asked = {record.path for record in images.records}
    rows = [(i, image) for i, image in enumerate(drawn) if image.path in asked]
    return LabelSample.draw(
        [image.path for _, image in rows],
        [f"{image.variant}, {image.part}" for _, image in rows],
        [said[i] for i, _ in rows],
        sure[[i for i, _ in rows]],
        labels,
        attribute=question.attribute,
        judge=judge.name,
        seed=seed,
    )


def more_answers(labelling: Labelling) -> list[str]:
    """How many more answers halve the intervals of each attribute and method, in words, once there are some.

    Of the shares that a judge and people give together where one answered. By people alone an interval goes with one
    over the root of the images that are labelled, so that half of it takes three times as many more.
    """
    folder = labelling.folder
    found: list[str] = []
    if not labelling.log.answers():
        return found
    annotations = read_annotations(labelling.log.path)
    drawn = DrawnSet.open(folder.root) if (folder.root / PLAN).is_file() else None
    for question in labelling.questions:
        about = {answer.image for answer in annotations.answers if answer.attribute == question.attribute}
        judged = kept_judgements(drawn, question.attribute, question.values).get("judged") if drawn else None
        code = {value: i for i, value in enumerate((*question.values, NO_VALUE))}
        asked = [one for one in folder.everything if getattr(one, "stated", None) is None]
        parts = {getattr(one, "part", "") for one in asked if one.path in about}  # nobody was asked about the others
        asked = [one for one in asked if getattr(one, "part", "") in parts]
        for variant, images in by_variant(asked).items() if asked else ():
            paths = [image.path for image in images.values()]
            people, weights = labelled_images(annotations, question.attribute, question.values, paths)
            labelled = int(people.any(axis=1).sum())
            if not labelled:
                continue
            if judged is None:
                more = 3 * labelled if 4 * labelled <= len(paths) else None
            else:
                said = np.array([code[judged[path]] for path in paths])
                more = JudgedImages(np.zeros(len(paths), int), said, people, weights).corrected().more_labels()
            needed = "takes more images than there are" if more is None else f"takes {more} more labelled likewise"
            found.append(f"{question.attribute}, {variant}: {labelled} images labelled; half the interval {needed}")
    return found


def _why_not(images: ImageFolder, question: Question, answers: Path, most: int | None, in_turn: bool) -> str:
    if in_turn:
        return f"--sample judge: {answers} holds answers without weights, given in turn; choose another --out"
    if most is None or most >= len(images.records):
        return f"--sample judge: all {len(images.records)} images are asked about; say fewer --questions"
    return (
        f"--sample judge: no judge has answered about {question.attribute} ({', '.join(question.values)}) beside "
        f"{images.root}; let `vldebias eval generation --out DIR` judge the images first, or leave --sample out"
    )
