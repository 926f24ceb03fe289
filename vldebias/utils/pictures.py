"""Open images, write PNGs with metadata, and make plots without a display."""

from __future__ import annotations

import errno
import io
import json
import re
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vldebias.errors import need
from vldebias.utils.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image

INK = "#1f2933"
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEYWORD = b"vldebias"  # of the text chunk with what is known of an image
LARGEST = 384  # pixels of a side of an image that a page holds
# Named, since Pillow opens whatever the first bytes look like, and hands EPS by any name to the
# program gs.
FORMATS = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
ENDINGS = (
    *(".avif", ".bmp", ".gif", ".ico", ".jfif", ".jpe", ".jpeg", ".jpg", ".j2k", ".jp2"),
    *(".jpx", ".pbm", ".pgm", ".png", ".apng", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)
"""How the names of pictures in these formats end: one list for folders, tars and tables."""


def open_image(source: Path | bytes | BinaryIO, formats: Sequence[str] = FORMATS) -> Image:
    """Open an image in one of the named formats, for a with-statement; pixels are not decoded.

    Raises:
        OSError: no such file, another format, or more pixels than Pillow's MAX_IMAGE_PIXELS (89
            million) by what the header says: a few kilobytes can stand for gigabytes.
    """
    Images = need("PIL.Image")
    Images.init()
    # An older Pillow refuses names that it lacks.
    known = [name for name in formats if name in Images.OPEN]
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    image: Image = Images.open(source, formats=known)
    pixels = image.width * image.height
    limit = Images.MAX_IMAGE_PIXELS
    # By the header alone: Pillow itself only warns up to twice the limit.
    if limit is not None and pixels > limit:
        image.close()
        raise OSError(f"{pixels:,} pixels, expected at most {limit:,}; shrink it")
    return image


def decode(source: Path | bytes, *, draft: int | None = None) -> Image:
    """Return the RGB image in a file or bytes in one of `FORMATS`, rotated by its EXIF orientation.

    Transparent pixels become white; an animation gives its first frame; a broken EXIF block is read
    as no orientation.

    Args:
        source: a path, or the content of a file.
        draft: the shorter side in pixels that is needed. A JPEG with sides of more than twice as
            many is decoded at a half, a quarter or an eighth of its size, with at least this side;
            the pixels are close to those of shrinking it afterwards, not equal.

    Raises:
        OSError: missing, truncated, not a picture, pixels of more than 8 bits, or too many of them
            (`open_image`).
    """
    Images = need("PIL.Image")
    try:
        with open_image(source) as image:
            if draft is not None and image.format == "JPEG":
                # Decode at the nearest of 1/2, 1/4 and 1/8 whose sides are at least so long.
                factor = draft / min(image.size)
                if factor < 1:
                    image.draft(None, (round(image.width * factor), round(image.height * factor)))
            image.load()
            with suppress(Exception):  # whatever a broken EXIF block makes the parser raise
                need("PIL.ImageOps").exif_transpose(image, in_place=True)
            return _in_rgb(image)
    except Images.UnidentifiedImageError as error:
        raise OSError(
            f"not a picture in one of the formats {', '.join(FORMATS)}; convert it"
        ) from error
    except OSError:
        raise
    except Exception as error:  # on broken bytes decoders raise errors of any type
        raise OSError(f"cannot decode: {type(error).__name__}: {error}") from error


def _in_rgb(image: Image) -> Image:
    """Return a loaded image in RGB, without a copy where it is so already."""
    Images = need("PIL.Image")
    if image.mode.startswith(("F", "I")):  # which Pillow would clip to white
        raise OSError(
            f"got pixels of mode {image.mode}; expected 8 bits a channel; convert the file"
        )
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        # Dropping transparency instead would show whatever colour hides below it.
        image = Images.alpha_composite(Images.new("RGBA", image.size, "white"), image)
    if image.mode == "RGB":
        return image
    return image.convert("RGB")


def why_unreadable(error: OSError) -> str:
    """Return why an image cannot be read; errors of the system, such as missing permissions, are
    raised again."""
    if error.errno not in (None, errno.ENOENT):  # no permission, drive gone, no file handles
        raise error
    # Without paths and addresses, which differ between two runs that are otherwise the same.
    return f"{type(error).__name__}: {error.strerror or re.sub(r' at 0x[0-9a-f]+', '', str(error))}"


def write_png(
    picture: Image | Plot, path: Path, metadata: Mapping[str, Any], *, small: bool = False
) -> Path:
    """Write an image or a plot as PNG atomically, with metadata that are written as JSON.

    small: optimised, and with a palette of 256 colours if the picture has few.
    """
    if hasattr(picture, "savefig"):
        buffer = io.BytesIO()
        picture.savefig(buffer, format="png")
        picture = open_image(buffer, ("PNG",))
    image: Image = picture.convert("RGB")
    if small and image.getcolors(4096) is not None:
        image = image.quantize(256, dither=need("PIL.Image").Dither.NONE)
    info = need("PIL.PngImagePlugin").PngInfo()
    # In ASCII: names of files may hold bytes that are no text.
    info.add_itxt(_KEYWORD.decode(), json.dumps(metadata))

    def save(file: Any) -> None:
        image.save(file, format="png", pnginfo=info, optimize=small)

    return write_atomically(path, save)


def read_png(path: Path, *, pixels: bool = True) -> tuple[Image, dict[str, Any]]:
    """Return the RGB image of a file and the metadata that `write_png` wrote; pixels=False reads
    the header only.

    Raises:
        OSError: the file is missing, cut off or damaged.
    """
    try:
        with open_image(path, ("PNG",)) as image:
            metadata = json.loads(image.info.get(_KEYWORD.decode()) or "{}")
            if not isinstance(metadata, dict):
                metadata = {}
            if pixels:
                return image.convert("RGB"), metadata
            return image, metadata
    # What Pillow and json raise for damaged chunks.
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise OSError(f"{path}: {error}") from error


def with_record(png: bytes, facts: Mapping[str, Any]) -> bytes:
    """Return a PNG with facts about its image, such as the assigned value, in a text chunk of its
    own.

    Pixels and all other chunks stay as they are: A1111's "parameters", and "prompt" and "workflow"
    of ComfyUI. A chunk that this function wrote before is replaced. `read_png` returns the facts.

    Raises:
        OSError: the bytes are not a whole PNG.
    """
    chunks = _chunks_of(png)
    keyword = _KEYWORD + b"\0"
    kept = [
        (kind, data) for kind, data in chunks if kind != b"iTXt" or not data.startswith(keyword)
    ]
    # Not compressed, and without a language and a translated keyword.
    text = json.dumps(facts).encode()
    kept.insert(1, (b"iTXt", keyword + b"\0\0\0\0" + text))
    parts = [_SIGNATURE]
    for kind, data in kept:
        checksum = zlib.crc32(kind + data)
        parts.append(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum))
    return b"".join(parts)


