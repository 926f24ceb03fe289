"""Captions as people have them: rows of one image together, and texts that say nothing told or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused
from vldebias.data import Labels, open_data
from vldebias.data.captions import check_captions, one_row_per_image, says_something
from vldebias.errors import InvalidInputError, VldebiasWarning

NAMES = ["a", "b", "a", "c", "b", "a"]
SAID = ["one", "two", "three", "nan", "", "four"]


def test_rows_of_one_image_become_one_in_their_order() -> None:
    rows, captions, more = one_row_per_image("own", NAMES, SAID, [], {})
    assert rows.tolist() == [0, 1, 3]
    assert (captions, more) == (["one", "two", ""], [("three", "four"), (), ()])
    with_lists = one_row_per_image("own", ["a", "a"], ["one", "two"], [("1b",), ("2b",)], {})
    assert (with_lists[1], with_lists[2]) == (["one"], [("1b", "two", "2b")])
    plain = one_row_per_image("own", ["a", "b"], ["one", "nan"], [], {})
    assert (plain[0].tolist(), plain[1], plain[2]) == ([0, 1], ["one", "nan"], [])  # nothing to put together


@refused(
    ([], {}, "own: 3 rows name an image that is there more than once, such as 'a'; .*caption=.*id="),
    (SAID, {"kind": [0, 1, 0, 1, 0, 0]}, "own: column 'kind': the rows of image 'b' have different values"),
)
def test_rows_that_cannot_be_one(captions: list[str], labels: dict[str, list[int]]) -> None:
    columns = {name: Labels(np.array(codes), ("x", "y")) for name, codes in labels.items()}
    one_row_per_image("own", NAMES, captions, [], columns)


def pictures(folder: Path) -> list[str]:
    for k, name in enumerate("abc"):
        Image.new("RGB", (4, 4), (40 * k, 0, 0)).save(folder / f"{name}.png")
    return [f"{name}.png" for name in NAMES]


@pytest.mark.parametrize("kind", ["manifest", "parquet"])
def test_a_table_with_a_row_per_caption_is_read_as_images(kind: str, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = pictures(tmp_path)
    if kind == "manifest":
        path = tmp_path / "own.csv"
        path.write_text("image,caption\n" + "".join(f"{f},{s}\n" for f, s in zip(files, SAID, strict=True)))
        data = open_data("manifest", path, caption="caption")
    else:
        pq.write_table(pa.table({"image": files, "caption": SAID}), tmp_path / "own.parquet")
        data = open_data("huggingface", str(tmp_path / "own.parquet"), "train", image="image", caption="caption")
    assert (len(data), data.captions) == (3, ("one", "two", ""))  # type: ignore[arg-type,union-attr]
    assert data.more_captions == (("three", "four"), (), ())  # type: ignore[union-attr]
    assert [data.read(row).getpixel((0, 0))[0] for row in range(3)] == [0, 40, 80]  # type: ignore[union-attr,index]


def test_names_of_annotations_are_not_those_of_images(tmp_path: Path) -> None:
    """One id for two files is no image with two captions."""
    rows = "".join(f"{file},{k // 2},{k}\n" for k, file in enumerate(pictures(tmp_path)[:4]))
    (tmp_path / "own.csv").write_text("image,number,caption\n" + rows)
    with pytest.raises(InvalidInputError, match=r"own: 2 ids are there more than once; expected n different ones"):
        open_data("manifest", tmp_path / "own.csv", caption="caption", id="number")


def test_what_stands_for_no_text() -> None:
    assert not any(map(says_something, ["", " ", "nan", "NaN", "None", " null ", "N/A", "<NA>"]))
    assert all(map(says_something, ["nan bread on a plate", "a nun", "7", "none of them sits"]))


@refused(
    (["a dog"] * 4, "own: all 4 captions say 'a dog', so none tells images apart. Do this"),
    (
        ["17", "3,5", "-2.0", "a dog"],
        r"own: 3 of 4 captions \(75%\) are numbers, such as '17'; expected words. Do this",
    ),
    (["x/IMG_1.JPG", "2.png", "a dog"], r"own: 2 of 3 captions \(67%\) are names of files, such as 'x/IMG_1.JPG'"),
)
def test_captions_that_say_nothing(captions: list[str]) -> None:
    check_captions("own", captions, "Do this")


def test_a_few_are_told_with_their_share() -> None:
    with pytest.warns(VldebiasWarning, match=r"own: 1 of 4 captions \(25%\) are numbers, such as '17'"):
        check_captions("own", ["17", "a dog", "a cat", "file.png is shown"], "Do this")
    check_captions("own", ["a dog", "route 66", "a cat"], "Do this")
    check_captions("own", ["a dog"], "Do this")  # of one pair all are the same
