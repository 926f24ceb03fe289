"""Parse other tools' JSON: lists, JSON lines, API responses, and entries by file name or id."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TypeGuard

from vldebias.errors import InvalidInputError
from vldebias.utils.json_values import JSON
from vldebias.utils.pictures import ENDINGS
from vldebias.utils.text_tables import json_form

Row = dict[str, JSON]


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
        text: the content of a JSON file or of one line.
        source: the file named in messages.

    Raises:
        InvalidInputError: If the text is not JSON, or a name occurs twice in an object (Python
            would silently keep the last value).
    """
    try:
        return json.loads(text, strict=False, object_pairs_hook=_with_different_names)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{source}: expected JSON, but it is not valid: {error}") from None


def refuse_half_pairs(value: JSON, source: str) -> None:
    r"""Raise an error for half of a surrogate pair, such as "\ud83d", which cannot be encoded.

    Programs write it if they cut a text in the middle of an emoji.

    Args:
        value: a parsed JSON value.
        source: where the value is, for messages.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        before = error.object[max(0, error.start - 20) : error.start]
        raise InvalidInputError(
            f"{source}: got {error.object[error.start]!r} after {before!r}, which is half of a"
            " character (a surrogate pair that was cut); remove it from the text"
        ) from None


def _with_different_names(pairs: list[tuple[str, JSON]]) -> Row:
    """Convert a JSON object's pairs to a dict, or raise ValueError if a name occurs twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the name {repeated!r} twice in one object; expected different names")
    return row


def located_values(text: str, ending: str, source: str) -> tuple[list[JSON], list[str]]:
    """Parse the entries of a JSON file, which are objects or strings, and return their locations.

    The supported layouts are:

    - a list of entries, or one entry or list of entries per line;
    - an object that contains one list of objects, as in API responses ({"items": [...]} or
      {"result": {"points": [...]}}), or one list of strings ({"prompts": [...]});
    - an object with an entry for each image, like the caption files for kohya's sd-scripts
      ({"0.png": {"caption": ..., "tags": ...}});
    - Karpathy's split of COCO and Flickr30k ({"images": [{"filename": ..., "sentences": ...}]});
    - an object of objects with the same fields, such as {"0001": {"prompt": ...}, ...}. The names
      become the column "id", unless there is one.

    Args:
        text: the content of the file.
        ending: its extension, such as ".json".
        source: the file named in messages.

    Returns:
        The entries, and the location of each for messages.

    Raises:
        InvalidInputError: If the text is not JSON, has an unsupported layout, or contains several
            lists.
    """
    if is_json_document(text, ending):
        value = parsed(text, source)
        entries: JSON = value
        if isinstance(value, dict):
            entries = (
                rows_by_picture(value)
                or _rows_of_karpathy(value)
                or _only_list(value, source)
                or _rows_by_id(value)
            )
        if not _are_entries(entries):
            raise InvalidInputError(
                f"{source}: expected a list of objects (one per row) or of strings, or an object"
                f" that contains one such list; got {text.strip()[:40]}"
            )
        locations = [f"{source}: entry {n}" for n in range(1, len(entries) + 1)]
        if "\\ud" in text.lower():
            for entry, location in zip(entries, locations, strict=True):
                refuse_half_pairs(entry, location)
        return entries, locations
    values: list[JSON] = []
    locations = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            location = f"{source}: line {number}"
            value = parsed(line, location)
            if "\\ud" in line.lower():
                refuse_half_pairs(value, location)
            in_line = value if _are_entries(value) else [value]
            values += in_line
            locations += [location] * len(in_line)
    return values, locations


def _are_entries(value: JSON) -> TypeGuard[list[JSON]]:
    """Return whether a value is a list of objects and strings."""
    return isinstance(value, list) and all(isinstance(entry, (dict, str)) for entry in value)


def _only_list(value: Mapping[str, JSON], source: str) -> list[JSON] | None:
    """Return the only list of objects (or else of strings) inside an object, or None.

    Raises:
        InvalidInputError: If there are several lists.
    """
    lists: dict[type, dict[str, list[JSON]]] = {dict: {}, str: {}}
    pending: list[tuple[str, JSON]] = list(value.items())
    while pending:
        name, part = pending.pop()
        if isinstance(part, Mapping):
            pending += [(f"{name}.{key}", inner) for key, inner in part.items()]
        elif isinstance(part, list):
            for kind, list_of_name in lists.items():
                if any(isinstance(entry, kind) for entry in part):
                    list_of_name[name] = part
    list_of_name = lists[dict] or lists[str]
    if len(list_of_name) > 1:
        kind_of_entry = "objects" if lists[dict] else "strings"
        raise InvalidInputError(
            f"{source}: got an object with several lists of {kind_of_entry},"
            f" {', '.join(sorted(list_of_name))}; expected one list. Save the list that you want in"
            " a separate file"
        )
    return next(iter(list_of_name.values()), None)


def _rows_by_id(value: Mapping[str, JSON]) -> list[Row] | None:
    """Return a row per entry if the entries are objects that share a field, else None."""
    entries = [entry for entry in value.values() if isinstance(entry, Mapping)]
    if len(entries) < 2 or len(entries) < len(value) or not set.intersection(*map(set, entries)):
        return None
    return [{"id": name, **entry} for name, entry in zip(value, entries, strict=True)]


def rows_by_picture(value: Mapping[str, JSON]) -> list[Row] | None:
    """Return one row per image if an object consists of image entries, else None.

    An entry is a caption, a list of captions, or an object with `caption` and `tags`, which are
    joined as in sd-scripts. The keys are file names or numbers. If the entries are objects, file
    names without extensions are also accepted.
    """
    if not value:
        return None
    entries = [entry for entry in value.values() if isinstance(entry, Mapping)]
    if len(entries) == len(value):
        # Some images may have a size but no caption yet.
        captioned = [entry for entry in entries if "caption" in entry or "tags" in entry]
        if 2 * len(captioned) <= len(value):
            return None
        return [_captioned_row(name, entry) for name, entry in zip(value, entries, strict=True)]
    # pycocoevalcap names images by their number: {"42": ["a cook"]}.
    are_pictures = all(
        PurePosixPath(name).suffix.lower() in ENDINGS or name.isdecimal() for name in value
    )
    are_captions = all(isinstance(entry, (str, list)) for entry in value.values())
    if are_pictures and are_captions:
        return [{"image": name, "caption": caption} for name, caption in value.items()]
    return None


def _rows_of_karpathy(value: Mapping[str, JSON]) -> list[Row] | None:
    """Return one row per image of Karpathy's split of COCO and Flickr30k, else None."""
    images = value.get("images")
    if not isinstance(images, list):
        return None
    rows: list[Row] = []
    for entry in images:
        if not isinstance(entry, Mapping) or not {"filename", "sentences"} <= entry.keys():
            return None
        row = dict(entry)
        folder = row.pop("filepath", "")
        name = row.pop("filename")
        rows.append({"image": f"{folder}/{name}" if folder else str(name), **row})
    return rows


def _captioned_row(name: str, entry: Mapping[str, JSON]) -> Row:
    """Convert an image's entry in an sd-scripts caption file to a row."""
    rest = {key: part for key, part in entry.items() if key not in ("image", "caption", "tags")}
    caption = entry.get("caption")
    tags = entry.get("tags")
    if caption and isinstance(caption, str) and tags and isinstance(tags, str):
        caption = f"{caption}, {tags}"
    return {"image": name, **rest, "caption": caption or tags or None}
