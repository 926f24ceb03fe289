"""Serve the pages to this machine or, with a password, to other machines as well."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer

from vldebias.errors import InvalidInputError

from .abandoned import Abandoned, App, Message, Receive, Send

if TYPE_CHECKING:
    import gradio as gr

# Gradio checks for updates when it is imported, so disable this before importing it.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# By default, Gradio keeps the last 10,000 events in memory.
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "200")

# Environment variable that contains user:password. All users of the machine could see a flag.
AUTH = "VLDEBIAS_AUTH"
_Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Port. Default: the first free port from 7860."),
]
_Public = Annotated[
    bool,
    typer.Option(
        "--public", help=f"Allow network access; needs {AUTH}=user:password in the environment."
    ),
]
ADDRESS_FLAGS = [("port", _Port, None), ("public", _Public, False)]
HERE = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
LOCAL = ("localhost", HERE, "[::1]")  # Host headers that a local page accepts
PORTS = range(7860, 7960)
SHORTEST = 8  # minimum password length for a public page
LOGINS = 30  # maximum number of logins per minute from one address, far too few to guess a password
ADDRESSES = 10_000  # maximum number of addresses whose logins are counted
MOST_BODY = 1 << 20  # maximum size of a request in bytes, far above any typed text
# The strictest policy that Gradio supports. Its page contains inline scripts and styles, and
# evaluates the `js` argument of events.
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

log = logging.getLogger("vldebias.apps")


def credentials(*, public: bool) -> tuple[str, str] | None:
    """Return (user, password) from the environment, or None if a local page has no password.

    Raises:
        InvalidInputError: If the variable does not have the form user:password, or if the password
            of a public page is missing or too short.
    """
    login = os.environ.get(AUTH, "")
    user, colon, password = login.partition(":")
    if not login and not public:
        return None
    if not (colon and user and password):
        raise InvalidInputError(
            f"{AUTH}: expected user:password, such as ada:long-password; --public requires it"
        )
    # Eight characters are sufficient, because only LOGINS guesses per minute are possible.
    if public and len(password) < SHORTEST:
        raise InvalidInputError(
            f"{AUTH}: the password for a public page needs at least {SHORTEST} characters, got"
            f" {len(password)}"
        )
    return user, password


class Headers:
    """Add headers that restrict what the page may load and prevent other sites from framing it.

    Args:
        app: The ASGI application.
        site: The only site that may show the page in a frame, or "".
    """

    def __init__(self, app: App, site: str = "") -> None:
        policy = {**POLICY, "frame-ancestors": site or "'none'"}
        headers = {
            "content-security-policy": "; ".join(
                f"{name} {value}" for name, value in policy.items()
            ),
            "x-content-type-options": "nosniff",
            "referrer-policy": "same-origin",
        }
        if not site:
            headers["x-frame-options"] = "DENY"
        self.app = app
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward a request and add the headers to its response."""
        # Browsers enforce all policies that a page sends, so remove Gradio's own.
        replaced = {*(name for name, _ in self.headers), b"x-frame-options"}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [
                    pair for pair in message.get("headers", ()) if pair[0].lower() not in replaced
                ]
                message = {**message, "headers": [*kept, *self.headers]}
            await send(message)

        await self.app(scope, receive, with_headers)


