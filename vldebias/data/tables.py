"""Tables of labels (csv, tsv, parquet, jsonl) and their columns as Labels, all vectorised."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data.labels import UNKNOWN, Labels
from vldebias.errors import InvalidInputError, Lazily
from vldebias.files import SHIELDED

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")
pc, pcsv, pj, pq = Lazily("pyarrow.compute"), Lazily("pyarrow.csv"), Lazily("pyarrow.json"), Lazily("pyarrow.parquet")

# Names of a column in their order, or value in the table -> name; None for the values that occur, sorted.
Names = Sequence[str] | Mapping[str, str] | None
# Columns that become labels: their names, or name here -> name in the table.
ColumnNames = Sequence[str] | Mapping[str, str]

_MOST_NAMES = 1000  # more names than this on more than half of the rows are no labels but ids or captions
ENDINGS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")


def read_table(path: Path) -> pa.Table:
    """A table from a .csv, .tsv, .parquet, .jsonl or .ndjson file.

    Columns of csv are texts as they stand, "01" included, but for the apostrophe that keeps a spreadsheet from running
    a cell (`files.shielded`). Nested objects of jsonl become columns with a dot:
    {"labels": {"gender": ...}} is "labels.gender".

    Raises:
        InvalidInputError: no such file, another ending, or a content that does not fit; the message says where.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InvalidInputError(f"{path}: expected a file ending in {', '.join(ENDINGS)}, got {path.suffix!r}")
    if not path.is_file():
        raise InvalidInputError(f"{path}: there is no such file")
    try:
        if ending == ".parquet":
            table = pq.read_table(path)
        else:
            table = _read_json(path) if ending in (".jsonl", ".ndjson") else _read_csv(path, ending)
        table.validate(full=True)  # such as texts that are no UTF-8
        return table.rename_columns(table.column_names)  # raises here where a name is none
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"{path}: cannot be read as {ending[1:]}: {error}") from error


def _read_csv(path: Path, ending: str) -> pa.Table:
    delimiter = "," if ending == ".csv" else "\t"
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file, delimiter=delimiter), [])
    if not header:
        raise InvalidInputError(f"{path}: is empty; expected a first line with the names of the columns")
    if len(set(header)) != len(header):
        raise InvalidInputError(f"{path}: a column stands twice in the first line: {header}")
    table = pcsv.read_csv(
        path,
        parse_options=pcsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pcsv.ConvertOptions(column_types=dict.fromkeys(header, pa.string())),
    )
    texts = [pc.replace_substring_regex(column, pattern=SHIELDED, replacement=r"\1") for column in table.columns]
    return pa.table(texts, names=table.column_names)


def _read_json(path: Path) -> pa.Table:
    with path.open("rb") as file:  # a line that is no object can end the process: pyarrow runs into a null pointer
        for number, line in enumerate(file, 1):
            start = line.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            if start not in (b"", b"{"):
                shown = line.strip()[:40].decode(errors="replace")
                raise InvalidInputError(
                    f'{path}: line {number}: expected an object such as {{"image": ...}}, got {shown}'
                )
    return pj.read_json(path).flatten()


def mapped_columns(
    labels: ColumnNames, names: Mapping[str, Names] | None, where: str
) -> tuple[dict[str, str], Mapping[str, Names]]:
    """Columns that become labels as {name here: name in the table}, and the names that are given for their values."""
    if isinstance(labels, str):
        labels = [labels]
    mapped = dict(labels) if isinstance(labels, Mapping) else {column: column for column in labels}
    strangers = sorted(set(names or ()) - set(mapped))
    if strangers:
        raise InvalidInputError(f"{where}: names are given for {strangers}, which are not among labels {list(mapped)}")
    return mapped, names or {}


def column_of(table: pa.Table, name: str, where: str | Path) -> pa.Array:
    """A column of a table in one piece."""
    if name not in table.column_names:
        raise InvalidInputError(f"{where}: expected a column {name!r}; there are {table.column_names}")
    return table.column(name).combine_chunks()


def as_texts(column: pa.Array, where: str) -> list[str]:
    """The texts of a column, "" where there is none."""
    return _as_text(column, where).fill_null("").to_pylist()


def captions_of(column: pa.Array, where: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """The caption of each row, and of a column of lists those beside it; else an empty list.

    Raises:
        InvalidInputError: neither texts nor lists of texts.
    """
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return as_texts(column, where), []
    rows = [captions_in(cell, where) for cell in column.to_pylist()]
    return [first for first, _ in rows], [more or () for _, more in rows]


def captions_in(cell: Any, where: str) -> tuple[str, tuple[str, ...] | None]:
    """The caption of a cell, "" where there is none, and of a list those beside it, without blank ones.

    Raises:
        InvalidInputError: neither a text nor a list of texts.
    """
    texts = cell if isinstance(cell, list) else []
    if isinstance(cell, Mapping) or not all(text is None or isinstance(text, str) for text in texts):
        raise InvalidInputError(f"{where}: expected a text or a list of texts in every row, got {str(cell)[:60]}")
    if not isinstance(cell, list):
        return str(cell or ""), None
    first, *more = [text for text in texts if text and text.strip()] or [""]
    return first, tuple(more)


def integers(column: pa.Array, allowed: Sequence[int], where: str) -> NDArray[np.int64]:
    """The column as int64 (n,), whose values must all be among `allowed`."""
    labels = as_labels(column, [str(value) for value in allowed], where)
    if not labels.known.all():
        raise InvalidInputError(f"{where}: expected {list(allowed)} in every row, {(~labels.known).sum()} are empty")
    return np.array(allowed, dtype=np.int64)[labels.codes]


def as_labels(column: pa.Array, names: Names, where: str, unknown: Any = ()) -> Labels:
    """Labels of a column; empty and missing values are unknown, and those that `unknown` names.

    Space around a value does not count.
    """
    values = pc.utf8_trim_whitespace(_as_text(column, where))
    several = isinstance(unknown, Iterable) and not isinstance(unknown, str)
    nothing = pa.array(["", *map(str, unknown if several else [unknown])])
    values = pc.if_else(pc.is_in(values, nothing), pa.scalar(None, pa.string()), values)
    encoded = values.dictionary_encode()
    there: list[str] = encoded.dictionary.to_pylist()
    if isinstance(names, Mapping):
        known = {str(value): str(name) for value, name in names.items()}
    elif names is not None:
        known = {str(name): str(name) for name in names}
    elif len(there) > max(_MOST_NAMES, len(values) // 2):
        raise InvalidInputError(f"{where}: {len(there)} different values in {len(values)} rows; is that a label?")
    else:
        known = {value: value for value in sorted(there)}
    unnamed = sorted(set(there) - set(known))
    if unnamed:
        raise InvalidInputError(f"{where}: expected one of {list(known)}, got {unnamed[:8]}")
    texts = list(dict.fromkeys(known.values()))
    code = np.array([texts.index(known[value]) for value in there] + [UNKNOWN], dtype=np.int64)
    rows = encoded.indices.cast(pa.int64()).fill_null(len(there)).to_numpy(zero_copy_only=False)
    return Labels(code[rows], tuple(texts))


def _as_text(column: pa.Array, where: str) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        whole = pc.and_(pc.less_equal(pc.abs(column), 2.0**53), pc.equal(column, pc.round(column)))
        if pc.all(whole, min_count=0).as_py():
            column = column.cast(pa.int64())  # 0 and 1 with gaps between them are stored as floats
    try:
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise InvalidInputError(f"{where}: expected texts or numbers, got a column of {column.type}") from error
