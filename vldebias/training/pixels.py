"""Images that are read for measuring: prepared by threads that run ahead, in batches, what cannot be read listed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator

import torch
from PIL import Image
from torch import Tensor

from vldebias.data.embed_rows import prefetch

__all__ = ["Placed", "Prepare", "pixel_batches"]

Prepare = Callable[[Image.Image], Tensor]
Placed = tuple[Tensor, Tensor]
"""Rows (b,) of a data set and their pixels (b, 3, h, w)."""

_OF_THE_IMAGE = (None, errno.ENOENT)  # any other number is the machine's: no permission, drive gone


def pixel_batches(
    rows: Iterable[int],
    read: Callable[[int], Image.Image],
    prepare: Prepare,
    *,
    batch_size: int,
    workers: int,
    skipped: dict[int, str],
) -> Iterator[Placed]:
    """Batches of the rows that can be read, in their order; the others are put into `skipped`: row -> reason.

    workers: threads that read and prepare ahead; 0 does so between the batches.

    Raises:
        OSError: the fault of the machine and not of an image.
    """

    def load(row: int) -> tuple[int, Tensor | str]:
        try:
            return row, prepare(read(row))
        except OSError as error:
            if error.errno not in _OF_THE_IMAGE:
                raise
            return row, f"{type(error).__name__}: {error.strerror or error}"

    found: list[tuple[int, Tensor]] = []
    for row, pixels in prefetch(rows, load, workers, 2 * batch_size):
        if isinstance(pixels, str):
            skipped[row] = pixels
        else:
            found.append((row, pixels))
        if len(found) == batch_size:
            yield _batch(found)
            found = []
    if found:
        yield _batch(found)


def _batch(found: list[tuple[int, Tensor]]) -> Placed:
    return torch.tensor([row for row, _ in found]), torch.stack([pixels for _, pixels in found])
