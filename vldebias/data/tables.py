"""Read tables: csv, tsv, txt, parquet, jsonl and json."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError, Lazily, did_you_mean, received, shown
from vldebias.utils.files import refuse_lfs_pointer, unshielded
from vldebias.utils.json_tables import is_json_document, located_values
from vldebias.utils.json_values import JSON
from vldebias.utils.table_rows import (
    JSON_ENDINGS,
    SEPARATOR_OF_ENDING,
    cell_of,
    column_around,
    find_column,
    fitting_columns,
    hint_of_header,
    read_rows,
)
from vldebias.utils.text_tables import read_text, split_rows
from vldebias.utils.texts import is_frame

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")
pc = Lazily("pyarrow.compute")
pj = Lazily("pyarrow.json")
pq = Lazily("pyarrow.parquet")

ENDINGS = (*SEPARATOR_OF_ENDING, ".parquet", *JSON_ENDINGS)
# Names of columns with the number of images, or their weight, per row.
_COUNTS = (
    "count",
    "counts",
    "n",
    "n_images",
    "num_images",
    "frequency",
    "freq",
    "weight",
    "weights",
)
# Names of JSON types in messages.
_KINDS: dict[type, str] = {
    **{str: "a string", int: "a number", float: "a number", bool: "a boolean"},
    **{list: "a list", dict: "an object"},
}


def read_table(
    path: Path, *, separator: str | None = None, encoding: str | None = None
) -> pa.Table:
    """Read a table from a .csv, .tsv, .txt, .parquet, .jsonl, .ndjson or .json file.

    Cells in csv files remain strings ("01" stays "01"), except that the apostrophe added by
    `files.shielded` is removed. Nested objects become columns with dotted names: {"labels":
    {"gender": ...}} is "labels.gender". A .json file may also be an API response that contains one
    list of objects.

    Args:
        path: path of the table.
        separator: separator for csv, tsv and txt files. Default: detected.
        encoding: text encoding. Default: UTF-8; if that fails, it is detected, with a warning.

    Raises:
        InvalidInputError: If the file does not exist, has an unsupported extension, or has invalid
            content.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS or not path.is_file():
        raise InvalidInputError(
            f"{path}: expected an existing file with the ending {', '.join(ENDINGS)}"
        )
    refuse_lfs_pointer(path)
    try:
        if ending == ".parquet":
            # Pages have checksums but the footer does not, so check its row count.
            table = with_flat_columns(pq.read_table(path, page_checksum_verification=True))
            expected = pq.read_metadata(path).num_rows
            if table.num_rows != expected:
                raise pa.ArrowInvalid(f"it declares {expected} rows but has {table.num_rows}")
        elif ending in SEPARATOR_OF_ENDING:
            text = read_text(path, encoding)
            usual = SEPARATOR_OF_ENDING[ending]
            rows = split_rows(text, str(path), separator=separator, usual=usual)
            columns = [list(map(unshielded, column)) for column in zip(*rows, strict=True)]
            arrays = [pa.array(column[1:], pa.string()) for column in columns]
            table = pa.table(arrays, names=[column[0] for column in columns])
        else:
            table = _read_json(path, encoding)
        repeated = [name for name, count in Counter(table.column_names).items() if count > 1]
        if repeated:
            raise InvalidInputError(
                f"{path}: expected distinct column names, got {repeated[0]!r} more than once"
            )
        table.validate(full=True)  # detects strings that are not UTF-8
        return table.rename_columns(table.column_names)  # raises an error if a name is missing
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: cannot be read as {ending[1:]}: {error}") from error


def table_in_memory(table: Mapping[str, Iterable[object]] | pd.DataFrame | pa.Table) -> pa.Table:
    """Convert columns by name, a data frame of pandas or polars, or a pyarrow table, as if read.

    NaN and pandas' NA are missing cells. Columns that mix numbers and strings become strings, as in
    csv files.

    Args:
        table: the columns.

    Raises:
        InvalidInputError: If the columns have different lengths.
    """
    if isinstance(table, pa.Table):
        return with_flat_columns(table)
    if hasattr(table, "to_arrow"):  # polars
        return with_flat_columns(table.to_arrow())
    if not isinstance(table, Mapping) and not is_frame(table):
        raise InvalidInputError(
            f"table: got {received(table)}; expected a file, a data frame, or a mapping from column"
            " to cells, such as {'image': [...], 'caption': [...]}"
        )
    columns: dict[str, pa.Array] = {}
    for name in table:
        cells: list[object] = []
        for cell in table[name]:
            is_nan = isinstance(cell, float) and cell != cell
            cells.append(None if is_nan or type(cell).__name__ == "NAType" else cell)
        try:
            columns[str(name)] = pa.array(cells)
        except (pa.ArrowException, OverflowError):
            columns[str(name)] = pa.array([None if c is None else str(c) for c in cells])
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"table: expected columns of the same length, got {lengths}")
    return with_flat_columns(pa.table(columns))


