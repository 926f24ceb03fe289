"""Serve the pages: to this machine alone unless told otherwise, with a password if public."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from vldebias.cli.apps import AUTH
from vldebias.errors import InvalidInputError

from .abandoned import Abandoned, App, Message, Receive, Send

if TYPE_CHECKING:
    import gradio as gr

HERE = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
LOCAL = ("localhost", HERE, "[::1]")  # what Host may name if a page is for this machine alone
PORTS = range(7860, 7960)
SHORTEST = 8  # characters of the password of a public page
LOGINS = 30  # a minute from one address, right or wrong: far too few to guess a password
ADDRESSES = 10_000  # whose logins are counted: the one not seen for longest is forgotten first
MOST_BODY = 1 << 20  # bytes of a request: what a visitor types is far less
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

log = logging.getLogger("vldebias.apps")


def credentials(*, public: bool) -> tuple[str, str] | None:
    """Return (user, password) from the environment; None where a page for this machine alone needs
    none.

    Raises:
        InvalidInputError: not user:password, or a public page without one or with a short one.
    """
    login = os.environ.get(AUTH, "")
    user, colon, password = login.partition(":")
    if not login and not public:
        return None
    if not (colon and user and password):
        raise InvalidInputError(
            f"{AUTH}: expected user:password, such as ada:long-password; --public needs it"
        )
    # With LOGINS guesses a minute eight characters last for longer than any study.
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
        headers = {
            "content-security-policy": "; ".join(
                f"{name} {value}" for name, value in POLICY.items()
            ),
            "x-content-type-options": "nosniff",
            "referrer-policy": "same-origin",
            "x-frame-options": "DENY",
        }
        self.app = app
        self.headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the headers."""
        # Two policies of one page are both enforced, so those of Gradio go.
        replaced = {name for name, _ in self.headers}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [
                    pair for pair in message.get("headers", ()) if pair[0].lower() not in replaced
                ]
                message = {**message, "headers": [*kept, *self.headers]}
            await send(message)

        await self.app(scope, receive, with_headers)


class Guard:
    """Refuse, before Gradio sees it, what no visitor of the page sends.

    Requests from other sites (Origin), uploads, bodies above MOST_BODY and more than LOGINS logins
    a minute from one address are refused; other addresses, and visitors who are logged in, are
    served. An error behind it becomes a line of the log and status 500.

    Args:
        app: The ASGI application behind it.
        public: Whether other machines may ask.
    """

    def __init__(self, app: App, *, public: bool = False) -> None:
        self.app = app
        self.public = public
        self.logins: OrderedDict[str, deque[float]] = OrderedDict()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403, 413, 429 or 500."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in scope["headers"]}
        path = scope["path"].rstrip("/")
        refused = self._refusal(headers)
        # No component takes files, so that an upload could only fill the disk.
        if not refused and path.endswith("/upload"):
            refused = "this page takes no uploads"
        if refused:
            await _answer(scope, send, 403, refused)
            return
        if scope.get("method") == "POST":
            if path.endswith("/login") and self._is_throttled(scope):
                await _answer(scope, send, 429, "too many logins; wait a minute")
                return
            # Read here, where there is a limit: Gradio takes calls of any length.
            body = await _read_body(receive)
            if body is None:
                await _answer(scope, send, 413, f"a request has at most {MOST_BODY:,} bytes")
                return
            receive = _replayed(body, receive)
        await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Message, receive: Receive, send: Send) -> None:
        """Call the application; an error that it leaves becomes a line of the log."""
        has_started = False

        async def sending(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:  # whatever a malformed request makes of it
            log.warning("%s %s: %s", scope.get("method"), scope["path"], type(error).__name__)
            if not has_started:
                await _answer(scope, send, 500, "this request cannot be read")

    def _is_throttled(self, scope: Message) -> bool:
        """Count a login of an address; return whether it had too many in the last minute."""
        address = (scope.get("client") or ("",))[0]
        now = time.monotonic()
        times = self.logins.setdefault(address, deque(maxlen=LOGINS))
        # The address that has not asked for longest is the first to be forgotten.
        self.logins.move_to_end(address)
        if len(self.logins) > ADDRESSES:
            self.logins.popitem(last=False)
        if len(times) == LOGINS and now - times[0] < 60:
            return True
        times.append(now)
        return False

    def _refusal(self, headers: dict[str, str]) -> str:
        """Return why the Host or the Origin of a request is refused, else ""."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        forwarded = headers.get("x-forwarded-host", host)
        try:
            site = urlsplit(origin or "").netloc
            for address in (urlsplit(f"//{host}"), urlsplit(f"//{forwarded}")):
                _ = address.port  # Gradio reads both, and fails if this fails
        except ValueError:
            return "Host or Origin is not the name of a host"
        # Behind a proxy the page's own name comes in X-Forwarded-Host; alone, nobody may set it.
        if origin is not None and site not in ({host, forwarded} if self.public else {host}):
            return "requests from other sites are refused"
        return ""


def guarded(app: App, *, public: bool) -> App:
    """Return an app with everything that stands between it and the network.

    If the page is for this machine alone, it answers only to the names of this machine: another
    Host is a foreign site whose name was made to point here (DNS rebinding).

    Args:
        app: The ASGI application of the page.
        public: Whether other machines may ask.
    """
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    guard: Any = Guard(app, public=public)
    if not public:
        guard = TrustedHostMiddleware(guard, allowed_hosts=LOCAL, www_redirect=False)
    return Headers(guard)


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request, or None where it is longer than MOST_BODY."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MOST_BODY:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives the body that was read, and then what follows."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return messages.pop() if messages else await receive()

    return receiving


async def _answer(scope: Message, send: Send, status: int, text: str) -> None:
    # 1008: the policy is violated (RFC 6455).
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
    from gradio import queueing

    queueing.traceback = _Lines()
    user = credentials(public=public)
    # The port is taken before Gradio is built, which needs its number.
    listening = _listen(EVERYWHERE if public else HERE, port)
    number = listening.getsockname()[1]
    # Places of visitors that are remembered; the one not seen for longest goes first.
    demo.state_session_capacity = 1000
    # Calls beyond these are refused, so that a crowd does not fill the memory.
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
    config = uvicorn.Config(
        guarded(Abandoned(app), public=public),
        log_level="warning",
        timeout_graceful_shutdown=1,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="server", daemon=True
    )
    ended = threading.Event()
    # Only noted: what is being written ends before the process does.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: ended.set())
    thread.start()
    while not server.started and thread.is_alive() and not ended.is_set():
        time.sleep(0.01)
    say(f"http://{'localhost' if public else HERE}:{number}/")
    ended.wait()
    finish()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # now: threads that generate would keep the process for minutes


class _Lines:
    """Stand in for the module `traceback` where Gradio prints what a visitor's call made of it.

    A traceback for each malformed call would let any visitor fill the log.
    """

    def __getattr__(self, name: str) -> Any:
        """Return what the module has, but for `print_exc`."""
        return getattr(traceback, name)

    @staticmethod
    def print_exc(*_: Any, **__: Any) -> None:
        """Log an error as a line: its type, and where it was raised."""
        error = sys.exception()
        frames = traceback.extract_tb(error.__traceback__) if error else []
        # No message: it may quote what a visitor typed.
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        log.warning("a call failed: %s at %s", type(error).__name__, place)


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
