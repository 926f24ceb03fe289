"""The miniature world as a data set: rendered images with labels and captions, like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vldebias.data.images import ImageData
from vldebias.data.labels import UNKNOWN, Labels
from vldebias.errors import InvalidInputError
from vldebias.miniature import birds, portraits

__all__ = ["HAIR", "WORLDS", "open_world"]

WORLDS = ("birds", "portraits")
HAIR = ("dark", "blond")
_BLOCK = 500  # images that are rendered at once


def open_world(
    name: str, *, n: int = 4000, seed: int = 0, start: int = 0, balanced: bool = False, split: str = "test"
) -> ImageData:
    """The renders start ... start + n - 1 of a seed.

    Columns of birds: `label` (landbird, waterbird), `place` (land, water), `species`. Columns of portraits:
    `profession`, `gender`, `tone`, `age`, `hair`, and `label` (dark, blond): black and brown hair is dark; red hair,
    and that of old people, which is painted grey, is neither and so unknown.

    Images are rounded to 8 bits, as a PNG of them would be: a value differs from the render by at most 1 / 510.

    Args:
        name: birds or portraits.
        n: number of images, all of which are kept in memory (3 KiB each).
        seed: names the stream; image i of it is the same whatever n and start.
        start: index of the first image.
        balanced: without the world's correlations: see `birds.sample` and `portraits.sample`.
        split: a name for reports; draw splits with different seeds.

    Raises:
        InvalidInputError: an unknown name, or no images.
    """
    samplers: Mapping[str, tuple[Callable[..., Any], Callable[[Sequence[Any]], dict[str, Labels]]]] = {
        "birds": (birds.sample, _bird_labels),
        "portraits": (portraits.sample, _portrait_labels),
    }
    if name not in samplers:
        raise InvalidInputError(f"unknown world {name!r}; there are {', '.join(WORLDS)}")
    if n < 1:
        raise InvalidInputError(f"{name}: expected at least one image, got n = {n}")
    sample, labels_of = samplers[name]
    pixels = np.empty((n, 32, 32, 3), dtype=np.uint8)
    blocks = []
    for first in range(0, n, _BLOCK):
        block = sample(min(_BLOCK, n - first), seed=seed, start=start + first, balanced=balanced)
        pixels[first : first + len(block)] = _bytes(block.images)
        blocks.append(block)
    return ImageData(
        name=name,
        split=split,
        ids=tuple(f"{seed}/{index:06d}" for index in range(start, start + n)),
        read=lambda index: Image.fromarray(pixels[index]),
        labels=labels_of(blocks),
        fingerprint=lambda: hashlib.sha256(pixels.tobytes()).hexdigest()[:24],
        captions=tuple(caption for block in blocks for caption in block.captions),
        about={"world": name, "seed": seed, "start": start, "balanced": balanced},
    )


def _bytes(images: torch.Tensor) -> NDArray[np.uint8]:
    """(n, 3, h, w) in [0, 1] -> (n, h, w, 3) of bytes."""
    return (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def _joined(blocks: Sequence[Any], field: str) -> NDArray[np.int64]:
    return torch.cat([getattr(block, field) for block in blocks]).numpy()


def _bird_labels(blocks: Sequence[birds.Birds]) -> dict[str, Labels]:
    return {
        "label": Labels(_joined(blocks, "label"), birds.CLASSES),
        "place": Labels(_joined(blocks, "background"), birds.BACKGROUNDS),
        "species": Labels(_joined(blocks, "species"), birds.SPECIES),
    }


def _portrait_labels(blocks: Sequence[portraits.Portraits]) -> dict[str, Labels]:
    hair, age = _joined(blocks, "hair"), _joined(blocks, "age")
    shade = np.array([HAIR.index("dark"), HAIR.index("dark"), HAIR.index("blond"), UNKNOWN])  # in the order of HAIRS
    return {
        "profession": Labels(_joined(blocks, "profession"), portraits.PROFESSIONS),
        "gender": Labels(_joined(blocks, "gender"), portraits.GENDERS),
        "tone": Labels(_joined(blocks, "tone"), portraits.TONES),
        "age": Labels(age, portraits.AGES),
        "hair": Labels(hair, portraits.HAIRS),
        "label": Labels(np.where(age == portraits.AGES.index("old"), UNKNOWN, shade[hair]), HAIR),
    }
