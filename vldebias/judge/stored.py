"""Read the answers of judges that are stored in a folder of generated images, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from vldebias.data import UNKNOWN, Labels
from vldebias.judge.plan import GeneratedImages
from vldebias.utils.files import digest

NO_VALUE = "unknown"  # the answer of a judge that names no value
SURE = 0.8  # default of the smallest probability with which an answer of a judge counts


def decide(probabilities: np.ndarray, names: Sequence[str], sure: float) -> Labels:
    """Return the most likely value for probabilities (n, values), or unknown.

    Unknown where the largest probability is below `sure`, or below what is left for none of the
    values.
    """
    best = probabilities.max(axis=1)
    # What is left for none of the values: with .45 man and .05 woman the answer is “neither”,
    # whatever `sure` is.
    rest = 1 - probabilities.sum(axis=1)
    known = (best >= sure) & (best >= rest)
    return Labels(np.where(known, probabilities.argmax(axis=1), UNKNOWN), tuple(names))


def last_judgements(
    images: GeneratedImages, attribute: str, values: Sequence[str]
) -> tuple[str, list[str], np.ndarray] | None:
    """Return the newest judgements in a folder by a judge that knows these values of an attribute;
    None if there are none.

    That is its name; its answer for every image, one of `values` or NO_VALUE; and its probability
    (n,), 0 for images that changed since or were never judged.
    """
    files = images.folder.glob("judgements/*.jsonl")
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        known = stored_answers(path)
        names = known["names"].get(attribute, ())
        # Another judge of the attribute may name other values: two tones instead of five.
        if not set(values) <= set(names):
            continue
        # Zeros stand for an image without an answer: `decide` makes "unknown" of them.
        never_judged = {attribute: [0.0] * len(names)}
        chances = np.array([known.get(key, never_judged)[attribute] for key in image_keys(images)])
        answers = []
        for code in decide(chances, names, SURE).codes:
            name = names[code] if code >= 0 else NO_VALUE
            answers.append(name if name in values else NO_VALUE)
        return known["name"], answers, chances.max(axis=1)
    return None


def image_keys(images: GeneratedImages) -> list[str]:
    """Return path and hash of every image file; the hash of a missing one is "-"."""
    keys = []
    for image in images:
        file = images.path(image)
        # By content as well as by path: an image that was generated again is judged again.
        file_hash = digest(file)[:24] if file.is_file() else "-"
        keys.append(f"{image.path} {file_hash}")
    return keys


def stored_answers(path: Path) -> dict[str, Any]:
    """Return "name" and "names" of the judge, and its answers by key; a line that was cut off is
    left out."""
    known = dict[str, Any]()
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            known |= json.loads(line)
    return known
