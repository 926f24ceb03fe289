"""Keep rows of images in one PNG file, and cut them out again for a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.errors import need
from vldebias.measure.rows import NONE, Strip
from vldebias.utils.pictures import LARGEST, write_png

if TYPE_CHECKING:
    from PIL.Image import Image

AS_GENERATED = "as generated"


def row_title(method: str) -> str:
    """Return what the images of a method are called: "as generated", "balanced prompts"."""
    return AS_GENERATED if method == NONE else method.replace("-", " ")


def write_strip(strip: Strip, path: Path, metadata: Mapping[str, object]) -> Path:
    """Write the images of a strip side by side, with its words in the metadata.

    metadata: what else the file says, such as its run and task.
    """
    first = strip.rows[0][1][0]
    # Never enlarged: the miniature's pictures are cut out as they were generated.
    scale = min(LARGEST / max(first.size), 1)
    width, height = (round(side * scale) for side in first.size)
    across = max(len(images) for _, images in strip.rows)
    sheet = need("PIL.Image").new("RGB", (across * width, len(strip.rows) * height), "white")
    for row, (_, images) in enumerate(strip.rows):
        for column, image in enumerate(images):
            cell = image if scale == 1 else image.resize((width, height))
            sheet.paste(cell, (column * width, row * height))
    words = {
        "columns": list(strip.columns),
        "rows": [label for label, _ in strip.rows],
        "cell": [width, height],
    }
    return write_png(sheet, path, {**metadata, "caption": strip.caption, "strip": words})


def read_strip(sheet: Image, metadata: dict[str, Any]) -> Strip:
    """Return the strip that `write_strip` wrote, from its picture and metadata."""
    words = metadata["strip"]
    width, height = words["cell"]
    rows = []
    for row, label in enumerate(words["rows"]):
        places = range(len(words["columns"]))
        boxes = [
            (column * width, row * height, (column + 1) * width, (row + 1) * height)
            for column in places
        ]
        rows.append((label, [sheet.crop(box) for box in boxes]))
    return Strip(metadata["caption"], words["columns"], rows)
