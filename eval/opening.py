"""Create the first examples of the demo and the README.

`python -m eval.opening` writes the saved examples for both tabs, and opening.png.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

from apps.demo import generate_tab, opening, search_tab
from apps.demo.engine import Engine
from apps.demo.generate import generate
from apps.demo.request import Request
from apps.demo.search import search
from eval.tables import RESULTS
from vldebias.utils.phrases import in_words
from vldebias.utils.pictures import INK

LABEL = 36  # height of the text line above a row, in pixels
LETTERS = 22
FONT = "DejaVu Sans:bold"


def main() -> None:
    """Generate the default request and run the default search, and store both."""
    engine = Engine()
    request = Request(generate_tab.PROMPT)
    for result in generate(engine, request, threading.Event()):
        print(f"{result.share:.0%}", end=" ", flush=True)
    opening.save_result(result)
    save_labelled(result, RESULTS / "opening.png")
    print(*(text for text, _ in result.sentences()), sep="\n")

    query = search_tab.QUERIES[engine.galleries[0]][0]
    answer, _ = search(engine, query, "gender", search_tab.SEARCH_METHODS[0])
    opening.save_search(answer)
    print(*answer.summary(), sep="\n")


def save_labelled(result: Any, path: Path) -> None:
    """Save the rows of a result as an image, each below a line with its description.

    A row is shown in two lines, so that a phone shows its images large enough.
    """
    half = len(result.rows[0].images) // 2
    rows = [opening.sheet_of([row.images[:half], row.images[half:]]) for row in result.rows]
    height = LABEL + rows[0].height
    picture = Image.new("RGB", (rows[0].width, height * len(rows)), "white")
    pen = ImageDraw.Draw(picture)
    font = ImageFont.truetype(findfont(FONT), LETTERS)
    for i, (row, pictures) in enumerate(zip(result.rows, rows, strict=True)):
        seen = {value: count for value, count in result.seen(row).items() if count}
        pen.text((0, i * height + 4), f"{row.name.capitalize()}: {in_words(seen)}", INK, font)
        picture.paste(pictures, (0, i * height + LABEL))
    picture.save(path, optimize=True)


if __name__ == "__main__":
    main()
