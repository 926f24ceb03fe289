"""Test `vldebias demo` in a browser: the first view, a click, wide and narrow windows, light and
dark. And test it with ten visitors at a time."""

import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, check_page, free_port, opened, served

from apps.demo.generate_tab import STARTING

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(["demo"], tmp_path_factory.mktemp("demo") / "log", free_port()) as (address, _):
        yield address


def verdict(page: Any) -> str:
    page.locator("#verdict .line, #verdict .warning").first.wait_for()
    return str(page.locator("#verdict [role=status]").inner_text())


# The width changes the layout and the scheme changes the colours, so two screens cover both.
@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "dark"), (NARROW, "light")])
def test_the_first_click_reproduces_the_saved_verdict(
    address: str, browser: Any, width: int, scheme: str
) -> None:
    with opened(browser, address, width, color_scheme=scheme) as page:
        before = verdict(page)
        check_page(page)
        page.locator("#generate-button").click()
        page.wait_for_timeout(2000)
        assert verdict(page) == before
        check_page(page, f"demo-{scheme}-{width}")


def test_results_are_dimmed_when_a_setting_changes_and_try_runs(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        verdict(page)
        page.get_by_label("Prompt").fill("A photo of a nurse.")
        page.locator("#rows.stale").wait_for()
        check_page(page)
        page.get_by_role("button", name="A photo of a gull on water.").click()
        page.wait_for_function(
            "document.querySelector('#verdict').innerText.includes('Left unchanged')"
        )
        assert "no person" in verdict(page)
        assert page.locator("#verdict .warning").count() == 0, "the answer is correct"
        assert "s each" in page.locator("#status").inner_text()
        page.locator("#rows:not(.stale)").wait_for()


def test_a_second_press_while_images_are_generated_is_answered(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        verdict(page)
        for job in ("cook", "pilot"):
            page.get_by_label("Prompt").fill(f"A photo of a {job} in a garden.")
            page.locator("#generate-button").click()
            page.wait_for_timeout(500)
        page.wait_for_function(
            "document.querySelector('#verdict').innerText.includes('a pilot in a garden')"
            " && document.querySelector('#verdict .line, #verdict .warning')"
        )
        page.locator("#rows:not(.stale)").wait_for()
        shown = page.locator("#rows img").first.get_attribute("alt")
        assert shown.startswith("seed 0")


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_click_enlarges_and_escape_closes(address: str, browser: Any, width: int) -> None:
    with opened(browser, address, width) as page:
        verdict(page)
        first = page.locator("#row-0 img").first
        small = first.bounding_box()
        assert small["width"] >= 88
        last = page.locator("#row-0 img").nth(3 if width == NARROW else 7).bounding_box()
        assert min(small["x"], width - last["x"] - last["width"]) >= 6, "images keep a margin"
        assert small["y"] + small["height"] < 844, "the first image is visible without scrolling"
        first.click()
        large = first.bounding_box()
        assert large["width"] >= 0.85 * min(width, 900)
        assert large["y"] >= 0
        page.keyboard.press("Escape")
        assert first.bounding_box()["width"] == small["width"]
        first.click()
        page.get_by_role("tab", name="Search").click()
        assert first.is_visible(), "the backdrop covers the page"
        assert first.bounding_box()["width"] == small["width"], "a click outside closes it too"


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_settings_and_code_can_be_read(address: str, browser: Any, width: int) -> None:
    with opened(browser, address, width) as page:
        verdict(page)
        for name in ("Settings", "The same in Python"):
            page.get_by_role("button", name=name).first.click()
        code = page.locator("#code .cm-scroller")
        code.wait_for()
        assert code.evaluate("box => box.scrollWidth <= box.clientWidth"), "lines are wrapped"
        check_page(page)


def test_a_click_is_answered_at_once_and_the_announcement_disappears(
    address: str, browser: Any
) -> None:
    with opened(browser, address) as page:
        verdict(page)
        status = page.locator("#status p")
        before = status.inner_text()
        # A fast answer replaces the announcement before a poll can see it, so all texts are kept.
        page.evaluate(
            """() => {
                window.statusTexts = [];
                const keep = () =>
                    window.statusTexts.push(document.querySelector("#status")?.textContent ?? "");
                const changes = { childList: true, subtree: true, characterData: true };
                new MutationObserver(keep).observe(document.body, changes);
            }"""
        )
        page.locator("#generate-button").click()
        page.wait_for_function(
            f"window.statusTexts.some((text) => text.includes({STARTING[:8]!r}))"
        )
        # The settings are unchanged, so the server's answer must not change the text.
        page.wait_for_function(
            f"!document.querySelector('#status p').textContent.includes({STARTING[:8]!r})"
        )
        page.get_by_label("Prompt").fill("A photo of a baker.")
        page.get_by_label("Prompt").press("Enter")
        assert status.inner_text() != before
        page.wait_for_function("document.querySelector('#status').innerText.includes('s each.')")
        assert STARTING not in status.inner_text()
        page.get_by_label("Prompt").fill("")
        page.locator("#generate-button").click()
        page.get_by_text("prompt: the text is empty").wait_for()
        page.wait_for_function(
            f"!document.querySelector('#status p').textContent.includes({STARTING[:8]!r})"
        )


def test_the_layout_does_not_shift_while_images_load(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        verdict(page)
        before = page.locator("#row-1 li").last.bounding_box()
        page.get_by_label("Prompt").fill("A photo of a pilot.")
        page.locator("#generate-button").click()
        page.locator("#rows .face.empty").first.wait_for()
        boxes = page.locator("#row-1 li")
        assert boxes.count() == 16
        assert boxes.last.bounding_box() == before
        page.wait_for_function("document.querySelectorAll('#rows .face.empty').length === 0")
        page.locator("#verdict .line").first.wait_for()
        assert boxes.last.bounding_box() == before


def test_the_search_opens_on_a_result(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        page.get_by_role("tab", name="Search").click()
        rows = page.locator("#search-verdict tr").all_inner_texts()
        assert rows[0].split() == ["results", "first", "20", "kept"]
        assert [row.split()[0] for row in rows[1:]] == ["As", "Re-ranked"]
        assert all(row.endswith(" of 20") for row in rows[1:])
        assert not page.locator("#search-2").is_visible()
        shown = page.locator("#search-1 li > span:not(.title)").all_inner_texts()
        assert [text.split(".")[0] for text in shown] == [str(i + 1) for i in range(20)]
        women = sum("woman" in text for text in shown)
        assert f"{women} women, {20 - women} men" in rows[2], (
            "the images that are shown are counted"
        )
        assert {text.split()[1] for text in shown} <= {"man", "woman"}
        first = page.locator("#search-0 li > span:not(.title)").all_inner_texts()
        assert not [text for text in first if "was" in text or "new" in text]
        new = page.locator("#search-1 li > span:not(.title)", has_text="(new)").count()
        gone = page.locator("#search-1 .about").inner_text()
        assert gone.startswith("No longer in the first 20: ")
        assert len(re.findall(r"\d\.", gone)) == new > 0
        # Each image that left has a thumbnail with the same words.
        captions = page.locator("#search-1 .thumbnails figcaption").all_inner_texts()
        assert len(captions) == new
        assert all(caption in gone for caption in captions)
        assert all(page.locator("#search-1 .title").all_inner_texts())
        assert "Library of Congress" in page.locator("#search-source").inner_text()


def test_a_second_search_while_the_first_one_runs_is_answered(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        page.get_by_role("tab", name="Search").click()
        for job in ("cook", "pilot"):
            page.get_by_label("Query").fill(f"A photo of a {job}.")
            page.locator("#search-button").click()
        page.wait_for_function(
            "document.querySelector('#search-verdict').innerText.includes('A photo of a pilot.')"
        )
        page.locator("#results:not(.stale)").wait_for()


def test_each_gallery_has_its_own_queries_and_groups(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        page.get_by_role("tab", name="Search").click()
        page.get_by_label("Images", exact=True).click()
        page.get_by_role("option", name="cartoons").click()
        page.wait_for_function(
            "document.querySelector('#search-verdict').innerText.includes('of a nurse')"
        )
        assert page.get_by_label("Query").input_value() == "A photo of a nurse."
        assert page.locator("#search-1 li").count() == 20
        assert "Library of Congress" not in page.locator("#search-source").inner_text()


def test_a_search_and_a_classification_show_results(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        page.get_by_role("tab", name="Search").click()
        page.locator("#search-button").click()
        page.locator("#results:not(.stale)").wait_for()
        page.get_by_role("button", name="Settings").locator("visible=true").click()
        page.get_by_label("Also show the edited query").check()
        page.locator("#search-button").click()
        page.locator("#search-2 li").nth(19).wait_for()
        page.wait_for_function("document.querySelectorAll('.stale').length === 0")
        check_page(page, "demo-search")
        page.get_by_role("tab", name="Classify").click()
        page.locator("#classify-button").click()
        page.locator("#classify-verdict .line").wait_for()
        assert page.locator("#accuracy tr").count() == 5
        assert page.locator("#put-right li").count() == 8
        assert page.locator("#put-wrong li").count() > 0
        assert page.locator("#accuracy td.worse").count() > 0
        # Results for earlier settings are dimmed until the search has been answered.
        page.wait_for_function("document.querySelectorAll('.stale').length === 0")
        check_page(page, "demo-classify")


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_an_empty_query_is_answered_by_one_message(address: str, browser: Any, width: int) -> None:
    with opened(browser, address, width) as page:
        page.get_by_role("tab", name="Search").click()
        first = page.locator("#search-0 img").first.bounding_box()
        assert first["y"] + first["height"] < 844, "the first image is visible without scrolling"
        page.get_by_label("Query").fill("")
        page.locator("#search-button").click()
        page.get_by_text("query: the text is empty").wait_for()
        shown = [part for part in page.locator("#results .error").all() if part.is_visible()]
        assert shown == []


def test_visitor_input_is_displayed_as_text(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        verdict(page)
        page.get_by_label("Prompt").fill("<a href=//evil.example>x</a><img src=x onerror=alert(1)>")
        page.locator("#generate-button").click()
        page.wait_for_function("document.querySelector('#verdict').innerText.includes('<a href')")
        assert page.locator("#verdict a, #verdict img").count() == 0


def test_files_named_by_a_visitor_are_not_opened(address: str) -> None:
    import urllib.error
    import urllib.request

    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{address}/gradio_api/file={Path(__file__)}", timeout=10)


def generated(address: str, prompt: str) -> tuple[str, str, list[str]]:
    """Return the last status, verdict and images that a visitor receives."""
    url = f"{address}/gradio_api/call/generate"
    form = {"data": [prompt, "gender", 12, 1, "none", 0, 2, 3, "none"]}
    call = urllib.request.Request(
        url, json.dumps(form).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=60) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{url}/{event}", timeout=600) as stream:
        *_, last = stream.read().decode().strip().rpartition("data: ")
    status, verdict, *rows = json.loads(last)
    images = [re.findall(r'src="([^"]+)"', row.get("value", "")) for row in rows]
    return status, verdict, [source for row in images for source in row]


def test_ten_visitors_receive_the_same_images_for_the_same_prompt(address: str) -> None:
    prompts = [f"A photo of a {word}." for word in ("doctor", "nurse", "cook")]
    with ThreadPoolExecutor(10) as visitors:
        answers = list(visitors.map(lambda i: generated(address, prompts[i % 3]), range(10)))
    for i, (_, verdict, images) in enumerate(answers):
        assert prompts[i % 3] in verdict
        assert len(images) == 24
        assert (verdict, images) == answers[i % 3][1:]
    assert len({tuple(images) for _, _, images in answers}) == 3
    # Only the first visitor's status, which contains the time, differs.
    assert sum("From an earlier request" in status for status, _, _ in answers) == 7
