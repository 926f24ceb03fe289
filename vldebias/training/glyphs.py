"""Text that a picture can show: the font that comes with matplotlib has no Chinese, no emoji, no control codes."""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

__all__ = ["MISSING", "font", "for_matplotlib", "printable", "wrap"]

MISSING = "□"
_CODES = ("Cc", "Cf", "Cs")  # controls, joiners, halves of characters: invisible
_MARKS = ("Mn", "Me")  # stand on the character before


def printable(text: str) -> str:
    """`text` in one line, with a box for every character that the font lacks; invisible ones are left out."""
    known = _known()

    def shown(character: str) -> str:
        kind = unicodedata.category(character)
        if character.isspace() or (ord(character) in known and kind not in _CODES):
            return character
        return "" if kind in (*_CODES, *_MARKS) else MISSING

    return " ".join("".join(map(shown, unicodedata.normalize("NFC", text))).split())


def for_matplotlib(text: str) -> str:
    """The same for a title or a legend, where a dollar sign would begin a formula."""
    return printable(text).replace("$", r"\$")


def wrap(text: str, face: FreeTypeFont, width: float, lines: int) -> list[str]:
    """`text` in at most `lines` lines of `width` pixels; what does not fit ends in an ellipsis, long words are cut.

    Nothing is left where even the ellipsis is wider than a line.
    """
    rest, found = printable(text), list[str]()
    while rest and len(found) < lines:
        last = len(found) == lines - 1
        head, rest = _split(rest, face, width, ellipsis=last)
        if not head:
            break
        found.append(head)
    return found


@cache
def font(size: int, *, bold: bool = False) -> FreeTypeFont:
    """DejaVu Sans for drawing with Pillow."""
    from PIL import ImageFont

    return ImageFont.truetype(str(_file(bold)), size)


def _split(text: str, face: FreeTypeFont, width: float, *, ellipsis: bool) -> tuple[str, str]:
    """What fits into one line, and the rest; with `ellipsis` there is no further line."""
    if face.getlength(text) <= width:
        return text, ""
    if ellipsis:
        cut = _fitting(text, face, width - face.getlength("…"))
        return (text[:cut].rstrip() + "…" if face.getlength("…") <= width else ""), ""
    cut = _fitting(text, face, width)
    space = text.rfind(" ", 0, cut + 1)
    cut = space if space > 0 else cut
    return text[:cut].rstrip(), text[cut:].lstrip()


def _fitting(text: str, face: FreeTypeFont, width: float) -> int:
    """The most characters from the start that are no wider than `width`, by bisection."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if face.getlength(text[:middle]) <= width else (low, middle - 1)
    return low


@cache
def _known() -> frozenset[int]:
    """Code points that the font has a glyph for."""
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(_file(bold=False))).get_charmap())


def _file(bold: bool) -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / ("DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")
