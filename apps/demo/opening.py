"""Load the examples shown when the page opens, as saved by `python -m eval.opening`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from PIL import Image

from vldebias.utils.pictures import open_image

from .answers import Answer, Found
from .generate import Result, Row
from .request import Request

HERE = Path(__file__).parent
GENERATED = HERE / "opening.json"
SEARCHED = HERE / "search.json"


def saved_result() -> Result:
    """Return the rows shown when the "Generate" tab opens."""
    facts = json.loads(GENERATED.read_text(encoding="utf-8"))
    request = Request(**facts["request"])
    # A single file contains all images, joined row by row by `sheet_of`.
    with open_image(GENERATED.with_suffix(".png")) as sheet:
        images_of_row = cut(sheet, request.number)
    rows = tuple(
        Row(
            row["name"],
            images,
            tuple(row["codes"]),
            tuple(row["recognised"]),
            tuple(row["assigned"]),
        )
        for row, images in zip(facts["rows"], images_of_row, strict=True)
    )
    values = tuple(facts["values"])
    return Result(request, values, rows, share=1.0, subject=facts["subject"])


def save_result(result: Result) -> None:
    """Save a result for `saved_result`."""
    names = ("name", "codes", "recognised", "assigned")
    facts = {
        "request": asdict(result.request),
        "values": result.values,
        "subject": result.subject,
        "rows": [{name: getattr(row, name) for name in names} for row in result.rows],
    }
    GENERATED.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    sheet = sheet_of([row.images for row in result.rows])
    sheet.save(GENERATED.with_suffix(".png"), optimize=True)


def saved_search() -> Answer:
    """Return the search of the packaged photographs shown when the "Search" tab opens."""
    facts = json.loads(SEARCHED.read_text(encoding="utf-8"))
    for name in ("before", "reranked"):
        facts[name] = Found.from_dict(facts[name])
    facts["stated"] = tuple(facts.get("stated", ()))
    return Answer(**facts)


def save_search(answer: Answer) -> None:
    """Save a search for `saved_search`."""
    SEARCHED.write_text(json.dumps(asdict(answer), indent=1) + "\n", encoding="utf-8")


def sheet_of(rows: Sequence[Sequence[Image.Image]]) -> Image.Image:
    """Join rows of equal-sized images into one image."""
    side = rows[0][0].width
    sheet = Image.new("RGB", (side * len(rows[0]), side * len(rows)))
    for row_number, row in enumerate(rows):
        for i, image in enumerate(row):
            sheet.paste(image, (i * side, row_number * side))
    return sheet


def cut(sheet: Image.Image, columns: int) -> list[tuple[Image.Image, ...]]:
    """Split the image joined by `sheet_of` into rows of images."""
    side = sheet.width // columns
    rows = []
    for top in range(0, sheet.height, side):
        boxes = [(i * side, top, (i + 1) * side, top + side) for i in range(columns)]
        rows.append(tuple(sheet.crop(box).convert("RGB") for box in boxes))
    return rows
