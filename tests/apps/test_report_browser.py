"""The page of a result in a browser: how far one scrolls before the appendix, on a desk and on a telephone."""

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, opened, shoot, sideways, violations
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.evaluation.report.pages import draw_charts, write_page
from vldebias.evaluation.result import Result

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "eval" / "results"
HEIGHTS = {WIDE: 900, NARROW: 844}
MOST = 3  # screens before the appendix
APPENDIX = "[...document.querySelectorAll('h2')].find(h => h.textContent.startsWith('Appendix')).offsetTop"


def page_of(result: Result, folder: Path) -> str:
    return write_page(result, [], folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=["miniature", "quickstart"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Name and page: the largest of the committed results, and the one that a newcomer makes."""
    return request.param, page_of(Result.read(RESULTS / f"{request.param}.json"), tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "light"), (WIDE, "dark"), (NARROW, "dark")])
def test_an_audit_is_readable_in_both_schemes(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """The page as the command writes it, with its plots, which stay on white."""
    (tmp_path / "p.txt").write_text("A photo of a nurse.\nA photo of a firefighter.\nA photo of a female doctor.\n")
    asked = ["audit", str(tmp_path / "p.txt"), "--out", str(tmp_path / "o")]
    asked += ["--prompts", "gender", "--model", "miniature"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    ground = {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 28, 35)"}[scheme]
    with opened(browser, "http://127.0.0.1", width, HEIGHTS[width], go=False, color_scheme=scheme) as page:
        page.set_content((tmp_path / "o" / "index.html").read_text(encoding="utf-8"))
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
        plots = page.evaluate("[...document.images].map(one => getComputedStyle(one).backgroundColor)")
        assert len(plots) >= 2
        assert scheme == "light" or set(plots) == {"rgb(255, 255, 255)"}
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert violations(page) == []
        assert sideways(page) <= 0
        shoot(page, f"audit-{width}-{scheme}", full=False)


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "light"), (NARROW, "dark")])
def test_what_came_out_fits_three_screens_and_is_usable_by_everyone(
    browser: Any, report: tuple[str, str], width: int, scheme: str
) -> None:
    name, html = report
    with opened(browser, "http://127.0.0.1", width, HEIGHTS[width], go=False, color_scheme=scheme) as page:
        page.set_content(html)
        assert page.evaluate(APPENDIX) <= MOST * HEIGHTS[width]
        assert sideways(page) <= 0
        assert violations(page) == []
        first = page.locator("article").first
        assert first.locator("p").first.inner_text().endswith(".")
        assert first.locator("summary.best .dot").count() >= 1
        shoot(page, f"report-{name}-{width}" + ("-dark" if scheme == "dark" else ""), full=False)
        first.locator("summary").click()
        assert first.locator("table.forest").is_visible()
        assert sideways(page) <= 0


def test_it_prints_on_one_page(browser: Any, report: tuple[str, str]) -> None:
    _, html = report
    with opened(browser, "http://127.0.0.1", WIDE, HEIGHTS[WIDE], go=False) as page:
        page.set_content(html)
        printed = page.pdf(prefer_css_page_size=True, print_background=True)
        assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
        page.emulate_media(media="print")
        assert page.locator("article").first.is_visible()
        assert not page.locator(".appendix").is_visible()


def test_a_picture_is_on_the_first_screen(browser: Any, report: tuple[str, str], tmp_path: Path) -> None:
    result = Result.read(RESULTS / f"{report[0]}.json")
    html = write_page(result, draw_charts(result, tmp_path), tmp_path / "index.html").read_text(encoding="utf-8")
    for width, most in ((WIDE, HEIGHTS[WIDE] / 3), (NARROW, HEIGHTS[NARROW] * 2 / 3)):
        with opened(browser, "http://127.0.0.1", width, HEIGHTS[width], go=False) as page:
            page.set_content(html)
            box = page.locator("header img").first.bounding_box()
            assert box is not None
            assert box["y"] <= most
            assert sideways(page) <= 0
