"""A table of your own that lists images: csv, tsv, parquet or jsonl, its columns mapped by options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vldebias.data.files import file_images
from vldebias.data.images import ImageData
from vldebias.data.tables import Names, column_of, labels_of, read_table, texts_of
from vldebias.errors import InvalidInputError

__all__ = ["LAYOUT", "SOURCE", "Columns", "columns_of", "open_manifest"]

LAYOUT = "a .csv, .tsv, .parquet or .jsonl file with a column of image paths, relative to it"
SOURCE = "your own images"

# Columns that become labels: their names, or name here -> name in the table.
Columns = Sequence[str] | Mapping[str, str]


def open_manifest(
    root: Path,
    split: str = "all",
    *,
    image: str = "image",
    caption: str | None = None,
    id: str | None = None,
    labels: Columns = (),
    names: Mapping[str, Names] | None = None,
    split_column: str | None = None,
    images: str | Path | None = None,
    allow_outside: bool = False,
    name: str | None = None,
) -> ImageData:
    """The rows of a table whose `split_column` says `split`; all rows for "all".

    Args:
        root: the table.
        split: a value of `split_column`, or "all".
        image: column of paths, relative to `images`.
        caption: column of texts.
        id: column of names that tell the rows apart, by default the paths.
        labels: columns that are labels, as a list or as {name here: name in the table}; empty cells are unknown.
        names: for a label, its values in their order, or {value in the table: name}; by default those found, sorted.
        split_column: column that names the split.
        images: folder that the paths start from, by default that of the table.
        allow_outside: take absolute paths and paths with "..", which are refused otherwise.
        name: what reports call the data, by default the stem of the file.

    Raises:
        InvalidInputError: a column that is not there (the message lists those that are), a value without a name, a
            split without rows, an image twice, a path that leads out.
    """
    path = Path(root)
    table = read_table(path)
    if split != "all":
        table = _rows_of(table, split, split_column, path)
    files = texts_of(column_of(table, image, path), f"{path}: column {image!r}")
    if "" in files:
        raise InvalidInputError(f"{path}: {files.count('')} rows have no image in column {image!r}")
    mapped = columns_of(labels)
    return file_images(
        name or path.stem,
        split,
        Path(images) if images is not None else path.parent,
        files,
        _labels(table, mapped, names or {}, path),
        ids=texts_of(column_of(table, id, path), f"{path}: column {id!r}") if id else None,
        captions=texts_of(column_of(table, caption, path), f"{path}: column {caption!r}") if caption else (),
        about=_about(table, {image, caption, id, split_column, *mapped.values()}),
        allow_outside=allow_outside,
    )


def columns_of(labels: Columns) -> dict[str, str]:
    """Name here -> name in the table; one column may be given as its name alone."""
    if isinstance(labels, str):
        return {labels: labels}
    return dict(labels) if isinstance(labels, Mapping) else {column: column for column in labels}


def _labels(table: pa.Table, mapped: Mapping[str, str], names: Mapping[str, Names], path: Path) -> dict[str, Any]:
    strangers = sorted(set(names) - set(mapped))
    if strangers:
        raise InvalidInputError(f"{path}: names are given for {strangers}, which are not among labels {list(mapped)}")
    return {
        here: labels_of(column_of(table, there, path), names.get(here), f"{path}: column {there!r}")
        for here, there in mapped.items()
    }


def _rows_of(table: pa.Table, split: str, split_column: str | None, path: Path) -> pa.Table:
    if split_column is None:
        raise InvalidInputError(
            f"{path}: split {split!r} needs split_column, the column that names it; without one take split 'all'"
        )
    found = labels_of(column_of(table, split_column, path), None, f"{path}: column {split_column!r}")
    if split not in found.names:
        raise InvalidInputError(f"{path}: expected split {' or '.join((*found.names, 'all'))}, got {split!r}")
    return table.filter(pc.equal(pa.array(found.codes), found.names.index(split)))


def _about(table: pa.Table, used: set[str | None]) -> dict[str, Any]:
    unused = [column for column in table.column_names if column not in used]
    return {"columns not used": unused} if unused else {}
