"""Test that rows whose interval is too narrow because of few prompts, queries or images are marked
wherever they are shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.study.made_figures import DOWN, bias, figure, protocol, result
from vldebias.measure.rows import CHANCE
from vldebias.report.page import render
from vldebias.report.result import Result
from vldebias.report.table import ENOUGH, FEW_NOTE, TOO_FEW, readable
from vldebias.report.text import text

PROMPTS = int(ENOUGH["prompts"]["discrepancy"])
IMAGES = int(ENOUGH["images"]["awrf"])
QUERIES = int(ENOUGH["queries"]["max_skew"])


def gap(method: str = "none", value: float = 0.4, **fields: Any) -> Any:
    names = {"task": "generation", "metric": "discrepancy", "n": {"professions": 20}}
    return bias(method, value, **{**names, **fields})


def few_of(*rows: Any) -> list[str]:
    tasks = dict.fromkeys(row.task for row in rows)
    made = result(list(rows), *map(protocol, tasks))
    return list(readable(made).few)


@pytest.mark.parametrize(
    ("row", "few"),
    [
        (gap(n={"professions": PROMPTS - 1, "images each": 8}), "few professions"),
        (gap(n={"prompts": PROMPTS, "images": 10**6}), ""),
        (gap(n={"jobs, the one with the widest gap of": 20}), "few jobs"),
        # The interval for a single prompt is over its images, and is valid.
        (gap(n={"images": 8}, subset="nurse"), ""),
        (gap(CHANCE), ""),
        (figure(metric="awrf@10", n={"images": IMAGES - 1, "queries": 10}), "few images"),
        (figure(metric="awrf@10", n={"images": IMAGES, "queries": 10}), ""),
        (figure(metric="ndkl@10", n={"images": 10**6, "queries": 10}), "narrow interval"),
        (figure(metric="worst_group", n={"images": 8}), ""),
        (figure(metric="worst_group", n={"images": 300, "smallest group": 10}), ""),
        (
            figure(metric="worst_group", n={"images": 300, "smallest group": 1}),
            "smallest group: 1 image",
        ),
        (figure(metric="of another package", n={}), ""),
    ],
)
def test_a_row_with_few_units_names_their_number(row: Any, few: str) -> None:
    assert few_of(row) == [few]


@pytest.mark.parametrize(
    ("value", "width", "verdict"),
    [(0.7, 0.0, TOO_FEW), (0.7, 0.1, "equal"), (0.0, 0.0, "equal")],
)
def test_a_bias_that_no_resample_changes_is_too_few_to_tell(
    value: float, width: float, verdict: str
) -> None:
    """With one image per prompt, every share is 0 or 1, whatever the images show."""
    interval = (value - width, value)
    rows = [gap(value=value, interval=interval)]
    rows.append(gap("default", value, interval=interval, change=(0.0, 0.0, 0.0)))
    assert list(readable(result(rows, protocol("generation"))).verdict)[1] == verdict


def test_the_resampled_unit_is_the_first_of_the_units() -> None:
    few_queries = {"queries": QUERIES - 1, "images": 10**6}
    many_images = {"images": 10**6, "queries": QUERIES - 1}
    assert few_of(bias("none", 0.5, n=few_queries)) == ["few queries"]
    assert few_of(bias("none", 0.5, n=many_images)) == [""]
    assert few_of(bias("none", 0.5, n={"queries": QUERIES, "images": 100})) == [""]


def test_terminal_page_notebook_and_file_mark_rows_with_few_units(tmp_path: Path) -> None:
    rows = [gap(), gap("default", 0.2, change=DOWN)]
    made = result(rows, protocol("generation"))
    shown = text(made)
    assert "0.40 [0.30, 0.50] few professions" in shown
    assert '(where "few": too narrow)' in shown
    page = render(made, tmp_path / "index.html", run_folder=tmp_path).read_text(encoding="utf-8")
    assert page.index("<small>few professions</small>") < page.index(FEW_NOTE)
    assert page.index(FEW_NOTE) < page.index("<details", page.index("<table"))
    assert "0.20 [0.10, 0.30], few professions" in made._repr_html_()
    file = made.write(tmp_path / "result.json")
    assert [row["few"] for row in json.loads(file.read_text())["figures"]] == [
        "few professions"
    ] * 2
    # Everything derived from the rows is ignored when they are read.
    assert Result.read(file) == made

    many = result([gap(n={"professions": PROMPTS})], protocol("generation"))
    assert "few" not in text(many)
    page = render(many, tmp_path / "many.html", run_folder=tmp_path).read_text(encoding="utf-8")
    assert FEW_NOTE not in page
    assert "few" not in many.write(tmp_path / "many.json").read_text()


def test_figures_without_methods_are_marked_too() -> None:
    probe = figure(metric="linear_probe", subset="gender", n={"images": 60})
    shown = text(result([probe], protocol(settings={"advice": ["Gender can be read."]})))
    assert "gender: 60 images; few images" in shown
    assert FEW_NOTE in " ".join(shown.split())  # the note is wrapped
