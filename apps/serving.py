"""Serve the pages: to this machine alone unless told otherwise, with a password if public."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from vldebias.cli.apps import AUTH
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    import gradio as gr

HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"
LOCAL = frozenset({"localhost", HERE, "::1"})
PORTS = range(7860, 7960)
SHORTEST = 8  # characters of the password of a public page
LOGINS = 30  # a minute, right or wrong: far too few to guess a password
# The strictest policy that Gradio works under: its page has inline scripts and styles, and compiles
# the `js` of events.
POLICY = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def credentials(*, public: bool) -> tuple[str, str] | None:
    """Return (user, password) from the environment; None where a page for this machine alone needs
    none.

    Raises:
        InvalidInputError: not user:password, or a public page without one or with a short one.
    """
    given = os.environ.get(AUTH, "")
    user, colon, password = given.partition(":")
    if not given and not public:
        return None
    if not (colon and user and password):
        raise InvalidInputError(
            f"{AUTH}: expected user:password, such as ada:long-password; --public needs it"
        )
    if public and len(password) < SHORTEST:
        raise InvalidInputError(
            f"{AUTH}: the password of a public page needs {SHORTEST} characters, got"
            f" {len(password)}"
        )
    return user, password


class Headers:
    """Add the headers that tell a browser what the page may load, and that no site may show it in a
    frame."""

    def __init__(self, app: App) -> None:
        own = {
            "content-security-policy": "; ".join(
                f"{name} {value}" for name, value in POLICY.items()
            )
        }
        own |= {
            "x-content-type-options": "nosniff",
            "referrer-policy": "same-origin",
            "x-frame-options": "DENY",
        }
        self.app, self.own = app, [(name.encode(), value.encode()) for name, value in own.items()]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the headers."""
        replaced = {b"x-frame-options", *(name for name, _ in self.own)}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [
                    pair for pair in message.get("headers", ()) if pair[0].lower() not in replaced
                ]
                message = {**message, "headers": [*kept, *self.own]}
            await send(message)

        await self.app(scope, receive, with_headers)


class Guard:
    """Refuse, before Gradio sees it, what no visitor of the page sends.

    A page for this machine alone answers to the names of this machine, since another Host is a
    foreign site whose name was made to point here (DNS rebinding). Requests from other sites
    (Origin), uploads and more than LOGINS logins a minute are refused.

    Args:
        app: the ASGI application behind it. public: whether other machines may ask.
    """

    def __init__(self, app: App, *, public: bool = False) -> None:
        self.app, self.public, self.logins = app, public, deque[float](maxlen=LOGINS)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403 or 429."""
        refused, status = "", 403
        if scope["type"] in ("http", "websocket"):
            refused = self._refusal(
                {n.decode("latin-1"): v.decode("latin-1") for n, v in scope["headers"]}
            )
            path = scope["path"].rstrip("/")
            if path.endswith("/upload"):
                refused = refused or "this page takes no uploads"
            if not refused and scope.get("method") == "POST" and path.endswith("/login"):
                now = time.monotonic()
                if len(self.logins) == LOGINS and now - self.logins[0] < 60:
                    refused, status = "too many logins; wait a minute", 429
                else:
                    self.logins.append(now)
        await (_answer(scope, send, status, refused) if refused else self.app(scope, receive, send))

    def _refusal(self, headers: dict[str, str]) -> str:
        """Return why the Host or the Origin of a request is refused, else ""."""
        host, origin = headers.get("host", ""), headers.get("origin")
        forwarded = headers.get("x-forwarded-host", host)
        try:
            named, site = urlsplit(f"//{host}"), urlsplit(origin or "").netloc
            for one in (named, urlsplit(f"//{forwarded}")):
                _ = one.port  # Gradio reads both, and fails where this does
        except ValueError:
            return "Host or Origin is not the name of a host"
        if not self.public and named.hostname not in LOCAL:
            return "this page answers to localhost alone"
        if origin is not None and site not in ({host, forwarded} if self.public else {host}):
            return "requests from other sites are refused"
        return ""


async def _answer(scope: Message, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": text.encode()})


def serve(
    demo: gr.Blocks,
    *,
    say: Callable[[str], None],
    port: int | None = None,
    public: bool = False,
    css: str = "",
    head: str = "",
    finish: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Serve a page until SIGINT or SIGTERM, which end the process.

    No path is opened to visitors, nothing is shared, measured or fetched from elsewhere.

    Args:
        say: called with the address once the page answers.
        port: None takes the first free one from 7860 on.
        public: listen on every interface of the machine; needs a password, see `credentials`.
        finish: called when the server is told to end; what it waits for is not lost.

    Raises:
        InvalidInputError: no password for a public page; a port that is taken.
    """
    import gradio as gr
    import uvicorn
    from fastapi import FastAPI

    user, listening = credentials(public=public), _listen(EVERYWHERE if public else HERE, port)
    number = listening.getsockname()[1]
    demo.state_session_capacity = 1000
    demo.queue(max_size=64, default_concurrency_limit=4)
    closed: dict[str, Any] = {
        "ssr_mode": False,
        "mcp_server": False,
        "enable_monitoring": False,
        "show_error": False,
    }
    app = gr.mount_gradio_app(
        FastAPI(openapi_url=None),
        demo,
        path="/",
        server_port=number,
        auth=user,
        allowed_paths=[],
        max_file_size="1kb",
        theme=theme(),
        css=css,
        head=head,
        footer_links=[],
        run_history=False,
        **closed,
    )
    demo.has_launched = True  # or Gradio opens any path that a client names as its upload; tested
    guarded = Headers(Guard(app, public=public))
    server = uvicorn.Server(
        uvicorn.Config(
            guarded, log_level="warning", timeout_graceful_shutdown=1, proxy_headers=False
        )
    )
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="server", daemon=True
    )
    ended = threading.Event()
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda *_: ended.set())
    thread.start()
    while not server.started and thread.is_alive() and not ended.is_set():
        time.sleep(0.01)
    say(f"http://{'localhost' if public else HERE}:{number}/")
    ended.wait()
    finish()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # now: threads that generate would keep the process for minutes


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on `port`, or on the first of PORTS that is free."""
    problem: OSError | None = None
    for number in PORTS if port is None else [port]:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(
                128
            )  # here, not when the server starts: two servers may bind before one listens
        except OSError as error:
            listening.close()
            problem = error
        else:
            return listening
    raise InvalidInputError(
        f"port {port or 'from 7860 on'}: cannot be opened: {problem}; choose another --port"
    )


def theme() -> Any:
    """Return a calm theme in the fonts of the system, since Gradio's own are fetched from
    elsewhere."""
    import gradio as gr

    sans = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
    mono = ("ui-monospace", "Menlo", "Consolas", "monospace")
    return gr.themes.Base(
        primary_hue="blue", neutral_hue="slate", font=list(sans), font_mono=list(mono)
    ).set(
        body_background_fill="#ffffff",
        block_border_width="0px",
        button_primary_background_fill="#1d4e89",
        button_primary_background_fill_hover="#163d6b",
        button_primary_text_color="#ffffff",
    )
