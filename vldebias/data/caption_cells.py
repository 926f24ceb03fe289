"""Parse captions from table cells, check them, and group them by image."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError, shown, warn

_NO_CAPTION = re.compile(r"nan|none|null|n/a|<na>|#n/a", re.IGNORECASE)
_NO_WORDS = {
    "numbers": re.compile(r"[-+]?\d+([.,]\d+)*"),
    "file names": re.compile(r"\S+\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic)", re.IGNORECASE),
}
_MOST_NO_WORDS = 0.5  # maximum allowed share of captions that are numbers or file names


def captions_in(cell: object, source: str) -> tuple[str, tuple[str, ...] | None]:
    """Return a cell's first caption ("" if there is none) and, for a list, the remaining captions.

    Args:
        cell: a string, a list of strings, or a list of {"raw": string, ...} as in Karpathy's split.
        source: column name for messages.

    Raises:
        InvalidInputError: If the cell is neither a string nor a list of strings.
    """
    if cell is None:
        return "", None
    if not isinstance(cell, (list, Mapping)):
        return str(cell), None
    if isinstance(cell, list):
        cell = [text.get("raw", text) if isinstance(text, Mapping) else text for text in cell]
    are_texts = isinstance(cell, list) and all(isinstance(text, str | None) for text in cell)
    if not are_texts:
        raise InvalidInputError(
            f"{source}: expected a string or a list of strings in every row, got {shown(cell)}"
        )
    texts = [text for text in cell if text and text.strip()]
    if not texts:
        return "", ()
    return texts[0], tuple(texts[1:])


def captions_of(cells: Iterable[object], source: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return two lists with an entry per cell: its first caption, and its further captions.

    Args:
        cells: strings or lists of strings.
        source: column name for messages.
    """
    pairs = [captions_in(cell, source) for cell in cells]
    return [first for first, _ in pairs], [further or () for _, further in pairs]


def texts_of_list(cell: object) -> list[str] | None:
    """Parse a list of strings in JSON or Python syntax; return None for other cells.

    >>> texts_of_list("['a nurse', 'a man']"), texts_of_list('["a nurse"]'), texts_of_list("[sic]")
    (['a nurse', 'a man'], ['a nurse'], None)
    """
    if not isinstance(cell, str):
        return None
    text = cell.strip()
    inside = text[1:-1].strip().removesuffix(",").rstrip()
    # A regular expression would take quadratic time for a long run of spaces.
    is_list = text.startswith("[") and text.endswith("]") and len(inside) > 1
    if not is_list or inside[0] not in "\"'" or inside[-1] not in "\"'":
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            texts = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            return texts
    return None


def one_row_per_image(
    source: str,
    names: Sequence[str],
    captions: Sequence[str],
    further_captions: Sequence[tuple[str, ...]],
    labels: Mapping[str, Labels],
) -> tuple[NDArray[np.int64], list[str], list[tuple[str, ...]]]:
    """Merge rows that share an image, as in COCO and Flickr tables, which have one row per caption.

    Args:
        source: table name for messages.
        names: (n,), image in each row.
        captions: n captions, or empty.
        further_captions: further captions per row, or empty.
        labels: column -> labels of the rows.

    Returns:
        Three sequences with an entry per image: its first row, its first caption, and its further
        captions.

    Raises:
        InvalidInputError: If an image occurs in several rows without captions, or with different
            labels.
    """
    rows_of_image = defaultdict[str, list[int]](list)
    for row, name in enumerate(names):
        rows_of_image[name].append(row)
    if len(rows_of_image) == len(names):
        return np.arange(len(names)), list(captions), list(further_captions)
    if not captions:
        repeated = next(name for name, rows in rows_of_image.items() if len(rows) > 1)
        raise InvalidInputError(
            f"{source}: expected distinct images, but {len(names) - len(rows_of_image)} rows repeat"
            f" an earlier image, such as {shown(repeated)}; remove them, or set the caption column"
            " (caption=...) to merge them into one image with several captions"
        )
    for column, values in labels.items():
        for name, rows in rows_of_image.items():
            if len(set(values.codes[rows].tolist())) > 1:
                raise InvalidInputError(
                    f"{source}: column {column!r}: expected one value per image, but the rows of"
                    f" image {shown(name)} have different values"
                )
    firsts = []
    further_of_image = []
    for rows in rows_of_image.values():
        texts: list[str] = []
        for row in rows:
            texts.append(captions[row])
            if further_captions:
                texts += further_captions[row]
        # Drop blank captions unless all captions are blank.
        texts = list(filter(says_something, texts)) or [""]
        firsts.append(texts[0])
        further_of_image.append(tuple(texts[1:]))
    first_rows = np.array([rows[0] for rows in rows_of_image.values()])
    return first_rows, firsts, further_of_image


def says_something(caption: str) -> bool:
    """Return True unless a caption is blank or a placeholder (nan, none, null, n/a)."""
    text = caption.strip()
    return bool(text) and _NO_CAPTION.fullmatch(text) is None


def check_captions(name: str, captions: Sequence[str], remedy: str) -> None:
    """Warn if captions are numbers or file names.

    Args:
        name: data name for messages.
        captions: one caption per image, as read from the table.
        remedy: advice to include in the message.

    Raises:
        InvalidInputError: If more than half of the captions are numbers or file names, or all
            captions are the same.
    """
    if len(captions) > 1 and len(set(captions)) == 1:
        raise InvalidInputError(
            f"{name}: expected different captions, but all {len(captions)} captions are"
            f" {shown(captions[0])}. {remedy}"
        )
    for kind, pattern in _NO_WORDS.items():
        strange = [text for text in captions if pattern.fullmatch(text.strip())]
        # A few such captions may be genuine, but more than half suggest that the wrong column was
        # chosen.
        share = len(strange) / max(1, len(captions))
        finding = (
            f"{name}: {len(strange)} of {len(captions)} captions ({share:.0%}) are {kind}, such as"
            f" {shown(strange[:1])}"
        )
        if share > _MOST_NO_WORDS:
            raise InvalidInputError(f"{finding}; expected words. {remedy}")
        if strange:
            warn(f"{finding}, and will be used for training. {remedy}")
