"""`vldebias demo` in a browser, at the width of a desk and of a telephone: what visitors see, press and send."""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, free_port, opened, served, shoot, sideways, violations
from compare_parts import BAD_UPLOADS, ODD_PROMPTS, encoded
from label_parts import draw as drawn_before
from PIL import Image

from vldebias.pictures import KEY

pytestmark = pytest.mark.slow

PICTURES = ":is(#pictures-none, #pictures-mitigated) .grid-container img"
TABS = {
    "Classify": ("classify", "#classification table"),
    "Retrieve": ("retrieve", "#retrieval svg"),
    "Inspect": ("inspect", "#inspection svg"),
    "Export": ("export", "#projection:not([disabled])"),
}


def shows(page: Any, number: int, what: str = PICTURES) -> None:
    """Wait until so many are there: a gallery is filled after the words beside it."""
    from playwright.sync_api import expect

    expect(page.locator(what)).to_have_count(number)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("demo")
    drawn_before(folder / "images" / "gender")
    with served(["demo", "--gallery", str(folder)], folder / "log", free_port()) as (found, _):
        yield found


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with opened(browser, address) as found:
        found.locator("#generate").wait_for()
        yield found


def open_settings(page: Any) -> None:
    if not page.locator("#steps").is_visible():
        page.get_by_role("button", name="Settings: ").click()
        page.locator("#steps input[type=number]").wait_for()
        page.wait_for_timeout(500)  # a field is there a moment before the page listens to it


def settle(page: Any, steps: int = 2, number: int = 2) -> None:
    """Few steps and few pictures."""
    open_settings(page)
    page.locator("#number input[type=number]").fill(str(number))
    page.locator("#steps input[type=number]").fill(str(steps))
    page.locator("#steps input[type=number]").press("Tab")
    for slider, value in (("number", number), ("steps", steps)):  # the page has taken them over
        page.wait_for_function(f"document.querySelector('#{slider} input[type=range]').value == '{value}'")


def write(page: Any, field: str, text: str) -> None:
    page.locator(f"#{field} textarea, #{field} input").first.fill(text)


def draw(page: Any) -> None:
    page.locator("#generate").click()
    page.get_by_text("Done: ").wait_for()


def begun(page: Any) -> None:
    """What the page opened with has made way for a picture of the run."""
    page.get_by_text("Of 20 professions that nothing was fitted on").wait_for(state="detached")
    page.locator(PICTURES).nth(1).wait_for()


def go(page: Any, tab: str) -> None:
    """Open a tab, press its button, wait for its result; press again where nothing comes.

    Gradio's page closes its stream of answers after each one, and loses a press in that moment.
    """
    from playwright.sync_api import TimeoutError as NothingCame

    button, result = TABS[tab]
    page.get_by_role("tab", name=tab).click()
    page.locator(f"#{button}").click()
    try:
        page.locator(result).first.wait_for(timeout=60_000)
    except NothingCame:
        page.locator(f"#{button}").click()
        page.locator(result).first.wait_for()


def complaint(page: Any) -> str:
    """The message of an error, which is then closed."""
    toast = page.locator(".toast-body.error").last
    toast.wait_for()
    told = toast.inner_text()
    page.locator(".toast-close").last.click()
    return str(told)


# ---- generate -----------------------------------------------------------------------------------------------------


def test_generate_shows_twins_bars_and_a_download(page: Any, tmp_path: Path) -> None:
    settle(page)
    draw(page)
    assert page.locator("#comparison .vd-side").count() == 3
    shows(page, 4)
    shows(page, 2, "#pictures-beside-1 .grid-container img")
    assert page.locator(PICTURES).evaluate_all("all => all.map(one => one.alt)") == ["seed 0", "seed 1"] * 2
    assert page.locator("#comparison caption").count() == 3
    assert "cannot tell" in page.locator("#comparison .vd-bars").first.inner_text()
    with page.expect_download() as download:
        page.locator("#zip").click()
    assert download.value.suggested_filename == "vldebias-a-photo-of-an-editor.zip"
    download.value.save_as(tmp_path / "it.zip")
    with zipfile.ZipFile(tmp_path / "it.zip") as packed:
        assert json.loads(packed.read("metadata.json"))["drawing"]["steps"] == 2
        with Image.open(io.BytesIO(packed.read("mitigated/0000000001.png"))) as picture:
            assert json.loads(picture.info[KEY])["variant"] == "mitigated"


