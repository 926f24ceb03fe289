"""Event helpers for both tabs: settings, stale-result markers and error messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import wraps
from html import escape
from typing import Any

import gradio as gr

from vldebias.errors import VldebiasError

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def dim(name: str) -> str:
    """Return the script that marks an element as stale after the settings have changed."""
    return f"() => document.getElementById('{name}')?.classList.add('stale')"


def undim(name: str) -> str:
    """Return the script that removes the stale marker."""
    return f"() => document.getElementById('{name}')?.classList.remove('stale')"


def announce(name: str, text: str, buttons: str, field: str) -> str:
    """Return a script for the page's head that updates a status line immediately.

    The script runs as soon as a visitor presses a button or Enter. Gradio's own event scripts run
    only after the server has responded, which takes seconds while models load.

    Args:
        name: status line id.
        text: the text to show.
        buttons: CSS selector for the buttons.
        field: CSS selector for the text field in which Enter starts the work.
    """
    return f"""
<script>
{{
  const announce = () => {{
    const line = document.querySelector("#{name} p");
    if (!line) return;
    // A second press must not keep the announcement as the text to restore.
    if (line.textContent !== {json.dumps(text)}) line.dataset.before = line.textContent;
    line.textContent = {json.dumps(text)};
  }};
  document.addEventListener("click", (event) => {{
    if (event.target.closest("{buttons}")) announce();
  }});
  // Gradio does not run the next event's script after an error, so watch for its message.
  const restore = () => {{
    const line = document.querySelector("#{name} p");
    const isAnnounced = line?.textContent === {json.dumps(text)};
    if (isAnnounced && document.querySelector(".toast-body.error")) {{
      line.textContent = line.dataset.before;
    }}
  }};
  new MutationObserver(restore).observe(document, {{ childList: true, subtree: true }});
  document.addEventListener("keydown", (event) => {{
    if (event.key === "Enter" && !event.shiftKey && event.target.closest("{field}")) announce();
  }});
}}
</script>
"""


def retract(name: str, text: str) -> str:
    """Return the script that restores the status line unless it has changed in the meantime."""
    return f"""() => {{
        const line = document.querySelector('#{name} p');
        if (line?.textContent === {json.dumps(text)}) line.textContent = line.dataset.before;
    }}"""


def with_messages(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a generator so that errors are shown as messages, with visitors' input escaped."""

    @wraps(function)
    def generator(*values: Any) -> Iterator[Any]:
        try:
            yield from function(*values)
        except VldebiasError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from None
        except Exception as error:
            # The message may contain paths, which visitors must not see.
            raise gr.Error(
                f"The server failed ({type(error).__name__}). Its terminal shows the details."
            ) from error

    return generator


def lines(texts: list[tuple[str, str]]) -> str:
    """Return escaped paragraphs, each with its class: "line", "about" or "warning"."""
    paragraphs = [f'<p class="{kind}">{escape(text)}</p>' for text, kind in texts]
    return f'<div role="status">{"".join(paragraphs)}</div>'
