"""The demo's page without a server: how it is laid out, who may stop what, what it refuses to start with."""

import argparse
import asyncio
import threading
from typing import Any

import pytest
from compare_parts import (
    built,
    engine,
    module,
)

from vldebias.errors import InvalidInputError
from vldebias.resources import load_app


@pytest.fixture(scope="module")
def page() -> Any:
    return built(engine())


@pytest.mark.slow
def test_building_the_page_loads_nothing() -> None:
    fresh = module("engine").Engine()
    built(fresh)
    assert fresh._loaded == {}


def test_every_control_has_a_label_and_an_id_of_its_own(page: Any) -> None:
    shown = [
        block for block in page.blocks.values() if type(block).__name__ in ("Textbox", "Slider", "Number", "Dropdown")
    ]
    assert len(shown) > 20
    assert all(block.label for block in shown)
    ids = [block.elem_id for block in page.blocks.values() if getattr(block, "elem_id", None)]
    assert len(ids) == len(set(ids))


def test_drawing_waits_in_one_line(page: Any) -> None:
    line = [fn for fn in page.fns.values() if fn.concurrency_id == "pipeline"]
    assert len(line) == 3  # the comparison, the strip, the endpoint
    assert {fn.concurrency_limit for fn in line} == {1}


def test_stops_belong_to_one_visitor() -> None:
    stops = module("form").Stops()
    stops.ask("ada")
    stops.ask("bo")
    ada, bo = stops.begin("ada"), stops.begin("bo")
    assert not stops.stop("ada")  # it was under way, and says itself that it stopped
    assert ada.is_set()
    assert not bo.is_set()
    assert not stops.stop("ada")
    stops.ask("bo")
    assert bo.is_set()  # a visitor has one work at a time
    assert stops.stop("bo")  # it was waiting
    assert stops.begin("bo").is_set()  # and comes to its turn to find itself stopped
    assert len(stops) == 0


def test_links_are_not_fetched() -> None:
    import gradio as gr

    field = module("form").refuse_links(gr.File(render=False))
    for link in ("http://example.com/a.png", "HTTPS://example.com", "ftp://x/y"):
        with pytest.raises(gr.Error, match="links are not fetched; upload the file itself"):
            asyncio.run(field.async_move_resource_to_block_cache(link))


@pytest.mark.parametrize("text", ["../../etc/passwd", "\U0001f469 doctor", "", "a" * 500, "A photo of a doctor."])
def test_a_download_is_named_without_a_path(text: str) -> None:
    name = module("form").filename(text, ".zip")
    assert name.startswith("vldebias-")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    assert len(name) < 60


def test_main_refuses_a_public_page_without_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLDEBIAS_AUTH", raising=False)
    with pytest.raises(InvalidInputError, match="--public opens the page to the network and needs a password"):
        load_app("compare").main(["--public"])


def test_help_names_every_option_and_gives_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_app("compare").main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    options = load_app("compare")._parser()._actions
    assert all(option in told for action in options for option in action.option_strings)
    assert "Examples:\n  vldebias demo\n" in told
    assert isinstance(options[0], argparse._HelpAction)


def test_two_threads_load_a_model_once() -> None:
    made, loads = module("engine").Engine(), []
    threads = [threading.Thread(target=lambda: made.once("x", lambda: loads.append(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]
