"""Load a judge's stored answers from a folder of generated images, without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from vldebias.data import Labels
from vldebias.data.labels import UNKNOWN
from vldebias.judge.plan import GeneratedImages
from vldebias.utils.files import digest
from vldebias.utils.schema import Share

NO_VALUE = "unknown"  # a judge's answer that does not name a value
SURE = 0.8  # default minimum probability at which an answer counts


@dataclass
class StoredAnswers:
    """The content of an answer file.

    Attributes:
        name: name of the judge.
        names: attribute -> values, in the order of the probabilities.
        answers: image key (see `image_keys`) -> attribute -> probabilities.
    """

    name: str = ""
    names: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, dict[str, list[float]]] = field(default_factory=dict)


class _Line(BaseModel, extra="allow"):
    """A line of an answer file, whose other keys are image keys."""

    __pydantic_extra__: dict[str, dict[str, list[Share]]]
    name: str | None = None
    names: dict[str, list[str]] | None = None


def decide(probabilities: np.ndarray, names: Sequence[str], sure: float) -> Labels:
    """Return the most likely value for each image, or unknown.

    The value is unknown if the largest probability is below `sure`, or below the probability that
    the image shows none of the values.

    Args:
        probabilities: probabilities (n, values).
        names: names of the values.
        sure: minimum probability at which an answer counts.
    """
    best = probabilities.max(axis=1)
    # The remainder is the probability of none of the values. For example, with 0.45 for man and
    # 0.05 for woman, the answer is "neither", regardless of `sure`.
    rest = 1 - probabilities.sum(axis=1)
    known = (best >= sure) & (best >= rest)
    return Labels(np.where(known, probabilities.argmax(axis=1), UNKNOWN), tuple(names))


def last_judgements(
    images: GeneratedImages, attribute: str, values: Sequence[str]
) -> tuple[str, list[str], np.ndarray] | None:
    """Return the latest answers in a folder from a judge with these values.

    Args:
        images: the generated images and their folder.
        attribute: what was asked about, such as "gender".
        values: the attribute's values.

    Returns:
        The name of the judge, its answer for every image (one of `values` or NO_VALUE), and the
        probabilities (n,) of the answers, which are 0 for images that changed or were never judged.
        None if no judge with these values has judged the images.
    """
    files = images.folder.glob("judgements/*.jsonl")
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        stored = stored_answers(path)
        names = stored.names.get(attribute, [])
        # A different judge may use different values, such as two tones instead of five.
        if not set(values) <= set(names):
            continue
        # Use zeros for images without an answer, which `decide` maps to "unknown".
        chances = np.zeros((len(images), len(names)))
        for row, key in enumerate(image_keys(images)):
            answer = stored.answers.get(key, {}).get(attribute, [])
            if len(answer) == len(names):
                chances[row] = answer
        answers = []
        for code in decide(chances, names, SURE).codes:
            name = names[code] if code >= 0 else NO_VALUE
            answers.append(name if name in values else NO_VALUE)
        return stored.name, answers, chances.max(axis=1)
    return None


def image_keys(images: GeneratedImages) -> list[str]:
    """Return the path and hash of every image file, with "-" as the hash of missing files."""
    keys = []
    for image in images:
        file = images.path(image)
        # Hash the content, so that an image that was generated again is also judged again.
        file_hash = digest(file)[:24] if file.is_file() else "-"
        keys.append(f"{image.path} {file_hash}")
    return keys


def stored_answers(path: Path) -> StoredAnswers:
    """Load an answer file, and skip incomplete lines."""
    stored = StoredAnswers()
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValidationError):
            content = _Line.model_validate_json(line)
            # The first line describes the judge. All other lines map keys to answers.
            stored.name = stored.name if content.name is None else content.name
            stored.names = stored.names if content.names is None else content.names
            stored.answers |= content.__pydantic_extra__
    return stored