def _chunks_of(png: bytes) -> list[tuple[bytes, bytes]]:
    """Return kind and content of each chunk of a PNG.

    Raises:
        OSError: another format, a chunk that is cut off or damaged, or no end.
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
            raise OSError(f"the PNG is damaged or cut off at byte {place}")
        chunks.append((kind, data))
        place += 12 + size
        if kind == b"IEND":
            break
    if not chunks or chunks[0][0] != b"IHDR" or chunks[-1][0] != b"IEND":
        raise OSError("the PNG is cut off: it has no end")
    return chunks


def add_record(path: Path, facts: Mapping[str, Any]) -> Path:
    """Write facts about an image into its PNG file, see `with_record`.

    Raises:
        OSError: the file is missing, or is not a whole PNG.
    """
    try:
        content = with_record(path.read_bytes(), facts)
    except OSError as error:
        raise OSError(f"{path}: {error}") from error
    return write_atomically(path, content)


def encoded(image: Image) -> bytes:
    """Return an image as the bytes of a file that a page holds: PNG where it is small, else
    JPEG."""
    content = io.BytesIO()
    if max(image.size) <= 128:
        # Small pictures are sharp-edged, where JPEG shows; a large one as PNG makes a page of many
        # megabytes.
        image.save(content, format="png", optimize=True)
    else:
        image.save(content, format="jpeg", quality=88)
    return content.getvalue()


def subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[Plot, list[Any]]:
    """Make subplots without pyplot, so without global state or display; a notebook shows the
    returned figure."""
    plot = need("matplotlib.figure").Figure(figsize=size, dpi=120)
    if "IPython" in sys.modules:
        # Without pyplot IPython has no format in which it shows a figure.
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None:
            need("IPython.core.pylabtools").select_figure_formats(shell, {"png"})
    return plot, list(plot.subplots(rows, columns, squeeze=False).flat)


def for_matplotlib(text: str) -> str:
    """Return a text for a plot in one line, without invisible characters and with dollar signs
    escaped."""
    # Spaces stay until they are joined: a line break separates words.
    visible = [letter for letter in text if letter.isprintable() or letter.isspace()]
    return " ".join("".join(visible).split()).replace("$", r"\$")
