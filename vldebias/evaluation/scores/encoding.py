"""Image files to features, batch by batch, for measures that look at every drawn image once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from PIL import Image
from torch import Tensor

from vldebias.errors import InvalidInputError

__all__ = ["encoded", "read_image"]


def encoded(
    images: Iterable[Image.Image],
    encode: Callable[[Sequence[Image.Image]], Tensor],
    batch_size: int = 64,
    on_step: Callable[[int], None] | None = None,
) -> Iterator[Tensor]:
    """Features (b, d) of each batch; no more images than a batch are held. on_step: told how many are done, each time.

    Raises:
        InvalidInputError: a batch size below one.
    """
    if batch_size < 1:
        raise InvalidInputError(f"batch_size: expected at least 1, got {batch_size}")
    source = iter(images)
    while batch := list(islice(source, batch_size)):
        yield encode(batch)
        if on_step is not None:
            on_step(len(batch))


def read_image(path: Path) -> Image.Image:
    """The image (RGB).

    Raises:
        InvalidInputError: the file is not there or not an image.
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidInputError(f"{path}: cannot be read as an image: {error}; draw it again") from error