def test_it_opens_with_a_result_whose_pictures_are_enlarged_and_downloaded(page: Any) -> None:
    assert "→" in page.locator("#verdict .vd-lead").inner_text()
    assert "Clearly fewer show it" in page.locator("#verdict").inner_text()
    shows(page, 32)
    page.locator("#pictures-mitigated button.thumbnail-item").nth(2).click()
    preview = page.locator("#pictures-mitigated .preview")
    preview.wait_for()
    assert preview.locator("img").first.evaluate("one => one.clientWidth") > 150
    with page.expect_download() as download:
        preview.get_by_label("Download").click()
    assert download.value.suggested_filename.endswith(".png")
    with Image.open(download.value.path()) as picture:
        assert json.loads(picture.info[KEY])["seed"] == 2
    page.keyboard.press("Escape")
    preview.wait_for(state="detached")


def test_a_picture_is_laid_over_its_twin_and_runs_are_chosen_again(page: Any, tmp_path: Path) -> None:
    label, files = page.locator("#pair label, #pair [data-testid=block-label]").first, "#pair img"
    assert "before | stated-value" in label.inner_text()
    page.locator("#pictures-beside-1 button.thumbnail-item").nth(4).click()
    page.get_by_text("Drag: before | default, 5").wait_for()
    sources = page.locator(files).evaluate_all("all => all.map(one => one.src)")
    assert len(set(sources)) == 2
    assert all("/gradio_api/file=" in source for source in sources)
    page.keyboard.press("Escape")
    assert page.locator("#history").count() == 0
    settle(page)
    draw(page)
    page.locator("#history input").nth(1).wait_for()
    page.locator("#history input").first.check()
    page.get_by_text("Run 1 of this visit").wait_for()
    shows(page, 32)
    with page.expect_download() as download:
        page.locator("#csv").click()
    download.value.save_as(tmp_path / "runs.csv")
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 3 * 16 + 3 * 2


def test_messages_of_errors_leave(page: Any) -> None:
    write(page, "prompt", "")
    page.locator("#generate").click()
    page.locator(".toast-body.error").wait_for()
    page.locator(".toast-body.error").wait_for(state="detached")


def test_a_link_restores_the_settings(browser: Any, address: str, page: Any) -> None:
    settle(page, number=1)
    write(page, "prompt", "A photo of a nurse & a “vet”.")
    page.locator("#generate-attributes").get_by_label("age").check()
    draw(page)
    link = page.locator("#comparison a").get_attribute("href")
    page.wait_for_url(f"**/{link}")  # a page that is loaded again has it too
    with opened(browser, address, go=False) as other:
        other.goto(f"{address}/{link}")
        other.get_by_text("The settings are those of the link").wait_for()
        assert other.locator("#prompt textarea").input_value() == "A photo of a nurse & a “vet”."
        shows(other, 0)  # what it opens with is of another prompt
        assert not other.locator("#verdict .vd-lead").is_visible()
        open_settings(other)
        assert other.locator("#number input[type=number]").input_value() == "1"
        shows(other, 2, "#generate-attributes input:checked")
        other.goto(f"{address}/?steps=many")
        assert "steps: expected a number, got 'many'" in complaint(other)


def test_pictures_appear_as_they_are_drawn_and_stop_keeps_what_is_there(page: Any) -> None:
    settle(page, steps=100, number=16)
    page.locator("#generate").click()
    begun(page)
    assert page.locator("#status progress").count() == 1
    page.locator("#stop").click()
    page.get_by_text("Stopped after").wait_for()
    assert 0 < page.locator(PICTURES).count() < 32
    settle(page)
    draw(page)  # and it draws again
    shows(page, 4)


