"""CelebA (Liu et al., 2015): celebrities with 40 attributes, as the official text files or as csv."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from vldebias.data.files import file_images, find_below
from vldebias.data.images import ImageData
from vldebias.data.labels import Labels
from vldebias.data.splits import CODES, check_split, rows_of
from vldebias.data.tables import column_of, integers, read_table, texts_of
from vldebias.errors import InvalidInputError

__all__ = ["GENDERS", "HAIR", "LAYOUT", "SOURCE", "SPLITS", "open_celeba"]

HAIR = ("dark", "blond")  # dark is "not blond", as in the paper: grey, red and bald count as dark
GENDERS = ("female", "male")  # in the order of the attribute Male: -1, 1
SPLITS = (*CODES, "all")
LAYOUT = (
    "list_attr_celeba and list_eval_partition, .txt or .csv, and the folder img_align_celeba (once more inside itself "
    "as on Kaggle is fine)"
)
SOURCE = "mmlab.ie.cuhk.edu.hk/projects/CelebA.html (non-commercial research), or Kaggle jessicali9530/celeba-dataset"
_TABLES = ("", "data", "celeba", "celebA_v1.0", "Anno", "Eval")  # data: group_DRO; v1.0: WILDS; Anno, Eval: the release
_IMAGES = ("img_align_celeba/img_align_celeba", "img_align_celeba")
_ABOVE = ("", "data", "celeba", "celebA_v1.0", "Img")


def open_celeba(root: Path, split: str = "test") -> ImageData:
    """One split with columns `label` (dark, blond), `gender` (female, male) and the 40 attributes by name (no, yes).

    Raises:
        InvalidInputError: another layout or split, images without a partition, or values that the format lacks.
    """
    check_split("celeba", split, SPLITS)
    attributes_path = _table_path(root, "list_attr_celeba")
    partition_path = _table_path(root, "list_eval_partition")
    images = find_below(root, _IMAGES, _ABOVE)
    if images is None:
        raise InvalidInputError(f"celeba: no folder img_align_celeba in {root}; expected {LAYOUT}")
    attributes = _read(attributes_path, header_line=1)
    rows = rows_of(split, _partition(_read(partition_path), attributes.column(0), partition_path))
    files = texts_of(attributes.column(0).combine_chunks(), str(attributes_path))
    present = {name: _present(attributes, name, attributes_path)[rows] for name in attributes.column_names[1:]}
    for name in ("Blond_Hair", "Male"):
        if name not in present:
            raise InvalidInputError(f"{attributes_path}: expected a column {name!r}; there are {list(present)}")
    labels = {"label": Labels(present["Blond_Hair"], HAIR), "gender": Labels(present["Male"], GENDERS)}
    labels |= {name: Labels(codes, ("no", "yes")) for name, codes in present.items()}
    return file_images("celeba", split, images, [files[i] for i in rows], labels)


def _table_path(root: Path, stem: str) -> Path:
    path = find_below(root, [f"{stem}.csv", f"{stem}.txt"], _TABLES)
    if path is None:
        raise InvalidInputError(f"celeba: no {stem}.txt or {stem}.csv in {root}; expected {LAYOUT}")
    return path


def _read(path: Path, header_line: int | None = None) -> pa.Table:
    """A table whose first column holds file names; in .txt columns are kept apart by one or more blanks.

    header_line: the line of a .txt file that names all columns but the first; None where no line does.
    """
    if path.suffix == ".csv":
        return read_table(path)
    lines = path.read_bytes().splitlines()
    header = [] if header_line is None else lines[: header_line + 1]
    names = header[-1].decode(errors="replace").split() if header else ["partition"]
    body = b"\n".join(lines[len(header) :]).strip()
    while b"  " in body:
        body = body.replace(b"  ", b" ")
    body = body.replace(b" \n", b"\n").replace(b"\n ", b"\n")
    columns = ["image_id", *names]
    options = csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
    try:
        return csv.read_csv(
            io.BytesIO(body),
            read_options=csv.ReadOptions(column_names=columns),
            parse_options=csv.ParseOptions(delimiter=" "),
            convert_options=options,
        )
    except pa.ArrowException as error:
        raise InvalidInputError(f"{path}: expected a file name and {len(names)} values in a line: {error}") from error


def _partition(table: pa.Table, files: pa.ChunkedArray, path: Path) -> NDArray[np.int64]:
    """The split of each of `files`, whatever the order in which the table lists them."""
    splits = integers(table.column(1).combine_chunks(), list(CODES.values()), f"{path}: column 1")
    where = pc.index_in(files, value_set=table.column(0)).combine_chunks()
    if where.null_count:
        lost = pc.filter(files, pc.is_null(where)).slice(0, 3).to_pylist()
        raise InvalidInputError(f"{path}: {where.null_count} images have attributes but no split, such as {lost}")
    return splits[where.to_numpy()]


def _present(table: pa.Table, name: str, path: Path) -> NDArray[np.int64]:
    """1 where the attribute is there; absent is written -1, in some copies 0."""
    values = integers(column_of(table, name, path), (-1, 0, 1), f"{path}: column {name!r}")
    return (values > 0).astype(np.int64)
