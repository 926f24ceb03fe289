"""Pictures say how they were made, are whole or not there, and show any text."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from vldebias.pictures import (
    KEY,
    for_matplotlib,
    picture_metadata,
    read_png,
    save_png,
    subplots,
    write_png,
)


def test_a_picture_and_what_it_says_come_back(tmp_path: Path) -> None:
    about = {"prompt": "une infirmière 猫", "seed": 3, "id": "a\udcff.png"}
    path = write_png(Image.new("L", (3, 2), 7), tmp_path / "new" / "a.png", about)
    image, told = read_png(path)
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (3, 2), (7, 7, 7))
    assert told == read_png(path, pixels=False)[1] == picture_metadata(path) == about
    assert [p.name for p in path.parent.iterdir()] == ["a.png"]


def test_a_picture_of_few_colours_gets_a_palette_and_looks_the_same(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    for pixels, mode in ((values, "RGB"), (values // 128 * 255, "P")):
        path = save_png(Image.fromarray(pixels), tmp_path / "a.png", {})
        with Image.open(path) as image:
            assert image.mode == mode
        assert np.array_equal(read_png(path)[0], pixels)


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


@pytest.mark.parametrize("name", ["$", "a$b_1^2$ {", r"a\\$b$", "\ud800\0$x$\n"])
def test_names_with_dollars_are_no_formulas(tmp_path: Path, name: str) -> None:
    plot, (axis,) = subplots(1, 1, (2, 1))
    axis.set_title(for_matplotlib(name))
    assert picture_metadata(save_png(plot, tmp_path / "a.png", {"title": name})) == {"title": name}