def test_pressed_again_during_a_run_it_draws_anew(page: Any) -> None:
    settle(page, steps=100, number=16)
    page.locator("#generate").click()
    begun(page)
    settle(page)
    draw(page)
    shows(page, 4)


def test_a_stated_attribute_is_left_alone_and_said_so(page: Any) -> None:
    settle(page, number=1)
    page.get_by_role("button", name="“female editor” is left alone").click()
    page.wait_for_function("document.querySelector('#prompt textarea').value.includes('female')")
    draw(page)
    gate = page.locator("#verdict .vd-gate")
    assert "states its attribute (“female”): left alone" in gate.inner_text()


def test_words_of_the_visitor(page: Any) -> None:
    settle(page, number=1)
    page.get_by_role("button", name="Your own words, lambda").first.click()
    write(page, "generate-words", "with glasses: bespectacled\nwithout: clear-eyed")
    draw(page)
    captions = page.locator("#comparison caption").all_inner_texts()
    assert any(caption.startswith("own words: ") for caption in captions)
    write(page, "generate-words", "only one")
    page.locator("#generate").click()
    assert "own words: expected 2 to 24 different lines, got 1" in complaint(page)


def test_the_strip_over_strengths(page: Any) -> None:
    settle(page, number=1)
    draw(page)
    page.locator("#strip").click()
    page.get_by_text("Done: the strip").wait_for()
    assert page.locator("#strengths img").count() == 5
    assert page.locator("#zip").is_enabled()  # the pictures above it can still be had
    shoot(page, "demo-strip-1280")


def test_an_odd_prompt_has_a_message_and_the_page_goes_on(page: Any) -> None:
    settle(page, number=1)
    prompt, told = ODD_PROMPTS["long"]  # test_compare_server has the others
    write(page, "prompt", prompt)
    page.locator("#generate").click()
    assert told in complaint(page)
    write(page, "prompt", "\U0001f469\u200d\u2695\ufe0f \u0637\u0628\u064a\u0628 <b>")
    draw(page)
    assert page.locator("#comparison b:text('x')").count() == 0


def test_by_keys_alone(page: Any) -> None:
    settle(page, number=1)
    page.locator("#prompt textarea").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "generate"
    page.keyboard.press("Enter")
    page.get_by_text("Done: ").wait_for()
    page.get_by_role("tab", name="Generate").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#album-none .grid-container img").first.wait_for()


# ---- classify, retrieve, inspect, export --------------------------------------------------------------------------


def test_classify_with_an_upload(page: Any, tmp_path: Path) -> None:
    go(page, "Classify")
    turned = page.locator("#classification .mitigated").first.inner_text()
    assert turned.index("waterbird") < turned.index("\u2190")  # the arrow: it was taken for a landbird
    mine = tmp_path / "mine.jpg"
    mine.write_bytes(encoded("jpeg"))
    page.locator("#upload input[type=file]").set_input_files(mine)
    page.locator("#preview img[alt='your picture']").wait_for()
    before = page.locator("#classification").inner_html()
    page.locator("#classify").click()
    page.wait_for_function("before => document.querySelector('#classification').innerHTML !== before", arg=before)
    assert page.locator("#classification .vd-table tbody tr").count() == 4


