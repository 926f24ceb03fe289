"""Test the result page in a browser: its table is on the first screen, nothing is wider than a
phone, and it is accessible."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, check_page, opened
from PIL import Image
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.measure.rows import Strip
from vldebias.report.page import render
from vldebias.report.result import Result
from vldebias.report.strip import write_strip

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "eval" / "results"
QUICKSTART = "quickstart.json"
HEIGHTS = {WIDE: 900, NARROW: 844}
GROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 28, 35)"}


@pytest.fixture(scope="module", params=["miniature", "quickstart", "audit"])
def report(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """Return the name and page of the largest committed result, of a result that a new user
    creates, and of an audit."""
    folder = tmp_path_factory.mktemp("report")
    if request.param == "audit":
        (folder / "p.txt").write_text(
            "A photo of a nurse.\nA photo of a firefighter.\nA photo of a female doctor.\n"
        )
        command = f"audit {folder / 'p.txt'} --out {folder} --attribute gender"
        assert CliRunner().invoke(app, command.split()).exit_code == 0
    else:
        result = Result.read(RESULTS / f"{request.param}.json")
        faces = [Image.effect_noise((64, 64), 60).convert("RGB") for _ in range(8)]
        rows = [(f"as row {i}: 7 male, 1 unclear", faces) for i in range(4)]
        strip = Strip("The same seeds", [f"seed {i}" for i in range(8)], rows)
        write_strip(strip, folder / "a-strip.png", {"run": result.name, "task": "a"})
        render(result, folder / "index.html", run_folder=folder)
    return request.param, (folder / "index.html").read_text(encoding="utf-8")


# The width changes the layout and the scheme changes the colours, so two screens cover both.
@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_a_report_is_accessible_on_every_screen(
    browser: Any, report: tuple[str, str], width: int, scheme: str
) -> None:
    name, html = report
    high = HEIGHTS[width]
    with opened(browser, "http://127.0.0.1", width, high, go=False, color_scheme=scheme) as page:
        page.set_content(html)
        if name == "audit":
            assert (
                page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
                == GROUND[scheme]
            )
            plots = page.evaluate(
                "[...document.images].map(one => getComputedStyle(one).backgroundColor)"
            )
            assert set(plots) <= {GROUND["light"]}  # images have a white background
        else:
            assert 0 < page.locator("table.front a").count() <= 10
            # Each method has a row at its own setting and at the paper's. The larger result has
            # four times as many tasks.
            rows = {"quickstart": 14, "miniature": 50}[name]
            assert page.locator("table.front tbody tr").count() <= rows
            box = page.locator("table.front").bounding_box()
            # The table begins on the first screen, or below it on a phone, after one sentence for
            # each of four or ten tasks.
            screens = 1.65 if name == "quickstart" else 2.1
            assert box["y"] <= high * (screens if width == NARROW else 1)
            assert name == "miniature" or width == NARROW or box["y"] + box["height"] <= 1.55 * high
        check_page(page, f"{name}-{width}-{scheme}", full=False)
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert name == "audit" or page.locator("details.task table").first.is_visible()
        check_page(page)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("report", ["quickstart"], indirect=True)
def test_images_can_be_viewed_and_enlarged_by_mouse_and_keyboard(
    browser: Any, report: tuple[str, str], width: int
) -> None:
    with opened(browser, "http://127.0.0.1", width, HEIGHTS[width], go=False) as page:
        page.set_content(report[1])
        images = page.locator(".face img")
        boxes = [image.bounding_box() for image in images.all()]
        assert len(boxes) == 32
        assert min(box["width"] for box in boxes) >= 96
        rows = {round(box["y"]) for box in boxes}
        assert len(rows) == {WIDE: 4, NARROW: 8}[width]
        images.nth(3).click()
        assert images.nth(3).bounding_box()["width"] >= min(width, HEIGHTS[width]) * 0.85
        check_page(page, f"enlarged-{width}", full=False)
        images.nth(3).click()
        assert images.nth(3).bounding_box()["width"] < 200
        page.locator(".face input").first.focus()
        page.keyboard.press("Space")
        assert images.first.bounding_box()["width"] > 200


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("report", ["rivals_miniature"], indirect=True)
def test_plot_labels_are_not_cut_off(browser: Any, report: tuple[str, str], width: int) -> None:
    """Method names may be as long as "calibration and equalised image means, lam 100"."""
    with opened(browser, "http://127.0.0.1", width, HEIGHTS[width], go=False) as page:
        page.set_content(report[1])
        cut = page.evaluate(
            """() => [...document.querySelectorAll(".dots svg")].flatMap(plot => {
                const room = plot.getBoundingClientRect();
                const isOutside = text => {
                    const box = text.getBoundingClientRect();
                    return box.left < room.left - 1 || box.right > room.right + 1;
                };
                return [...plot.querySelectorAll("text")].filter(isOutside)
                    .map(text => text.textContent);
            })"""
        )
        # Each of the two tasks has a plot of bias against cost, and one of its values.
        assert page.locator(".dots svg").count() == 4
        assert cut == []
        check_page(page)


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_ticked_runs_are_plotted_and_two_runs_are_compared(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    names = ("first", "second run", "third")
    for name in names:
        shutil.copytree(RESULTS, tmp_path / name, ignore=lambda _, files: {*files} - {QUICKSTART})
    html = tmp_path / "runs.html"
    done = CliRunner().invoke(app, ["eval", "compare", str(tmp_path), "--out", str(html)])
    assert done.exit_code == 0
    high = HEIGHTS[width]
    with opened(browser, "http://127.0.0.1", width, high, go=False, color_scheme=scheme) as page:
        page.set_content(html.read_text(encoding="utf-8"))
        shown = page.locator("tr[class]:visible")
        assert shown.count() > 3
        assert shown.count() % 3 == 0
        n = shown.count() // 3
        page.locator("input").nth(1).uncheck()
        assert shown.count() == 2 * n
        check_page(page, f"runs-{width}-{scheme}")
    pair = [str(tmp_path / name / QUICKSTART) for name in names[:2]]
    out = ["--out", str(tmp_path / "compare.html")]
    assert CliRunner().invoke(app, ["eval", "compare", *pair, *out]).exit_code == 0
    with opened(browser, "http://127.0.0.1", width, high, go=False, color_scheme=scheme) as page:
        page.set_content((tmp_path / "compare.html").read_text(encoding="utf-8"))
        assert "equal: no change from A" in page.inner_text("main")
        check_page(page, f"compare-{width}-{scheme}")


@pytest.mark.parametrize("report", ["quickstart", "miniature"], indirect=True)
def test_a_short_result_prints_on_one_page(browser: Any, report: tuple[str, str]) -> None:
    name, html = report
    with opened(browser, "http://127.0.0.1", WIDE, HEIGHTS[WIDE], go=False) as page:
        page.set_content(html)
        printed = page.pdf(prefer_css_page_size=True, print_background=True)
        assert (
            len(re.findall(rb"/Type\s*/Page\b", printed)) <= {"quickstart": 2, "miniature": 4}[name]
        )
        page.emulate_media(media="print")
        assert page.locator("table.front").is_visible()
        assert not page.locator("details.task").first.is_visible()
