"""Test that every kind of picture is converted to RGB, and that everything else raises an
OSError."""

import contextlib
import errno
import io
import os
import random
import re
import struct
import sys
import tracemalloc
import warnings
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, ImageCms, ImageOps
from PIL.PngImagePlugin import PngInfo

import vldebias
from tests.data.data_parts import as_bytes, picture
from vldebias.utils.pictures import (
    FORMATS,
    add_record,
    decode,
    encoded,
    for_matplotlib,
    read_png,
    subplots,
    why_unreadable,
    write_png,
)


def pixel(image: Image.Image, form: str = "PNG", **options: object) -> tuple[int, ...]:
    decoded = decode(as_bytes(image, form, **options))
    assert decoded.mode == "RGB"
    return decoded.getpixel((0, 0))


def test_rgb_is_unchanged_and_transparent_pixels_become_white(tmp_path: Path) -> None:
    picture(1).save(tmp_path / "a.png")
    pixels = picture(1).tobytes()
    assert decode(as_bytes(picture(1))).tobytes() == decode(tmp_path / "a.png").tobytes() == pixels
    assert pixel(Image.new("RGBA", (2, 2), (255, 0, 0, 0))) == (255, 255, 255)
    assert pixel(Image.new("RGBA", (2, 2), (255, 0, 0, 255))) == (255, 0, 0)
    assert pixel(Image.new("LA", (2, 2), (0, 128))) == (127, 127, 127)
    image = Image.new("P", (2, 2), 0)
    image.putpalette([10, 20, 30] + [0] * 765)
    assert pixel(image) == pixel(image, "GIF") == (10, 20, 30)
    assert pixel(image, transparency=0) == (255, 255, 255)


@pytest.mark.parametrize("form", FORMATS)
def test_every_listed_format_is_read(form: str) -> None:
    Image.init()
    if form not in Image.SAVE:
        pytest.skip(f"Pillow {PIL.__version__} writes no {form}")
    image = Image.new("RGB", (32, 32), (200, 100, 50))
    assert np.abs(np.array(decode(as_bytes(image, form))).astype(int) - (200, 100, 50)).max() <= 4


