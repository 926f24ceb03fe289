"""`vldebias label`: people label generated images, blinded and shuffled (sections 7.6.3 and A.4.3
of the thesis)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vldebias.judge.answers import AnnotationLog

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
    """Return the study of `vldebias label`; `file` is by default answers.jsonl in the folder of the
    images.

    most: questions for each annotator; None: about every image. sample: "judge" or "turn", see
    `sampled`.

    Raises:
        InvalidInputError: no images, no questions, or answers that were given to other questions.
    """
    images = ImageFolder.open(folder)
    questions = questions_of(attributes, choices, images.prompt_set)
    log = AnnotationLog(file or images.root / "answers.jsonl")
    room = None if most is None else max(1, most // len(questions))
    chosen = sampled(images, questions[0], log, room, way=sample, seed=seed) or ImageFolder.open(
        folder, limit=room
    )
    return Labelling(chosen, questions, log, annotators=annotators, seed=seed)