def test_the_offset_is_an_option_that_says_what_it_did(page: Any, tmp_path: Path) -> None:
    go(page, "Classify")
    shows(page, 0, ".vd-boundary")
    assert not page.locator("#offset input").is_checked()
    page.locator("#offset input").check()
    page.locator("#classify").click()
    shows(page, 1, ".vd-boundary")
    assert "of 64 unlabelled pictures" in page.locator(".vd-boundary caption").inner_text()
    for i, size in enumerate(((40, 30), (30, 60))):
        (tmp_path / f"{i}.png").write_bytes(encoded("png", size))
    page.locator("#upload input[type=file]").set_input_files([tmp_path / "0.png", tmp_path / "1.png"])
    page.locator("#preview img[alt='the first of your 2 pictures']").wait_for()
    page.locator("#classify").click()
    page.get_by_text("of 2 unlabelled pictures: your pictures").wait_for()
    page.locator("#offset input").uncheck()
    page.locator("#classify").click()
    shows(page, 0, ".vd-boundary")
    assert page.locator("#classification .vd-table tbody tr").count() == 4


@pytest.mark.parametrize("kind", ["truncated", "svg"])
def test_bad_uploads_have_a_message_and_the_page_goes_on(page: Any, tmp_path: Path, kind: str) -> None:
    data, told = BAD_UPLOADS[kind]
    page.get_by_role("tab", name="Classify").click()
    bad = tmp_path / "bad.png"
    bad.write_bytes(data)
    page.locator("#upload input[type=file]").set_input_files(bad)
    page.locator("#preview [role=alert]").wait_for()
    assert told in page.locator("#preview [role=alert]").inner_text()
    page.get_by_label("Clear").first.click()
    page.locator("#preview img").wait_for()
    page.locator("#classify").click()
    page.locator("#classification table").first.wait_for()


def test_an_upload_that_is_too_large_has_a_message(page: Any, tmp_path: Path) -> None:
    page.get_by_role("tab", name="Classify").click()
    (tmp_path / "huge.png").write_bytes(BAD_UPLOADS["huge"][0])
    page.locator("#upload input[type=file]").set_input_files(tmp_path / "huge.png")
    assert "maximum" in complaint(page).lower()


def test_retrieve_shows_both_rankings_and_their_skew(page: Any) -> None:
    go(page, "Retrieve")
    assert page.locator("#retrieval .hits img").count() == 24
    assert page.locator("#retrieval svg").count() == 3
    assert "MaxSkew@20" in page.locator("#retrieval caption").first.inner_text()


def test_inspect_and_export(page: Any, tmp_path: Path) -> None:
    go(page, "Inspect")
    assert page.locator("#inspection svg").count() == 4
    go(page, "Export")
    assert (
        page.locator("#code textarea")
        .input_value()
        .endswith("attachment = vldebias.debias(pipe, 'gender', method='default')")
    )
    with page.expect_download() as download:
        page.locator("#projection").click()
    download.value.save_as(tmp_path / "it.zip")
    assert "sequence/config.json" in zipfile.ZipFile(tmp_path / "it.zip").namelist()


# ---- how it looks, and to whom ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "light"), (WIDE, "dark"), (NARROW, "dark")])
def test_every_tab_is_usable_by_everyone(browser: Any, address: str, width: int, scheme: str) -> None:
    """The pictures of the README are `demo-1280` and `demo-390` of the folder of artefacts, the page as it opens."""
    with opened(browser, address, width, color_scheme=scheme) as page:
        page.locator("#generate").wait_for()
        shows(page, 32)
        first = page.locator(PICTURES).first.bounding_box()
        assert first["y"] + first["height"] < (800 if width == NARROW else 900)  # on the first screen of a telephone
        dark = "-dark" if scheme == "dark" else ""
        assert shoot(page, f"demo{dark}-{width}").stat().st_size < 150_000
        assert violations(page) == []
        assert sideways(page) <= 0
        open_settings(page)
        assert violations(page) == []
        page.get_by_role("tab", name="Gallery").click()
        page.locator("#album-mitigated .grid-container img").first.wait_for()
        shows(page, 3, "#album-none .grid-container img")
        assert violations(page) == []
        assert sideways(page) <= 0
        for tab in TABS:
            go(page, tab)
            page.evaluate("scrollTo(0, 0)")
            shoot(page, f"demo-{tab.lower()}{dark}-{width}")
            assert violations(page) == [], tab
            assert sideways(page) <= 0, tab
