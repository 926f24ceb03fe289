"""Read cached judge answers from a folder of generated images, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vldebias.data import UNKNOWN, Labels
from vldebias.judge.plan import GeneratedImages
from vldebias.utils.files import digest

NO_VALUE = "unknown"  # answer of a judge that does not name a value
SURE = 0.8  # default minimum probability of an answer


@dataclass
class StoredAnswers:
    """Store the content of an answer file.

    Attributes:
        name: name of the judge.
        names: attribute -> values, in the order of the probabilities.
        answers: image key (see `image_keys`) -> attribute -> probabilities.
    """

    name: str = ""
    names: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, dict[str, list[float]]] = field(default_factory=dict)


def decide(probabilities: np.ndarray, names: Sequence[str], sure: float) -> Labels:
    """Return the most likely value for probabilities (n, values), or unknown.

    The value is unknown if the largest probability is below `sure`, or below the probability of
    none of the values.

    Args:
        probabilities: probabilities (n, values).
        names: names of the values.
        sure: minimum probability of an answer.
    """
    best = probabilities.max(axis=1)
    # The remainder is the probability of none of the values: with 0.45 man and 0.05 woman, the
    # answer is "neither", regardless of `sure`.
    rest = 1 - probabilities.sum(axis=1)
    known = (best >= sure) & (best >= rest)
    return Labels(np.where(known, probabilities.argmax(axis=1), UNKNOWN), tuple(names))


def last_judgements(
    images: GeneratedImages, attribute: str, values: Sequence[str]
) -> tuple[str, list[str], np.ndarray] | None:
    """Return the latest judgements in a folder by a judge with these values.

    Args:
        images: the generated images.
        attribute: the attribute.
        values: its values.

    Returns:
        Name of the judge; its answer for every image, one of `values` or NO_VALUE; and the
        probabilities (n,), 0 for images that changed or were never judged. None if there are no
        such judgements.
    """
    files = images.folder.glob("judgements/*.jsonl")
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        stored = stored_answers(path)
        names = stored.names.get(attribute, [])
        # A different judge may use different values: two tones instead of five.
        if not set(values) <= set(names):
            continue
        # Zeros mark images without an answer: `decide` maps them to "unknown".
        never_judged = {attribute: [0.0] * len(names)}
        rows = [stored.answers.get(key, never_judged)[attribute] for key in image_keys(images)]
        chances = np.array(rows)
        answers = []
        for code in decide(chances, names, SURE).codes:
            name = names[code] if code >= 0 else NO_VALUE
            answers.append(name if name in values else NO_VALUE)
        return stored.name, answers, chances.max(axis=1)
    return None


def image_keys(images: GeneratedImages) -> list[str]:
    """Return the path and hash of every image file; "-" is the hash of a missing file."""
    keys = []
    for image in images:
        file = images.path(image)
        # Include the content, so that a regenerated image is judged again.
        file_hash = digest(file)[:24] if file.is_file() else "-"
        keys.append(f"{image.path} {file_hash}")
    return keys


def stored_answers(path: Path) -> StoredAnswers:
    """Load an answer file, skipping incomplete lines."""
    stored = StoredAnswers()
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            content = json.loads(line)
            # The first line describes the judge; the others map keys to answers.
            stored.name = content.pop("name", stored.name)
            stored.names = content.pop("names", stored.names)
            stored.answers |= content
    return stored
