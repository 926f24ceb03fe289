"""How the pages are served: to this machine alone unless told otherwise, with a password if public, nothing fetched."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vldebias.cli.apps import AUTH
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    import gradio as gr
    import jinja2

HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"
LOCAL = frozenset({"localhost", HERE, "::1"})
PORTS = range(7860, 7960)
SHORTEST = 8  # characters of the password of a public page; `Guard` lets five be tried in a minute
PATIENCE = 0.5  # seconds that answers under way get when the server is told to end
SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "Menlo", "Consolas", "monospace")
# The strictest policy that Gradio works under: its page has inline scripts and styles, and compiles the `js` of events.
POLICY = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@cache
def templates(folder: Path) -> jinja2.Environment:
    """The HTML templates of a folder; whatever is filled in is escaped. `value | shown(".2f")` formats a number."""
    import jinja2

    def shown(value: float, spec: str) -> str:
        text = format(float(value), spec)
        return text if text.strip("+-0.%") else text.lstrip("+-")  # "-0.000" is none

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    return environment


def credentials(auth: str | None, *, public: bool) -> tuple[str, str] | None:
    """(user, password) from `auth` or the environment; None where a page for this machine alone needs none.

    Raises:
        InvalidInputError: not user:password, or a public page without one or with a short one.
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
    if public and len(password) < SHORTEST:
        raise InvalidInputError(
            f"--auth: the password of a public page needs {SHORTEST} characters or more, got {len(password)}"
        )
    return user, password


def _proxy_network(address: str | None) -> str | None:
    """`address` of a proxy, or a network of them, after checking that it is one.

    Raises:
        InvalidInputError: it is none; "*", which lets every client say who it is, is none either.
    """
    try:
        return None if address is None else str(ipaddress.ip_network(address, strict=False))
    except ValueError:
        raise InvalidInputError(
            f"--proxy: expected the address that the proxy calls from, such as 127.0.0.1 or 10.0.0.0/8, got {address!r}"
        ) from None


class Headers:
    """Tells the browser, with every answer, what the page may load and who may frame it.

    Args:
        app: the ASGI application behind it.
        frames: sites that may show the page in a frame, such as "https://huggingface.co"; none by default.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], *, frames: Sequence[str] = ()) -> None:
        policy = POLICY | {"frame-ancestors": " ".join(["'self'", *frames]) if frames else "'none'"}
        told = {"content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items())}
        told |= {"x-content-type-options": "nosniff", "referrer-policy": "same-origin"}
        if not frames:  # it knows no list of sites
            told["x-frame-options"] = "DENY"
        self.app, self.told = app, [(name.encode(), value.encode()) for name, value in told.items()]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the headers; those of the same name give way."""
        names = {b"x-frame-options", *(name for name, _ in self.told)}

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in names]
                message = {**message, "headers": [*kept, *self.told]}
            await send(message)

        await self.app(scope, receive, telling)


