"""Decodes a picture to RGB, or says in an OSError why it cannot."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

__all__ = ["decode"]

_SIXTEEN_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")


def decode(source: Path | bytes) -> Image.Image:
    """An RGB image of a file or of its bytes, turned as its EXIF orientation says.

    Transparent pixels show white; 16-bit grey keeps its high byte; of an animation the first frame is taken; a broken
    EXIF block means no orientation, since the pixels are none the worse for it.

    Raises:
        OSError: missing, truncated, not a picture, pixels without a known range, or so many (twice Pillow's
            `Image.MAX_IMAGE_PIXELS`) that it may be a decompression bomb.
    """
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            image.load()
            return _rgb(_upright(image))
    except UnidentifiedImageError as error:
        raise OSError("not a picture in a format that Pillow reads") from error
    except OSError:
        raise
    except Exception as error:  # on broken bytes decoders raise whatever they stumble over
        raise OSError(f"cannot decode: {type(error).__name__}: {error}") from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # whatever a broken EXIF block makes the parser raise
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BIT:
        return _grey(image)
    if image.mode == "F":
        raise OSError("pixels of mode F (floats) have no known range; convert the file to 8 or 16 bits")
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    """The high byte of 16-bit grey: what Pillow keeps of 16-bit colour, where a plain conversion clips to white."""
    values = np.asarray(image.convert("I"))
    if values.min() < 0 or values.max() > 65535:
        raise OSError(f"grey values {values.min()} .. {values.max()} do not fit 16 bits; convert the file to 8 or 16")
    return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
