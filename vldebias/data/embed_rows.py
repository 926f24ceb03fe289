"""Rows of images into rows of features: decoded by threads that run ahead, in batches, what cannot be read listed."""

from __future__ import annotations

import errno
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Never, TypeVar

import torch
from PIL import Image
from torch import Tensor

from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from vldebias.hosts.images import ImageEncoder, Pixels

__all__ = ["DTYPES", "Embedded", "How", "Row", "embed_rows", "prefetch"]

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_OF_THE_IMAGE = (None, errno.ENOENT)  # any other number is the machine's: no permission, drive gone, no file handles
_MANY = 16  # where not one of at least so many images can be read, the drive is gone and not the images

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Row:
    """One image of a data set: its place, its name, how to read it."""

    index: int
    id: str
    read: Callable[[], Image.Image]


@dataclass(frozen=True, eq=False)
class How:
    """How rows are embedded: with what, stored as which of `DTYPES`, in batches, by how many reading threads."""

    encoder: ImageEncoder
    dtype: str
    batch_size: int
    workers: int
    strict: bool


@dataclass(eq=False)
class Embedded:
    """Features (r, d) of the rows that could be read, and (id, reason) of the others."""

    features: Tensor
    rows: list[int] = field(default_factory=list)
    skipped: list[list[str]] = field(default_factory=list)


def embed_rows(rows: Iterable[Row], how: How, on_row: Callable[[], None]) -> Embedded:
    """Features of `rows` in their order; the batches start anew here, so that a shard never depends on another.

    Raises:
        InvalidInputError: an image that cannot be read where `how.strict`, many of which none can be read, features
            that are not finite.
        OSError: the fault of the machine and not of an image.
    """
    done, parts = Embedded(torch.empty(0, 0, dtype=DTYPES[how.dtype])), []
    batch: list[tuple[Row, Pixels]] = []
    for row, pixels in prefetch(rows, lambda row: (row, _load(row, how)), how.workers, 2 * how.batch_size):
        if isinstance(pixels, str):
            done.skipped.append([row.id, _refuse(row, pixels) if how.strict else pixels])
        else:
            done.rows.append(row.index)
            batch.append((row, pixels))
        if len(batch) == how.batch_size:
            parts.append(_features(batch, how))
            batch.clear()
        on_row()
    if batch:
        parts.append(_features(batch, how))
    _check_drive(done)
    if parts:
        done.features = torch.cat(parts)
    return done


def _check_drive(done: Embedded) -> None:
    if len(done.skipped) >= _MANY and not done.rows:
        (first, reason), (last, _) = done.skipped[0], done.skipped[-1]
        raise InvalidInputError(
            f"none of the {len(done.skipped)} images from {first!r} to {last!r} can be read ({reason}); expected "
            "images there: is the drive connected, is the root right?"
        )


def prefetch(tasks: Iterable[T], work: Callable[[T], R], workers: int, ahead: int) -> Iterator[R]:
    """`work` of each task, in order, done by threads that run at most `ahead` tasks ahead; 0: by the caller."""
    if workers == 0:
        yield from map(work, tasks)
        return
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[R]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also where the caller stops early, such as on Ctrl-C
        pool.shutdown(wait=True, cancel_futures=True)


def _load(row: Row, how: How) -> Pixels | str:
    """The pixels, or why the image cannot be read."""
    try:
        image = row.read()
    except OSError as error:
        if error.errno not in _OF_THE_IMAGE:
            raise
        # Without paths and addresses, which differ between two runs that are otherwise the same.
        told = error.strerror or re.sub(r" at 0x[0-9a-f]+", "", str(error))
        return f"{type(error).__name__}: {told}"
    return how.encoder.prepare(image)


def _refuse(row: Row, reason: str) -> Never:
    raise InvalidInputError(
        f"image {row.id!r} cannot be read ({reason}); repair or remove it, or run without strict to count and skip "
        "such images"
    )


def _features(batch: list[tuple[Row, Pixels]], how: How) -> Tensor:
    """Features (b, d) in the precision of the cache."""
    stored = how.encoder.embed([pixels for _, pixels in batch]).to(DTYPES[how.dtype])
    bad = ~torch.isfinite(stored).all(dim=1)
    if bad.any():
        first = batch[int(bad.nonzero()[0])][0]
        raise InvalidInputError(
            f"{how.encoder.name}: the features of {int(bad.sum())} images, such as {first.id!r}, are not finite as "
            f"{how.dtype}; expected finite ones: choose dtype 'bfloat16' or 'float32', or run the model in float32"
        )
    return stored
