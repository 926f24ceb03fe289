"""What the events of both tabs share: settings, marks of what is stale, errors as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from html import escape
from typing import Any

import gradio as gr

from vldebias.errors import VldebiasError

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def dim(name: str) -> str:
    """Return the script that marks an element as made with other settings."""
    return f"() => document.getElementById('{name}')?.classList.add('stale')"


def undim(name: str) -> str:
    """Return the script that takes the mark away."""
    return f"() => document.getElementById('{name}')?.classList.remove('stale')"


def with_messages(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a generator: an error becomes a message, in which what a visitor sent is escaped."""

    @wraps(function)
    def generator(*values: Any) -> Iterator[Any]:
        try:
            yield from function(*values)
        except VldebiasError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from None

    return generator


def lines(texts: list[tuple[str, str]]) -> str:
    """Return paragraphs, each with its class: "line", "about" or "warning"; text is escaped."""
    paragraphs = [f'<p class="{kind}">{escape(text)}</p>' for text, kind in texts]
    return f'<div role="status">{"".join(paragraphs)}</div>'
