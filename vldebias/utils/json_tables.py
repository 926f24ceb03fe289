"""Parse rows from other tools' JSON: lists, JSON lines, API responses, and captions by file name.

Nested objects become columns with dotted names: {"payload": {"gender": ...}} is "payload.gender".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from vldebias.errors import InvalidInputError
from vldebias.utils.json_values import JSON
from vldebias.utils.pictures import ENDINGS
from vldebias.utils.text_tables import json_form

Row = dict[str, JSON]
_EXPECTED = 'expected an object such as {"image": ...}'


def flat(row: Mapping[str, JSON], source: str) -> Row:
    """Flatten a row's nested objects into columns with dotted names.

    Lists are not flattened. An empty object becomes an empty cell, so that its column does not
    disappear.

    Args:
        row: a JSON object.
        source: the row's location, which is named in messages.

    Raises:
        InvalidInputError: If two values have the same dotted name.

    >>> flat({"id": 1, "payload": {"gender": "male", "face": {"age": 30}}}, "points.jsonl:1")
    {'id': 1, 'payload.gender': 'male', 'payload.face.age': 30}
    """
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


def flat_rows(rows: Sequence[Mapping[str, JSON]], source: str) -> list[Row]:
    """Flatten the nested objects in several rows with `flat`.

    Args:
        rows: the JSON objects.
        source: the file named in messages.

    Raises:
        InvalidInputError: If two values in a row have the same dotted name.
    """
    return [flat(row, f"{source}: row {number}") for number, row in enumerate(rows, start=1)]


def names_of(rows: Sequence[Mapping[str, JSON]]) -> list[str]:
    """Return the column names of flat rows, in order of first occurrence."""
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    return list(names)


def cell_of(row: Mapping[str, JSON], name: str) -> JSON:
    """Look up a cell by its dotted name in a flat row, or return None if there is none.

    A number in the name is a position in a list. Cells that contain JSON as text are parsed.

    Args:
        row: a flat row (see `flat`).
        name: a column name, or the dotted name of a value inside a cell.

    >>> cell_of({"messages": [{"role": "user", "content": "a nurse"}]}, "messages.0.content")
    'a nurse'
    >>> cell_of({"meta": '{"prompt": "a nurse"}'}, "meta.prompt")
    'a nurse'
    """
    if name in row:
        return row[name]
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        value = _opened(row.get(".".join(parts[:length])))
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


def _opened(cell: JSON) -> JSON:
    """Parse a cell that contains JSON as text, and return other cells unchanged."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("{", "[")):
        return cell
    try:
        value: JSON = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    return value


def column_around(names: Sequence[str], name: str) -> str | None:
    """Return the column whose cells may contain a dotted name, or None if there is none.

    Args:
        names: the table columns.
        name: a dotted name, such as "payload.gender", which "payload" may contain.
    """
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        column = ".".join(parts[:length])
        if column in names:
            return column
    return None


def is_json_document(text: str, ending: str) -> bool:
    """Return whether a .json or .jsonl file contains a single value rather than one per line.

    The extension is not reliable: JSON lines files are often named .json, and lists .jsonl.

    Args:
        text: the content of the file, or only its beginning.
        ending: the extension, such as ".json".
    """
    form = json_form(text)
    return form == "list" or (form == "object" and ending.lower() == ".json")


def parsed(text: str, source: str) -> JSON:
    """Parse a JSON string.

    Args:
        text: the text.
        source: the file named in messages.

    Raises:
        InvalidInputError: If the text is not JSON, or a name occurs twice in an object (Python
            would silently keep the last value).
    """
    try:
        value: JSON = json.loads(text, strict=False, object_pairs_hook=_with_different_names)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{source}: expected JSON, got {error}") from None
    return value


def _with_different_names(pairs: list[tuple[str, JSON]]) -> Row:
    """Convert a JSON object's pairs to a dict, or raise ValueError if a name occurs twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {repeated!r} twice in one object; expected different names")
    return row


def rows_of_lines(lines: Sequence[str], source: str) -> tuple[list[Row], list[int]]:
    """Parse JSON lines, skipping blank lines.

    Args:
        lines: the lines of a file.
        source: the file named in messages.

    Returns:
        The objects, and their line numbers.

    Raises:
        InvalidInputError: If a line is not a JSON object.
    """
    rows: list[Row] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{source}: line {number}"
        row = parsed(line, place)
        if not isinstance(row, dict):
            raise InvalidInputError(f"{place}: {_EXPECTED}, got {line.strip()[:40]}")
        rows.append(row)
        numbers.append(number)
    return rows, numbers


def rows_of_json(text: str, source: str) -> list[Row]:
    """Parse a JSON string with one object per row.

    Three layouts are supported:

    - a list of objects;
    - an object that contains one list of objects, as in API responses ({"items": [...]} or
      {"result": {"points": [...]}});
    - an object with an entry for each picture, like the caption files for kohya's sd-scripts
      ({"0.png": {"caption": ..., "tags": ...}}).

    Args:
        text: the text.
        source: the file named in messages.

    Raises:
        InvalidInputError: If the text is not JSON, has an unsupported layout, or contains several
            lists.
    """
    value = parsed(text, source)
    objects = value
    if isinstance(value, dict):
        objects = rows_by_picture(value)
        if objects is None:
            objects = _only_list(value, source)
    rows: list[Row] = []
    if isinstance(objects, list):
        rows = [row for row in objects if isinstance(row, dict)]
    if not rows or not isinstance(objects, list) or len(rows) < len(objects):
        raise InvalidInputError(
            f"{source}: expected a list of objects, one per row, or an object that contains one"
            f" such list; got {text.strip()[:40]}"
        )
    return rows


def _only_list(value: Mapping[str, JSON], source: str) -> list[JSON] | None:
    """Return the only list of objects inside an object, or None if there is none.

    Raises:
        InvalidInputError: If there are several lists.
    """
    list_of_name: dict[str, list[JSON]] = {}
    pending: list[tuple[str, JSON]] = list(value.items())
    while pending:
        name, part = pending.pop()
        if isinstance(part, Mapping):
            pending += [(f"{name}.{key}", inner) for key, inner in part.items()]
        elif isinstance(part, list) and any(isinstance(row, dict) for row in part):
            list_of_name[name] = part
    if len(list_of_name) > 1:
        raise InvalidInputError(
            f"{source}: got an object with several lists of objects,"
            f" {', '.join(sorted(list_of_name))}; expected one list. Save the list that you want in"
            " a separate file"
        )
    return next(iter(list_of_name.values()), None)


def rows_by_picture(value: Mapping[str, JSON]) -> list[Row] | None:
    """Return one row per picture if an object consists of picture entries, else None.

    An entry is a caption, a list of captions, or an object with `caption` and `tags`, which are
    joined as in sd-scripts. The keys are file names. If the entries are objects, file names without
    extensions are also accepted.
    """
    if not value:
        return None
    entries = [entry for entry in value.values() if isinstance(entry, Mapping)]
    if len(entries) == len(value):
        # Some pictures may have a size but no caption yet.
        captioned = [entry for entry in entries if "caption" in entry or "tags" in entry]
        if 2 * len(captioned) <= len(value):
            return None
        return [_captioned_row(name, entry) for name, entry in zip(value, entries, strict=True)]
    are_pictures = all(PurePosixPath(name).suffix.lower() in ENDINGS for name in value)
    are_captions = all(isinstance(entry, (str, list)) for entry in value.values())
    if are_pictures and are_captions:
        return [{"image": name, "caption": caption} for name, caption in value.items()]
    return None


def _captioned_row(name: str, entry: Mapping[str, JSON]) -> Row:
    """Convert a picture's entry in an sd-scripts caption file to a row."""
    row: Row = {"image": name}
    for key, part in entry.items():
        if key not in ("image", "caption", "tags"):
            row[key] = part
    caption = entry.get("caption")
    tags = entry.get("tags")
    if caption and isinstance(caption, str) and tags and isinstance(tags, str):
        row["caption"] = f"{caption}, {tags}"
    else:
        row["caption"] = caption or tags or None
    return row
