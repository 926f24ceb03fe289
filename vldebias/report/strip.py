"""Store rows of images in a single PNG file, and extract them for a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from vldebias.errors import need
from vldebias.measure.rows import NONE, Strip
from vldebias.utils.json_values import JSON
from vldebias.utils.pictures import LARGEST, write_png

if TYPE_CHECKING:
    from PIL.Image import Image

AS_GENERATED = "as generated"


class _Layout(BaseModel):
    """Layout of a strip: its column and row titles, and its cell size in pixels."""

    columns: list[str]
    rows: list[str]
    cell: tuple[int, int]


def row_title(method: str) -> str:
    """Return the title for a method's row of images, such as "balanced prompts"."""
    return AS_GENERATED if method == NONE else method.replace("-", " ")


def write_strip(strip: Strip, path: Path, metadata: Mapping[str, JSON]) -> Path:
    """Write a strip's images into one PNG file, with its titles and caption in the metadata.

    Args:
        strip: the images with their titles and caption.
        path: path of the PNG file.
        metadata: additional metadata, such as the run and task.
    """
    first = strip.rows[0][1][0]
    # Do not enlarge small images, so that the miniature world's images are stored unchanged.
    scale = min(LARGEST / max(first.size), 1)
    width, height = (round(side * scale) for side in first.size)
    across = max(len(images) for _, images in strip.rows)
    sheet = need("PIL.Image").new("RGB", (across * width, len(strip.rows) * height), "white")
    for row, (_, images) in enumerate(strip.rows):
        for column, image in enumerate(images):
            cell = image if scale == 1 else image.resize((width, height))
            sheet.paste(cell, (column * width, row * height))
    layout = _Layout(
        columns=list(strip.columns),
        rows=[label for label, _ in strip.rows],
        cell=(width, height),
    )
    layout_fields: JSON = layout.model_dump(mode="json")
    return write_png(sheet, path, {**metadata, "caption": strip.caption, "strip": layout_fields})


def read_strip(sheet: Image, metadata: Mapping[str, JSON]) -> Strip:
    """Extract the images and titles of a strip written by `write_strip`.

    Args:
        sheet: the PNG image.
        metadata: the metadata of the PNG file.
    """
    layout = _Layout.model_validate(metadata["strip"])
    width, height = layout.cell
    rows = []
    for row, label in enumerate(layout.rows):
        places = [(column * width, row * height) for column in range(len(layout.columns))]
        images = [sheet.crop((left, top, left + width, top + height)) for left, top in places]
        rows.append((label, images))
    return Strip(str(metadata["caption"]), layout.columns, rows)
