"""FairFace (Karkkainen and Joo, 2021): faces balanced over seven race labels, with gender and age in bins."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vldebias.data.files import file_images, find_below
from vldebias.data.images import ImageData
from vldebias.data.labels import Labels
from vldebias.data.splits import check_split
from vldebias.data.tables import column_of, labels_of, read_table, texts_of
from vldebias.errors import InvalidInputError

__all__ = ["AGES", "GENDERS", "LAYOUT", "PADDINGS", "RACES", "SOURCE", "SPLITS", "open_fairface"]

GENDERS = ("Male", "Female")
RACES = ("White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian", "Middle Eastern")
AGES = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
SPLITS = ("train", "val", "all")
PADDINGS = ("0.25", "1.25")  # margin around the face; the authors' main experiments use 0.25
LAYOUT = "fairface_label_val.csv and fairface_label_train.csv (file, age, gender, race), and the folders val/, train/"
SOURCE = "github.com/joojs/fairface (CC BY 4.0): images with padding 0.25 and the labels"
_NO_TEST = "FairFace has no test split; the paper measures on val"
_COLUMNS = {"gender": GENDERS, "race": RACES, "age": AGES}


def open_fairface(root: Path, split: str = "val", *, padding: str = "0.25") -> ImageData:
    """One split with columns `gender`, `race` and `age`, by the names that the data set gives them.

    root: the folder with the label files; images lie beside them or in "fairface-img-margin025-trainval".
    padding: which of the two crops to take where both are there: "0.25" or "1.25".

    Raises:
        InvalidInputError: another layout or split, or a label that FairFace does not have.
    """
    check_split("fairface", split, SPLITS, _NO_TEST if split == "test" else "")
    if padding not in PADDINGS:
        raise InvalidInputError(f"fairface: expected padding {' or '.join(PADDINGS)}, got {padding!r}")
    cropped = f"fairface-img-margin{padding.replace('.', '')}-trainval"
    parts = ("train", "val") if split == "all" else (split,)
    found = [_read_labels(root, part, cropped) for part in parts]
    files = [file for names, _ in found for file in names]
    labels = {
        column: Labels(np.concatenate([columns[column].codes for _, columns in found]), names)
        for column, names in _COLUMNS.items()
    }
    images = find_below(root, [cropped]) or root
    missing = [part for part in parts if not (images / part).is_dir()]
    if missing:
        raise InvalidInputError(f"fairface: no folder {missing[0]}/ in {images}; expected {LAYOUT}")
    return file_images("fairface", split, images, files, labels, about={"padding": padding})


def _read_labels(root: Path, part: str, cropped: str) -> tuple[list[str], dict[str, Labels]]:
    path = find_below(root, [f"fairface_label_{part}.csv"], ("", "labels", cropped))
    if path is None:
        raise InvalidInputError(f"fairface: no fairface_label_{part}.csv in {root}; expected {LAYOUT}")
    table = read_table(path)
    files = texts_of(column_of(table, "file", path), str(path))
    columns = {
        column: labels_of(column_of(table, column, path), names, f"{path}: column {column!r}")
        for column, names in _COLUMNS.items()
    }
    return files, columns
