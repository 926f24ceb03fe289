"""`vldebias label`: people label generated images, blinded and shuffled (sections 7.6.3 and A.4.3 of the thesis)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vldebias.evaluation.answers import AnnotationLog

from .engine import Labelling
from .study import ImageFolder, questions_of


def open_study(
    folder: Path,
    attributes: Sequence[str],
    choices: Sequence[str] = (),
    *,
    file: Path | None = None,
    annotators: Sequence[str] = (),
    part: str = "unseen",
    limit: int | None = None,
    most: int | None = 200,
    seed: int = 0,
) -> Labelling:
    """The study that the options of `vldebias label` describe; `file` is by default answers.jsonl beside the images.

    most: questions for each annotator; None: about every image.

    Raises:
        InvalidInputError: no images, no questions, or answers that were given to other questions.
    """
    images = ImageFolder.open(folder, part=part, limit=limit)
    questions = questions_of(attributes, choices, images.prompt_set)
    if most is not None:
        images = ImageFolder.open(folder, part=part, limit=limit, most=max(1, most // len(questions)))
    log = AnnotationLog(file or images.root / "answers.jsonl")
    return Labelling(images, questions, log, annotators=annotators, seed=seed)
