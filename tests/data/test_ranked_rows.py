"""Test the table and the page of ranked rows, and how their images are found."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vldebias.data.suspects import Suspects
from vldebias.errors import InvalidInputError


def gone(row: int) -> Any:
    raise FileNotFoundError(2, "gone")


@pytest.mark.parametrize("read", [gone, None])
def test_missing_images_are_noted(read: Any, tmp_path: Path) -> None:
    suspects = Suspects(np.arange(201.0), tuple(map(str, range(201))), read=read)
    page = suspects.page(
        tmp_path / "page.html", "gone", lambda row: ("", ""), introduction=""
    ).read_text()
    assert page.count("<img") == 200
    assert re.findall(r"<figcaption>(\d+)", page) == [str(i) for i in range(1, 201)]


def test_rows_can_be_marked_and_saved_only_if_asked_for(tmp_path: Path) -> None:
    suspects = Suspects(np.arange(3.0), ("a", '<b"', "c"), read=None)

    def page(**how: Any) -> str:
        path = suspects.page(tmp_path / "p.html", "p", lambda _: ("", ""), introduction="", **how)
        return path.read_text()

    assert "<script>" not in page()
    marked = page(can_check=True)
    assert re.findall(r'name="mark(\d)" value="(\w+)" data-id="([^"]*)"', marked) == [
        (str(rank), value, id)
        for rank, id in ((1, "a"), (2, "&lt;b&quot;"), (3, "c"))
        for value in ("right", "wrong")
    ]
    assert marked.count('download="marks.csv"') == 1
    # The lines of the script are those of a csv file with quoted and escaped cells.
    assert 'Blob(["id,caption\\n"+lines.join("\\n")' in marked


def test_the_table_lists_the_lowest_score_first_and_rows_without_a_score_last(
    tmp_path: Path,
) -> None:
    suspects = Suspects(np.array([0.5, np.nan, -0.25, 0.5]), ("a", "b", "=c", "d"))
    rows = list(
        csv.DictReader(suspects.write(tmp_path / "t.csv", {"row": str}).read_text().splitlines())
    )
    assert [row["row"] for row in rows] == ["2", "0", "3", "1"]
    assert rows[0]["id"] == "'=c"  # escaped, so that it is not a formula
    figures = [(row["rank"], row["percentile"], row["score"]) for row in rows[::3]]
    assert figures == [("1", "16.6667", "-0.250000"), ("", "", "")]  # half of one row of three
    assert list(rows[0]) == ["rank", "percentile", "score", "id", "row", "path"]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_kept_rows_have_the_highest_scores(share: float) -> None:
    scores = np.random.default_rng(0).random(20)
    kept = Suspects(scores, tuple("abcdefghijklmnopqrst")).best(share)
    assert kept.tolist() == sorted(np.argsort(scores)[20 - round(share * 20) :].tolist())


def test_ids_are_images_in_a_folder_with_or_without_their_ending(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "a").mkdir(parents=True)
    for name, colour in (("in/a/1.png", "red"), ("in/2.jpg.png", "blue"), ("out.png", "green")):
        Image.new("RGB", (4, 4), colour).save(tmp_path / name)
    readers = Suspects.pictures(
        folder, ("a/1.png", "a/1", "2.jpg", "none", "../out.png", str(tmp_path / "out.png"))
    )
    assert [readers["read"](row).getpixel((0, 0)) for row in (0, 1)] == [(255, 0, 0)] * 2
    paths = [readers["path"](row) for row in range(2, 6)]
    assert paths == [str(folder / "2.jpg.png"), "", "", ""]  # an id cannot point outside the folder
    with pytest.raises(OSError, match="no such image in"):
        readers["read"](3)
    for where in (folder, folder / "none"):
        with pytest.raises(InvalidInputError, match="'7'"):
            Suspects.pictures(where, ("7", "8"))
