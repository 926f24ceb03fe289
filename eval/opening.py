"""Create the first examples of the demo and the README.

`python -m eval.opening` writes the saved examples of the tabs "Generate" and "Search", and
opening.png. `python -m eval.opening search` only writes the search.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

from apps.demo import generate_tab, opening, search_tab
from apps.demo.engine import PHOTOGRAPHS, Engine
from apps.demo.generate import generate
from apps.demo.request import Request
from apps.demo.search import search
from eval.tables import RESULTS
from vldebias.utils.phrases import in_words
from vldebias.utils.pictures import INK

LABEL = 36  # height of the text line above a row, in pixels
LETTERS = 22
LEAST = 16  # of 20 results
FONT = "DejaVu Sans:bold"


def main() -> None:
    """Generate the default request and run the default search, and store both."""
    engine = Engine()
    save_search(engine)
    if sys.argv[1:] == ["search"]:
        return
    request = Request(generate_tab.PROMPT)
    for result in generate(engine, request, threading.Event()):
        print(f"{result.share:.0%}", end=" ", flush=True)
    opening.save_result(result)
    save_labelled(result, RESULTS / "opening.png")
    print(*(text for text, _ in result.sentences()), sep="\n")


def save_search(engine: Engine) -> None:
    """Run the default search, and store its results."""
    answer, _ = search(engine, search_tab.QUERIES[PHOTOGRAPHS][0], "gender")
    opening.save_search(answer)
    print(*answer.summary(), sep="\n")


def first_gain(counts: Mapping[str, tuple[int, int]]) -> str:
    """Return the first query in alphabetical order that is skewed and becomes less skewed.

    Args:
        counts: larger count of one gender among the first 20 results, before and after, by query.
    """
    queries = sorted(counts, key=lambda query: query.removeprefix("A photo of ").split(" ", 1)[1])
    for query in queries:
        before, after = counts[query]
        if before >= LEAST and after < before:
            return query
    raise LookupError(f"no query has {LEAST} results of one gender, and fewer when re-ranked")


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
