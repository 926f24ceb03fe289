"""Waterbirds (Sagawa et al., 2020): landbirds and waterbirds cut out and put in front of land and water."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vldebias.data.files import file_images, find_below
from vldebias.data.images import ImageData
from vldebias.data.labels import Labels
from vldebias.data.splits import CODES, check_split, rows_of
from vldebias.data.tables import column_of, integers, read_table, texts_of
from vldebias.errors import InvalidInputError

__all__ = ["CLASSES", "LAYOUT", "PLACES", "SOURCE", "SPLITS", "open_waterbirds"]

CLASSES = ("landbird", "waterbird")
PLACES = ("land", "water")
SPLITS = (*CODES, "all")
_FOLDERS = ("", "waterbird_complete95_forest2water2", "waterbirds_v1.0")  # of group_DRO and of WILDS
LAYOUT = "metadata.csv (img_filename, y, split, place) and the images that it names beside it"
SOURCE = "github.com/kohpangwei/group_DRO (waterbird_complete95_forest2water2.tar.gz) or the WILDS package"


def open_waterbirds(root: Path, split: str = "test") -> ImageData:
    """One split with columns `label` (landbird, waterbird) and `place` (land, water).

    root: the folder with metadata.csv, or the one above.

    Raises:
        InvalidInputError: another layout or split, or values that the format does not have.
    """
    check_split("waterbirds", split, SPLITS)
    table_path = find_below(root, ["metadata.csv"], _FOLDERS)
    if table_path is None:
        raise InvalidInputError(f"waterbirds: no metadata.csv in {root}; expected {LAYOUT}")
    table = read_table(table_path)

    def codes(column: str, n: int) -> np.ndarray:
        return integers(column_of(table, column, table_path), range(n), f"{table_path}: column {column!r}")

    rows = rows_of(split, codes("split", len(CODES)))
    files = texts_of(column_of(table, "img_filename", table_path), str(table_path))
    labels = {"label": Labels(codes("y", 2)[rows], CLASSES), "place": Labels(codes("place", 2)[rows], PLACES)}
    return file_images("waterbirds", split, table_path.parent, [files[i] for i in rows], labels)
