"""The page of a result in a browser: its table on the first screen, nothing wider than a telephone, readable by all."""

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, opened, shoot, sideways, violations
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.evaluation.report import render
from vldebias.evaluation.result import Result

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "eval" / "results"
HEIGHTS = {WIDE: 900, NARROW: 844}
GROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 28, 35)"}
LOOKS = pytest.mark.parametrize(
    ("width", "scheme"), [(WIDE, "light"), (NARROW, "light"), (WIDE, "dark"), (NARROW, "dark")]
)


@pytest.fixture(scope="module", params=["miniature", "quickstart"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Name and page: the largest of the committed results, and the one that a newcomer makes."""
    result = Result.read(RESULTS / f"{request.param}.json")
    folder = tmp_path_factory.mktemp("report")
    return request.param, render(result, folder / "index.html", beside=folder).read_text(encoding="utf-8")


@LOOKS
def test_an_audit_is_readable_in_both_schemes(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    (tmp_path / "p.txt").write_text("A photo of a nurse.\nA photo of a firefighter.\nA photo of a female doctor.\n")
    asked = ["audit", str(tmp_path / "p.txt"), "--out", str(tmp_path / "o")]
    assert CliRunner().invoke(app, [*asked, "--prompts", "gender", "--model", "miniature"]).exit_code == 0
    with opened(browser, "http://127.0.0.1", width, HEIGHTS[width], go=False, color_scheme=scheme) as page:
        page.set_content((tmp_path / "o" / "index.html").read_text(encoding="utf-8"))
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == GROUND[scheme]
        plots = page.evaluate("[...document.images].map(one => getComputedStyle(one).backgroundColor)")
        assert set(plots) <= {"rgb(255, 255, 255)"}  # pictures keep white ground
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert violations(page) == []
        assert sideways(page) <= 0
        shoot(page, f"audit-{width}-{scheme}", full=False)


@LOOKS
def test_a_report_is_usable_by_everyone(browser: Any, report: tuple[str, str], width: int, scheme: str) -> None:
    name, html = report
    with opened(browser, "http://127.0.0.1", width, HEIGHTS[width], go=False, color_scheme=scheme) as page:
        page.set_content(html)
        assert violations(page) == []
        assert sideways(page) <= 0
        assert page.locator("table.front tbody tr").count() == page.locator("table.front a").count() > 0
        shoot(page, f"report-{name}-{width}" + ("-dark" if scheme == "dark" else ""), full=False)
        task = page.locator("details.task").first
        task.locator("summary").first.click()
        assert task.locator("table").first.is_visible()
        assert sideways(page) <= 0


def test_the_table_is_on_the_first_screen(browser: Any, report: tuple[str, str]) -> None:
    name, html = report
    for width in (WIDE, NARROW):
        with opened(browser, "http://127.0.0.1", width, HEIGHTS[width], go=False) as page:
            page.set_content(html)
            box = page.locator("table.front").bounding_box()
            assert box is not None
            if name == "quickstart":  # the other has four times as many tasks, each with a sentence above
                assert box["y"] <= HEIGHTS[width] * 2 / 3
                assert width == NARROW or box["y"] + box["height"] <= HEIGHTS[width]
            else:
                assert box["y"] <= HEIGHTS[width] * (2 if width == NARROW else 1)


def test_a_short_result_prints_on_one_page(browser: Any, report: tuple[str, str]) -> None:
    name, html = report
    with opened(browser, "http://127.0.0.1", WIDE, HEIGHTS[WIDE], go=False) as page:
        page.set_content(html)
        printed = page.pdf(prefer_css_page_size=True, print_background=True)
        assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= {"quickstart": 1, "miniature": 2}[name]
        page.emulate_media(media="print")
        assert page.locator("table.front").is_visible()
        assert not page.locator("details.task").first.is_visible()
