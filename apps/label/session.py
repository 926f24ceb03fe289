"""Open a labelling study: choose its images, questions and file of answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..shares.answers import ANSWERS, AnnotationLog
from .engine import Labelling
from .sample import sampled
from .study import ImageFolder, questions_of


def open_study(
    folder: Path,
    attributes: Sequence[str],
    choices: Sequence[str] = (),
    *,
    file: Path | None = None,
    annotators: Sequence[str] = (),
    most: int | None = 200,
    sample: str = "judge",
    seed: int = 0,
) -> Labelling:
    """Open the study of `vldebias label`.

    Args:
        folder: the image folder.
        attributes: attributes to ask about.
        choices: attribute values, see `questions_of`.
        file: file for the answers. Default: answers.jsonl in the image folder.
        annotators: names of the people who may take part. If empty, anyone may.
        most: maximum number of questions per annotator. If None, ask about every image.
        sample: "judge" or "turn", see `sampled`.
        seed: seed for the sample and the order of the images.

    Raises:
        InvalidInputError: If there are no images or questions, or if the file contains answers to
            different questions.
    """
    images = ImageFolder.open(folder)
    questions = questions_of(attributes, choices, images.prompt_set)
    log = AnnotationLog(file or images.root / ANSWERS)
    limit = None if most is None else max(1, most // len(questions))
    chosen = sampled(images, questions[0], log, limit, way=sample, seed=seed)
    if chosen is None:
        chosen = ImageFolder.open(folder, limit=limit)
    return Labelling(chosen, questions, log, annotators=annotators, seed=seed)
