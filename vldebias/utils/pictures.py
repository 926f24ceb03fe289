"""Open images, write PNGs with metadata, and create plots without a display."""

from __future__ import annotations

import errno
import io
import json
import re
import stat
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vldebias.errors import need
from vldebias.utils.files import write_atomically
from vldebias.utils.json_values import JSON

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image

INK = "#1f2933"
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEYWORD = b"vldebias"  # keyword of the text chunk that contains the metadata
LARGEST = 384  # longest side in pixels of an image on a page
# Use an explicit list, because Pillow would otherwise open every format it supports, and would pass
# EPS files to Ghostscript.
FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
ENDINGS = (
    *(".avif", ".bmp", ".gif", ".ico", ".jfif", ".jpe", ".jpeg", ".jpg", ".j2k", ".jp2"),
    *(".jpx", ".pbm", ".pgm", ".png", ".apng", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)
"""File name extensions for these formats."""


def open_image(source: Path | bytes | BinaryIO, formats: Sequence[str] = FORMATS) -> Image:
    """Open an image in one of the named formats without decoding its pixels.

    Args:
        source: a path, a file's content, or an open file.
        formats: the accepted formats, as named by Pillow.

    Raises:
        OSError: If the file is missing, has a different format, or has more pixels than Pillow's
            MAX_IMAGE_PIXELS (89 million) according to its header.
    """
    if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
        raise OSError("expected a file, got a folder, a pipe or a device")
    Images = need("PIL.Image")
    Images.init()
    # Older versions of Pillow raise an error for unknown formats.
    known = [name for name in formats if name in Images.OPEN]
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    image: Image = Images.open(source, formats=known)
    pixels = image.width * image.height
    limit = Images.MAX_IMAGE_PIXELS
    # Check the header, because Pillow itself only warns up to twice the limit.
    if limit is not None and pixels > limit:
        image.close()
        raise OSError(f"got {pixels:,} pixels, expected at most {limit:,}; shrink the image")
    return image


def decode(source: Path | bytes, *, draft: int | None = None) -> Image:
    """Decode an image in one of `FORMATS` as RGB, rotated by its EXIF orientation.

    Transparent pixels become white. For animations, the first frame is returned. Invalid EXIF data
    is ignored.

    Args:
        source: a path, or a file's content.
        draft: the required length of the shorter side in pixels. Larger JPEGs are decoded at 1/2,
            1/4 or 1/8 of their size, as long as the shorter side has this length. The result is
            close, but not identical, to shrinking the image afterwards.

    Raises:
        OSError: If the file is missing, truncated or not an image, has more than 8 bits per
            channel, or too many pixels (`open_image`).
    """
    Images = need("PIL.Image")
    try:
        with open_image(source) as image:
            if draft is not None and image.format == "JPEG":
                # Decode at the smallest of 1/2, 1/4 and 1/8 that is large enough.
                factor = draft / min(image.size)
                if factor < 1:
                    image.draft(None, (round(image.width * factor), round(image.height * factor)))
            image.load()
            with suppress(Exception):  # a broken EXIF block can raise any error
                need("PIL.ImageOps").exif_transpose(image, in_place=True)
            return _in_rgb(image)
    except Images.UnidentifiedImageError as error:
        raise OSError(
            f"not an image in one of the formats {', '.join(FORMATS)}; convert it"
        ) from error
    except OSError:
        raise
    except Exception as error:  # decoders raise any type of error for broken files
        raise OSError(f"cannot decode: {type(error).__name__}: {error}") from error


def _in_rgb(image: Image) -> Image:
    """Convert a loaded image to RGB, without copying it if it is already in RGB."""
    Images = need("PIL.Image")
    if image.mode.startswith(("F", "I")):  # Pillow would clip pixels in these modes to white
        raise OSError(f"got mode {image.mode}, expected 8 bits per channel; convert the file")
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        # Dropping the alpha channel would show hidden colours.
        image = Images.alpha_composite(Images.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def why_unreadable(error: OSError) -> str:
    """Describe why an image cannot be read, or re-raise system errors.

    System errors, such as missing permissions, a disconnected drive or too many open files, are
    not specific to the image.
    """
    if error.errno not in (None, errno.ENOENT):
        raise error
    # Remove addresses, which differ between otherwise identical runs.
    return f"{type(error).__name__}: {error.strerror or re.sub(r' at 0x[0-9a-f]+', '', str(error))}"


def write_png(
    picture: Image | Plot, path: Path, metadata: Mapping[str, object], *, small: bool = False
) -> Path:
    """Write an image or a plot as PNG atomically, with metadata as JSON.

    Args:
        picture: an image or a matplotlib figure.
        path: the file to write.
        metadata: the values to store in the file.
        small: whether to compress as far as possible, with a palette if there are few colours.
    """
    if hasattr(picture, "savefig"):
        buffer = io.BytesIO()
        picture.savefig(buffer, format="png")
        picture = open_image(buffer, ("PNG",))
    image: Image = picture.convert("RGB")
    if small and image.getcolors(4096) is not None:
        image = image.quantize(256, dither=need("PIL.Image").Dither.NONE)
    info = need("PIL.PngImagePlugin").PngInfo()
    # Use ASCII JSON, because file names may contain undecodable bytes.
    info.add_itxt(_KEYWORD.decode(), json.dumps(metadata))
    save = partial(image.save, format="png", pnginfo=info, optimize=small)
    return write_atomically(path, save)


def read_png(path: Path, *, pixels: bool = True) -> tuple[Image, dict[str, JSON]]:
    """Read an RGB image and the metadata that `write_png` stored in it.

    Args:
        path: the file to read.
        pixels: whether to decode the pixels. If False, only the header is read.

    Raises:
        OSError: If the file is missing, truncated or damaged.
    """
    try:
        with open_image(path, ("PNG",)) as image:
            metadata = json.loads(image.info.get(_KEYWORD.decode()) or "{}")
            if not isinstance(metadata, dict):
                metadata = {}
            return image.convert("RGB") if pixels else image, metadata
    # Pillow and json may raise any of these for damaged chunks.
    except (OSError, SyntaxError, ValueError, EOFError, RecursionError) as error:
        raise OSError(f"{path}: {error}") from error


def _chunks_of(png: bytes) -> list[tuple[bytes, bytes]]:
    """Return the type and content of each chunk in a PNG.

    Raises:
        OSError: If the content has a different format, or is truncated or damaged.
    """
    if not png.startswith(_SIGNATURE):
        raise OSError("expected a PNG, got other bytes")
    chunks: list[tuple[bytes, bytes]] = []
    place = len(_SIGNATURE)
    while place < len(png):
        head = png[place : place + 8]
        size = int.from_bytes(head[:4], "big")
        kind, data = head[4:], png[place + 8 : place + 8 + size]
        checksum = png[place + 8 + size : place + 12 + size]
        if len(checksum) < 4 or int.from_bytes(checksum, "big") != zlib.crc32(kind + data):
            raise OSError(f"the PNG is damaged or truncated at byte {place}")
        chunks.append((kind, data))
        place += 12 + size
        if kind == b"IEND":
            break
    if not chunks or chunks[0][0] != b"IHDR" or chunks[-1][0] != b"IEND":
        raise OSError("the PNG is truncated: its last chunk is missing")
    return chunks


def add_record(path: Path, facts: Mapping[str, JSON]) -> Path:
    """Store facts about an image, such as its assigned value, in a text chunk of its PNG file.

    Pixels and all other chunks, such as A1111's "parameters" or ComfyUI's "prompt" and "workflow",
    are left unchanged. A chunk from an earlier call is replaced. `read_png` returns the facts.

    Args:
        path: the file, which is overwritten.
        facts: the values to store.

    Raises:
        OSError: If the file is missing, or is not a complete PNG.
    """
    try:
        chunks = _chunks_of(path.read_bytes())
    except OSError as error:
        raise OSError(f"{path}: {error}") from error
    keyword = _KEYWORD + b"\0"
    kept = [chunk for chunk in chunks if chunk[0] != b"iTXt" or not chunk[1].startswith(keyword)]
    # The zeros mean that the text is not compressed and has no language or translated keyword.
    text = json.dumps(facts).encode()
    kept.insert(1, (b"iTXt", keyword + b"\0\0\0\0" + text))
    parts = [_SIGNATURE]
    for kind, data in kept:
        checksum = zlib.crc32(kind + data)
        parts.append(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum))
    return write_atomically(path, b"".join(parts))


def encoded(image: Image) -> bytes:
    """Encode an image for embedding in a page: PNG if it is small, JPEG otherwise."""
    content = io.BytesIO()
    if max(image.size) <= 128:
        # JPEG artefacts would be visible in small images, but large PNGs would bloat pages.
        image.save(content, format="png", optimize=True)
    else:
        image.save(content, format="jpeg", quality=88)
    return content.getvalue()


def subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Plot, list[Axes]]:
    """Create subplots that notebooks can show, without pyplot, global state or a display.

    Args:
        rows: the number of rows.
        columns: the number of columns.
        size: the width and height in inches.

    Returns:
        The figure, and its axes row by row.
    """
    plot = need("matplotlib.figure").Figure(figsize=size, dpi=120)
    if "IPython" in sys.modules:
        # Without pyplot, IPython cannot display figures.
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None:
            need("IPython.core.pylabtools").select_figure_formats(shell, {"png"})
    return plot, list(plot.subplots(rows, columns, squeeze=False).flat)


def for_matplotlib(text: str) -> str:
    """Return a string as one line for a plot, without invisible characters or math markup."""
    # Keep whitespace such as line breaks, which is not printable but separates words.
    visible = [letter for letter in text if letter.isprintable() or letter.isspace()]
    return " ".join("".join(visible).split()).replace("$", r"\$")
