"""How the pages are served: on this machine alone unless told otherwise, with a password if public, nothing fetched."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    import gradio as gr

__all__ = ["AUTH", "HERE", "credentials", "serve", "theme"]

AUTH = "VLDEBIAS_AUTH"  # user:password, where a command line would show it to everyone on the machine
HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"
SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "Menlo", "Consolas", "monospace")


def theme() -> Any:
    """A calm theme in the fonts of the system: Gradio's own would be fetched from Google."""
    import gradio as gr

    return gr.themes.Base(primary_hue="blue", neutral_hue="slate", font=list(SANS), font_mono=list(MONO)).set(
        body_background_fill="#ffffff",
        block_border_width="0px",
        button_primary_background_fill="#1d4e89",
        button_primary_background_fill_hover="#163d6b",
        button_primary_text_color="#ffffff",
    )


def credentials(auth: str | None, *, public: bool) -> tuple[str, str] | None:
    """(user, password) from `auth` or the environment; None where a page for this machine alone needs none.

    Raises:
        InvalidInputError: not user:password, or a public page without one.
    """
    given = auth if auth is not None else os.environ.get(AUTH)
    if not given:
        if public:
            raise InvalidInputError(
                f"--public opens the page to the network and needs a password: add --auth user:password or set {AUTH}"
            )
        return None
    user, colon, password = given.partition(":")
    if not (colon and user and password):
        raise InvalidInputError("--auth: expected user:password with both of them, such as ada:long-password")
    return user, password


def serve(
    demo: gr.Blocks,
    *,
    port: int | None = None,
    public: bool = False,
    auth: str | None = None,
    css: str = "",
    head: str = "",
    upload: str = "10mb",
    waiting: int = 64,
    at_once: int = 4,
    say: Callable[[str], None] | None = None,
    block: bool = True,
) -> str:
    """Serve a page until it is interrupted, and return its address.

    No path is opened to visitors, nothing is shared, measured or fetched from elsewhere.

    Args:
        port: None takes the first free one from 7860 on.
        public: listen on every interface of the machine; needs a password, see `credentials`.
        upload: largest file that a visitor may send.
        waiting, at_once: events that may wait in the queue, and those of one kind that run at the same time.
        say: is told the address once the page answers.
        block: wait for an interrupt; else return at once.

    Raises:
        InvalidInputError: no password for a public page; a port that is taken.
    """
    user = credentials(auth, public=public)
    demo.queue(max_size=waiting, default_concurrency_limit=at_once)
    try:
        _, address, _ = demo.launch(
            server_name=EVERYWHERE if public else HERE,
            server_port=port,
            auth=user,
            share=False,
            allowed_paths=[],
            max_file_size=upload,
            state_session_capacity=1000,
            theme=theme(),
            css=css,
            head=head,
            footer_links=[],
            run_history=False,
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
            quiet=True,
            prevent_thread_lock=True,
        )
    except OSError as error:
        raise InvalidInputError(
            f"port {port or 'from 7860 on'}: cannot be opened: {error}; choose another --port"
        ) from error
    if say is not None:
        say(address)
    if block:
        demo.block_thread()
    return str(address)