class Guard:
    """Refuses, before Gradio sees it, what no visitor of the page sends.

    A page for this machine alone answers to the names of this machine: another Host is a foreign site whose name was
    made to point here (DNS rebinding). A request from another site (Origin) is refused on every page, uploads are where
    the page has no use for them, and a client has `tries` passwords a minute, of which a right one is given back.

    Args:
        app: the ASGI application behind it.
    """

    def __init__(
        self, app: Callable[..., Awaitable[None]], *, public: bool = False, uploads: bool = True, tries: int = 5
    ) -> None:
        self.app, self.public, self.uploads, self.tries = app, public, uploads, tries
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()  # client -> when its passwords came

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403 or 429."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path, client = scope["path"].rstrip("/"), (scope.get("client") or ("",))[0]
        login = path.endswith("/login") and scope.get("method") == "POST"
        refused = self._refusal(headers, path)
        if refused:
            await _answer(scope, send, 403, refused)
        elif not login:
            await self.app(scope, receive, send)
        elif (giving_back := self._counted(client, send)) is None:
            await _answer(scope, send, 429, "too many wrong passwords; wait a minute")
        else:
            await self.app(scope, receive, giving_back)

    def _refusal(self, headers: dict[str, str], path: str) -> str:
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
        own = {host, forwarded} if self.public else {host}
        if origin is not None and site not in own:
            return "requests from other sites are refused"
        if not self.uploads and path.endswith("/upload"):
            return "this page takes no uploads"
        return ""

    def _counted(self, client: str, send: Send) -> Send | None:
        """Count a password when it comes, for many may come before the first is answered; None where it is too many.

        What is returned sends the answer, and gives a right password back.
        """
        now = time.monotonic()
        times = self._tries.setdefault(client, deque())
        self._tries.move_to_end(client)
        if len(self._tries) > 10_000:
            self._tries.popitem(last=False)
        while times and now - times[0] > 60:
            times.popleft()
        if len(times) >= self.tries:
            return None
        times.append(now)

        async def giving_back(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400 and now in times:
                times.remove(now)
            await send(message)

        return giving_back


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
    port: int | None = None,
    public: bool = False,
    auth: str | None = None,
    proxy: str | None = None,
    css: str = "",
    head: str = "",
    uploads: str | None = None,
    say: Callable[[str], None] | None = None,
    finish: Callable[[], None] | None = None,
    block: bool = True,
) -> str:
    """Serve a page until SIGINT or SIGTERM, which end the process; without `block` return its address at once.

    No path is opened to visitors, nothing is shared, measured or fetched from elsewhere.

    Args:
        port: None takes the first free one from 7860 on.
        public: listen on every interface of the machine; needs a password, see `credentials`.
        proxy: where the reverse proxy in front calls from; who it says is calling (X-Forwarded-For) is believed. By
            default nobody is: passwords are counted by the address that connects.
        uploads: the largest file that a visitor may send, such as "10mb"; None takes none at all.
        say: is told the address once the page answers.
        finish: called when the server is told to end; what it waits for is not lost.

    Raises:
        InvalidInputError: no password for a public page; a port that is taken; a proxy that is no address.
    """
    import gradio as gr
    import uvicorn
    from fastapi import FastAPI

    user, trusted = credentials(auth, public=public), _proxy_network(proxy)
    listening = _listen(EVERYWHERE if public else HERE, port)
    number = listening.getsockname()[1]
    demo.state_session_capacity = 1000
    demo.queue(max_size=64, default_concurrency_limit=4)
    app = gr.mount_gradio_app(
        FastAPI(openapi_url=None),
        demo,
        path="/",
        server_port=number,
        auth=user,
        allowed_paths=[],
        max_file_size=uploads or "1kb",
        theme=theme(),
        css=css,
        head=head,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        show_error=False,
    )
    demo.validate_inputs = _enough  # type: ignore[method-assign]
    demo.has_launched = True  # or Gradio opens any path that a client names as its upload; tested
    config = uvicorn.Config(
        Headers(Guard(app, public=public, uploads=uploads is not None)),
        log_level="warning",
        timeout_graceful_shutdown=1,
        proxy_headers=trusted is not None,  # uvicorn's own default believes whoever calls from this machine
        forwarded_allow_ips=trusted,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="server", daemon=True)
    told = threading.Event()
    for which in (signal.SIGINT, signal.SIGTERM) if block else ():
        signal.signal(which, lambda *_: told.set())
    thread.start()
    while not server.started and thread.is_alive() and not told.is_set():
        time.sleep(0.01)
    address = f"http://{'localhost' if public else HERE}:{number}/"
    if say is not None:
        say(address)
    if block:
        told.wait()
        if finish is not None:
            finish()
        demo.close(verbose=False)
        server.should_exit = True
        thread.join(PATIENCE)
        _end_process()
    return address


def _enough(block_fn: Any, inputs: list[Any]) -> None:
    """In the place of Gradio's own check, which prints a traceback and what was sent: a client's error is not ours."""
    import gradio as gr

    if len(inputs) < len(block_fn.inputs):
        raise gr.Error(f"expected {len(block_fn.inputs)} values, got {len(inputs)}", print_exception=False)


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket bound to `port`, or to the first of PORTS that is free."""
    problem: OSError | None = None
    for number in PORTS if port is None else [port]:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(128)  # here, not when the server starts: two servers may bind before one listens
        except OSError as error:
            listening.close()
            problem = error
        else:
            return listening
    raise InvalidInputError(f"port {port or 'from 7860 on'}: cannot be opened: {problem}; choose another --port")


def _end_process() -> None:
    """Leave now: threads that draw would keep the process, minutes perhaps, and torch takes a second to clear away."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


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