@pytest.mark.parametrize("named", ["e.png", "e.jpg", "e.eps"])
def test_no_picture_starts_an_external_program(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow recognises EPS by its first bytes and has Ghostscript execute the content."""
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    # Recent versions of Pillow only look for it once.
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None, raising=False)
    content = as_bytes(picture(1), "EPS")
    (tmp_path / named).write_bytes(content)
    with Image.open(tmp_path / named) as opened, contextlib.suppress(OSError):
        opened.load()
    assert (tmp_path / "started").exists(), "without a list of formats it is started"
    (tmp_path / "started").unlink()
    for source in (tmp_path / named, content):
        with pytest.raises(OSError, match="not an image in one of the formats"):
            decode(source)
    with pytest.raises(OSError, match=named):
        read_png(tmp_path / named)
    assert not (tmp_path / "started").exists()


def test_pictures_are_opened_by_a_single_function() -> None:
    root = Path(vldebias.__file__).parents[1]
    files = []
    for folder in ("vldebias", "apps", "eval"):
        files += (root / folder).rglob("*.py")
    opens = re.compile(r"\bImages?\.open\(|PIL\.Image import open")
    opening = [path for path in files if opens.search(path.read_text(encoding="utf-8"))]
    assert opening == [root / "vldebias/utils/pictures.py"]


def test_other_modes_are_converted() -> None:
    assert pixel(Image.new("1", (2, 2), 1)) == (255, 255, 255)
    lab = ImageCms.createProfile("LAB")
    red = ImageCms.profileToProfile(
        Image.new("RGB", (2, 2), "red"), ImageCms.createProfile("sRGB"), lab, outputMode="LAB"
    )
    assert pixel(red, "TIFF")[0] > 200  # the band called "A" is not an alpha channel


def test_pixels_with_more_than_eight_bits_are_rejected() -> None:
    for image in (
        Image.new("F", (2, 2)),
        Image.new("I", (2, 2)),
        Image.fromarray(np.zeros((2, 2), np.uint16)),
    ):
        with pytest.raises(OSError, match="8 bits"):
            decode(as_bytes(image, "TIFF"))


def test_a_broken_exif_block_is_ignored() -> None:
    assert decode(as_bytes(picture(0, (8, 4)), "JPEG", exif=b"Exif\0\0garbage garbage")).size == (
        8,
        4,
    )


def test_an_animation_shows_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    assert pixel(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True) == (
        255,
        0,
        0,
    )


def test_truncated_files_and_other_files_are_an_error(tmp_path: Path) -> None:
    for content in (as_bytes(picture(0, (64, 64)), form) for form in ("PNG", "JPEG")):
        with pytest.raises(OSError, match="truncated"):
            decode(content[: len(content) // 2])
    for content in (b"", b"no"):
        with pytest.raises(OSError, match="not an image"):
            decode(content)
    with pytest.raises(FileNotFoundError):
        decode(tmp_path / "none.png")


def test_few_colors_make_a_small_file_and_many_are_preserved(tmp_path: Path) -> None:
    # Noise in two colours takes more space than a palette of 256, which Pillow before 11 writes
    # completely.
    is_blue = np.random.default_rng(0).random((200, 200)) < 0.5
    flat = Image.fromarray(np.where(is_blue[..., None], (0, 0, 255), (255, 0, 0)).astype(np.uint8))
    files = [
        write_png(flat, tmp_path / f"{len(how)}.png", {"é": 1}, **how)
        for how in ({"small": True}, {})
    ]
    assert files[0].stat().st_size < files[1].stat().st_size
    for file in files:
        image, facts = read_png(file)
        assert (image.tobytes(), facts) == (flat.tobytes(), {"é": 1})
    many = picture(2, (80, 80))
    assert (
        read_png(write_png(many, tmp_path / "many.png", {}, small=True))[0].tobytes()
        == many.tobytes()
    )


def test_plots_need_no_display_and_a_notebook_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    tools = SimpleNamespace(select_figure_formats=lambda *arguments: shown.append(arguments))
    for shell, selected in ((None, []), ("a notebook", [("a notebook", {"png"})])):
        monkeypatch.setitem(
            sys.modules,
            "IPython",
            SimpleNamespace(get_ipython=lambda s=shell: s, version_info=(9,)),
        )
        monkeypatch.setitem(sys.modules, "IPython.core.pylabtools", tools)
        plot, axes = subplots(1, 1, (2.0, 1.0))
        assert (len(axes), shown) == (1, selected)
    image, facts = read_png(write_png(plot, tmp_path / "plot.png", {"a": 1}))
    assert (image.size, facts) == ((240, 120), {"a": 1})


def test_the_reason_for_an_unreadable_picture_does_not_contain_memory_addresses() -> None:
    assert why_unreadable(OSError("no picture <a at 0x7f>")) == "OSError: no picture <a>"
    assert (
        why_unreadable(FileNotFoundError(errno.ENOENT, "No such file", "a"))
        == "FileNotFoundError: No such file"
    )
    with pytest.raises(PermissionError):
        why_unreadable(PermissionError(errno.EACCES, "Permission denied"))


def test_text_in_a_plot_is_a_single_line_without_formulas() -> None:
    assert for_matplotlib("a $b$\n\x07\tc") == r"a \$b\$ c"


def bomb(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_the_header_is_checked_before_pixels_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(bomb(13_000, 13_000))
    tracemalloc.start()
    try:
        for read in (decode, read_png):
            with pytest.raises(OSError, match="169,000,000 pixels, expected at most 89,478,485"):
                read(tmp_path / "a.png")
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
    with pytest.raises(OSError, match="DecompressionBombError"):
        decode(bomb(60_000, 60_000))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 48)
    assert decode(as_bytes(picture(0))).size == (8, 6)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"]), st.data())
def test_damaged_bytes_yield_a_picture_or_an_oserror(form: str, data: st.DataObject) -> None:
    content = bytearray(as_bytes(picture(3, (16, 16)), form))
    for _ in range(4):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings(), contextlib.suppress(OSError):
        warnings.simplefilter("ignore")
        assert decode(bytes(content)).mode == "RGB"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_pixels_match_the_equivalent_pillow_steps(orientation: int, mode: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = as_bytes(picture(3, (37, 21)).convert(mode), "JPEG", exif=exif, quality=90)
    with Image.open(io.BytesIO(content)) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    received = decode(content)
    assert received.size == expected.size
    assert received.tobytes() == expected.tobytes()


def test_a_draft_has_at_least_the_required_side() -> None:
    smooth = picture(0, (6, 4)).resize((960, 640), Image.Resampling.BICUBIC)
    content = as_bytes(smooth, "JPEG", quality=95)
    assert decode(content, draft=640).size == decode(content, draft=900).size == (960, 640)
    assert decode(content, draft=321).size == (960, 640)
    assert decode(content, draft=320).size == (480, 320)
    small = decode(content, draft=100)
    assert small.size == (240, 160)
    assert decode(as_bytes(smooth), draft=100).size == (960, 640)  # not a JPEG
    difference = np.array(small, dtype=float) - np.array(decode(content).resize(small.size), float)
    assert np.abs(difference).mean() < 2


@pytest.mark.parametrize(("size", "format_name"), [(128, "PNG"), (129, "JPEG")])
def test_a_page_contains_small_images_as_png_and_large_ones_as_jpeg(
    size: int, format_name: str
) -> None:
    content = encoded(Image.new("RGB", (size, 8)))
    assert Image.open(io.BytesIO(content)).format == format_name


def others() -> PngInfo:
    """Return the text chunks written by A1111 and ComfyUI."""
    info = PngInfo()
    info.add_text("parameters", "a nurse\nSteps: 20, Seed: 1")
    info.add_text("workflow", '{"nodes": []}')
    info.add_itxt("prompt", '{"3": "é"}')
    return info


def test_metadata_is_stored_next_to_the_chunks_of_other_tools(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.effect_noise((9, 7), 50).save(path, pnginfo=others(), compress_level=9)
    before = path.read_bytes()
    for value in ("female", "männlich"):
        add_record(path, {"value": value, "seed": 7})
        with Image.open(path) as image:
            assert image.info["parameters"] == "a nurse\nSteps: 20, Seed: 1"
            assert image.info["workflow"] == '{"nodes": []}'
            assert image.info["prompt"] == '{"3": "é"}'
        assert read_png(path)[1] == {"value": value, "seed": 7}
    # Writing it again leaves a single chunk, and removing it restores the original file byte for
    # byte.
    content = path.read_bytes()
    start = content.index(b"iTXtvldebias\0") - 4
    size = int.from_bytes(content[start : start + 4], "big")
    assert content[:start] + content[start + 12 + size :] == before


def test_damaged_files_are_rejected_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (9, 7)).save(path)
    sound = path.read_bytes()
    rng = random.Random(0)
    for _ in range(50):
        damaged = bytearray(sound)
        if rng.random() < 0.5:
            damaged = damaged[: rng.randrange(len(damaged))]
        else:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(OSError, match="PNG"):
            add_record(path, {"value": "female"})
        assert path.read_bytes() == damaged
