"""Read the rows of csv, tsv and JSON files, and look up columns by name.

Every command reads such files with `read_rows` and finds the columns that users name with
`find_column`. Nested objects become columns with dotted names: {"payload": {"gender": ...}} is
"payload.gender".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from vldebias.errors import InvalidInputError, shown
from vldebias.utils.json_tables import Row, located_values
from vldebias.utils.json_values import JSON
from vldebias.utils.text_tables import split_rows

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
SEPARATOR_OF_ENDING = {".csv": ",", ".tsv": "\t", ".txt": ","}
"""Extensions of text tables, with the separator to choose if several match."""


class Rows(NamedTuple):
    """Store a table's rows, with their column names and their locations in the file.

    Attributes:
        names: the column names.
        cells: one flat row per entry (see `flat`).
        locations: where each row is in the file, for messages.
    """

    names: list[str]
    cells: list[Row]
    locations: list[str]


def read_rows(text: str, ending: str, source: str, *, separator: str | None = None) -> Rows:
    """Parse the rows of a csv, tsv, txt, json, jsonl or ndjson file.

    Args:
        text: the content of the file.
        ending: its extension, such as ".csv".
        source: the file named in messages.
        separator: the cell separator of a text table, which is detected if None.

    Raises:
        InvalidInputError: If the text cannot be parsed, or an entry is not an object.
    """
    if ending.lower() in SEPARATOR_OF_ENDING:
        usual = SEPARATOR_OF_ENDING[ending.lower()]
        names, *lines = split_rows(text, source, separator=separator, usual=usual)
        cells: list[Row] = [dict(zip(names, line, strict=True)) for line in lines]
        # The first row contains the column names.
        return Rows(names, cells, [f"{source}: row {n}" for n in range(2, len(cells) + 2)])
    values, locations = located_values(text, ending, source)
    if values and all(isinstance(value, str) for value in values):
        raise InvalidInputError(
            f"{source}: got a list of texts, such as {shown(values[0])}, but no columns; expected"
            ' an object for each row, such as {"image": "0.png", "gender": "female"}'
        )
    cells = [flat(value, location) for value, location in zip(values, locations, strict=True)]
    return Rows(names_of(cells), cells, locations)


def flat(row: object, source: str) -> Row:
    """Flatten a row's nested objects into columns with dotted names.

    Lists are not flattened. An empty object becomes an empty cell, so that its column does not
    disappear.

    Args:
        row: a JSON object.
        source: the row's location, which is named in messages.

    Raises:
        InvalidInputError: If it is no object, or two values have the same dotted name.

    >>> flat({"id": 1, "payload": {"gender": "male", "face": {"age": 30}}}, "points.jsonl:1")
    {'id': 1, 'payload.gender': 'male', 'payload.face.age': 30}
    """
    if not isinstance(row, Mapping):
        raise InvalidInputError(
            f"{source}: expected an object with a value per column, got {shown(row)}"
        )
    cells: Row = {}
    # Avoid recursion, because JSON may be nested more deeply than Python's stack allows.
    pending: list[tuple[str, JSON]] = list(row.items())[::-1]
    while pending:
        name, value = pending.pop()
        if isinstance(value, Mapping) and value:
            for key, part in list(value.items())[::-1]:
                pending.append((f"{name}.{key}", part))
            continue
        if name in cells:
            raise InvalidInputError(
                f"{source}: got two values for {name!r}, one nested and one with dots in its name;"
                " rename one of them"
            )
        cells[name] = None if isinstance(value, Mapping) else value
    return cells


def names_of(rows: Sequence[Mapping[str, JSON]]) -> list[str]:
    """Return the column names of flat rows, in order of first occurrence."""
    return list(dict.fromkeys(chain.from_iterable(rows)))


def plain_name(name: str) -> str:
    """Return a column name in lower case, with underscores for spaces and hyphens.

    >>> plain_name(" Gender Label"), plain_name("gender-label")
    ('gender_label', 'gender_label')
    """
    return re.sub(r"[\s_-]+", "_", name.strip()).casefold()


def find_column(names: Sequence[str], name: str) -> str | None:
    """Return the column that a user named, or None if there is none.

    This is the column with exactly this name, or the only one whose name differs in case, spaces,
    hyphens and underscores. A dotted name, such as "meta.gender", may also be a value in the cells
    of a column "meta"; it is then returned unchanged, and `cell_of` looks it up.

    Args:
        names: the table's columns.
        name: the column as the user typed it.

    >>> find_column(["Prompt", "Gender Label"], "gender_label")
    'Gender Label'
    """
    if name in names:
        return name
    alike = [column for column in names if plain_name(column) == plain_name(name)]
    if len(alike) == 1:
        return alike[0]
    return name if not alike and column_around(names, name) is not None else None


def hint_of_header(names: Sequence[str]) -> str:
    """Return a hint if the only column's name looks like a sentence, as in a file of prompts.

    >>> hint_of_header(["A photo of a nurse."])
    "; 'A photo of a nurse.' is no column name: is this a text file? Expected a header line"
    """
    if len(names) != 1 or len(names[0].split()) < 3:
        return ""
    return f"; {names[0]!r} is no column name: is this a text file? Expected a header line"


def fitting_columns(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the columns with known names, or only the one with the most common name.

    Args:
        names: column names of the table.
        known: known names for such columns, most common first.
    """
    if known[0] in names:
        return [known[0]]
    return [name for name in names if plain_name(name) in known]


def column_around(names: Sequence[str], name: str) -> str | None:
    """Return the column whose cells may contain a dotted name, or None if there is none.

    Args:
        names: column names of the table.
        name: a dotted name, such as "payload.gender", which "payload" may contain.
    """
    column = name
    while "." in column:
        column = column.rpartition(".")[0]
        if column in names:
            return column
    return None


def cell_of(row: Mapping[str, JSON], name: str) -> JSON:
    """Look up a cell by its column's name in a flat row, or return None if there is none.

    The name is matched as in `find_column`. In a dotted name, a number is a position in a list.
    Cells that contain JSON as text are parsed.

    Args:
        row: a flat row (see `flat`).
        name: a column name, or the dotted name of a value inside a cell.

    >>> cell_of({"messages": [{"role": "user", "content": "a nurse"}]}, "messages.0.content")
    'a nurse'
    >>> cell_of({"meta": '{"prompt": "a nurse"}'}, "meta.prompt")
    'a nurse'
    """
    column = find_column(list(row), name)
    if column is not None and column in row:
        return row[column]
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        value = parsed_cell(row.get(".".join(parts[:length])))
        if not isinstance(value, (list, Mapping)):
            continue
        for part in parts[length:]:
            if isinstance(value, Mapping):
                value = value.get(part)
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                return None
        return value
    return None


def parsed_cell(cell: JSON) -> JSON:
    """Parse a cell that contains JSON as text, and return other cells unchanged."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("{", "[")):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
