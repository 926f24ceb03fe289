"""The miniature world as a data set: rendered images with labels and captions, like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from vldebias.data import UNKNOWN, ImageData, Labels
from vldebias.errors import InvalidInputError, need
from vldebias.miniature import birds, people, portraits
from vldebias.miniature.world import SIZE, WORLDS, Codes

HAIR = ("dark", "blond")
DUTIES = ("on duty", "off duty")
_BLOCK = 500  # images that are rendered at once


def open_world(
    name: str,
    *,
    n: int = 4000,
    seed: int = 0,
    start: int = 0,
    balanced: bool = False,
    split: str = "test",
    life: people.Life | None = None,
) -> ImageData:
    """The renders start ... start + n - 1 of a seed.

    Columns of birds: `label` (landbird, waterbird), `place` (land, water), `species`. Columns of portraits:
    `profession`, `gender`, `tone`, `age`, `hair`, `duty` (on duty, off duty), and `label` (dark, blond): black and
    brown hair is dark; red hair, and that of old people, which is painted grey, is neither and so unknown.

    Images are rounded to 8 bits, as a PNG of them would be: a value differs from the render by at most 1 / 510.

    Args:
        name: birds or portraits.
        n: number of images, all of which are kept in memory (12 KiB each).
        seed: names the stream; image i of it is the same whatever n and start.
        start: index of the first image.
        balanced: without the world's correlations: see `birds.sample` and `portraits.sample`.
        split: a name for reports; draw splits with different seeds.
        life: of portraits, what they show beside the person and the job; None: that of the models that ship.

    Raises:
        InvalidInputError: an unknown name, or no images.
    """
    if name not in WORLDS:
        raise InvalidInputError(f"unknown world {name!r}; there are {', '.join(WORLDS)}")
    if n < 1:
        raise InvalidInputError(f"{name}: expected at least one image, got n = {n}")
    world: Any = birds if name == "birds" else portraits
    if life is not None and name == "birds":
        raise InvalidInputError("life is of portraits; birds have none")
    more = {} if life is None else {"life": life}
    pixels = np.empty((n, SIZE, SIZE, 3), dtype=np.uint8)
    blocks = []
    for first in range(0, n, _BLOCK):
        block = world.sample(min(_BLOCK, n - first), seed=seed, start=start + first, balanced=balanced, **more)
        pixels[first : first + len(block)] = (block.images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        blocks.append(block)

    def codes(field: str) -> Codes:
        return torch.cat([getattr(block, field) for block in blocks]).numpy()

    return ImageData(
        name=name,
        split=split,
        ids=tuple(f"{seed}/{index:06d}" for index in range(start, start + n)),
        read=lambda index: need("PIL.Image").fromarray(pixels[index]),
        labels=_labels(name, codes),
        fingerprint=lambda: hashlib.sha256(pixels.tobytes()).hexdigest()[:24],
        captions=tuple(caption for block in blocks for caption in block.captions),
        about={"world": name, "seed": seed, "start": start, "balanced": balanced}
        | {k: asdict(v) for k, v in more.items()},
    )


def _labels(name: str, codes: Callable[[str], Codes]) -> dict[str, Labels]:
    if name == "birds":
        return {
            "label": Labels(codes("label"), birds.CLASSES),
            "place": Labels(codes("background"), birds.BACKGROUNDS),
            "species": Labels(codes("species"), birds.SPECIES),
        }
    hair, age = codes("hair"), codes("age")
    shade = np.array([HAIR.index("dark"), HAIR.index("dark"), HAIR.index("blond"), UNKNOWN])  # in the order of HAIRS
    return {
        "profession": Labels(codes("profession"), portraits.PROFESSIONS),
        "gender": Labels(codes("gender"), portraits.GENDERS),
        "tone": Labels(codes("tone"), portraits.TONES),
        "age": Labels(age, portraits.AGES),
        "hair": Labels(hair, portraits.HAIRS),
        "duty": Labels(codes("off_duty").astype(np.int64), DUTIES),
        "label": Labels(np.where(age == portraits.AGES.index("old"), UNKNOWN, shade[hair]), HAIR),
    }
