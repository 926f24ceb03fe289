"""Test `vldebias label` in a browser: by keyboard, with two people at once, and after a server
crash."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import NARROW, WIDE, check_page, free_port, opened, served
from label_parts import draw
from PIL import Image

from apps.shares.answers import NO_PERSON, AnnotationLog, Answer
from vldebias.miniature import open_world
from vldebias.utils.pictures import write_png

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three portraits for each of two unseen professions under two variants. One file is
    broken."""
    path = tmp_path_factory.mktemp("study") / "images"
    generated = draw(path)
    world = open_world("portraits", n=40)
    for i, image in enumerate(generated):
        write_png(world.read(i % 40), generated.path(image), {"prompt": image.prompt})
    return path


def asking(folder: Path, out: Path, *options: str) -> list[str]:
    command = f"label {folder} --attribute gender --attribute age --out {out}"
    return [*command.split(), *options]


@pytest.fixture(scope="module")
def shared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield (address, answers file) of a server on which each test uses a separate annotator."""
    path = tmp_path_factory.mktemp("shared")
    with served(asking(folder, path / "answers.jsonl"), path / "log", free_port()) as (address, _):
        yield address, path / "answers.jsonl"


def answers(out: Path, *annotators: str) -> list[Answer]:
    """Return the answers of the given annotators, or of all annotators."""
    return [
        answer
        for answer in AnnotationLog(out).read()
        if not annotators or answer.annotator in annotators
    ]


def begin(page: Any, name: str) -> None:
    """Log in by keyboard. The field already has the focus."""
    page.get_by_label("Your name").wait_for()
    page.wait_for_function("document.activeElement.matches('#name textarea, #name input')")
    page.keyboard.type(name)
    page.keyboard.press("Enter")
    page.locator("#question h2").wait_for()


def press(page: Any, key: str) -> None:
    """Press a key and wait for its effect."""
    step = page.locator("#question h2").get_attribute("data-step")
    page.keyboard.press(key)
    page.wait_for_function(
        "before => document.querySelector('#question h2')?.dataset.step !== before", arg=step
    )


def shown(page: Any) -> str:
    return str(page.locator("#image img").get_attribute("src"))


def test_keys_pressed_before_the_first_image_appears_are_not_answers(
    shared: tuple[str, Path], browser: Any
) -> None:
    address, out = shared
    with opened(browser, address, WIDE) as page:
        page.get_by_label("Your name").fill("Early")
        held: list[Any] = []
        page.route("**/queue/join*", lambda route: held.append(route), times=1)
        page.keyboard.press("Enter")
        while not held:
            page.wait_for_timeout(10)
        page.keyboard.press("1")
        held[0].continue_()
        page.locator("#question", has_text="Gender?").wait_for()
        press(page, "2")
        page.locator("#question", has_text="Age?").wait_for()
    assert [answer.value for answer in answers(out, "Early")] == ["female"]


# The width changes the layout and the scheme changes the colours, so two screens cover both.
@pytest.mark.parametrize(
    ("width", "scheme", "ink"), [(WIDE, "light", None), (NARROW, "dark", "rgb(238, 241, 244)")]
)
def test_an_entire_session_can_be_completed_by_keyboard(
    shared: tuple[str, Path], browser: Any, width: int, scheme: str, ink: Any
) -> None:
    """Every screen passes axe-core's contrast check: login, an invalid name, questions, answers,
    and the end."""
    address, out = shared
    name = f"Ada {scheme} {width}"
    with opened(browser, address, width, color_scheme=scheme) as page:
        page.get_by_role("heading", name="Label images").wait_for()
        assert ink in (
            None,
            page.evaluate("getComputedStyle(document.querySelector('.intro h1')).color"),
        )
        page.get_by_label("Your name").fill("/")
        page.get_by_role("button", name="Start").click()
        page.get_by_role("alert").wait_for()
        page.get_by_label("Your name").fill("")
        check_page(page, f"label-start-{scheme}-{width}")
        begin(page, name)
        check_page(page, f"label-question-{scheme}-{width}")
        first = shown(page)
        press(page, "2")
        assert answers(out, name)[-1].value == "female"
        page.locator("#question", has_text="Age?").wait_for()
        assert shown(page) == first  # the same image with the second question
        press(page, "ArrowLeft")
        assert page.get_by_text("your answer: female").is_visible()
        assert page.get_by_role("button", name="2 female ✓").is_visible()
        check_page(page, f"label-back-{scheme}-{width}")
        press(page, "1")
        assert answers(out, name)[-1].value == "male"
        press(page, "1")
        assert page.locator("#where").get_by_text("Image 2 of 12").is_visible()
        assert shown(page) != first
        for _ in range(11):
            press(page, "4")  # nobody is visible, so there is no second question
        page.get_by_role("heading", name=f"Thank you, {name}.").wait_for()
        check_page(page, f"label-thanks-{scheme}-{width}")
        last = {a.key: a.value for a in answers(out, name)}
        assert sorted(last.values()) == sorted(["male", "young", *[NO_PERSON] * 22])


def test_a_restarted_server_continues_at_the_right_image(
    folder: Path, tmp_path: Path, browser: Any
) -> None:
    out = tmp_path / "answers.jsonl"
    port = free_port()
    with opened(browser, f"http://127.0.0.1:{port}", go=False) as page:
        with served(asking(folder, out), tmp_path / "log", port) as (address, process):
            page.goto(address)
            begin(page, "Ada")
            for _ in range(5):
                press(page, "1")
            place = page.locator("#question h2").inner_text(), shown(page)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert len(answers(out)) == 5
        with out.open("ab") as file:
            # A crash in the middle of a line leaves this behind.
            file.write(b'{"format_version":1,"image":"none/a-pi')
        with served(asking(folder, out), tmp_path / "log", port) as (address, _):
            page.goto(address)
            begin(page, "ada")
            assert (page.locator("#question h2").inner_text(), shown(page)) == place
            press(page, "2")
            assert [a.value for a in answers(out)] == [
                "male",
                "young",
                "male",
                "young",
                "male",
                "old",
            ]
            assert {a.annotator for a in answers(out)} == {"Ada"}


def test_a_broken_image_and_a_right_to_left_attribute_are_handled(
    tmp_path: Path, browser: Any
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (600, 300), "teal").save(images / "a.jpg")
    (images / "b.png").write_bytes(b"\x89PNG and no more")
    out = tmp_path / "answers.jsonl"
    command = f"label {images} --attribute لون --choices <b>أحمر</b>,بنفسجي --out {out}"
    with (
        served(command.split(), tmp_path / "log", free_port()) as (address, _),
        opened(browser, address) as page,
    ):
        begin(page, "Ada")
        assert page.get_by_role("button", name="1 <b>أحمر</b>").is_visible()
        broken = page.get_by_text("This image cannot be read")
        if not broken.is_visible():
            press(page, "2")
        assert broken.is_visible()
        check_page(page)
        press(page, "4")
        assert NO_PERSON in {answer.value for answer in answers(out)}


def test_a_visitor_must_sign_in_first_if_there_is_a_password(
    folder: Path, tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLDEBIAS_AUTH", "lab:a long password")
    command = asking(folder, tmp_path / "answers.jsonl", "--public")
    with (
        served(command, tmp_path / "log", free_port()) as (address, _),
        opened(browser, address) as page,
    ):
        for password in ("wrong", "a long password"):
            page.get_by_label("username").fill("lab")
            page.get_by_label("password").fill(password)
            page.get_by_role("button", name="Login").click()
            if password == "wrong":
                page.get_by_text("Incorrect").first.wait_for()
        begin(page, "Ada")
