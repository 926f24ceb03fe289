"""Open images, write PNGs with metadata, and make plots without a display."""

from __future__ import annotations

import errno
import io
import json
import re
import sys
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
_TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")
_FEW_COLOURS = 4096


# ---- opening -----------------------------------------------------------------------------------------------


def open_image(source: Path | bytes | BinaryIO, formats: Sequence[str] = FORMATS) -> Image:
    """Open an image in one of the named formats, for a with-statement; pixels are not decoded.

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
    """Return the RGB image in a file or bytes in one of `FORMATS`, rotated by its EXIF orientation.

    Transparent pixels become white; 16-bit grey keeps its high byte; an animation gives its first frame; a broken EXIF
    block is read as no orientation.

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
    """Return why an image cannot be read; errors of the system, such as missing permissions, are raised again."""
    if error.errno not in (None, errno.ENOENT):  # no permission, drive gone, no file handles
        raise error
    # Without paths and addresses, which differ between two runs that are otherwise the same.
    return f"{type(error).__name__}: {error.strerror or re.sub(r' at 0x[0-9a-f]+', '', str(error))}"


# ---- PNGs --------------------------------------------------------------------------------------------------


def write_png(image: Image, path: Path, about: Mapping[str, Any], *, optimize: bool = False) -> Path:
    """Write a PNG atomically, with `about` as JSON in its metadata."""
    info = need("PIL.PngImagePlugin").PngInfo()
    info.add_itxt(KEY, json.dumps(about))  # in ASCII: names of files may hold bytes that are no text
    return write_atomically(path, lambda to: image.save(to, format="png", pnginfo=info, optimize=optimize))


def read_png(path: Path, *, pixels: bool = True) -> tuple[Image, dict[str, Any]]:
    """Return the RGB image of a file and the metadata that `write_png` wrote; pixels=False reads the header only.

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
    """Return the metadata that `write_png` wrote into an image; empty for any other file."""
    try:
        return read_png(path, pixels=False)[1]
    except OSError:
        return {}


# ---- plots -------------------------------------------------------------------------------------------------


def subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Plot, list[Any]]:
    """Make subplots without pyplot, so without global state or display; a notebook shows the returned figure."""
    plot = need("matplotlib.figure").Figure(figsize=size, dpi=120)
    need("matplotlib.backends.backend_agg").FigureCanvasAgg(plot)
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        need("IPython.core.pylabtools").select_figure_formats(shell, {"png"})
    return plot, list(plot.subplots(rows, columns, squeeze=False).flat)


def save_png(plot: Plot | Image, path: Path, metadata: Mapping[str, Any]) -> Path:
    """Write a plot or an image as an optimised PNG, with a palette if it has few colours."""
    if hasattr(plot, "savefig"):
        plot.savefig(buffer := io.BytesIO(), format="png")
        plot = open_image(buffer, ("PNG",))
    image: Image = plot.convert("RGB")
    if image.getcolors(_FEW_COLOURS) is not None:
        image = image.quantize(256, dither=need("PIL.Image").Dither.NONE)
    return write_png(image, path, metadata, optimize=True)


def for_matplotlib(text: str) -> str:
    """Return a text for a plot in one line, without invisible characters and with dollar signs escaped."""
    shown = "".join(one for one in text if one.isprintable() or one.isspace())
    return " ".join(shown.split()).replace("$", r"\$")


@cache
def font(size: int, *, bold: bool = False) -> FreeTypeFont:
    """Return the font DejaVu Sans of matplotlib, for drawing with Pillow."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(need("matplotlib").get_data_path()) / "fonts" / "ttf" / name
    face: FreeTypeFont = need("PIL.ImageFont").truetype(str(path), size)
    return face
