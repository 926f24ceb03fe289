"""The page of a result, its strips and sheets of pictures."""

from itertools import product
from pathlib import Path

import pytest
from PIL import Image

from tests.study.made_figures import DOWN, UP, bias, figure, protocol, result
from vldebias.measure.page import (
    day_of,
    front_groups,
    front_rows,
    plain,
    render,
    title_of,
)
from vldebias.measure.result import Result
from vldebias.measure.rows import Strip
from vldebias.measure.strip import read_strip, write_strip
from vldebias.measure.table import readable
from vldebias.pictures import read_png, write_png
from vldebias.study import compare


def test_a_page_is_one_safe_file_with_the_summary_before_everything_else(
    made: Result, tmp_path: Path
) -> None:
    odd = made.model_copy(
        update={"provenance": [protocol("search", description="<script>alert(1)</script>")]}
    )
    page = render(odd, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page.replace("data:image", "")
    first = page.index("<details")
    assert "95 % intervals" in page
    assert page.index("given labels of training images") > first
    for word in (
        "ViT-L-14/openai",
        "search: <b>better</b>.",
        "date not recorded",
        "download",
        "a nurse",
    ):
        assert page.index(word) < first
    assert (tmp_path / "index.csv").read_text().startswith("task,metric,method,subset,value")


def test_strips_open_the_page_with_their_words_as_text(made: Result, tmp_path: Path) -> None:
    images = [Image.new("RGB", (800, 400), shade) for shade in ("red", "blue", "lime")]
    rows = [("as generated: 3 male", images), ("debiased <1>", images[::-1])]
    strip = Strip("The same seeds", [f"seed {i}" for i in range(3)], rows)
    file = write_strip(strip, tmp_path / "x-strip.png", {"run": "x", "task": "search"})
    again = read_strip(*read_png(file))
    assert (again.caption, again.columns) == (strip.caption, strip.columns)
    for (label, cells), (name, shown) in zip(again.rows, rows, strict=True):
        assert label == name
        assert [cell.size for cell in cells] == [(384, 192)] * 3
        colours = [
            (cell.getpixel((9, 9)), image.getpixel((9, 9)))
            for cell, image in zip(cells, shown, strict=True)
        ]
        assert all(cell == image for cell, image in colours)
    page = render(made, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert page.count('class="face"') == 6
    for word in ("as generated: 3 male</h3>", "debiased &lt;1&gt;</h3>", "<small>seed 2</small>"):
        assert page.index(word) < page.index("<details")
    write_strip(strip, tmp_path / "x-strip.png", {"run": "another", "task": "search"})
    assert 'class="face"' not in render(made, tmp_path / "p.html", beside=tmp_path).read_text()


def test_the_first_table_has_eight_methods_of_all_conclusions_and_what_they_are_held_against() -> (
    None
):
    rows = [
        bias(m, 0.5, task=f"task {i}", change=None if m == "none" else DOWN)
        for i, m in product(range(3), ("none", "cali", "default", "orth"))
    ]
    made = result(rows, *(protocol(f"task {i}") for i in range(3)))
    front = front_rows(readable(made), made.conclusions())
    assert (front.method != "none").sum() == 8
    for task, block in front.groupby("task"):
        assert {"none", "default", "cali"} <= set(block.method), task
    assert (front.method == "orth").sum() == 2, "one further row of each task before a second"
    groups = front_groups(readable(made), made.conclusions())
    assert [len(group.rows) for group in groups] == [3, 3, 2]
    assert {group.before for group in groups} == {"0.500 [0.400, 0.600]"}


def test_the_heading_says_what_was_measured_on_which_model_and_when(made: Result) -> None:
    assert title_of(made) == "x, measured on ViT-L-14/openai"
    assert title_of(made.model_copy(update={"provenance": []})) == "x"
    assert day_of("2026-11-24T15:02:56+01:00") == "24 November 2026, 14:02 UTC"
    assert day_of("last spring") == "last spring"


def test_sheets_of_the_run_stand_with_their_task(made: Result, tmp_path: Path) -> None:
    for stem, caption, run in (
        ("a", "shares", "x"),
        ("b-side-by-side", "images", "x"),
        ("c", "of another run", "y"),
    ):
        labels = {"run": run, "task": "search", "caption": caption}
        write_png(Image.new("RGB", (4, 4), "red"), tmp_path / f"{stem}.png", labels)
    page = render(made, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert page.index("<details") < page.index('alt="images"') < page.index('alt="shares"')
    assert "of another run" not in page


@pytest.mark.filterwarnings("ignore:Glyph")  # the font draws a box
def test_names_may_hold_anything(tmp_path: Path) -> None:
    odd = "$\\frac{a}$ <b>[red]人\x07%_"
    rows = [
        figure(m, 0.5, task=odd, metric=k, subset=s, change=None if m == "none" else UP)
        for m, k, s in product(("none", odd), ("gap", odd), ("", odd, "other"))
    ]
    odd_result = result(rows, protocol(odd), name=odd)
    assert "<b>[red]" not in render(odd_result, tmp_path / "p.html", beside=tmp_path).read_text(
        encoding="utf-8"
    )
    for shown in (
        str(odd_result),
        str(compare(odd_result, odd_result.model_copy(update={"rows": odd_result.rows[1:]}))),
    ):
        assert "[red]" in shown.replace("\\", "")


def test_settings_evidence_and_cartoons_are_said(tmp_path: Path) -> None:
    assert plain({"a": [1, 2.5, True], "b": None}) == "a: 1, 2.5, yes; b"
    world = protocol("birds", is_miniature=True)
    real = protocol("birds")
    for provenance, cartoon in (
        ([world], True),
        ([world, real], False),
    ):
        page = render(
            result([figure()], *provenance), tmp_path / "p.html", beside=tmp_path
        ).read_text(encoding="utf-8")
        assert ("cartoon" in page) == cartoon
        assert page.count("not recorded") >= 2
        assert "images: 100" in page
    two = result([figure(task=task) for task in "ba"], *map(protocol, "ba"))
    page = render(two, tmp_path / "p.html", beside=tmp_path).read_text(encoding="utf-8")
    assert page.index("task-b") < page.index("task-a"), "in the order of the rows"
