"""The sample that people label: uncertainty sampling by a judge's answers, kept beside theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vldebias.errors import InvalidInputError
from vldebias.evaluation.answers import AnnotationLog, LabelSample
from vldebias.evaluation.judges import SURE, Judgements
from vldebias.evaluation.plan import PLAN, GeneratedImages
from vldebias.files import write_atomically

from .study import ImageFolder, Question

WAYS = ("auto", "judge", "turn")
ENDING = ".sample.json"


def sampled(
    images: ImageFolder, question: Question, log: AnnotationLog, most: int | None, *, way: str = "auto", seed: int = 0
) -> ImageFolder | None:
    """Return the sampled images with their weights; None if the prompts take turns.

    Args:
        images: all that may be labelled. question: what the judge was asked. log: the sample lies beside it.
        most: number of images; None: all. A sample that is there is made larger, and never smaller.
        way: "judge": more images where the judge is unsure (Neyman, 1934). "turn": the first of each prompt. "auto": as
            the sample that is there, else by the judge where one answered and nobody has answered in turn.

    Raises:
        InvalidInputError: another way; no judge to draw by; answers that were given in turn, which have no weights.
    """
    if way not in WAYS:
        raise InvalidInputError(f"--sample: expected one of {', '.join(WAYS)}, got {way!r}")
    kept = log.path.with_suffix(ENDING)
    if way == "turn":
        if kept.is_file():
            raise InvalidInputError(f"--sample turn: {kept} holds a sample made with a judge; choose another --out")
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
                f"{kept}: this sample is for {there.attribute} (judge {there.judge}), got --attribute "
                f"{question.attribute}; put --attribute {there.attribute} first, or choose another --out"
            )
        size = sum(len(one.images) for one in there.strata) if most is None else most
        found = there.of_size(max(size, len(there.weights)))
    weights = found.weights
    records = tuple(record for record in images.everything if record.path in weights)
    if len(records) < len(weights):
        lost = sorted(set(weights) - {record.path for record in records})
        raise InvalidInputError(f"{kept}: {len(lost)} of its images are not in {images.root}, such as {lost[0]}")
    if found != there:
        write_atomically(kept, found.model_dump_json(indent=1) + "\n")
    return replace(images, records=records, weights=weights, strata=len(found.strata), judge=found.judge)


def _draw(images: ImageFolder, question: Question, labels: int, seed: int) -> LabelSample | None:
    """Sample by the answers of the last judge; None if none answered, or if every image is asked about."""
    if not (images.root / PLAN).is_file() or labels >= len(images.records):
        return None
    drawn = GeneratedImages.open(images.root)
    judge = Judgements.last(drawn, question.attribute, question.values)
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


def _why_not(images: ImageFolder, question: Question, answers: Path, most: int | None, in_turn: bool) -> str:
    if in_turn:
        return f"--sample judge: {answers} has answers without weights, from --sample turn; choose another --out"
    if most is None or most >= len(images.records):
        return f"--sample judge: all {len(images.records)} images would be labelled; lower --questions to sample"
    return (
        f"--sample judge: no judge has answered about {question.attribute} ({', '.join(question.values)}) beside "
        f"{images.root}; let `vldebias eval generation --out DIR` judge the images first, or leave --sample out"
    )
