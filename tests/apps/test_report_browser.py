"""The page of a result in a browser: how far one scrolls before the appendix, on a desk and on a telephone."""

from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, opened, shoot, sideways, violations

from vldebias.evaluation.report.pages import write_page
from vldebias.evaluation.result import Result

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "eval" / "results"
HEIGHTS = {WIDE: 900, NARROW: 844}
MOST = 3  # screens before the appendix
APPENDIX = "[...document.querySelectorAll('h2')].find(h => h.textContent.startsWith('Appendix')).offsetTop"


@pytest.fixture(scope="module", params=["miniature", "quickstart"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Name and page: the largest of the committed results, and the one that a newcomer makes."""
    result = Result.read(RESULTS / f"{request.param}.json")
    path = write_page(result, [], tmp_path_factory.mktemp("report") / "index.html")
    return request.param, path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_what_came_out_fits_three_screens_and_is_usable_by_everyone(
    browser: Any, report: tuple[str, str], width: int
) -> None:
    name, html = report
    with opened(browser, "http://127.0.0.1", width, HEIGHTS[width], go=False) as page:
        page.set_content(html)
        assert page.evaluate(APPENDIX) <= MOST * HEIGHTS[width]
        assert sideways(page) <= 0
        assert violations(page) == []
        first = page.locator("article").first
        assert first.locator("p").first.inner_text().endswith(".")
        assert first.locator("summary.best .dot").count() >= 1
        shoot(page, f"report-{name}-{width}", full=False)
        first.locator("summary").click()
        assert first.locator("table.forest").is_visible()
        assert sideways(page) <= 0
