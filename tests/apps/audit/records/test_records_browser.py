"""Test the page of records in a browser: dots at their shares, sorted by a click, and readable on a
phone and in dark mode."""

import re
from pathlib import Path
from typing import Any

import pytest

from apps.audit.records.page import read_records, render
from eval.record_sources import RECORDS
from tests.apps.browsing import NARROW, WIDE, check_page, opened

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    page = tmp_path_factory.mktemp("records") / "who-appears.html"
    page.write_text(render(read_records([RECORDS])), encoding="utf-8")
    return page.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "light"), (WIDE, "dark")])
def test_the_table_fits_and_is_readable_in_a_browser(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    html = Path(address.removeprefix("file://")).read_text(encoding="utf-8")
    with opened(browser, "about:blank", width=width, color_scheme=scheme, go=False) as page:
        page.set_content(html)
        check_page(page, f"records-{width}-{scheme}", full=False)
        records = {record.name for record in read_records([RECORDS])}
        links = page.locator("tbody a, section > p a").evaluate_all("all => all.map(x => x.hash)")
        # The only record about race has nothing to be compared with.
        assert {link.removeprefix("#") for link in links} == records - {"sd21-paper-race"}
        # A dot lies at its share of the width, and the dashed line of two values at one half.
        dot = page.locator(".dot", has_text="flux2-stay-fair")
        frame, circle, even = (dot.locator(x).bounding_box() for x in ("svg", ".all", ".even"))
        percent = int(re.search(r"(\d+)% female in total", dot.inner_text())[1])
        centre = circle["x"] + circle["width"] / 2 - frame["x"]
        assert 100 * centre / frame["width"] == pytest.approx(percent, abs=0.6)
        # Tables are only open if there is no plot.
        assert page.locator("section:has(figure) details[open]").count() == 0
        assert page.locator("section:not(:has(figure)) details:not([open])").count() == 0
        # Each profession has a small dot, and the most even professions of a group come first.
        assert dot.locator(".one").count() == 33
        groups = page.locator("figure").first.inner_text().split("100%: all")[1:]
        unevenness = [list(map(int, re.findall(r"unevenness (\d+)%", text))) for text in groups]
        models = page.locator("figure").first.locator(".one-model").count()
        assert sum(map(len, unevenness)) == models > 5
        assert all(of_group == sorted(of_group) for of_group in unevenness)
        assert (even["x"] - frame["x"]) / frame["width"] == pytest.approx(0.5, abs=0.01)


def shares(page: Any) -> list[float]:
    """Return the sorted column of the first group, which has several models."""
    cells = page.locator("#t1-1 tbody").first.locator("td:nth-child(2)[data-value]")
    return [float(value) for value in cells.evaluate_all("all => all.map(x => x.dataset.value)")]


def test_a_click_sorts_by_a_column_and_a_second_click_reverses_the_order(
    browser: Any, address: str
) -> None:
    html = Path(address.removeprefix("file://")).read_text(encoding="utf-8")
    with opened(browser, "about:blank", go=False) as page:
        page.set_content(html)
        page.locator("details.table summary").first.click()
        button = page.locator("#t1-1 thead th:nth-child(2) button")
        assert len(shares(page)) > 4
        assert shares(page) != sorted(shares(page))
        button.click()
        assert shares(page) == sorted(shares(page))
        # Rows stay below the heading of their group.
        first_rows = page.locator("#t1-1 tbody tr:first-child")
        assert first_rows.locator("th[scope=rowgroup]").count() == first_rows.count() > 3
        assert page.locator("#t1-1 thead [aria-sort=ascending]").count() == 1
        button.click()
        assert shares(page) == sorted(shares(page), reverse=True)
        # Models without counts always come last.
        assert "without counts" in page.locator("#t1-1 tbody").last.inner_text()


def test_a_phone_sorts_with_a_list(browser: Any, address: str) -> None:
    html = Path(address.removeprefix("file://")).read_text(encoding="utf-8")
    with opened(browser, "about:blank", width=NARROW, go=False) as page:
        page.set_content(html)
        # The plots show the same, so the tables are closed.
        assert not page.locator("#t1-1").is_visible()
        page.locator("details.table summary").first.click()
        page.locator(".sorter select").first.select_option("1")
        assert shares(page) == sorted(shares(page))


def test_a_table_wider_than_the_window_scrolls_in_its_own_frame(browser: Any, address: str) -> None:
    html = Path(address.removeprefix("file://")).read_text(encoding="utf-8")
    with opened(browser, "about:blank", width=900, go=False) as page:
        page.set_content(html)
        page.add_style_tag(content=".wide table { min-width: 2000px; }")
        page.locator("details.table summary").first.click()
        frame = page.locator(".wide").first
        frame.evaluate("frame => { frame.scrollLeft = 300; }")
        assert frame.evaluate("frame => frame.scrollLeft") == 300
        sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(sideways) <= 0
