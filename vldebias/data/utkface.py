"""UTKFace (Zhang, Song and Qi, 2017): faces whose age, gender and race stand in the file name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vldebias.data.fairface import AGES
from vldebias.data.files import file_images
from vldebias.data.images import ImageData
from vldebias.data.labels import Labels
from vldebias.data.splits import check_split
from vldebias.errors import InvalidInputError

__all__ = ["GENDERS", "LAYOUT", "RACES", "SOURCE", "SPLITS", "open_utkface"]

GENDERS = ("Male", "Female")
RACES = ("White", "Black", "Asian", "Indian", "Others")
SPLITS = ("all",)
LAYOUT = "images named [age]_[gender]_[race]_[date].jpg, in the folder itself, in UTKFace/, or in part1/ to part3/"
SOURCE = "susanqq.github.io/UTKFace (non-commercial research)"
_FOLDERS: tuple[tuple[str, ...], ...] = (("",), ("UTKFace",), ("part1", "part2", "part3"))
# Three labels and a date; what follows varies (".jpg", ".jpg.chip.jpg", a few with a blank) and does not matter.
_NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_\d{14}")
_OLDEST = 116
_PICTURES = (".jpg", ".jpeg", ".png")
_BINS = (3, 10, 20, 30, 40, 50, 60, 70)  # first year of each of FairFace's bins but the first


def open_utkface(root: Path, split: str = "all") -> ImageData:
    """All images with columns `gender`, `race`, `age` (FairFace's nine bins) and `years`, sorted by name.

    Images whose name lacks a label (the release has some) are left out; `about` counts and lists them.

    Raises:
        InvalidInputError: another layout, or a split: the data set has no official one.
    """
    check_split("utkface", split, SPLITS, "UTKFace has no official splits")
    files = _pictures(root)
    found = [_NAME.match(file.rpartition("/")[2]) for file in files]
    read = [(file, [int(part) for part in match.groups()]) for file, match in zip(files, found, strict=True) if match]
    good = [(file, values) for file, values in read if values[0] <= _OLDEST]
    if not good:
        raise InvalidInputError(f"utkface: {len(files)} images in {root}, none with a name as expected: {LAYOUT}")
    malformed = sorted(set(files) - {file for file, _ in good})
    years, gender, race = np.array([values for _, values in good], dtype=np.int64).T
    labels = {
        "gender": Labels(gender, GENDERS),
        "race": Labels(race, RACES),
        "age": Labels(np.digitize(years, _BINS), AGES),
        "years": Labels(years, tuple(map(str, range(_OLDEST + 1)))),
    }
    about = {"malformed": len(malformed), "malformed files": malformed}
    return file_images("utkface", split, root, [file for file, _ in good], labels, about=about)


def _pictures(root: Path) -> list[str]:
    """Paths below root of the images in the first of the known layouts that has any.

    Not of all folders: copies of the data set hold the same faces twice, cropped and not.
    """
    for folders in _FOLDERS:
        found = [path for folder in folders for path in _listed(root, folder)]
        if found:
            return sorted(found)
    raise InvalidInputError(f"utkface: no images in {root}; expected {LAYOUT}")


def _listed(root: Path, folder: str) -> Sequence[str]:
    if not (root / folder).is_dir():
        return ()
    names = (entry.name for entry in os.scandir(root / folder))
    return [f"{folder}/{name}".lstrip("/") for name in names if name.lower().endswith(_PICTURES)]
