"""Pictures say how they were made, are whole or not there, and show any text."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from vldebias.pictures import (
    KEY,
    MISSING,
    compact,
    font,
    for_matplotlib,
    picture_metadata,
    printable,
    read_png,
    save_png,
    subplots,
    wrap_lines,
    write_png,
)


def test_a_picture_and_what_it_says_come_back(tmp_path: Path) -> None:
    about = {"prompt": "une infirmière 猫", "seed": 3, "id": "a\udcff.png"}
    path = write_png(Image.new("L", (3, 2), 7), tmp_path / "new" / "a.png", about)
    image, told = read_png(path)
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (3, 2), (7, 7, 7))
    assert told == read_png(path, pixels=False)[1] == picture_metadata(path) == about
    assert [p.name for p in path.parent.iterdir()] == ["a.png"]


def test_a_compact_picture_looks_the_same_and_is_no_further_from_it_twice(tmp_path: Path) -> None:
    """Few colours stay as they are; of many, every value of a channel stays within 2 of 255."""
    values = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    values[:16, :16] = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)  # every level there is
    once = compact(Image.fromarray(values))
    assert np.abs(np.asarray(once, int) - values).max() <= 2
    assert np.array_equal(compact(once), once)
    sizes = [write_png(one, tmp_path / "a.png", {}).stat().st_size for one in (Image.fromarray(values), once)]
    assert sizes[1] < sizes[0]
    few = Image.fromarray(values[:8, :8] // 128 * 255)
    assert compact(few).mode == "P"
    assert np.array_equal(compact(few).convert("RGB"), few)


def test_damaged_pictures_are_oserrors_and_say_nothing(tmp_path: Path) -> None:
    whole = write_png(Image.new("RGB", (64, 64)), tmp_path / "a.png", {"seed": 1}).read_bytes()
    info = PngImagePlugin.PngInfo()
    info.add_itxt(KEY, "{")
    Image.new("RGB", (2, 2)).save(tmp_path / "text.png", pnginfo=info)
    (tmp_path / "cut.png").write_bytes(whole[:-30])
    (tmp_path / "none.png").write_bytes(b"no picture")
    for name in ("text.png", "cut.png", "none.png", "missing.png"):
        with pytest.raises(OSError, match=name):
            read_png(tmp_path / name)
    assert picture_metadata(tmp_path / "text.png") == picture_metadata(tmp_path / "missing.png") == {}
    info = PngImagePlugin.PngInfo()
    info.add_itxt(KEY, "[1]")  # JSON, but not what we write
    Image.new("RGB", (2, 2)).save(tmp_path / "list.png", pnginfo=info)
    assert read_png(tmp_path / "list.png")[1] == {}


@pytest.mark.parametrize("name", ["$", "a$b_1^2$ {", r"a\\$b$", "猫 $x$"])
def test_names_with_dollars_are_no_formulas(tmp_path: Path, name: str) -> None:
    plot, (axis,) = subplots(1, 1, (2, 1))
    axis.set_title(for_matplotlib(name))
    assert picture_metadata(save_png(plot, tmp_path / "a.png", {"title": name})) == {"title": name}


laws = settings(max_examples=80, deadline=None, derandomize=True)


def test_printable_replaces_what_the_font_lacks_and_keeps_the_rest() -> None:
    assert printable("naïve “café” · ½ λ η ≥ Ж") == "naïve “café” · ½ λ η ≥ Ж"
    assert printable("猫 cat") == f"{MISSING} cat"
    assert printable("a\n b\t\tc\x00\u200d") == "a b c"
    assert printable("e\u0301") == "é"
    assert printable("\ud800") == ""
    assert for_matplotlib("5$ for $x$") == r"5\$ for \$x\$"


@laws
@given(st.text(max_size=60))
def test_every_printable_character_has_a_glyph(text: str) -> None:
    from matplotlib.ft2font import FT2Font

    known = FT2Font(font(12).path).get_charmap()
    found = printable(text)
    assert all(ord(character) in known for character in found)
    assert printable(found) == found


@laws
@given(st.text("abc dé-W.", max_size=120), st.integers(1, 4), st.integers(20, 200))
def test_wrapped_lines_fit_and_lose_nothing_but_the_end(text: str, lines: int, width: int) -> None:
    face = font(12)
    found = wrap_lines(text, face, width, lines)
    assert len(found) <= lines
    assert all(face.getlength(line) <= width for line in found)
    whole = printable(text).replace(" ", "")
    if found and found[-1].endswith("…"):
        assert len(found) == lines
        assert whole.startswith("".join(found)[:-1].replace(" ", ""))
    else:
        assert "".join(found).replace(" ", "") == whole


def test_wrapping_by_words_and_ellipsis() -> None:
    face = font(12)
    width = face.getlength("a photo of a")
    assert wrap_lines("a photo of a dog", face, width, 3) == ["a photo of a", "dog"]
    cut = wrap_lines("a photo of a dog on a meadow in the sun", face, width, 2)
    assert cut[0] == "a photo of a"
    assert cut[1].startswith("dog on")
    assert cut[1].endswith("…")
    assert wrap_lines("", face, width, 2) == []
    assert wrap_lines("W", face, 1, 2) == []
