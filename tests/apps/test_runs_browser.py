"""Test the list of runs, a page of values by category and a page of generated images in a browser:
no wider than a phone, and accessible. Tables are sorted by a click."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, check_page, opened
from PIL import Image
from typer.testing import CliRunner

from apps.runs.listing import render_runs
from vldebias.cli import app

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "eval" / "results"
SCREENS = [(WIDE, "light"), (NARROW, "dark")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page for five runs, four of which measured the same, and an unreadable file."""
    folder = tmp_path_factory.mktemp("runs")
    for run in ("quickstart", "again", "and-again", "once-more", "skin"):
        (folder / run).mkdir()
        name = run if (RESULTS / f"{run}.json").exists() else "quickstart"
        shutil.copy(RESULTS / f"{name}.json", folder / run / "result.json")
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
    arguments = ["eval", "captions", str(folder / "a.csv"), "--out", str(folder)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of `vldebias generate` for a pipeline and a folder of larger images."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "own").mkdir()
    for name in ("1.png", "2.png"):
        Image.effect_noise((300, 200), 60).convert("RGB").save(folder / "own" / name)
    arguments = ["generate", "A photo of an editor.", "--attribute", "gender", "--images", "2"]
    arguments += ["--steps", "1", "--pipeline", "miniature", "--pipeline", str(folder / "own")]
    result = CliRunner().invoke(app, [*arguments, "--out", str(folder / "out")])
    assert result.exit_code == 0, result.output
    return (folder / "out" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", ["runs", "captions", "generated"])
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
        table = page.locator(".runs").first
        number = table.locator("tbody tr").count()
        assert number >= 12
        lead = "MaxSkew@20"
        for head, column, read in ((lead, 3, float), ("run", 0, str)):
            button = table.locator("thead button").nth(column)
            assert button.inner_text().startswith(head)
            for is_falling in (False, True):
                button.focus()
                page.keyboard.press("Enter")
                cells = table.locator("tbody tr").evaluate_all(
                    f"rows => rows.map(row => row.cells[{column}].dataset.sort)"
                )
                values = [read(cell) for cell in cells]
                assert len(values) == number
                assert values == sorted(values, reverse=is_falling)
                sorting = "descending" if is_falling else "ascending"
                assert table.locator("[aria-sort]").get_attribute("aria-sort") == sorting


def test_the_reader_chooses_metrics_and_rows_and_a_phone_needs_few_screens(
    browser: Any, runs: str
) -> None:
    with opened(browser, "http://127.0.0.1", NARROW, go=False) as page:
        page.set_content(runs)
        assert page.evaluate("document.documentElement.scrollHeight") <= 6000
        task = page.locator("details.task").first
        shown = task.locator("tbody tr:visible")
        assert shown.count() == 12
        assert task.locator("tbody tr[data-plain]:visible").count() == 0
        page.get_by_label("also rows without a method").check()
        task.get_by_role("button", name="Show all 16 rows").click()
        assert shown.count() == 16
        assert task.locator("tbody tr[data-plain]:visible").count() == 4
        # The fourth metric is shown once it is chosen, and the first one is not once it is not.
        boxes = task.locator(".choose input")
        task.locator(".choose summary").click()
        for place, is_shown in ((0, True), (3, False)):
            cells = task.locator(f'[data-metric="{place}"]:visible')
            assert (cells.count() > 0) == is_shown
            boxes.nth(place).set_checked(not is_shown)
            assert (cells.count() > 0) == (not is_shown)
        # A word filters the rows of all tasks, and tasks without a match disappear.
        page.get_by_label("Filter").fill("generation balanced")
        assert page.locator("details.task:visible").count() == 1
        assert page.locator("form output").inner_text().startswith("4 of ")


def test_a_folder_with_many_tasks_lists_the_first_and_a_filter_searches_all(
    browser: Any, tmp_path: Path
) -> None:
    for file in RESULTS.glob("photographs.*"):
        shutil.copy(file, tmp_path / file.name)
    page_of_runs, _ = render_runs(tmp_path)
    with opened(browser, "http://127.0.0.1", NARROW, go=False) as page:
        page.set_content(page_of_runs.read_text(encoding="utf-8"))
        tasks = page.locator("details.task:visible")
        more = page.locator("#tasks")
        assert tasks.count() == 20
        total = page.locator("details.task").count()
        assert more.inner_text() == f"Show {total - 20} more tasks"
        page.locator("input[name=words]").fill("CelebA")
        assert 0 < tasks.count() < total
        assert not more.is_visible()
        page.locator("input[name=words]").fill("")
        more.click()
        assert tasks.count() == total
        assert not more.is_visible()
