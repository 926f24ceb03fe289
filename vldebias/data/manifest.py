"""Open images that a table names, with labels and captions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data.caption_cells import captions_in, one_row_per_image, texts_of_list
from vldebias.data.cleaning import clean_captions
from vldebias.data.dataset import ImageData, file_images
from vldebias.data.folders import folder_of_paths
from vldebias.data.labels import ColumnNames, Labels, Names, mapped_columns
from vldebias.data.layouts import IMAGE_COLUMNS, fitting_columns
from vldebias.data.spellings import matched
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, SuspectInputWarning, warn

if TYPE_CHECKING:
    import pyarrow as pa


def rows_of_split(data: str | Path, split: str, splits: Labels) -> NDArray[np.int64]:
    """Return the rows of a split, or of all; refuse one that is none.

    Args:
        data: name of the data, for messages.
        split: the name of a split, or "all".
        splits: split of each row.
    """
    if split not in (*splits.names, "all"):
        raise InvalidInputError(
            f"{data}: expected split {' or '.join((*splits.names, 'all'))}, got {split!r}"
        )
    if split == "all":
        return np.arange(len(splits))
    rows = np.flatnonzero(splits.codes == splits.names.index(split))
    if not len(rows):
        counts = ", ".join(f"{name} {count}" for name, count in splits.counts.items() if count)
        raise InvalidInputError(f"{data}: no images in split {split!r}; there are {counts}")
    return rows


def labels_of(table: pa.Table, column: str, names: Names, path: Path) -> Labels:
    """Return the labels of a column, by the names of its values where the file has codes.

    Args:
        table: the table.
        column: its column.
        names: the values, or code in the table -> name.
        path: of the table, for messages.

    Raises:
        InvalidInputError: no such column, values that are no texts, or a code without a name.
    """
    return Labels.from_column(column_of(table, column, path), names, f"{path}: column {column!r}")


def known_labels(table: pa.Table, column: str, names: Names, path: Path) -> Labels:
    """Return the labels of a column whose values are known; other spellings are merged into them,
    with a warning.

    Args:
        table: the table.
        column: its column.
        names: the values, or code in the table -> name.
        path: of the table, for messages.

    Raises:
        InvalidInputError: a value that is none of them.
    """
    known = mapped_columns(names or ())
    place = f"{path}: column {column!r}"
    labels = Labels.from_column(column_of(table, column, path), None, place)
    spelt = matched(labels.names, known)
    joined = []
    for name, value in spelt.items():
        # "1.0" and True are the number 1, and no other spelling of a word.
        if not re.fullmatch(r"[-+]?\d+\.0*|true|false", name.strip().casefold()):
            joined.append(f"{name!r} ({labels.counts[name]} rows) as {value!r}")
    if joined:
        warn(f"{place}: read {', '.join(joined)}", SuspectInputWarning)
    values = {**known, **{name: known[value] for name, value in spelt.items()}}
    return labels_of(table, column, values, path)


def coded_labels(table: pa.Table, column: str, names: Names, path: Path) -> Labels:
    """Return labels of a column in which every row has a value.

    Args:
        table: the table.
        column: its column.
        names: the values, or code in the table -> name.
        path: of the table, for messages.

    Raises:
        InvalidInputError: see `labels_of`; or empty cells.
    """
    labels = known_labels(table, column, names, path)
    if not labels.known.all():
        empty = int((~labels.known).sum())
        raise InvalidInputError(
            f"{path}: column {column!r}: expected a value in every row, {empty} are empty"
        )
    return labels


def open_manifest(  # noqa: PLR0913  (each is a column, or says how the table is written)
    root: Path,
    split: str = "all",
    *,
    image: str = "image",
    caption: str | None = None,
    labels: ColumnNames = (),
    split_column: str | None = None,
    images: str | Path | None = None,
    allow_outside: bool = False,
    separator: str | None = None,
    encoding: str | None = None,
) -> ImageData:
    """Open the rows of your own table (csv, tsv, txt, parquet, jsonl or json) whose `split_column`
    is `split`; all for "all".

    Args:
        root: the table.
        split: value of `split_column` of the rows to open, or "all".
        image: column of paths, relative to `images`. If there is no column "image", the only one
            with another usual name, such as "filename", is taken.
        caption: column of texts or of lists of texts. An image on several rows becomes one with
            several captions.
        labels: columns that are labels, as a list or as {name here: name in the table}; empty cells
            are unknown.
        split_column: column that names the split.
        images: folder that the paths start from, by default that of the table.
        allow_outside: take absolute paths and paths with "..", which are refused otherwise.
        separator: between the cells of the table. None: what fits; see `read_table`.
        encoding: of the table. None: what fits; see `read_table`.

    Raises:
        InvalidInputError: no such column or split, an image twice without captions, a path that
            leads out.
    """
    table = read_table(root, separator=separator, encoding=encoding)
    if split != "all":
        if split_column is None:
            raise InvalidInputError(
                f"{root}: split {split!r} needs split_column, the column that names it; without one"
                " take split 'all'"
            )
        table = table.take(rows_of_split(root, split, labels_of(table, split_column, None, root)))
    image = _image_column(table.column_names, image, root)
    used = {image, caption, split_column, *mapped_columns(labels).values()}
    # Listed with the data, so that a column that was misspelt shows.
    unused = [column for column in table.column_names if column not in used]
    return images_of_table(
        root,
        split,
        table,
        image=image,
        caption=caption,
        labels=labels,
        folder=folder_of_paths(root, images),
        allow_outside=allow_outside,
        about={"columns not used": unused} if unused else {},
    )


def _image_column(names: Sequence[str], image: str, path: Path) -> str:
    """Return the column of images: the one that is named, else the only one with a usual name.

    Raises:
        InvalidInputError: no such column, or several.
    """
    fitting = fitting_columns(names, IMAGE_COLUMNS)
    if image != IMAGE_COLUMNS[0] or image in fitting:
        return image
    if len(fitting) != 1:
        raise InvalidInputError(
            f"{path}: expected a column {image!r}; there are {list(names)}; name the column of the"
            " paths (image=...; --option image=COLUMN)"
        )
    return fitting[0]


def images_of_table(
    path: Path,
    split: str,
    table: pa.Table,
    *,
    image: str,
    caption: str | None,
    labels: ColumnNames,
    folder: Path,
    **options: Any,
) -> ImageData:
    """Return the images that a table names, below a folder.

    Args:
        path: file of the table.
        split: name of the split.
        table: its rows.
        image: column of paths.
        caption: column of captions, if any.
        labels: columns that are labels.
        folder: folder that the paths start from.
        options: options of `file_images`.
    """
    files = as_texts(column_of(table, image, path), f"{path}: column {image!r}")
    # An empty path would be the folder itself.
    if "" in files:
        raise InvalidInputError(f"{path}: {files.count('')} rows have no image in column {image!r}")
    captions, more_captions = _captions_of(table, caption, path)
    columns = {}
    for name, column in mapped_columns(labels).items():
        columns[name] = labels_of(table, column, None, path)
    rows, captions, more_captions = one_row_per_image(
        str(path), files, captions, more_captions, columns
    )
    return file_images(
        path.stem,
        split,
        folder,
        [files[row] for row in rows],
        {name: column[rows] for name, column in columns.items()},
        captions=tuple(captions),
        more_captions=tuple(more_captions),
        **options,
    )


def _captions_of(
    table: pa.Table, column: str | None, path: Path
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the caption of each row, and its further ones where a row has some; none without a
    column."""
    captions: list[str] = []
    more_captions: list[tuple[str, ...]] = []
    lists = 0
    if column:
        for cell in column_of(table, column, path).to_pylist():
            listed = texts_of_list(cell)
            if listed is not None:
                cell = listed
                lists += 1
            first, further = captions_in(cell, f"{path}: column {column!r}")
            captions.append(first)
            more_captions.append(further or ())
    if lists:
        warn(
            f"{path}: {lists} cells of column {column!r} are lists written as text, and were read"
            f" as several captions, such as {captions[0][:60]!r}",
            SuspectInputWarning,
        )
    return clean_captions(str(path), captions, more_captions)
