"""Columns of a Hugging Face data set: which hold the images and the captions where nobody says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from vldebias.errors import InvalidInputError

__all__ = ["CAPTIONS", "FIND", "caption_column", "cell_of", "flat", "image_column", "missing_columns", "top"]

FIND = "auto"
CAPTIONS = ("caption", "txt", "text", "json.caption", "json.text")
_IMAGES = ("image", "jpg", "jpeg", "png", "webp")


def image_column(features: Mapping[str, Any], given: str | None, where: str) -> str:
    """The given column, or the one called image or by the ending of a picture, or the only one of images.

    Raises:
        InvalidInputError: none of these, or several; the message lists the columns.
    """
    if given is not None:
        return given
    named = [name for name in _IMAGES if name in features]
    typed = [name for name, kind in features.items() if type(kind).__name__ == "Image"]
    found = named or typed
    if len(found) == 1 or named[:1] == ["image"]:
        return found[0]
    trouble = f"images may be in any of {found}" if found else "no column holds images"
    raise InvalidInputError(f"huggingface: {where}: {trouble}; name it with image=... There are {list(features)}")


def caption_column(features: Mapping[str, Any], given: str | None, where: str, *, tars: bool) -> str | None:
    """The given column; with "auto" the first of `CAPTIONS` that is there; in tars that too without being asked.

    Raises:
        InvalidInputError: "auto", and none of them is there; the message lists the columns.
    """
    if given is not None and (given != FIND or given in features):
        return given
    if given is None and not tars:
        return None
    found = next((name for name in CAPTIONS if has_column(features, name)), None)
    if found is None and given == FIND:
        raise InvalidInputError(
            f"huggingface: {where}: no captions in a column {', '.join(CAPTIONS)}; name it with caption=..., or make "
            f"them from a label with label=... and caption_template='a photo of a {{}}.' There are {list(features)}"
        )
    return found


def missing_columns(features: Mapping[str, Any], wanted: list[str]) -> list[str]:
    """Those that are not there."""
    return [column for column in wanted if not has_column(features, column)]


def has_column(features: Mapping[str, Any], name: str) -> bool:
    """Whether there is such a column, or such a field of one: "json.caption"."""
    if name in features:
        return True
    column, _, field = name.partition(".")
    return bool(field) and isinstance(features.get(column), Mapping) and has_column(features[column], field)


def top(features: Mapping[str, Any], name: str) -> str:
    """The column that a field is in."""
    return name if name in features else name.partition(".")[0]


def flat(table: pa.Table) -> pa.Table:
    """Fields of columns as columns of their own: "json.caption"."""
    while any(pa.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()
    return table


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of a field of one, in a row; None where the row has none."""
    if name in row:
        return row[name]
    column, _, field = name.partition(".")
    inner = row.get(column)
    return cell_of(inner, field) if field and isinstance(inner, Mapping) else None
