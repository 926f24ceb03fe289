"""Open the images of the miniature worlds as data sets, with labels and captions.

Each world ships as two files: a sheet of 2,000 images (lossless WebP) and a table with their labels
and captions. One sheet instead of 2,000 files installs and opens faster and takes a tenth less
space. It holds the generated images (`eval/miniature` in a checkout) before noise was added to
every pixel, because noise cannot be compressed. The noise depends only on the number of the image
and is added when an image is read.
"""

from __future__ import annotations

import csv
import hashlib
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data import ImageData, Labels
from vldebias.errors import InvalidInputError, need
from vldebias.miniature.words import COLUMNS, SIZE, WORLDS

if TYPE_CHECKING:
    from PIL import Image

FOLDER = Path(__file__).parent / "worlds"
SHEET_WIDTH = 50  # pictures in a row of the sheet
NOISE = {"birds": 0.010, "portraits": 0.008}  # standard deviation, of pixels in [0, 1]


# The first picture of a split on the sheet, the number of its pictures, and the seed of the
# painter.
SPLITS = {
    "birds": {"test": (0, 1500, 9001), "reference": (1500, 500, 9031)},
    "portraits": {"test": (0, 1500, 9002), "reference": (1500, 500, 9032)},
}


def open_world(
    name: str, *, n: int | None = None, start: int = 0, split: str = "test"
) -> ImageData:
    """Open images start ... start + n - 1 of a split of a world as a data set.

    The 1,500 images of "test" are for evaluation: their attributes are independent of each other.
    The 500 of "reference" have the correlations of the training data of the models. The splits do
    not overlap.

    Columns of birds: `label` (landbird, waterbird), `place` (land, water), `species`. Columns of
    portraits: `profession`, `gender`, `tone`, `age`, `hair`, `duty` (on duty, off duty), and
    `label` (dark, blond): black and brown hair is dark; red hair, and that of old people, which is
    painted grey, is neither and so unknown.

    Args:
        name: birds or portraits.
        n: number of images; None: all from `start` on.
        start: index of the first image.
        split: test or reference.

    Raises:
        InvalidInputError: an unknown name or split, or images beyond those that ship.
    """
    first, count, seed = _split(name, split)
    number = count - start if n is None else n
    if start < 0 or not 1 <= number <= count - start:
        raise InvalidInputError(
            f"{name}: the package ships {count:,} pictures of split {split!r}, got n = {n}, start ="
            f" {start}; `eval/miniature` in a checkout of vldebias paints more"
        )
    n = number
    rows = slice(first + start, first + start + n)
    clean = _sheet(name)[rows]
    table = _table(name)[rows]

    def read(index: int) -> Image.Image:
        # By the number within the split, so that a part of a world has the pictures of the whole.
        noise = pixel_noise(seed, start + index, NOISE[name])
        pixels = np.clip(clean[index] / np.float32(255) + noise, 0, 1)
        return need("PIL.Image").fromarray((pixels * 255).round().astype(np.uint8))

    def fingerprint() -> str:
        content = f"{seed} {start} ".encode() + clean.tobytes()
        return hashlib.sha256(content).hexdigest()[:24]

    labels = dict[str, Labels]()
    for column, names in COLUMNS[name].items():
        labels[column] = Labels.from_values([row[column] for row in table], names)
    return ImageData(
        name=name,
        split=split,
        ids=tuple(f"{split}/{index:04d}" for index in range(start, start + n)),
        read=read,
        labels=labels,
        fingerprint=fingerprint,
        captions=tuple(row["caption"] for row in table),
        about={"world": name, "split": split, "start": start, "seed of the painter": seed},
    )


def _split(name: str, split: str) -> tuple[int, int, int]:
    """Return the first picture of a split on the sheet, how many it has, and the painter's seed."""
    if name not in WORLDS:
        raise InvalidInputError(f"unknown world {name!r}; there are {', '.join(WORLDS)}")
    if split not in SPLITS[name]:
        raise InvalidInputError(
            f"{name}: expected split {' or '.join(SPLITS[name])}, got {split!r}"
        )
    return SPLITS[name][split]


@lru_cache(maxsize=len(WORLDS))
def _sheet(name: str) -> NDArray[np.uint8]:
    """Read all pictures of a world, without noise: (2000, 64, 64, 3)."""
    with need("PIL.Image").open(FOLDER / f"{name}.webp", formats=("WEBP",)) as sheet:
        tiles = np.asarray(sheet.convert("RGB"))
    # (rows * 64, columns * 64, 3) -> (rows, columns, 64, 64, 3) -> one picture after the other.
    return tiles.reshape(-1, SIZE, SHEET_WIDTH, SIZE, 3).swapaxes(1, 2).reshape(-1, SIZE, SIZE, 3)


def _table(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def splitmix64(x: ArrayLike) -> NDArray[np.uint64]:
    """Scramble 64-bit words (Steele, Lea, Flood 2014): a bijection, so different counters give
    different words."""
    z = np.atleast_1d(np.asarray(x, dtype=np.uint64)) + _STEP
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return z ^ (z >> np.uint64(31))


def pixel_noise(seed: int, index: int, sigma: float) -> NDArray[np.float32]:
    """Return the noise (64, 64, 3) of an image of a seed: uniform, with standard deviation
    sigma."""
    key = splitmix64(splitmix64(seed) ^ splitmix64(index)) + splitmix64(zlib.crc32(b"pixel noise"))
    words = splitmix64(key + np.arange(SIZE * SIZE * 3 // 4, dtype=np.uint64) * _STEP)
    # Uniform numbers in [-r, r] have the deviation r / sqrt(3); one 64-bit word gives four of them.
    reach = np.float32(sigma * 3**0.5)
    noise = (
        words.astype("<u8").view("<u2").astype(np.float32) * (reach / np.float32(32767.5)) - reach
    )
    return noise.reshape(SIZE, SIZE, 3)
