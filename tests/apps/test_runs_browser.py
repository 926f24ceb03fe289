"""Test the list of runs and a page of values by category in a browser: sorted by a click, no wider
than a phone, and accessible."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, check_page, opened
from typer.testing import CliRunner

from apps.runs.listing import render_runs
from vldebias.cli import app

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "eval" / "results"
SCREENS = [(WIDE, "light"), (NARROW, "dark")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page for two runs and an unreadable file."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("quickstart", "audit_other_models"):
        (folder / name).mkdir()
        shutil.copy(RESULTS / f"{name}.json", folder / name / "result.json")
    (folder / "broken").mkdir()
    (folder / "broken" / "result.json").write_text("{")
    page, _ = render_runs(folder)
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page for captions with long and short nouns, which lists values by noun."""
    folder = tmp_path_factory.mktemp("captions")
    nouns = ("emergency medical technician", "nurse", "pilot")
    lines = ["caption"]
    for noun in nouns:
        lines += [f"A photo of a {value} {noun}." for value in ("female", "male", "tall") * 20]
    (folder / "a.csv").write_text("\n".join(lines))
    arguments = ["audit", "--attribute", "gender", "--captions", str(folder / "a.csv")]
    arguments += ["--column", "caption", "--out", str(folder)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", ["runs", "captions"])
def test_the_pages_are_accessible_on_every_screen(
    browser: Any, request: pytest.FixtureRequest, name: str, width: int, scheme: str
) -> None:
    html = request.getfixturevalue(name)
    with opened(browser, "http://127.0.0.1", width, go=False, color_scheme=scheme) as page:
        page.set_content(html)
        check_page(page, f"{name}-{width}-{scheme}", full=False)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_click_sorts_by_a_column_and_a_second_click_reverses_it(
    browser: Any, runs: str, width: int
) -> None:
    with opened(browser, "http://127.0.0.1", width, go=False) as page:
        page.set_content(runs)
        number = page.locator(".runs tbody tr").count()
        for head, column, read in (("value", 5, float), ("run", 0, str)):
            button = page.locator(".runs thead button").nth(column)
            assert button.inner_text().startswith(head)
            for is_falling in (False, True):
                button.focus()
                page.keyboard.press("Enter")
                cells = page.eval_on_selector_all(
                    ".runs tbody tr", f"rows => rows.map(row => row.cells[{column}].dataset.sort)"
                )
                values = [read(cell) for cell in cells]
                assert len(values) == number
                assert values == sorted(values, reverse=is_falling)
                sorting = "descending" if is_falling else "ascending"
                assert page.locator("[aria-sort]").get_attribute("aria-sort") == sorting
