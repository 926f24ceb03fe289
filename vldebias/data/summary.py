"""What is in a data set, and whether all its images can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data.dataset import Columns, ImageData, ImageStream
from vldebias.data.labels import Labels, cross
from vldebias.errors import InvalidInputError
from vldebias.progress import SILENT, Progress

if TYPE_CHECKING:
    from PIL import Image

_CROSSED = 4  # columns whose intersections are counted unless others are named
_CELLS = 100  # an intersection of more groups is no table to read
_AHEAD = 256  # images that are read at once

Read = Callable[[], "Image.Image"]


def group_counts(data: Columns, *columns: str) -> dict[str, int]:
    """Rows of every group, such as {"landbird/land": 3498, ...}; rows with an unknown label are in no group.

    Of the training split these are the weights of the reweighted average (Sagawa et al., 2020).

    Raises:
        InvalidInputError: no column given, or one that is not there.
    """
    return cross(*(data.column(name) for name in columns)).counts


def describe(data: ImageData | ImageStream, columns: Iterable[str] | None = None) -> dict[str, Any]:
    """Counts for a first look, as JSON takes them; no image is opened.

    Args:
        data: what `open_data` gives; a stream is gone through once, from its first row to its last.
        columns: whose intersections of two are counted; by default the first four. Intersections of more than a
            hundred groups are left out.

    Returns:
        name, split, images, columns {column: {"counts": {name: rows}, "unknown": rows}}, intersections {"a x b":
        {"counts", "unknown"}}, captions (rows that have one), about.

    Raises:
        InvalidInputError: a column that is not there.
    """
    data = data if isinstance(data, ImageData) else _gone_through(data)
    chosen = list(columns) if columns is not None else list(data.labels)[:_CROSSED]
    crossed = {(a, b): (data.column(a), data.column(b)) for a, b in combinations(chosen, 2)}
    small = {pair: labels for pair, labels in crossed.items() if len(labels[0].names) * len(labels[1].names) <= _CELLS}
    return {
        "name": data.name,
        "split": data.split,
        "images": len(data),
        "columns": {name: _counted(labels) for name, labels in data.labels.items()},
        "intersections": {f"{a} x {b}": _counted(cross(*labels)) for (a, b), labels in small.items()},
        "captions": sum(1 for caption in data.captions if caption),
        "about": dict(data.about),
    }


def _gone_through(stream: ImageStream) -> ImageData:
    """The rows of a stream without their images."""
    rows = [(row.id, row.labels, row.caption or "") for row in stream.records()]
    columns = dict.fromkeys([*stream.names, *(column for _, labels, _ in rows for column in labels)])
    values = {column: [labels.get(column) for _, labels, _ in rows] for column in columns}
    return ImageData(
        name=stream.name,
        split=stream.split,
        ids=tuple(name for name, _, _ in rows),
        read=lambda index: next(stream.records(index)).read(),
        labels={column: Labels.of(cells, stream.names.get(column)) for column, cells in values.items()},
        fingerprint=lambda: stream.fingerprint,
        captions=tuple(caption for _, _, caption in rows),
        about=stream.about,
    )


def _counted(labels: Labels) -> dict[str, Any]:
    return {"counts": labels.counts, "unknown": int((~labels.known).sum())}


def check_images(
    data: ImageData | ImageStream, *, sample: int | None = None, seed: int = 0, progress: bool = True
) -> list[tuple[str, str]]:
    """Reads every image and says which cannot be read, with the reason, in the order of the data.

    Args:
        data: what `open_data` gives.
        sample: read that many only: at random, or the first ones of a stream.
        seed: of the sample.
        progress: show a bar on stderr.

    Raises:
        InvalidInputError: a sample that is not positive.
    """
    if sample is not None and sample < 1:
        raise InvalidInputError(f"check_images: expected a positive sample, got {sample}")
    rows: Iterator[tuple[str, Read]]
    total: int | None
    if isinstance(data, ImageData):
        index = np.arange(len(data))
        if sample is not None and sample < len(data):
            index = np.sort(np.random.default_rng(seed).choice(index, sample, replace=False))
        rows, total = ((data.ids[i], partial(data.read, i)) for i in index.tolist()), len(index)
    else:
        rows, total = ((record.id, record.read) for record in islice(data.records(), sample)), sample

    def reason(row: tuple[str, Read]) -> str | None:
        try:
            row[1]()
        except OSError as error:
            return error.strerror or str(error)
        return None

    display = Progress.on() if progress else SILENT
    bad: list[tuple[str, str]] = []
    with display, display.bar("checking images", total) as bar, ThreadPoolExecutor() as pool:
        while block := list(islice(rows, _AHEAD)):
            reasons = zip(block, pool.map(reason, block), strict=True)
            bad += [(name, why) for (name, _), why in reasons if why is not None]
            bar.advance(len(block))
    return bad
