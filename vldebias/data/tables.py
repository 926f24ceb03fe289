"""Tables of labels (csv, tsv, parquet, jsonl) and their columns as Labels, all vectorised."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vldebias.data.labels import UNKNOWN, Labels
from vldebias.errors import InvalidInputError

__all__ = ["Names", "column_of", "integers", "labels_of", "read_table", "texts_of"]

# Names of a column in their order, or value in the table -> name; None for the values that occur, sorted.
Names = Sequence[str] | Mapping[str, str] | None

_MOST_NAMES = 1000  # more names than this on more than half of the rows are no labels but ids or captions


def read_table(path: Path) -> pa.Table:
    """A table from a .csv, .tsv, .parquet, .jsonl or .ndjson file; csv columns are texts as they stand, "01" included.

    Raises:
        InvalidInputError: no such file, another ending, or a content that does not fit; the message says where.
    """
    readers: dict[str, Callable[[Path], pa.Table]] = {
        ".csv": lambda p: _read_csv(p, ","),
        ".tsv": lambda p: _read_csv(p, "\t"),
        ".parquet": _read_parquet,
        ".jsonl": _read_json,
        ".ndjson": _read_json,
    }
    if path.suffix.lower() not in readers:
        raise InvalidInputError(f"{path}: expected a file ending in {', '.join(readers)}, got {path.suffix!r}")
    if not path.is_file():
        raise InvalidInputError(f"{path}: there is no such file")
    try:
        return readers[path.suffix.lower()](path)
    except (pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"{path}: cannot be read as {path.suffix[1:].lower()}: {error}") from error


def _read_csv(path: Path, delimiter: str) -> pa.Table:
    from pyarrow import csv as arrow

    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file, delimiter=delimiter), [])
    if not header:
        raise InvalidInputError(f"{path}: is empty; expected a first line with the names of the columns")
    if len(set(header)) != len(header):
        raise InvalidInputError(f"{path}: a column stands twice in the first line: {header}")
    return arrow.read_csv(
        path,
        parse_options=arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow.ConvertOptions(column_types=dict.fromkeys(header, pa.string())),
    )


def _read_parquet(path: Path) -> pa.Table:
    from pyarrow import parquet

    return parquet.read_table(path)


def _read_json(path: Path) -> pa.Table:
    """Nested objects become columns with a dot: {"labels": {"gender": ...}} is "labels.gender"."""
    from pyarrow import json

    return json.read_json(path).flatten()


def column_of(table: pa.Table, name: str, where: str | Path) -> pa.Array:
    """A column of a table in one piece.

    Raises:
        InvalidInputError: no such column; the message lists those there are.
    """
    if name not in table.column_names:
        raise InvalidInputError(f"{where}: expected a column {name!r}; there are {table.column_names}")
    column = table.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def texts_of(column: pa.Array, where: str) -> list[str]:
    """The texts of a column, "" where there is none.

    Raises:
        InvalidInputError: a column of something that is not written as text, such as images.
    """
    return pc.fill_null(_as_text(column, where), "").to_pylist()


def integers(column: pa.Array, allowed: Sequence[int], where: str) -> NDArray[np.int64]:
    """The column as int64 (n,).

    Raises:
        InvalidInputError: a value that is not among `allowed`; the message shows some.
    """
    found = labels_of(column, [str(value) for value in allowed], where)
    if not found.known.all():
        raise InvalidInputError(f"{where}: expected {list(allowed)} in every row, {(~found.known).sum()} are empty")
    return np.array(allowed, dtype=np.int64)[found.codes]


def labels_of(column: pa.Array, names: Names, where: str) -> Labels:
    """Labels of a column; empty and missing values are unknown. Space around a value does not count.

    Raises:
        InvalidInputError: a value without a name, or so many different ones that it cannot be a label.
    """
    values = pc.utf8_trim_whitespace(_as_text(column, where))
    values = pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)
    encoded = values.dictionary_encode()
    found: list[str] = encoded.dictionary.to_pylist()
    known = _names(found, names, len(values), where)
    order = {value: i for i, value in enumerate(known)}
    unnamed = sorted(set(found) - set(order))
    if unnamed:
        raise InvalidInputError(f"{where}: expected one of {list(known)}, got {unnamed[:8]}")
    texts = list(dict.fromkeys(known.values()))
    code = np.array([texts.index(known[value]) for value in found] + [UNKNOWN], dtype=np.int64)
    rows = pc.fill_null(encoded.indices.cast(pa.int64()), len(found)).to_numpy(zero_copy_only=False)
    return Labels(code[rows], tuple(texts))


def _names(found: list[str], names: Names, rows: int, where: str) -> dict[str, str]:
    """Value in the table -> name."""
    if isinstance(names, Mapping):
        return {str(value): str(name) for value, name in names.items()}
    if names is not None:
        return {str(name): str(name) for name in names}
    if len(found) > max(_MOST_NAMES, rows // 2):
        raise InvalidInputError(f"{where}: {len(found)} different values in {rows} rows; is that a label?")
    return {value: value for value in sorted(found)}


def _as_text(column: pa.Array, where: str) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        if pc.all(pc.equal(column, pc.round(column)), min_count=0).as_py():
            column = column.cast(pa.int64())  # 0 and 1 with gaps between them are stored as floats
    try:
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise InvalidInputError(f"{where}: expected texts or numbers, got a column of {column.type}") from error
