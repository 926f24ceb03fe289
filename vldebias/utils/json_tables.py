"""Read rows from JSON that other tools write: lists, JSON lines, answers of APIs, captions by
file name.

Nested objects become columns with a dotted name: {"payload": {"gender": ...}} is "payload.gender".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.utils.pictures import ENDINGS
from vldebias.utils.text_tables import json_form

Row = dict[str, Any]
_EXPECTED = 'expected an object such as {"image": ...}'


def flat(row: Mapping[str, Any], where: str) -> Row:
    """Return a row with a column for each part of its nested objects.

    Lists stay cells of their own. An object without parts is kept as an empty cell, so that its
    column does not disappear.

    Args:
        row: a JSON object.
        where: its place, for messages.

    Raises:
        InvalidInputError: two parts of the row have the same dotted name.

    >>> flat({"id": 1, "payload": {"gender": "male", "face": {"age": 30}}}, "points.jsonl:1")
    {'id': 1, 'payload.gender': 'male', 'payload.face.age': 30}
    """
    cells: Row = {}
    # Without recursion: JSON may be nested more deeply than Python's stack.
    waiting: list[tuple[str, Any]] = list(row.items())[::-1]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping) and value:
            for key, part in list(value.items())[::-1]:
                waiting.append((f"{name}.{key}", part))
            continue
        if name in cells:
            raise InvalidInputError(
                f"{where}: got two values for {name!r}, one nested and one with dots in its name;"
                " expected one; rename either"
            )
        cells[name] = None if isinstance(value, Mapping) else value
    return cells


def flat_rows(rows: Sequence[Mapping[str, Any]], where: str) -> list[Row]:
    """Return rows with a column for each part of their nested objects, see `flat`."""
    return [flat(row, f"{where}: row {number}") for number, row in enumerate(rows, start=1)]


def names_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of flat rows, in the order in which they first occur."""
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    return list(names)


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """Return the cell of a flat row with a dotted name, also inside of lists, by position, and of
    cells that are JSON written as text; None if there is none.

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


def _opened(cell: Any) -> Any:
    """Return the value of a cell that is JSON written as text; another cell is itself."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("{", "[")):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def column_around(names: Sequence[str], name: str) -> str | None:
    """Return the column inside of which a dotted name may lie; None if there is none."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        column = ".".join(parts[:length])
        if column in names:
            return column
    return None


def is_json_document(text: str, ending: str) -> bool:
    """Tell whether the text of a .json or .jsonl file is one value instead of a value a line.

    Lines are often called .json, and lists .jsonl.
    """
    form = json_form(text)
    return form == "list" or (form == "object" and ending.lower() == ".json")


def parsed(text: str, where: str) -> Any:
    """Return the value of a text in JSON.

    Raises:
        InvalidInputError: the text is not JSON, or an object has a name twice, of whose values
            Python would keep the last.
    """
    try:
        return json.loads(text, strict=False, object_pairs_hook=_with_different_names)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{where}: expected JSON, got {error}") from None


def _with_different_names(pairs: list[tuple[str, Any]]) -> Row:
    """Return an object of JSON; raise ValueError if a name occurs twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {repeated!r} twice in one object; expected different names")
    return row


def rows_of_lines(lines: Sequence[str], where: str) -> tuple[list[Row], list[int]]:
    """Return the objects of JSON lines and their line numbers, without blank lines.

    Raises:
        InvalidInputError: a line that is not JSON, or not an object.
    """
    rows: list[Row] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{where}: line {number}"
        row = parsed(line, place)
        if not isinstance(row, dict):
            raise InvalidInputError(f"{place}: {_EXPECTED}, got {line.strip()[:40]}")
        rows.append(row)
        numbers.append(number)
    return rows, numbers


def rows_of_json(text: str, where: str) -> list[Row]:
    """Return the objects of a JSON text, one for each row.

    The text is a list of objects; an object that holds one list of objects, as APIs answer
    ({"result": {"points": [...]}}, {"items": [...]}); or an object with an entry for each picture,
    as kohya's sd-scripts write captions ({"0.png": {"caption": ..., "tags": ...}}).

    Raises:
        InvalidInputError: no JSON, something else, or an object that holds several lists.
    """
    value = parsed(text, where)
    objects = value
    if isinstance(value, dict):
        objects = rows_by_picture(value)
        if objects is None:
            objects = _only_list(value, where)
    is_list = isinstance(objects, list) and bool(objects)
    if not is_list or not all(isinstance(row, dict) for row in objects):
        raise InvalidInputError(
            f"{where}: expected a list of objects, one for each row, or an object that holds one"
            f" such list; got {text.strip()[:40]}"
        )
    return objects


def _only_list(value: Mapping[str, Any], where: str) -> list[Any] | None:
    """Return the only list of objects inside an object; None if there is none.

    Raises:
        InvalidInputError: there are several.
    """
    found: dict[str, list[Any]] = {}
    waiting: list[tuple[str, Any]] = list(value.items())
    while waiting:
        name, part = waiting.pop()
        if isinstance(part, Mapping):
            waiting += [(f"{name}.{key}", inner) for key, inner in part.items()]
        elif isinstance(part, list) and any(isinstance(row, dict) for row in part):
            found[name] = part
    if len(found) > 1:
        raise InvalidInputError(
            f"{where}: got an object with several lists of objects, {', '.join(sorted(found))};"
            " expected one; save the list that you mean in a file of its own"
        )
    return next(iter(found.values()), None)


def rows_by_picture(value: Mapping[str, Any]) -> list[Row] | None:
    """Return the rows of an object with an entry for each picture; None if it is something else.

    An entry is a caption, a list of captions, or an object with `caption` and `tags`, which are
    joined as sd-scripts does. The keys are file names, also without their endings in the latter
    case.
    """
    if not value:
        return None
    are_pictures = all(PurePosixPath(name).suffix.lower() in ENDINGS for name in value)
    captioned = [
        entry
        for entry in value.values()
        if isinstance(entry, Mapping) and ("caption" in entry or "tags" in entry)
    ]
    # A few pictures may have sizes and no caption yet.
    are_entries = 2 * len(captioned) > len(value) and all(
        isinstance(entry, Mapping) for entry in value.values()
    )
    are_captions = all(isinstance(entry, (str, list)) for entry in value.values())
    if not are_entries and not (are_pictures and are_captions):
        return None
    rows: list[Row] = []
    for name, entry in value.items():
        if not are_entries:
            rows.append({"image": name, "caption": entry})
            continue
        texts = [text for text in (entry.get("caption"), entry.get("tags")) if text]
        caption: Any = texts[0] if texts else None
        if len(texts) == 2 and all(isinstance(text, str) for text in texts):
            caption = ", ".join(texts)
        used = ("image", "caption", "tags")
        further = {key: part for key, part in entry.items() if key not in used}
        rows.append({"image": name, **further, "caption": caption})
    return rows
