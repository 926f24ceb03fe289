"""What the tests of the demo share: its modules, one engine on the embedded models, pictures that are none."""

import asyncio
import io
import struct
import threading
import zlib
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from vldebias.cli.apps import page


def module(name: str) -> ModuleType:
    """apps/compare/<name>.py."""
    return page(f"compare.{name}")


@cache
def engine() -> Any:
    """One for all tests: its models load once. Nothing may stay attached to them."""
    return module("engine").Engine()


def mitigation(*attributes: str, **options: Any) -> Any:
    return module("settings").Mitigation.of(attributes or ("gender",), **options)


def drawing(prompt: str = "A photo of a doctor.", number: int = 1, seed: int = 0, steps: int = 2, **more: Any) -> Any:
    return module("settings").Drawing.of(prompt, number, seed, steps, 3.0, **more)


def drawn(of: Any, how: Any, stop: threading.Event | None = None) -> list[Any]:
    """Every report of a comparison."""
    return list(module("drawing").compare(engine(), of, how, stop or threading.Event()))


def encoded(kind: str = "png", size: tuple[int, int] = (40, 30)) -> bytes:
    buffer = io.BytesIO()
    rows, columns = np.mgrid[: size[1], : size[0]]
    pixels = np.stack([rows * 5, columns * 5, rows + columns], axis=-1).astype(np.uint8)
    Image.fromarray(pixels).save(buffer, format=kind)
    return buffer.getvalue()


def bomb(side: int = 40_000) -> bytes:
    """A small PNG that says it is 40,000 x 40,000."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"\0" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'
BAD_UPLOADS = {
    "empty": (b"", "none was sent"),
    "text": (b"not a picture at all", "expected PNG, JPEG, WebP, got a file that begins with b'not a"),
    "svg": (SVG, "expected PNG, JPEG, WebP"),
    "gif": (encoded("gif"), "expected PNG, JPEG, WebP"),
    "truncated": (encoded()[:-60], "cannot be read"),
    "bomb": (bomb(), "cannot be read"),
    "huge": (b"\x89PNG\r\n\x1a\n" + b"\0" * (11 * 2**20), "11 MiB; the most is 10 MiB"),
}
ODD_PROMPTS = {
    "empty": ("", "prompt: it is empty"),
    "blank": (" \n\t ", "prompt: it is empty"),
    "long": ("a" * 10_000, "10,000 characters; the most is 300"),
}
FINE_PROMPTS = {
    "emoji": "\U0001f469\u200d\u2695\ufe0f \U0001f468\u200d\u2695\ufe0f",
    "right-to-left": "\u0635\u0648\u0631\u0629 \u0637\u0628\u064a\u0628",
    "html": "<script>alert(1)</script> & <b>doctor</b>",
    "control": "A photo\x00 of\x07 a doctor.",
    "path": "../../etc/passwd",
}


def built(of: Any) -> Any:
    """The page; built inside a loop, since Gradio makes loops that nobody closes where none is running."""

    async def build() -> Any:
        return module("page").build_demo(of)

    return asyncio.run(build())
