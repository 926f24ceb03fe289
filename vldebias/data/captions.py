"""Captions as people have them: rows of one image become one, and texts that say nothing of an image are told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError, warn

_NOTHING = re.compile(r"nan|none|null|n/a|<na>|#n/a", re.IGNORECASE)
_KINDS = {
    "numbers": re.compile(r"[-+]?\d+([.,]\d+)*"),
    "names of files": re.compile(r"\S+\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic)", re.IGNORECASE),
}
MOST = 0.5  # share of such captions from which on they are refused


def one_row_per_image(
    where: str,
    names: Sequence[str],
    captions: Sequence[str],
    more: Sequence[tuple[str, ...]],
    labels: Mapping[str, Labels],
) -> tuple[NDArray[np.int64], list[str], list[tuple[str, ...]]]:
    """The first row of each image, its caption, and those beside it: of further rows of the same name, in their order.

    COCO and Flickr come so, a row per caption. names: (n,) of the images. captions: n texts, or none; more: of each row
    those beside its caption, or none. labels: columns, which are of the image.

    Raises:
        InvalidInputError: a name on several rows without captions to put together, or with different labels.
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    if len(rows) == len(names):
        return np.arange(len(names)), list(captions), list(more)
    repeated = next(name for name, own in rows.items() if len(own) > 1)
    if not captions:
        raise InvalidInputError(
            f"{where}: {len(names) - len(rows)} rows name an image that is there more than once, such as {repeated!r}; "
            "expected a row per image. With captions (caption=...) such rows become one with several captions; "
            "otherwise give id=..., a column of different names, or leave them out"
        )
    first = np.array([own[0] for own in rows.values()])
    numbers = np.empty(len(names), dtype=np.int64)
    for own in rows.values():
        numbers[own] = own[0]
    for column, values in labels.items():
        apart = np.flatnonzero(values.codes != values.codes[numbers])
        if len(apart):
            raise InvalidInputError(
                f"{where}: column {column!r}: the rows of image {names[int(apart[0])]!r} have different values; "
                "expected one per image, whose captions may be many"
            )
    each = [(captions[row], *(more[row] if more else ())) for row in range(len(names))]
    every = [[text for row in own for text in each[row] if says_something(text)] for own in rows.values()]
    return first, [texts[0] if texts else "" for texts in every], [tuple(texts[1:]) for texts in every]


def says_something(caption: str) -> bool:
    """Neither blank nor what a table writes where there is no text: nan, none, null, n/a."""
    text = caption.strip()
    return bool(text) and _NOTHING.fullmatch(text) is None


def check_captions(name: str, captions: Sequence[str], remedy: str) -> None:
    """Warns of captions that are numbers or names of files, with their share.

    remedy: what to do, such as naming another column.

    Raises:
        InvalidInputError: more than half are such, or all captions are the same.
    """
    distinct = dict.fromkeys(captions)
    if len(distinct) == 1 and len(captions) > 1:
        caption = next(iter(distinct))
        raise InvalidInputError(
            f"{name}: all {len(captions)} captions say {caption!r}, so none tells images apart. {remedy}"
        )
    for kind, pattern in _KINDS.items():
        strange = {text for text in distinct if pattern.fullmatch(text.strip())}
        count = sum(text in strange for text in captions) if strange else 0
        if not count:
            continue
        example = next(text for text in distinct if text in strange)
        told = (
            f"{name}: {count} of {len(captions)} captions ({count / len(captions):.0%}) are {kind}, such as {example!r}"
        )
        if count > MOST * len(captions):
            raise InvalidInputError(f"{told}; expected words. {remedy}")
        warn(f"{told}; they are learned as they are. {remedy}")
