"""Pictures: opened in one place, PNGs that say how they were made, plots without a display, text that both can show."""

from __future__ import annotations

import errno
import io
import json
import re
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from vldebias.errors import need
from vldebias.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

KEY = "vldebias"  # of the text chunk in a PNG
INK = "#1f2933"
# Named, since Pillow opens whatever the first bytes look like, and hands EPS by any name to the program gs.
FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
ENDINGS = (".avif", ".bmp", ".gif", ".ico", ".jpeg", ".jpg", ".jp2", ".png", ".ppm", ".tga", ".tif", ".tiff", ".webp")
_LFS = b"version https://git-lfs.github.com/spec/"
_TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")
_FEW_COLOURS = 4096
_LEVELS = 63  # of a channel beside black, in pictures of many colours


# ---- opening -----------------------------------------------------------------------------------------------


def open_image(source: Path | bytes | BinaryIO, formats: Sequence[str] = FORMATS) -> Image:
    """Open an image in one of the named formats, for a with-statement; this is the one place that does.

    Its size and its header are read, and no pixel.

    Raises:
        OSError: no such file, another format, or more pixels than Pillow's MAX_IMAGE_PIXELS (89 million) by what the
            header says: a few kilobytes can stand for gigabytes.
    """
    Images = need("PIL.Image")

    Images.preinit()
    Images.init()
    there = [name for name in formats if name in Images.OPEN]  # an older Pillow refuses names that it lacks
    image = Images.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=there)
    pixels, most = image.width * image.height, Images.MAX_IMAGE_PIXELS
    if most is not None and pixels > most:
        image.close()
        raise OSError(f"{pixels:,} pixels, expected at most {most:,}; shrink it")
    opened: Image = image
    return opened


def decode(source: Path | bytes) -> Image:
    """Return an RGB image of a file or of its bytes in one of `FORMATS`, turned as its EXIF orientation says.

    Transparent pixels show white; 16-bit grey keeps its high byte; of an animation the first frame is taken; a broken
    EXIF block means no orientation, since the pixels are none the worse for it.

    Raises:
        OSError: missing, truncated, not a picture, pixels without a known range, or too many of them (`open_image`).
    """
    try:
        with open_image(source) as image:
            image.load()
            try:
                upright = need("PIL.ImageOps").exif_transpose(image)
            except Exception:  # whatever a broken EXIF block makes the parser raise
                upright = image
            return _rgb(upright)
    except need("PIL.Image").UnidentifiedImageError as error:
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            pointer = file.read(len(_LFS)) == _LFS
        if pointer:
            raise OSError("a pointer of Git LFS in the place of the picture; run `git lfs pull` there") from error
        raise OSError(f"not a picture in one of the formats {', '.join(FORMATS)}; convert it") from error
    except OSError:
        raise
    except Exception as error:  # on broken bytes decoders raise whatever they stumble over
        raise OSError(f"cannot decode: {type(error).__name__}: {error}") from error


def _rgb(image: Image) -> Image:
    Images = need("PIL.Image")
    if image.mode.startswith("I"):  # the high byte: what Pillow keeps of 16-bit colour; it would clip grey to white
        grey = np.asarray(image.convert("I"))
        if grey.min() < 0 or grey.max() > 65535:
            raise OSError(f"grey values {grey.min()} .. {grey.max()} do not fit 16 bits; convert the file to 8 or 16")
        image = Images.fromarray((grey >> 8).astype(np.uint8))
    if image.mode == "F":
        raise OSError("pixels of mode F (floats) have no known range; convert the file to 8 or 16 bits")
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Images.alpha_composite(Images.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def why_unreadable(error: OSError) -> str:
    """Tell what is wrong with an image that cannot be read; what is wrong with the machine is raised again."""
    if error.errno not in (None, errno.ENOENT):  # no permission, drive gone, no file handles
        raise error
    # Without paths and addresses, which differ between two runs that are otherwise the same.
    return f"{type(error).__name__}: {error.strerror or re.sub(r' at 0x[0-9a-f]+', '', str(error))}"


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
    try:
        with open_image(path, ("PNG",)) as image:
            if pixels:
                image.load()
            about = json.loads(image.info.get(KEY) or "{}")
            return image.convert("RGB") if pixels else image, about if isinstance(about, dict) else {}
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # what Pillow and json raise for damaged chunks
        raise OSError(f"{path}: {error}") from error


def picture_metadata(path: Path) -> dict[str, Any]:
    """Return what `write_png` put into a picture; empty for any other file."""
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
    if not hasattr(plot, "savefig"):
        return write_png(compact(plot), path, metadata, optimize=True)
    buffer = io.BytesIO()
    plot.savefig(buffer, format="png")
    with open_image(buffer) as image:
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
    """Return `printable` text for a title, a label or a legend of a plot, where a dollar sign would begin a formula."""
    return printable(text).replace("$", r"\$")


def wrap_lines(text: str, face: FreeTypeFont, width: float, lines: int) -> list[str]:
    """`text` in at most `lines` lines of `width` pixels; what does not fit ends in an ellipsis, long words are cut.

    Nothing is left where even the ellipsis is wider than a line.
    """
    rest, shown = printable(text), list[str]()
    while rest and len(shown) < lines:
        head, rest = _split(rest, face, width, ellipsis=len(shown) == lines - 1)
        if not head:
            break
        shown.append(head)
    return shown


def _split(text: str, face: FreeTypeFont, width: float, *, ellipsis: bool) -> tuple[str, str]:
    """What fits into one line, and the rest; with `ellipsis` there is no further line."""
    if face.getlength(text) <= width:
        return text, ""
    room = width - face.getlength("…") if ellipsis else width
    cut = bisect_right(range(1, len(text) + 1), room, key=lambda stop: face.getlength(text[:stop]))
    if ellipsis:
        return (text[:cut].rstrip() + "…" if room >= 0 else ""), ""
    space = text.rfind(" ", 0, cut + 1)
    cut = space if space > 0 else cut
    return text[:cut].rstrip(), text[cut:].lstrip()


@cache
def font(size: int, *, bold: bool = False) -> FreeTypeFont:
    """DejaVu Sans for drawing with Pillow."""
    ImageFont = need("PIL.ImageFont")

    return ImageFont.truetype(str(_file(bold)), size)


@cache
def _known() -> frozenset[int]:
    """Code points that the font has a glyph for."""
    FT2Font = need("matplotlib.ft2font").FT2Font

    return frozenset(FT2Font(str(_file(bold=False))).get_charmap())


def _file(bold: bool) -> Path:
    matplotlib = need("matplotlib")

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / ("DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")
