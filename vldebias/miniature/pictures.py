"""Open the images of the miniature worlds as data sets, with labels and captions.

Each world consists of two files: a sheet of 2,000 images (lossless WebP) and a table with their
labels and captions. One sheet installs and opens faster than 2,000 files and takes a tenth less
space. It contains the generated images (`eval/miniature` in a checkout) without pixel noise,
because noise cannot be compressed. The noise depends only on the image's number and is added when
an image is loaded.
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
SHEET_WIDTH = 50  # pictures per row of the sheet
NOISE = {"birds": 0.010, "portraits": 0.008}  # standard deviation, for pixels in [0, 1]


# For each split: its first picture on the sheet, the number of pictures, and the seed used to
# generate them.
SPLITS = {
    "birds": {"test": (0, 1500, 9001), "reference": (1500, 500, 9031)},
    "portraits": {"test": (0, 1500, 9002), "reference": (1500, 500, 9032)},
}


def open_world(
    name: str, *, n: int | None = None, start: int = 0, split: str = "test"
) -> ImageData:
    """Open the images in one split of a world as a data set.

    The attributes of the 1,500 images of "test" are independent of each other, for evaluation. The
    attributes of the 500 images of "reference" are correlated as in the training data of the
    models. The splits do not overlap.

    Columns of birds: `label` (landbird, waterbird), `place` (land, water), `species`. Columns of
    portraits: `profession`, `gender`, `tone`, `age`, `hair`, `duty` (on duty, off duty), and
    `label` (dark, blond): black and brown hair is dark; red hair and the grey hair of old people
    are neither, so their label is unknown.

    Args:
        name: birds or portraits.
        n: number of images. If None, all images from `start`.
        start: index of the first image.
        split: test or reference.

    Raises:
        InvalidInputError: If the name or split is unknown, or there are fewer images.
    """
    first, count, seed = _split(name, split)
    number = count - start if n is None else n
    if start < 0 or not 1 <= number <= count - start:
        raise InvalidInputError(
            f"{name}: split {split!r} contains {count:,} pictures, got n = {n}, start = {start};"
            " `eval/miniature` in a checkout of vldebias generates more"
        )
    n = number
    rows = slice(first + start, first + start + n)
    clean = _sheet(name)[rows]
    table = _table(name)[rows]

    def read(index: int) -> Image.Image:
        # The noise depends on the number within the split, so that it does not depend on `start`.
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
    """Return the first picture of a split on the sheet, its number of pictures, and its seed."""
    if name not in WORLDS:
        raise InvalidInputError(f"got the world {name!r}; expected one of {', '.join(WORLDS)}")
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
    # (rows * 64, columns * 64, 3) -> (rows, columns, 64, 64, 3) -> (rows * columns, 64, 64, 3).
    return tiles.reshape(-1, SIZE, SHEET_WIDTH, SIZE, 3).swapaxes(1, 2).reshape(-1, SIZE, SIZE, 3)


def _table(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def splitmix64(x: ArrayLike) -> NDArray[np.uint64]:
    """Hash 64-bit words (Steele, Lea, Flood 2014); different words have different hashes."""
    z = np.atleast_1d(np.asarray(x, dtype=np.uint64)) + _STEP
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return z ^ (z >> np.uint64(31))


def pixel_noise(seed: int, index: int, sigma: float) -> NDArray[np.float32]:
    """Return the uniform noise (64, 64, 3) of an image.

    Args:
        seed: seed of the split.
        index: number of the image in the split.
        sigma: standard deviation of the noise.
    """
    key = splitmix64(splitmix64(seed) ^ splitmix64(index)) + splitmix64(zlib.crc32(b"pixel noise"))
    words = splitmix64(key + np.arange(SIZE * SIZE * 3 // 4, dtype=np.uint64) * _STEP)
    # Uniform numbers in [-r, r] have standard deviation r / sqrt(3); a 64-bit word contains four.
    reach = np.float32(sigma * 3**0.5)
    noise = (
        words.astype("<u8").view("<u2").astype(np.float32) * (reach / np.float32(32767.5)) - reach
    )
    return noise.reshape(SIZE, SIZE, 3)
