"""Results: round trip, verdicts from the interval of the change, a page in one file that needs no network."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from rich.console import Console

from vldebias.evaluation.pictures import bars, contact_sheet, dumbbells, save_png
from vldebias.evaluation.report import markdown_table, print_table, rows, write_page
from vldebias.evaluation.result import Figure, Protocol, Result, versions


def figure(method: str, value: float, change: tuple[float, float, float] | None, better: str = "higher") -> Figure:
    interval = (value - 0.1, value + 0.1)
    return Figure(
        task="birds",
        metric="average",
        method=method,
        value=value,
        interval=interval,
        change=change,
        better=better,
        n={},
    )


@pytest.fixture
def result() -> Result:
    protocol = Protocol(
        task="birds",
        description="<script>alert(1)</script>",
        model="m",
        fingerprint=None,
        prompts="waterbirds",
        prompts_hash="0" * 64,
        split="test",
        methods={"none": {}},
        seeds=[0],
        n={"images": 3},
    )
    figures = [
        figure("none", 0.5, None),
        figure("orth", 0.7, (0.2, 0.1, 0.3)),
        figure("cali", 0.4, (-0.1, -0.2, -0.05)),
        figure("orth-cali", 0.5, (0.0, -0.1, 0.1)),
    ]
    return Result(name="x", figures=figures, protocols=[protocol], versions=versions(), commit=None, seconds=1.0)


def test_round_trip(result: Result, tmp_path: Path) -> None:
    path = result.write(tmp_path / "deep" / "r.json")
    assert Result.model_validate_json(path.read_text()) == result
    assert list(path.parent.iterdir()) == [path]


def test_unknown_keys_are_refused(result: Result) -> None:
    with pytest.raises(ValidationError, match="extra"):
        Result.model_validate({**result.model_dump(), "extra": 1})


def test_verdicts(result: Result) -> None:
    assert [row[5] for row in rows(result)] == ["", "better", "worse", "unclear"]
    lower = result.model_copy(update={"figures": [figure("cali", 0.3, (-0.2, -0.3, -0.1), "lower")]})
    assert rows(lower)[0][5] == "better"
    same = result.model_copy(update={"figures": [figure("cali", 0.3, (0.0, 0.0, 0.0))]})
    assert rows(same)[0][5] == "same"


def test_figure_names_what_there_is(result: Result) -> None:
    assert result.figure("birds", "average", "orth").value == 0.7
    with pytest.raises(KeyError, match="orth-cali"):
        result.figure("birds", "average", "erm")


def test_table_and_markdown_hold_every_value(result: Result) -> None:
    console = Console(record=True, width=160)
    print_table(result, console)
    text = console.export_text()
    table = markdown_table(result, [("birds", "average")])
    assert len(table.splitlines()) == 6
    for value in ("0.500 [0.400, 0.600]", "+0.200 [+0.100, +0.300]"):
        assert value in text
        assert value in table
    assert len(markdown_table(result, []).splitlines()) == 2


def test_dumbbells_join_before_and_after_in_the_order_of_before() -> None:
    axis = dumbbells(["a", "b", "c"], np.array([0.9, 0.1, 0.5]), np.array([0.2, 0.6, 0.5]), "shares").axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["b", "c", "a"]
    before, after = (points.get_offsets()[:, 0].tolist() for points in axis.collections[-2:])
    assert (before, after) == ([0.1, 0.5, 0.9], [0.6, 0.5, 0.2])


def test_page_is_one_safe_file(result: Result, tmp_path: Path) -> None:
    sheet = contact_sheet([("a", torch.rand(3, 3, 8, 8)), ("b", torch.rand(3, 3, 8, 8))])
    told = {"prompt": "A photo of a doctor.", "changed": True}
    png = save_png(sheet, tmp_path / "sheet.png", told)
    chart = save_png(bars(result.figures, {("birds", "average"): "Birds"}), tmp_path / "bars.png", {})
    with Image.open(png) as image:
        assert json.loads(image.info["vldebias"]) == told
    page = write_page(result, [("a sheet", png), ("bars", chart)], tmp_path / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "<script>" not in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "0.700 [0.600, 0.800]" in page
