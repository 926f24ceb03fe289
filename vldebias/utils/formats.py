"""Check the format version of saved files.

Every file that a later version may read states its version under the key `format_version`. A change
that an older version would misread increments the number. Readers accept all earlier numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from vldebias.errors import InvalidInputError, shortened

FORMAT: Final = "format_version"


def check_format(
    content: object, place: str | Path, *, newest: int = 1, missing: int | None = None
) -> None:
    """Raise an error unless this package can read a file's format.

    Check it before any other field, because a newer format may have fields that are unknown here.

    Args:
        content: the file's content. Anything but a mapping is left to the reader.
        place: the file, for messages.
        newest: the newest format that can be read.
        missing: the format of files that do not state one, or None if these are rejected.

    Raises:
        InvalidInputError: If the format is newer, missing, or not a positive whole number.
    """
    if not isinstance(content, dict):
        return
    stated: Any = content.get(FORMAT, missing)
    # True is an int in Python.
    is_number = isinstance(stated, int) and not isinstance(stated, bool)
    if is_number and stated > newest:
        raise InvalidInputError(
            f"{place} has format {_described(stated)}; this version of vldebias reads formats up to"
            f" {newest}: upgrade with pip install --upgrade vldebias"
        )
    if not is_number or stated < 1:
        received = _described(stated) if FORMAT in content else "nothing"
        expected = "1" if newest == 1 else f"a whole number from 1 to {newest}"
        raise InvalidInputError(
            f"{place}: {FORMAT}: got {received}; expected {expected}. Correct it, or save the file"
            " again with this version of vldebias"
        )


def check_json_format(text: str | bytes, place: str | Path, *, missing: int | None = None) -> None:
    """Call `check_format` with the content of JSON, and leave malformed JSON to the reader.

    Args:
        text: the JSON.
        place: the file, for messages.
        missing: the format if the file does not state one, or None if this is rejected.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return
    check_format(content, place, missing=missing)


def _described(value: object) -> str:
    """Return a value for a message, or its type if its text could be long."""
    # Python refuses to print integers of thousands of digits, which YAML can contain as hexadecimal
    # numbers.
    if isinstance(value, int) and value.bit_length() > 64:
        return "above 10^19" if value > 0 else "below -10^19"
    if value is None or isinstance(value, (bool, int, float, str)):
        return shortened(repr(value), 60)
    return f"a {type(value).__name__}"
