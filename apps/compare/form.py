"""What the tabs share: the form of a mitigation, errors as messages on the page, downloads, stopping, uploads."""

from __future__ import annotations

import functools
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder

from vldebias.errors import VldebiasError

from .settings import ATTRIBUTES, PRESET, methods_for

QUEUE = "pipeline"  # what draws waits in one line, whoever asks
TOAST = 10.0  # seconds that the message of an error stays, so that they do not pile up


PLAIN = "default: what debias attaches; paper: orth-cali for models, cali for pipelines"
SAMPLED = (
    "stated-value states a value for each picture and moves the shares: take it where who is drawn has to change. "
    "default, cali and the like change the embedding alone: gentler, one for all pictures, often no clear change."
)


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    """An error that vldebias raises on purpose becomes a message on the page; any other stays a plain "error"."""

    @contextmanager
    def said() -> Iterator[None]:
        try:
            yield
        except VldebiasError as error:
            raise gr.Error(str(error), duration=TOAST, print_exception=False) from error

    @functools.wraps(function)
    def steps(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with said():
            yield from function(*args, **kwargs)

    return steps if isgeneratorfunction(function) else said()(function)


def mitigation_form(
    attributes: Sequence[str], *, tab: str, method: str = PRESET, pipeline: bool = True, model: bool = True
) -> list[gr.components.Component]:
    """Components whose values, in their order, are the arguments of `Mitigation.of`.

    tab: a word that makes the ids of the components unique. pipeline, model: whose methods are offered.
    """
    chosen = gr.CheckboxGroup(list(ATTRIBUTES), value=list(attributes), label="Attributes", elem_id=f"{tab}-attributes")
    how = gr.Dropdown(
        [(f"{one.name}: {one.title}", one.name) for one in methods_for(pipeline=pipeline, model=model)],
        value=method,
        label="Method",
        info=SAMPLED if not model else PLAIN,
        elem_id=f"{tab}-method",
    )
    with gr.Accordion("Your own words, lambda", open=False):
        words = gr.Textbox(
            label="Your own words",
            info="One value per line and words for it, such as “with glasses: bespectacled” and “without: clear-eyed”.",
            lines=2,
            max_lines=6,
            elem_id=f"{tab}-words",
        )
        # a text: an empty number becomes 0 as soon as its field is shown, and 0 is another method
        lam = gr.Textbox(
            label="Lambda",
            info="How strongly pairs are drawn together; empty: what the method says.",
            max_lines=1,
            elem_id=f"{tab}-lambda",
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


def filename(text: str, ending: str) -> str:
    """A file name from a visitor's words: letters and digits alone, so it cannot name another folder."""
    stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return f"vldebias-{stem or 'result'}{ending}"


def download(button: gr.DownloadButton, data: bytes, name: str) -> dict[str, Any]:
    """The button with `data` behind it: a file of the cache, which is emptied of old files (`delete_cache`)."""
    path = save_bytes_to_cache(data, Path(name).name, button.GRADIO_CACHE)
    return gr.update(value=path, interactive=True)


def cached(data: bytes, name: str) -> str:
    """The path of a file of the cache, as of `download`."""
    return str(save_bytes_to_cache(data, Path(name).name, get_upload_folder()))


def side_pictures(name: str, *, small: bool, **settings: Any) -> gr.Gallery:
    """The pictures of a side: a press enlarges one, which can then be stepped through and downloaded."""
    return gr.Gallery(
        columns=4,
        height="auto",
        object_fit="contain",
        format="png",
        buttons=["download", "fullscreen"],
        interactive=False,
        min_width=150,
        elem_id=name,
        elem_classes=["pixels"] if small else [],
        **settings,
    )


def uploads_alone(component: gr.File) -> gr.File:
    """Read nothing but what was uploaded: a client may send a path, or a link that the server would fetch.

    This replaces a method that Gradio has for itself; a test says in which versions it is called.
    """
    move = component.async_move_resource_to_block_cache

    async def checked(url_or_file_path: str | Path | None) -> str | None:
        named = "" if url_or_file_path is None else str(url_or_file_path)
        if "://" in named or not Path(named).resolve().is_relative_to(Path(get_upload_folder()).resolve()):
            raise gr.Error("picture: paths and links are not read; upload the file itself", print_exception=False)
        return await move(url_or_file_path)

    component.async_move_resource_to_block_cache = checked  # type: ignore[method-assign]
    return component


def show_below(button: gr.Button, target: str) -> None:
    """On a telephone results stand below the form: pressing the button brings them into view."""
    seek = f"() => {{ if (innerWidth < 700) document.getElementById('{target}')?.scrollIntoView(); }}"
    button.click(None, None, None, js=seek, api_visibility="private")


class Stops:
    """The work of each visitor, so that the visitor, and nobody else, can stop it.

    Work is asked for and begun in the same order (it waits in one line), so what begins is the oldest that was asked.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[threading.Event]] = {}
        self._running: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def ask(self, visitor: str) -> None:
        """New work of a visitor joins the line; what the visitor had before is stopped, and still has its turn."""
        self.stop(visitor)
        with self._lock:
            self._waiting.setdefault(visitor, deque()).append(threading.Event())

    def begin(self, visitor: str) -> threading.Event:
        """The work came to its turn: the event that stops it, which is set where it was stopped while it waited."""
        event = threading.Event()
        with self._lock:
            waiting = self._waiting.get(visitor)
            if not waiting:
                event.set()
                return event
            event = self._running[visitor] = waiting.popleft()
        return event

    def stop(self, visitor: str) -> bool:
        """Stop the work of a visitor; True where some of it was still waiting for its turn."""
        with self._lock:
            running = self._running.pop(visitor, None)
            waiting = [event for event in self._waiting.get(visitor, ()) if not event.is_set()]
        for event in [*waiting, *([running] if running else [])]:
            event.set()
        return bool(waiting)

    def leave(self, visitor: str) -> None:
        """The visitor closed the page: stop everything, and forget it."""
        self.stop(visitor)
        with self._lock:
            self._waiting.pop(visitor, None)

    def superseded(self, visitor: str) -> bool:
        """Whether newer work of the visitor waits: what is stopped then says nothing any more."""
        with self._lock:
            return any(not event.is_set() for event in self._waiting.get(visitor, ()))

    def __len__(self) -> int:
        return len(self._running) + sum(map(len, self._waiting.values()))
