"""Pictures: PNGs that say how they were made, plots without a display, and text that both can show."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.errors import need
from vldebias.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

KEY = "vldebias"  # of the text chunk in a PNG
INK = "#1f2933"
_FEW_COLOURS = 4096
_LEVELS = 63  # of a channel beside black, in pictures of many colours

# ---- PNGs --------------------------------------------------------------------------------------------------


def write_png(image: Image, path: Path, about: Mapping[str, Any], *, optimize: bool = False) -> Path:
    """Write a PNG with `about` as JSON inside, whole or not at all."""
    PngInfo = need("PIL.PngImagePlugin").PngInfo

    info = PngInfo()
    info.add_itxt(KEY, json.dumps(about))  # in ASCII: names of files may hold bytes that are no text
    return write_atomically(path, lambda to: image.save(to, format="png", pnginfo=info, optimize=optimize))


def compact(image: Image) -> Image:
    """An image (RGB) that takes less room and looks the same: with a palette where it has few colours, as charts do,
    else with 64 levels a channel, each within 2 of 255 of what it was.
    """
    Images = need("PIL.Image")

    if image.getcolors(_FEW_COLOURS) is not None:
        return image.quantize(256, dither=Images.Dither.NONE)
    return image.point([round(round(value / 255 * _LEVELS) / _LEVELS * 255) for value in range(256)] * 3)


def read_png(path: Path, *, pixels: bool = True) -> tuple[Image, dict[str, Any]]:
    """The image (RGB) of a file and what `write_png` put into it, {} without; pixels=False: of the header alone.

    Raises:
        OSError: the file is missing, cut off or damaged.
    """
    Images = need("PIL.Image")

    try:
        with Images.open(path) as image:
            if pixels:
                image.load()
            about = json.loads(image.info.get(KEY) or "{}")
            return image.convert("RGB") if pixels else image, about if isinstance(about, dict) else {}
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # what Pillow and json raise for damaged chunks
        raise OSError(f"{path}: {error}") from error


def picture_metadata(path: Path) -> dict[str, Any]:
    """What `write_png` put into a picture; empty for any other file."""
    try:
        return read_png(path, pixels=False)[1]
    except OSError:
        return {}


# ---- plots -------------------------------------------------------------------------------------------------


def subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Plot, list[Any]]:
    """Subplots without pyplot: no global state, no display. Names in them go through `for_matplotlib`.

    In a notebook a plot is shown where it is the value of a cell, as those of pyplot are.
    """
    FigureCanvasAgg = need("matplotlib.backends.backend_agg").FigureCanvasAgg
    Plot = need("matplotlib.figure").Figure

    plot = Plot(figsize=size, dpi=120)
    FigureCanvasAgg(plot)
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"})
    return plot, list(plot.subplots(rows, columns, squeeze=False).flat)


def save_png(plot: Plot | Image, path: Path, metadata: Mapping[str, Any]) -> Path:
    """Write a plot or a picture, as small as `compact` makes it."""
    Images = need("PIL.Image")

    if not hasattr(plot, "savefig"):
        return write_png(compact(plot), path, metadata, optimize=True)
    buffer = io.BytesIO()
    plot.savefig(buffer, format="png")
    with Images.open(buffer) as image:
        picture = compact(image.convert("RGB"))
    return write_png(picture, path, metadata, optimize=True)


# ---- text --------------------------------------------------------------------------------------------------
# The font that comes with matplotlib has no Chinese, no emoji, no control codes.

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
    """The same for a title, a label or a legend of a plot, where a dollar sign would begin a formula."""
    return printable(text).replace("$", r"\$")


def wrap_lines(text: str, face: FreeTypeFont, width: float, lines: int) -> list[str]:
    """`text` in at most `lines` lines of `width` pixels; what does not fit ends in an ellipsis, long words are cut.

    Nothing is left where even the ellipsis is wider than a line.
    """
    rest, shown = printable(text), list[str]()
    while rest and len(shown) < lines:
        last = len(shown) == lines - 1
        head, rest = _split(rest, face, width, ellipsis=last)
        if not head:
            break
        shown.append(head)
    return shown


@cache
def font(size: int, *, bold: bool = False) -> FreeTypeFont:
    """DejaVu Sans for drawing with Pillow."""
    ImageFont = need("PIL.ImageFont")

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
    FT2Font = need("matplotlib.ft2font").FT2Font

    return frozenset(FT2Font(str(_file(bold=False))).get_charmap())


def _file(bold: bool) -> Path:
    matplotlib = need("matplotlib")

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / ("DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")
