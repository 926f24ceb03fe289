"""Test the labelling page without a browser: what it reveals, the effects of clicks, and the final
text."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from label_parts import AGE, GENDER, draw, study
from PIL import Image

from apps.label import engine as engines
from apps.label import page as pages


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    draw(tmp_path / "images")
    return study(tmp_path / "images", GENDER, AGE)


@pytest.fixture
def page(engine: Any) -> Any:
    """Return the components, outside of any server."""
    import gradio as gr

    with gr.Blocks():
        return pages.Page(engine)


def text_of_updates(updates: list[Any]) -> str:
    return " ".join(str(update) for update in updates)


def test_responses_do_not_reveal_the_source_of_an_image(engine: Any, page: Any) -> None:
    page_text = json.dumps(
        pages.build_demo(engine).get_config_file(), default=str
    ) + text_of_updates(page._start("Ada"))
    assert "Label images" in page_text
    records = engine.folder.everything
    assert [
        image for image in records if image.path in page_text or image.prompt in page_text
    ] == []
    assert str(engine.folder.root) not in page_text


def test_an_answer_is_saved_and_the_next_question_shown(engine: Any, page: Any) -> None:
    first = page._start("Ada")
    second = page._answering(1)(first[0], first[1])
    (answer,) = engine.log.read()
    assert (answer.annotator, answer.attribute, answer.value) == ("Ada", "gender", "female")
    assert "Age?" in text_of_updates(second)
    updates = page._answering(1)(first[0], second[1])  # the page has moved on in the meantime
    assert len(engine.log.read()) == 1
    assert updates[0].step == first[0].step


def test_an_expired_session_and_an_invalid_name_ask_for_the_name(page: Any) -> None:
    assert "lost your position" in text_of_updates(page._answering(0)(None, "0"))
    assert 'role="alert"' in text_of_updates(page._start("../../etc"))


def test_a_failed_write_is_reported_and_the_question_is_shown_again(
    page: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = page._start("Ada")

    monkeypatch.setattr(engine.log, "append", Mock(side_effect=OSError("no room")))
    updates = page._answering(0)(first[0], first[1])
    assert "Not saved" in text_of_updates(updates)
    assert updates[0].step == first[0].step


def test_the_last_screen_shows_the_command_that_reads_the_answers(engine: Any, page: Any) -> None:
    now = page._start("Ada")
    while now[0].step is not None:
        now = page._answering(0)(now[0], now[1])
    assert (
        f"vldebias eval human --label-file {engine.log.path} --image-dir {engine.folder.root}"
        in text_of_updates(now)
    )
    assert "Thank you, Ada" in text_of_updates(now)


def test_only_generated_images_are_called_generated(engine: Any, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (8, 8)).save(photos / "1.png")
    promise = "how the images were generated"
    assert promise in json.dumps(pages.build_demo(engine).get_config_file(), default=str)
    own = pages.build_demo(study(photos)).get_config_file()
    assert "Label images" in json.dumps(own, default=str)
    assert promise not in json.dumps(own, default=str)


def test_remaining_minutes_are_estimated_from_the_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(tmp_path, images=20)
    engine = study(tmp_path)
    clock = [0.0]
    monkeypatch.setattr(engines.time, "monotonic", lambda: clock[0])
    place = engine.start("ada")
    for _ in range(engines.PACE):
        assert engine.view(place).minutes is None
        clock[0] += 6
        place = engine.answer(place, 0)
    assert engine.view(place).minutes == round((80 - engines.PACE) * 6 / 60)
    assert {answer.seconds for answer in engine.log.read()} == {6.0}


def test_unsaved_answers_do_not_affect_the_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(tmp_path, images=20)
    engine = study(tmp_path)
    place = engine.start("ada")

    with monkeypatch.context() as patched:
        patched.setattr(engine.log, "append", Mock(side_effect=OSError("no room")))
        for _ in range(engines.PACE):
            with pytest.raises(OSError, match="no room"):
                engine.answer(place, 0)
    assert engine.view(place).minutes is None
    assert engine.view(place).done == 0
