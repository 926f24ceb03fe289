"""Test the list of runs and the page of impact ratios in a browser: sorted by a click, no wider
than a phone, and accessible."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, check_page, opened
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.report.runs import render_runs

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
def impact(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page for applicants of seven races with long names."""
    folder = tmp_path_factory.mktemp("impact")
    lines = ["sex,race,hired"]
    for place, race in enumerate(("Native Hawaiian or Other Pacific Islander", "White", "Asian")):
        for sex in ("Female", "Male"):
            number = (2, 120, 80)[place]
            lines += [
                f"{sex},{race},{'yes' if row % (place + 2) else 'no'}" for row in range(number)
            ]
    (folder / "a.csv").write_text("\n".join(lines))
    arguments = ["eval", "shares", str(folder / "a.csv"), "--impact-ratio", "--out", str(folder)]
    columns = ["--selected-column", "hired", "--sex-column", "sex", "--race-column", "race"]
    assert CliRunner().invoke(app, [*arguments, *columns]).exit_code == 0
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", ["runs", "impact"])
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
