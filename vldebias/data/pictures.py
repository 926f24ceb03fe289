"""Pictures: decoded to RGB or refused in words; those that lie below one folder, and how they are told apart."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data.dataset import ImageData
from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError, Lazily, need

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image
else:
    pa = Lazily("pyarrow")
pc = Lazily("pyarrow.compute")

LIMIT = "VLDEBIAS_MAX_PIXELS"
"""The environment's variable for the most pixels that a picture may have; by default Pillow's limit, 89 million."""

# Named, since Pillow opens whatever the first bytes look like, and hands EPS by any name to the program gs.
FORMATS: tuple[str, ...] = ("AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
if find_spec("PIL") and find_spec("PIL.AvifImagePlugin") is None:  # before Pillow 11.3, which refuses unknown names
    FORMATS = FORMATS[1:]

ENDS = 4096  # bytes that are read at either end of a file
Ends = tuple[int, bytes]  # size, first and last bytes; size -1 where there is no file

_FILES_AT_ONCE = 512  # per task of a thread: 200 000 files are opened in seconds, not one by one
_LFS = b"version https://git-lfs.github.com/spec/"
_SIXTEEN_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")
# Absolute (also as Windows writes it), an address, or a step upward anywhere on the way.
_OUTSIDE = r"^[/\\]|^[A-Za-z]:|^[A-Za-z][A-Za-z0-9+.-]*://|(^|[/\\])\.\.([/\\]|$)"

# ---- decoding ----------------------------------------------------------------------------------------------


def decode(source: Path | bytes, max_pixels: int | None = None) -> Image.Image:
    """An RGB image of a file or of its bytes in one of `FORMATS`, turned as its EXIF orientation says.

    Transparent pixels show white; 16-bit grey keeps its high byte; of an animation the first frame is taken; a broken
    EXIF block means no orientation, since the pixels are none the worse for it.

    Args:
        source: a file, or what it holds.
        max_pixels: the most that are decoded, by what the header says; default: see `LIMIT`.

    Raises:
        OSError: missing, truncated, not a picture, pixels without a known range, or too many of them: a few kilobytes
            can stand for gigabytes.
    """
    Image = need("PIL.Image")
    most = _most_pixels() if max_pixels is None else max_pixels
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            pixels = image.width * image.height
            if most is not None and pixels > most:
                remedy = f"shrink it, or set {LIMIT}" if max_pixels is None else "shrink it"
                raise OSError(f"{pixels:,} pixels, expected at most {most:,}; {remedy}")
            image.load()
            try:
                upright = need("PIL.ImageOps").exif_transpose(image)
            except Exception:  # whatever a broken EXIF block makes the parser raise
                upright = image
            return _rgb(upright)
    except Image.UnidentifiedImageError as error:
        start = source if isinstance(source, bytes) else read_ends(source)[1]
        if start.startswith(_LFS):
            raise OSError("a pointer of Git LFS in the place of the picture; run `git lfs pull` there") from error
        raise OSError(f"not a picture in one of the formats {', '.join(FORMATS)}; convert it") from error
    except OSError:
        raise
    except Exception as error:  # on broken bytes decoders raise whatever they stumble over
        raise OSError(f"cannot decode: {type(error).__name__}: {error}") from error


def _most_pixels() -> int | None:
    Image, text = need("PIL.Image"), os.environ.get(LIMIT)
    if not text:
        return None if Image.MAX_IMAGE_PIXELS is None else int(Image.MAX_IMAGE_PIXELS)
    if not text.isdecimal():
        raise InvalidInputError(f"{LIMIT}: expected a number of pixels, got {text!r}")
    most = int(text)
    if Image.MAX_IMAGE_PIXELS is not None and most > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = most  # else Pillow refuses what is allowed here
    return most


def _rgb(image: Image.Image) -> Image.Image:
    made = need("PIL.Image")
    if image.mode in _SIXTEEN_BIT:
        # The high byte: what Pillow keeps of 16-bit colour, where a plain conversion clips to white.
        grey = np.asarray(image.convert("I"))
        if grey.min() < 0 or grey.max() > 65535:
            raise OSError(f"grey values {grey.min()} .. {grey.max()} do not fit 16 bits; convert the file to 8 or 16")
        return made.fromarray((grey >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise OSError("pixels of mode F (floats) have no known range; convert the file to 8 or 16 bits")
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        image = image.convert("RGBA")
        white = made.new("RGBA", image.size, "white")
        return made.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def why_unreadable(error: OSError) -> str:
    """What is wrong with an image that cannot be read; what is wrong with the machine is raised again."""
    if error.errno not in (None, errno.ENOENT):  # no permission, drive gone, no file handles
        raise error
    # Without paths and addresses, which differ between two runs that are otherwise the same.
    reason = error.strerror or re.sub(r" at 0x[0-9a-f]+", "", str(error))
    return f"{type(error).__name__}: {reason}"


# ---- files below a folder ----------------------------------------------------------------------------------


def file_images(
    name: str,
    split: str,
    root: Path,
    files: Sequence[str],
    labels: Mapping[str, Labels],
    *,
    ids: Sequence[str] | None = None,
    captions: Sequence[str] = (),
    more_captions: Sequence[tuple[str, ...]] = (),
    about: Mapping[str, Any] | None = None,
    allow_outside: bool = False,
) -> ImageData:
    """Images of `files` (paths below `root`), which are also their ids unless others are given.

    No image is opened before one is read or the fingerprint is asked for.

    Raises:
        InvalidInputError: no files, or a path that leads out of `root` and is not allowed to.
    """
    if not files:
        raise InvalidInputError(f"{name}: no images in split {split!r} of {root}")
    if not allow_outside:
        refuse_outside(name, root, files)
    names = tuple(ids if ids is not None else files)
    return ImageData(
        name=name,
        split=split,
        ids=names,
        read=partial(_read, root, tuple(files)),  # which the processes of a loader can be given
        labels=dict(labels),
        fingerprint=lambda: fingerprint_files(names, [root / file for file in files]),
        captions=tuple(captions),
        more_captions=tuple(more_captions),
        about={"root": str(root), **(about or {})},
        path=lambda index: os.path.abspath(root / files[index]),
    )


def refuse_outside(name: str, root: Path, files: Sequence[str]) -> None:
    """A table from elsewhere must not make us read what it likes; links that the user made are fine."""
    paths = pa.array(files, pa.string())
    outside = pc.filter(paths, pc.match_substring_regex(paths, _OUTSIDE))
    if len(outside):
        raise InvalidInputError(
            f"{name}: {len(outside)} paths lead out of {root} or are no local files, such as {outside[0].as_py()!r}; "
            "expected paths below it, or allow_outside where the table is trusted"
        )


def _read(root: Path, files: tuple[str, ...], index: int) -> Image.Image:
    return decode(root / files[index])


def fingerprint_files(ids: Sequence[str], paths: Sequence[str | os.PathLike[str]]) -> str:
    """A hash of ids, file sizes, and the first and last 4 KiB of every file.

    It survives copying and touching, and notices files that are replaced, cut, swapped or missing. A change of the
    same length in the middle of a large file goes unnoticed; hashing all bytes would cost as much as reading them.
    """
    return fingerprint_ends(ids, [partial(read_ends, path) for path in paths])


def fingerprint_ends(ids: Sequence[str], ends: Sequence[Callable[[], Ends]]) -> str:
    """The same for anything that has a size and two ends; read in threads, hashed in order."""
    if len(ids) != len(ends):
        raise InvalidInputError(f"fingerprint: expected one file per id, got {len(ids)} ids and {len(ends)} files")

    def digest(start: int) -> bytes:
        state = hashlib.sha256()
        rows = slice(start, start + _FILES_AT_ONCE)
        for name, read in zip(ids[rows], ends[rows], strict=True):
            size, content = read()
            state.update(f"{len(name.encode())} {name} {size} ".encode())
            state.update(content)
        return state.digest()

    state = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        for block in pool.map(digest, range(0, len(ids), _FILES_AT_ONCE)):
            state.update(block)
    return state.hexdigest()[:24]


def read_ends(path: str | os.PathLike[str]) -> Ends:
    """Size of a file with its first and last 4 KiB, the whole of a smaller one; (-1, b"") where it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= 2 * ENDS:
                return size, file.read(size)
            head = file.read(ENDS)
            file.seek(size - ENDS)
            return size, head + file.read(ENDS)
    except OSError:
        return -1, b""


def ends_of(content: bytes | memoryview) -> Ends:
    """The same of bytes in memory."""
    size = len(content)
    whole = size <= 2 * ENDS
    return size, bytes(content) if whole else bytes(content[:ENDS]) + bytes(content[size - ENDS :])
