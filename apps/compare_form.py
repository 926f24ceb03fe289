"""What the tabs share: the form of a mitigation, errors as messages on the page, downloads, stopping, uploads."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache

from vldebias.errors import VldebiasError

from .compare_settings import ATTRIBUTES, AUTOMATIC, METHODS, Mitigation

__all__ = [
    "Stops",
    "download",
    "filename",
    "mitigation_form",
    "mitigation_of",
    "refuse_links",
    "show_below",
    "told",
    "told_while",
]


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    """An error that vldebias raises on purpose becomes a message on the page; any other stays a plain "error"."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except VldebiasError as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    return inner


def told_while(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """`told` for a function that yields."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from function(*args, **kwargs)
        except VldebiasError as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    return inner


def mitigation_form(attributes: Sequence[str], *, tab: str, method: str = AUTOMATIC) -> list[gr.components.Component]:
    """Components whose values, in their order, are the arguments of `Mitigation.of`.

    tab: a word that makes the ids of the components unique.
    """
    chosen = gr.CheckboxGroup(list(ATTRIBUTES), value=list(attributes), label="Attributes", elem_id=f"{tab}-attributes")
    with gr.Accordion("Your own words, method", open=False):
        words = gr.Textbox(
            label="Your own words",
            info="One value per line and words for it, such as “with glasses: bespectacled” and “without: clear-eyed”.",
            lines=2,
            max_lines=6,
            elem_id=f"{tab}-words",
        )
        with gr.Row():
            how = gr.Dropdown(
                list(METHODS),
                value=method,
                label="Method",
                info="automatic: the paper's, cali for pipelines, orth-cali for models",
                elem_id=f"{tab}-method",
            )
            # a text: an empty number becomes 0 as soon as its field is shown, and 0 is another method
            lam = gr.Textbox(
                label="Lambda", info="empty: the paper's, 500 or 1000", max_lines=1, elem_id=f"{tab}-lambda"
            )
        kept = gr.Checkbox(
            True,
            label="Leave prompts alone that state their attribute",
            info="“a photo of a female doctor” asks for a woman",
            elem_id=f"{tab}-kept",
        )
    strength = gr.Slider(
        0, 1, value=1.0, step=0.05, label="Strength", info="0 is the model as it is", elem_id=f"{tab}-strength"
    )
    return [chosen, words, how, lam, strength, kept]


def mitigation_of(values: Sequence[Any]) -> Mitigation:
    """The mitigation in the values of `mitigation_form`."""
    return Mitigation.of(*values)


def filename(text: str, ending: str) -> str:
    """A file name from a visitor's words: letters and digits alone, so it cannot name another folder."""
    stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return f"vldebias-{stem or 'result'}{ending}"


def download(button: gr.DownloadButton, data: bytes, name: str) -> dict[str, Any]:
    """The button with `data` behind it: a file of the cache, which is emptied of old files (`delete_cache`)."""
    path = save_bytes_to_cache(data, Path(name).name, button.GRADIO_CACHE)
    return gr.update(value=path, interactive=True)


def refuse_links(component: gr.File) -> gr.File:
    """Only uploads are read: a client that sends a link would have the server fetch it."""
    move = component.async_move_resource_to_block_cache

    async def checked(url_or_file_path: str | Path | None) -> str | None:
        if isinstance(url_or_file_path, str) and re.match(r"[a-z][a-z0-9+.-]*://", url_or_file_path, re.IGNORECASE):
            raise gr.Error("picture: links are not fetched; upload the file itself", print_exception=False)
        return await move(url_or_file_path)

    component.async_move_resource_to_block_cache = checked  # type: ignore[method-assign]
    return component


def show_below(button: gr.Button, target: str) -> None:
    """On a telephone results stand below the form: pressing the button brings them into view."""
    seek = f"() => {{ if (innerWidth < 700) document.getElementById('{target}')?.scrollIntoView(); }}"
    button.click(None, None, None, js=seek, api_visibility="private")


class Stops:
    """The work of each visitor, so that the visitor, and nobody else, can stop it."""

    def __init__(self) -> None:
        self._asked: dict[str, threading.Event] = {}
        self._begun: set[threading.Event] = set()
        self._lock = threading.Lock()

    def ask(self, visitor: str) -> None:
        """New work of a visitor joins the queue; what the visitor had before is stopped."""
        self.stop(visitor)
        with self._lock:
            self._asked[visitor] = threading.Event()

    def begin(self, visitor: str) -> threading.Event:
        """The work came to its turn: the event that stops it, which is set where it was stopped while it waited."""
        with self._lock:
            event = self._asked.get(visitor)
            if event is not None:
                self._begun.add(event)
                return event
        event = threading.Event()
        event.set()
        return event

    def stop(self, visitor: str) -> bool:
        """Stop the work of a visitor; True where it was still waiting for its turn."""
        with self._lock:
            event = self._asked.pop(visitor, None)
            if event is None:
                return False
            begun = event in self._begun
            self._begun.discard(event)
        event.set()
        return not begun

    def __len__(self) -> int:
        return len(self._asked)
