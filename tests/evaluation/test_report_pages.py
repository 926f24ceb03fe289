"""Results and pages: round trip, a page in one file that needs no network, the same from the figures alone."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_figures import figure, protocol, result
from PIL import Image
from pydantic import ValidationError
from rich.console import Console

from vldebias.evaluation.report.charts import contact_sheet, dumbbells
from vldebias.evaluation.report.comparison import compare, print_comparison, write_comparison
from vldebias.evaluation.report.pages import (
    draw_charts,
    markdown,
    markdown_table,
    pictures_beside,
    plain,
    print_table,
    render,
    write_page,
)
from vldebias.evaluation.result import Result
from vldebias.files import versions
from vldebias.pictures import picture_metadata, save_png


@pytest.fixture
def made() -> Result:
    figures = [
        figure("none", 0.5),
        figure("orth", 0.7, change=(0.2, 0.1, 0.3)),
        figure("cali", 0.4, change=(-0.1, -0.2, -0.05)),
        figure("orth-cali", 0.5, change=(0.0, -0.1, 0.1)),
        figure("dfr-up", 0.9, change=(0.4, 0.3, 0.5), uses_labels=True),
        *(
            figure(m, 0.6, metric="accuracy", subset=g, n={"images": 7})
            for g in ("a/b", "c/d")
            for m in ("none", "orth")
        ),
    ]
    return result(figures, protocol(description="<script>alert(1)</script>"), versions=versions())


def test_unknown_keys_are_refused(made: Result) -> None:
    with pytest.raises(ValidationError, match="extra"):
        Result.model_validate({**made.model_dump(), "extra": 1})


def test_terminal_shows_wholes_and_counts_the_rest(made: Result) -> None:
    console = Console(record=True, width=160)
    print_table(made, console)
    text = console.export_text()
    for value in ("0.500 [0.400, 0.600]", "+0.200 [+0.100, +0.300]", "better", "worse", "unclear", "dfr-up†"):
        assert value in text
    assert "† was given labels" in text
    assert "a/b" not in text
    assert "4 more figures" in text


def test_terminal_fits_eighty_columns(made: Result) -> None:
    console = Console(record=True, width=80)
    print_table(made, console)
    row = next(line for line in console.export_text().splitlines() if line.startswith("orth "))
    assert "0.700 [0.600, 0.800]" in row
    assert re.search(r"\+0\.200 \[\+0\.100, \+0\.300\] +better$", row.rstrip())


def test_where_none_is_at_chance_chance_is_shown_and_no_verdict(tmp_path: Path) -> None:
    skew: dict[str, Any] = {"metric": "max_skew@20", "better": "lower"}
    none, chance = figure("none", 0.15, **skew), figure("random", 0.15, **skew)
    made = result([none, figure("cali", 0.1, **skew, change=(-0.05, -0.08, -0.02)), chance], protocol())
    console = Console(record=True, width=80)
    print_table(made, console)
    text = console.export_text()
    assert re.search(r"^chance +0\.150 \[0\.050, 0\.250\]", text, re.MULTILINE)
    assert "Nothing to remove here" in text
    assert "better " not in text.replace("is better", "")
    page = write_page(made, [], tmp_path / "index.html").read_text()
    assert "-0.050 [-0.080, -0.020] <b></b>" in page
    assert "Nothing to remove here" in page
    assert "-0.050 [-0.080, -0.020]  |" in markdown(made)


def test_flat_markdown_table(made: Result) -> None:
    table = markdown_table(made, [("birds", "average")])
    assert len(table.splitlines()) == 7
    assert "| birds | average accuracy (higher is better) | orth | 0.700 [0.600, 0.800] | +0.200" in table
    assert len(markdown_table(made, []).splitlines()) == 2


def test_whole_markdown_has_tables_protocol_and_links(made: Result, tmp_path: Path) -> None:
    pictures = draw_charts(made, tmp_path / "charts")
    text = markdown(made, pictures, tmp_path)
    assert "| orth | 0.700 [0.600, 0.800]<br>+0.200 [+0.100, +0.300] better |" in text
    assert "| method | a/b (7 images) | c/d (7 images) |" in text
    assert "| weights fingerprint | not known |" in text
    assert "](charts/" in text
    assert text.count("† was given labels") == 1


def test_page_is_one_safe_file(made: Result, tmp_path: Path) -> None:
    sheet = contact_sheet([("a", torch.rand(3, 3, 8, 8)), ("b", torch.rand(3, 3, 8, 8))])
    told = {"prompt": "A photo of a doctor.", "changed": True}
    png = save_png(sheet, tmp_path / "sheet.png", told)
    chart = save_png(dumbbells(["pilot"], np.array([0.2]), np.array([0.5]), "shares"), tmp_path / "shares.png", {})
    with Image.open(png) as image:
        assert json.loads(image.info["vldebias"]) == told
    page = write_page(made, [("a sheet", png), ("shares", chart)], tmp_path / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r'(src|href)="(?!data:|#|index.csv)', page)
    assert "url(" not in page
    assert "0.700 [0.600, 0.800]" in page


def test_page_says_in_words_what_its_colours_say(made: Result, tmp_path: Path) -> None:
    page = write_page(made, [], tmp_path / "index.html").read_text()
    rows = re.findall(r'<th scope="row">([^<]*)</th>\s*<td( class="\w+")?>([^<]*)<small>([^<]*)<b>(\w+)</b>', page)
    assert [(name, css, word) for name, css, _, _, word in rows[:3]] == [
        ("orth", ' class="better"', "better"),
        ("cali", ' class="worse"', "worse"),
        ("orth-cali", "", "unclear"),
    ]


def test_the_page_begins_with_how_it_was_made_and_what_came_out(made: Result, tmp_path: Path) -> None:
    made.command, made.date, made.commit = "vldebias eval birds", "2026-11-20T00:00:00+00:00", "abc-dirty"
    page = write_page(made, [], tmp_path / "index.html").read_text()
    evidence, came_out, appendix = (page.index(t) for t in ("vldebias eval birds", "What came out", "Appendix:"))
    assert evidence < came_out < appendix < page.index("0.700 [0.600, 0.800]")
    for text in ("2026-11-20T00:00:00+00:00", "commit abc-dirty", f"torch {versions()['torch']}", "waterbirds 0000000"):
        assert evidence - 500 < page.index(text) < came_out
    front = page[came_out:appendix]
    assert "orth improves average accuracy most, from 0.500 by +0.200 [+0.100, +0.300]; no utility" in front
    assert "dfr-up" not in front
    assert page.count("<details") == page.count("</details>")
    assert '<a href="index.csv" download>' in page
    lines = (tmp_path / "index.csv").read_text().splitlines()
    assert lines[0].startswith("task,metric,method,subset,value,low,high,change")
    assert len(lines) == 1 + len(made.rows)


def test_names_may_hold_anything(tmp_path: Path) -> None:
    """A dollar sign begins no formula, a bracket no markup, a tag no tag."""
    name = "$[/b] <b> 猫 {0} $x^"
    rows = [figure(m, 0.4, task=name, subset=s) for m in ("none", name) for s in ("", *(f"{name}{i}" for i in "abc"))]
    rows += [figure(name, 0.4, task="sweep", lam=lam) for lam in (0.0, 1.0, 9.0)]
    made = result(rows, protocol(name, title=name), name=name)
    console = Console(record=True, width=300)
    print_table(made, console)
    assert name in console.export_text()
    assert "<b> 猫" not in render(made, tmp_path / "index.html", beside=tmp_path).read_text()
    plot = dumbbells([name], np.array([0.1]), np.array([0.9]), name, name)
    save_png(plot, tmp_path / "a.png", {})
    save_png(contact_sheet([(name, torch.rand(2, 3, 4, 4))]), tmp_path / "b.png", {})
    comparison = compare(made, made)
    print_comparison(comparison, console)
    assert "<b> 猫" not in write_comparison(comparison, tmp_path / "c.html").read_text()


def test_tables_of_the_page_can_be_read_aloud(made: Result, tmp_path: Path) -> None:
    page = write_page(made, [], tmp_path / "index.html").read_text()
    tables = re.findall(r"<table[^>]*>(.*?)</table>", page, re.DOTALL)
    assert len(tables) == 5  # how it was made, what changed, by method, by part, protocol
    for table in tables[1:4]:
        assert "<caption>" in table
        assert not re.search(r"<th(?! scope=\"(col|row)\")[ >]", table)
    assert '<html lang="en">' in page
    assert 'name="viewport"' in page


def test_pictures_stand_with_their_task(made: Result, tmp_path: Path) -> None:
    plot = contact_sheet([("a", torch.rand(3, 3, 8, 8))])
    inside = save_png(plot, tmp_path / "inside.png", {"task": "birds"})
    above = save_png(plot, tmp_path / "above.png", {"task": "of another result"})
    drawn = save_png(plot, tmp_path / "drawn.png", {"task": "birds"})
    chart = save_png(plot, tmp_path / "chart.png", {"task": "birds", "chart": True})
    given = [("chart", chart), ("drawn", drawn), ("inside", inside), ("above", above)]
    page = write_page(made, given, tmp_path / "index.html").read_text()
    places = [
        page.index(text) for text in ('alt="drawn"', "What came out", 'alt="above"', "<section aria", 'alt="inside"')
    ]
    assert places == sorted(places)
    assert page.count('alt="drawn"') == 1
    page = write_page(made, given[:1], tmp_path / "index.html").read_text()  # nothing was drawn, but a chart
    assert page.index('alt="chart"') < page.index("What came out")


def test_a_task_in_which_nothing_was_compared_has_no_card(tmp_path: Path) -> None:
    rows = [figure("none"), figure("orth", 0.7, change=(0.2, 0.1, 0.3)), figure("none", task="alone")]
    page = write_page(result(rows), [], tmp_path / "index.html").read_text()
    assert page.count("<article>") == 1
    assert '<a href="#task-2">' not in page
    assert 'id="task-2"' in page


WORLD = {"settings": {"gallery": {"source": {"world": "birds"}}}, "split": "birds test", "model": "RN50"}
PHOTOS = {"settings": {"data": {"source": {"folder": "celeba"}}}, "split": "celeba test", "model": "miniature"}


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([WORLD], True),
        ([WORLD, {"split": "birds test"}], True),  # cosines of the texts of the same task
        ([{"model": "miniature (StableDiffusionPipeline)", "split": "generated"}], True),
        ([{"model": "miniature", "split": "texts"}], True),
        ([{"model": "ViT-L-14", "split": "generated"}], False),
        ([PHOTOS], False),  # the small model, asked about photographs
        ([WORLD, PHOTOS], False),
        ([], False),
    ],
)
def test_cartoon_people_are_named_where_they_were_measured(
    tasks: list[dict[str, Any]], said: bool, tmp_path: Path
) -> None:
    made = result([figure()], *(protocol(f"birds{i}", **fields) for i, fields in enumerate(tasks)))
    page = write_page(made, [], tmp_path / "index.html").read_text()
    assert ("cartoon people" in page) == said
    assert ("cartoon people" in markdown(made)) == said


def test_a_result_is_rendered_again_with_the_pictures_beside_it(made: Result, tmp_path: Path) -> None:
    plot = contact_sheet([("a", torch.rand(3, 3, 8, 8))])
    told = {"run": "x", "task": "birds", "caption": "strips"}
    save_png(plot, tmp_path / "strips.png", told)
    save_png(plot, tmp_path / "chart.png", told | {"chart": True})
    save_png(plot, tmp_path / "stranger.png", told | {"run": "another"})
    Image.new("RGB", (4, 4)).save(tmp_path / "plain.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    assert [path.name for _, path in pictures_beside(made, tmp_path)] == ["strips.png"]
    assert picture_metadata(tmp_path / "missing.png") == {}
    first = render(made, tmp_path / "a" / "page.html", beside=tmp_path).read_bytes()
    assert render(made, tmp_path / "b" / "page.html", beside=tmp_path).read_bytes() == first
    assert first.count(b"data:image/png;base64,") == 3  # strips, bars by measure, bars by group


def test_settings_are_written_without_braces() -> None:
    assert plain({"a": [1, 2], "b": None, "c": {"d": True}}) == "a: 1, 2; b; c: d: yes"
    assert [plain(v) for v in (None, 0.25, [], "x", False)] == ["none", "0.25", "none", "x", "no"]
