"""The picture that a link to this project shows: docs/social.png, from committed results.

python -m eval.social    # after `python -m eval.experiments.generation_picture` and `python -m eval.readme`

Upload it where the repository is hosted (on GitHub: Settings, Social preview). Its words stand in the PNG.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from eval.front_page import WINDOW, Line, rows_of_line
from eval.tables import RESULTS
from vldebias.evaluation.report.words import verdict
from vldebias.pictures import INK, compact, font, read_png, write_png

PICTURE = Path(__file__).parents[1] / "docs" / "social.png"
SIZE, MARGIN = (1280, 640), 56  # pixels; twice as wide as high, as sites cut it
TOP, STRIP = 158, 304  # where the pictures begin, and how high they are
HEAD, ABOUT = "vldebias", "Draw, search and classify with less bias, and measure what that costs"
SHOWN = ("drawing people: by sampling", "searching photographs: texts alone", "classifying birds: texts alone")


def lines() -> list[str]:
    """What each of three lines of the README's table says, in short, worse and unclear ones as such."""
    return [_told(line) for line in WINDOW if f"{line.task}: {line.how}".startswith(SHOWN)]


def _told(line: Line) -> str:
    before, after, _ = rows_of_line(line)
    unclear = {"better": "", "worse": " (worse)"}.get(verdict(after), " (no clear change)")
    how = line.how.replace("`", "").split(", ")[-1]
    return f"{line.task}, {how}: {line.measure[1]} {before.value:.2f} to {after.value:.2f}{unclear}"


def drawn(words: list[str]) -> Image.Image:
    """Head, the picture of the README, and the lines below it."""
    made = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(made)
    pen.text((MARGIN, 26), HEAD, INK, font(64, bold=True))
    pen.text((MARGIN, 106), ABOUT, INK, font(28))
    strip = read_png(RESULTS / "median.png")[0]
    scale = min(STRIP / strip.height, (SIZE[0] - 2 * MARGIN) / strip.width)
    strip = strip.resize((round(strip.width * scale), round(strip.height * scale)), Image.Resampling.LANCZOS)
    made.paste(strip, (MARGIN, TOP))
    for i, line in enumerate(words):
        pen.text((MARGIN, TOP + STRIP + 20 + 44 * i), line, INK, font(26))
    return made


def main() -> None:
    words = lines()
    write_png(compact(drawn(words)), PICTURE, {"lines": words, "from": "eval/results"}, optimize=True)
    print(PICTURE.name, *words, sep="\n")


if __name__ == "__main__":
    main()