def _read_json(path: Path, encoding: str | None) -> pa.Table:
    """Load a file with one JSON object per line, or with a list of objects."""
    text = read_text(path, encoding)
    if not text.strip():
        raise InvalidInputError(f"{path}: expected an object per line, got an empty file")
    # pyarrow is faster, but may crash on a line that is not an object.
    are_objects = all(line.lstrip().startswith("{") for line in text.split("\n") if line.strip())
    try:
        if are_objects and not is_json_document(text, path.suffix):
            return with_flat_columns(pj.read_json(io.BytesIO(text.encode())))
        names, rows, _ = read_rows(text, path.suffix, str(path))
        if not rows:
            raise InvalidInputError(f"{path}: expected a list of objects, one per row, got no rows")
        # If an object lacks a field, its value is missing in that row.
        columns = {name: [row.get(name) for row in rows] for name in names}
        # Find columns that contain objects in some rows and other values in others.
        for name in {name.rpartition(".")[0] for name in names} & set(names):
            if any(cell is not None for cell in columns[name]):
                _refuse_mixed(path, text)
        return pa.table(columns)
    except (pa.ArrowException, OverflowError):
        _refuse_mixed(path, text)
        raise


def with_flat_columns(table: pa.Table) -> pa.Table:
    """Flatten nested objects into one column per field, such as "payload.gender"."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def _refuse_mixed(path: Path, text: str) -> None:
    """Raise an error for the first column that mixes types, such as strings and lists.

    pyarrow's own errors use its internal type names, and row numbers relative to a block.
    """
    first_of_column: dict[str, JSON] = {}
    rows, _ = located_values(text, path.suffix, str(path))
    for number, row in enumerate(rows, 1):
        parts: list[tuple[str, JSON]] = []
        if isinstance(row, Mapping):
            for column, value in row.items():
                parts += _with_parts(column, value)
        for column, value in parts:
            first = first_of_column.setdefault(column, value)
            kind = _KINDS[type(value)]
            first_kind = _KINDS[type(first)]
            if kind == first_kind:
                continue
            remedy = "write the same kind of value in every row"
            if {kind, first_kind} == {"a string", "a list"}:
                remedy = 'write a single string as a list, ["a string"]'
            raise InvalidInputError(
                f"{path}: column {column!r}: row {number} has {kind}, {str(value)[:40]!r}, and an"
                f" earlier row {first_kind}, {str(first)[:40]!r}; {remedy}"
            )


def _with_parts(column: str, value: JSON) -> Iterator[tuple[str, JSON]]:
    """Yield a value and its nested parts with their names, skipping missing values.

    A field of an object is named "labels.gender", and a list item "captions[]".
    """
    if value is None:
        return
    yield column, value
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _with_parts(f"{column}.{name}", part)
    elif isinstance(value, list):
        for part in value:
            yield from _with_parts(f"{column}[]", part)


def column_of(table: pa.Table, name: str, source: str | Path) -> pa.Array:
    """Return a table column as a single array.

    The name is matched as in `find_column`, and may be the dotted name of a nested value.

    Args:
        table: a table as returned by `read_table`.
        name: name of the column.
        source: name of the table in messages.

    Raises:
        InvalidInputError: If the column does not exist.
    """
    found = find_column(table.column_names, name)
    if found in table.column_names:
        return table.column(found).combine_chunks()
    if found is not None:
        around = str(column_around(table.column_names, found))
        parts = [cell_of({around: cell}, name) for cell in table.column(around).to_pylist()]
        if any(part is not None for part in parts):
            try:
                return pa.array(parts)
            except pa.ArrowException as error:
                raise InvalidInputError(
                    f"{source}: expected values of the same kind: {error}"
                ) from error
    hint = did_you_mean(name, table.column_names, "")
    raise InvalidInputError(
        f"{source}: expected a column {name!r}; the columns are {shown(table.column_names)}"
        f"{f'; {hint}' if hint else hint_of_header(table.column_names)}"
    )


def columns_of_counts(table: pa.Table, used: Collection[str]) -> list[str]:
    """Return the unused columns that look like the number of images per row.

    Such a column has a name such as "count", and different positive numbers. Consecutive numbers
    are row numbers instead.

    Args:
        table: a table with one row per image or prompt.
        used: columns with another role.
    """
    found = []
    for name in fitting_columns([name for name in table.column_names if name not in used], _COUNTS):
        try:
            numbers = table.column(name).combine_chunks().cast(pa.float64()).drop_null()
        except pa.ArrowException:
            continue  # some cells are not numbers
        is_positive = pc.all(pc.greater(numbers, 0), min_count=1).as_py()
        differences = pc.unique(pc.pairwise_diff(numbers).drop_null()).to_pylist()
        if is_positive and differences not in ([], [0.0], [1.0]):
            found.append(name)
    return found


def as_texts(column: pa.Array, source: str) -> list[str]:
    """Return a column's values as strings, with "" for missing values.

    In a column whose numbers are all integers, 1.0 becomes "1".

    Args:
        column: strings, numbers or nulls.
        source: name of the table in messages.

    Raises:
        InvalidInputError: If a value is neither a string nor a number.
    """
    # Decode pandas and parquet categories.
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        is_integer = pc.and_(
            pc.less_equal(pc.abs(column), 2.0**53), pc.equal(column, pc.round(column))
        )
        if pc.all(is_integer, min_count=0).as_py():
            column = column.cast(pa.int64())  # integers with missing values are stored as floats
    try:
        return column.cast(pa.string()).fill_null("").to_pylist()
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"{source}: expected strings or numbers, got a column of {column.type}"
        ) from error
