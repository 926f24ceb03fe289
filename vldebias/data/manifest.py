"""Open images, labels and captions listed in a table of paths."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from vldebias.data.caption_cells import captions_of, one_row_per_image, texts_of_list
from vldebias.data.cleaning import clean_captions
from vldebias.data.dataset import Facts, ImageData, file_images
from vldebias.data.folders import folder_of_paths
from vldebias.data.label_values import matched, missing_labels
from vldebias.data.labels import ColumnNames, Labels, Names, mapped_columns, renamed
from vldebias.data.layouts import IMAGE_COLUMNS
from vldebias.data.splits import SPLIT, rows_of_split
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, Lazily, shown, warn_of_input
from vldebias.utils.table_rows import fitting_columns

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")
pq = Lazily("pyarrow.parquet")


def labels_of(table: pa.Table, column: str, names: Names, path: Path) -> Labels:
    """Return the labels in a column of a manifest.

    Args:
        table: the rows of the manifest.
        column: name of the label column.
        names: allowed values, or a mapping from codes in the table to names. If None, any value is
            allowed.
        path: table path for messages.

    Raises:
        InvalidInputError: If the column does not exist, contains values other than strings and
            numbers, or contains codes without names.
    """
    return Labels.from_column(column_of(table, column, path), names, f"{path}: column {column!r}")


def known_labels(labels: Labels, names: Names, place: str) -> Labels:
    """Return labels with known values, merging other spellings with a warning.

    Args:
        labels: the labels as they appear in the data.
        names: allowed values, or a mapping from codes in the data to names.
        place: the column's description in messages.

    Raises:
        InvalidInputError: If a value is unknown.
    """
    known = mapped_columns(names or ())
    spelt = matched(labels.names, known)
    joined = []
    for name, value in spelt.items():
        # "1.0" and True are the number 1, not other spellings of a word.
        if not re.fullmatch(r"[-+]?\d+\.0*|true|false", name.strip().casefold()):
            joined.append(f"{name!r} ({labels.counts[name]} rows) as {value!r}")
    if joined:
        warn_of_input(f"{place}: read {', '.join(joined)}")
    values = {**known, **{name: known[value] for name, value in spelt.items()}}
    return renamed(labels, values, place)


def coded_labels(table: pa.Table, column: str, names: Names, path: Path) -> Labels:
    """Return a column's labels, after checking that every row has a known value.

    Args:
        table: the rows of the manifest.
        column: name of the label column.
        names: allowed values, or a mapping from codes in the table to names.
        path: table path for messages.

    Raises:
        InvalidInputError: If a value is unknown, or a cell is empty.
    """
    place = f"{path}: column {column!r}"
    labels = known_labels(labels_of(table, column, None, path), names, place)
    if not labels.known.all():
        empty = int((~labels.known).sum())
        raise InvalidInputError(
            f"{place}: expected a value in every row, but {empty} rows are empty"
        )
    return labels


def open_manifest(  # noqa: PLR0913  (each names a column or describes the format)
    root: Path,
    split: str = "all",
    *,
    image: str = "image",
    caption: str | None = None,
    labels: ColumnNames | None = (),
    split_column: str | None = None,
    images: str | Path | None = None,
    allow_outside: bool = False,
    separator: str | None = None,
    encoding: str | None = None,
    unknown: Collection[str] | None = None,
) -> ImageData:
    """Open the images listed in a table (csv, tsv, txt, parquet, jsonl or json).

    A parquet file may contain the images themselves, as on the Hugging Face hub.

    Args:
        root: path of the table.
        split: value in `split_column` of the rows to keep, or "all".
        image: column of paths relative to `images`. Default: "image" or, if there is no such
            column, the only column with a different common name, such as "filename".
        caption: column of strings or of lists of strings. Rows with the same image are merged into
            one image with several captions.
        labels: label columns, as a list or as {name to use: name in the table}; empty cells are
            unknown. None: every column with few enough different values.
        split_column: column with the name of each row's split. If None, there is one split.
        images: base folder for the paths. Default: the table's folder.
        allow_outside: whether to allow absolute paths and paths with "..".
        separator: separator of a csv, tsv or txt table. Default: detected.
        encoding: text encoding. Default: UTF-8; if that fails, it is detected.
        unknown: labels that mean a missing value, such as ["-1"]. Default: words such as "N/A",
            and -1 or 99 next to two or more other labels, with a warning.

    Raises:
        InvalidInputError: If a column or split does not exist, an image occurs twice without
            captions, or a path leads outside the folder.
    """
    if column_of_images(root, image) is not None:
        from vldebias.data.huggingface import open_huggingface  # imports the hub's libraries

        if split != "all" and split_column not in (None, SPLIT):
            raise InvalidInputError(
                f"{root}: got split_column {split_column!r}; for images in parquet, expected the"
                f" name {SPLIT!r}; rename the column"
            )
        column = column_of_images(root, image)
        opened = open_huggingface(
            root, split, image=column, caption=caption, labels=labels, unknown=unknown
        )
        assert isinstance(opened, ImageData)  # a stream is not requested
        return opened
    table = read_table(root, separator=separator, encoding=encoding)
    if split != "all":
        if split_column is None:
            raise InvalidInputError(
                f"{root}: split {split!r} requires split_column; if the table has no split column,"
                " use split 'all'"
            )
        table = table.take(rows_of_split(root, split, labels_of(table, split_column, None, root)))
    image = _image_column(table.column_names, image, root)
    if labels is None:
        labels = _label_columns(table, {image, caption, split_column}, root)
    used = {image, caption, split_column, *mapped_columns(labels).values()}
    # Unused columns are listed with the data, so that misspelt names are noticed.
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
        unknown=unknown,
        about={"columns not used": unused} if unused else {},
    )


def _label_columns(table: pa.Table, used: Collection[str | None], path: Path) -> list[str]:
    """Return the columns whose values can be labels, without those that are used otherwise."""
    found = []
    for column in table.column_names:
        if column not in used:
            with suppress(InvalidInputError):  # too many values, or lists
                labels_of(table, column, None, path)
                found.append(column)
    return found


def column_of_images(path: Path, image: str = IMAGE_COLUMNS[0]) -> str | None:
    """Return the column of a parquet file that contains images rather than paths, if there is one.

    Args:
        path: a table.
        image: the image column. Default: the only one with a common name.
    """
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return None
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException):
        return None  # `read_table` explains what is wrong
    fitting = [image] if image in schema.names else fitting_columns(schema.names, IMAGE_COLUMNS)
    for name in fitting:
        kind = schema.field(name).type
        if pa.types.is_struct(kind) and {field.name for field in kind} >= {"bytes", "path"}:
            return name
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return name
    return None


def _image_column(names: Sequence[str], image: str, path: Path) -> str:
    """Return the given image column, or the only column with a common name.

    Raises:
        InvalidInputError: If the column does not exist, or several are possible.
    """
    fitting = fitting_columns(names, IMAGE_COLUMNS)
    if image != IMAGE_COLUMNS[0] or image in fitting:
        return image
    if len(fitting) != 1:
        raise InvalidInputError(
            f"{path}: expected a column {image!r}; the columns are {shown(list(names))}; set the"
            " image column (image=...; --option image=COLUMN)"
        )
    return fitting[0]


class FileOptions(TypedDict, total=False):
    """Keyword arguments of `file_images`."""

    about: Facts
    allow_outside: bool


def images_of_table(
    path: Path,
    split: str,
    table: pa.Table,
    *,
    image: str,
    caption: str | None,
    labels: ColumnNames,
    folder: Path,
    unknown: Collection[str] | None = None,
    **options: Unpack[FileOptions],
) -> ImageData:
    """Return the images listed in a table of paths.

    Args:
        path: table path.
        split: split name.
        table: one row per image, or per caption of an image.
        image: column of image paths.
        caption: caption column, or None if there is none.
        labels: label columns, as a list or as {name to use: name in the table}.
        folder: base folder for the paths.
        unknown: labels that mean a missing value. Default: as described in `missing_labels`.
        options: keyword arguments for `file_images`.
    """
    files = as_texts(column_of(table, image, path), f"{path}: column {image!r}")
    # An empty path would refer to the folder itself.
    if "" in files:
        raise InvalidInputError(
            f"{path}: expected an image in every row, but {files.count('')} cells of column"
            f" {image!r} are empty"
        )
    captions, more_captions = _captions_of(table, caption, path)
    columns = {}
    for name, column in mapped_columns(labels).items():
        place = f"{path}: column {column!r}"
        values = labels_of(table, column, None, path)
        columns[name] = values.without(missing_labels(values.counts, place, unknown=unknown))
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
    """Return the captions and further captions of all rows; empty without a caption column."""
    if not column:
        return [], []
    cells = column_of(table, column, path).to_pylist()
    listed = [texts_of_list(cell) for cell in cells]
    lists = len(listed) - listed.count(None)
    texts = [
        cell if several is None else several for cell, several in zip(cells, listed, strict=True)
    ]
    captions, more_captions = captions_of(texts, f"{path}: column {column!r}")
    if lists:
        warn_of_input(
            f"{path}: {lists} cells of column {column!r} are lists written as text; each is read as"
            f" several captions, such as {captions[0][:60]!r}",
        )
    return clean_captions(str(path), captions, more_captions)