class Guard:
    """Reject requests that the page itself would not send, before Gradio handles them.

    These are requests from other sites (according to Origin), uploads, requests larger than
    MOST_BODY, and more than LOGINS logins per minute from the same address. The limit on logins
    does not affect visitors at other addresses or visitors who are already logged in. Application
    errors are logged on one line and become status 500.

    Args:
        app: The ASGI application.
        public: Whether other machines have access to the page.
    """

    def __init__(self, app: App, *, public: bool = False) -> None:
        self.app = app
        self.public = public
        self.logins: OrderedDict[str, deque[float]] = OrderedDict()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward a request, or respond with status 403, 413, 429 or 500."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in scope["headers"]}
        path = scope["path"].rstrip("/")
        refused = self._refusal(headers)
        # None of the components accepts files, so uploads could only fill the disk.
        if not refused and path.endswith("/upload"):
            refused = "this page does not accept uploads"
        if refused:
            await _answer(scope, send, 403, refused)
            return
        if scope.get("method") == "POST":
            if path.endswith("/login") and self._is_throttled(scope):
                await _answer(scope, send, 429, "too many logins; wait a minute")
                return
            # Read the body here, since Gradio does not limit its size.
            body = await _read_body(receive)
            if body is None:
                await _answer(scope, send, 413, f"a request may have at most {MOST_BODY:,} bytes")
                return
            receive = _replayed(body, receive)
        await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Message, receive: Receive, send: Send) -> None:
        """Call the application, and log any error on one line."""
        has_started = False

        async def sending(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:  # malformed requests can cause any error
            log.warning("%s %s: %s", scope.get("method"), scope["path"], type(error).__name__)
            if not has_started:
                await _answer(scope, send, 500, "this request failed")

    def _is_throttled(self, scope: Message) -> bool:
        """Count a login, and return whether its address sent too many logins in the last minute."""
        address = (scope.get("client") or ("",))[0]
        now = time.monotonic()
        times = self.logins.setdefault(address, deque(maxlen=LOGINS))
        # Evict the least recently used address.
        self.logins.move_to_end(address)
        if len(self.logins) > ADDRESSES:
            self.logins.popitem(last=False)
        if len(times) == LOGINS and now - times[0] < 60:
            return True
        times.append(now)
        return False

    def _refusal(self, headers: dict[str, str]) -> str:
        """Return why a request is rejected because of its Host or Origin, or "" if it is not."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        forwarded = headers.get("x-forwarded-host", host)
        try:
            site = urlsplit(origin or "").netloc
            for address in (urlsplit(f"//{host}"), urlsplit(f"//{forwarded}")):
                _ = address.port  # Gradio parses both headers, and fails if they are invalid
        except ValueError:
            return "Host or Origin is not a valid host name"
        # X-Forwarded-Host is the page's name behind a proxy. Trust it only if the page is public.
        if origin is not None and site not in ({host, forwarded} if self.public else {host}):
            return "requests from other sites are rejected"
        return ""


def guarded(app: App, *, public: bool, site: str = "") -> App:
    """Protect an app against malicious requests.

    A local page accepts only this machine's names as Host, because any other name may belong to a
    foreign site that resolves to this machine (DNS rebinding).

    Args:
        app: The page's ASGI application.
        public: Whether other machines have access to the page.
        site: The only site that may show the page in a frame, or "".
    """
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    guard: App = Guard(app, public=public)
    if not public:
        guard = TrustedHostMiddleware(guard, allowed_hosts=LOCAL, www_redirect=False)
    return Headers(guard, site)


async def _read_body(receive: Receive) -> bytes | None:
    """Return a request body, or None if it is longer than MOST_BODY."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MOST_BODY:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a receive channel that replays the body before it receives further messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return messages.pop() if messages else await receive()

    return receiving


async def _answer(scope: Message, send: Send, status: int, text: str) -> None:
    # 1008 means a policy violation (RFC 6455).
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": text.encode()})


def serve(
    demo: gr.Blocks,
    *,
    announce: Callable[[str], None],
    port: int | None = None,
    public: bool = False,
    site: str = "",
    css: str = "",
    head: str = "",
    finish: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Serve a page until SIGINT or SIGTERM, and then end the process.

    Visitors cannot access files, and nothing is shared, tracked or loaded from other servers.

    Args:
        demo: the page.
        announce: called with the address once the page is available.
        port: the port. If None, use the first free port from 7860.
        public: whether to listen on all network interfaces. This requires a password, see
            `credentials`.
        site: the site that hosts the page, such as "https://huggingface.co", and may show it in a
            frame. The page then needs no password.
        css: style sheet for the page.
        head: HTML for the head of the page.
        finish: called before the process ends, to wait until all answers are saved.

    Raises:
        InvalidInputError: If a public page has no password, or the port is in use.
    """
    import gradio as gr
    import uvicorn
    from fastapi import FastAPI
    from gradio import queueing

    queueing.traceback = _Lines()
    # Gradio imports it during the first event, which would take seconds without any sign.
    import_module("matplotlib.pyplot")
    user = credentials(public=public and not site)
    # Open the port first, since Gradio needs its number.
    listening = listen(EVERYWHERE if public else HERE, port)
    number = listening.getsockname()[1]
    # Maximum number of stored sessions; beyond it, the least recently used session is dropped.
    demo.state_session_capacity = 1000
    # Reject calls if the queue is full, to limit memory use.
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
    # Otherwise, Gradio opens any path that a client claims to have uploaded.
    demo.has_launched = True
    config = uvicorn.Config(
        guarded(Abandoned(app), public=public, site=site),
        log_level="warning",
        timeout_graceful_shutdown=1,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="server", daemon=True
    )
    ended = threading.Event()
    # The handler only sets an event, so that files are fully written before the process ends.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: ended.set())
    thread.start()
    while not server.started and thread.is_alive() and not ended.is_set():
        time.sleep(0.01)
    announce(f"http://{'localhost' if public else HERE}:{number}/")
    ended.wait()
    finish()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that generate images would block a normal exit for minutes


class _Lines:
    """Replace the module `traceback` in Gradio, which prints a traceback for each failed call.

    Otherwise, any visitor could fill the log with malformed calls.
    """

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the module."""
        return getattr(traceback, name)

    @staticmethod
    def print_exc(*_: object, **__: object) -> None:
        """Log an error's type and where it was raised, on one line."""
        error = sys.exception()
        frames = traceback.extract_tb(error.__traceback__) if error else []
        # Do not log the message, because it may quote a visitor's input.
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        log.warning("a call failed: %s at %s", type(error).__name__, place)


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on `port`, or on the first free port in PORTS."""
    problem: OSError | None = None
    for number in PORTS if port is None else [port]:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            # Listen immediately, because another server could still bind the port otherwise.
            listening.listen(128)
        except OSError as error:
            listening.close()
            problem = error
        else:
            return listening
    place = f"port {port}: cannot be opened" if port else "no port from 7860 can be opened"
    raise InvalidInputError(f"{place}: {problem}; choose another --port")


def theme() -> Any:
    """Return a theme with system fonts, since Gradio's own fonts are loaded from other servers."""
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
