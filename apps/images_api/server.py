"""Run the images API on this machine until SIGINT or SIGTERM."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from vldebias.errors import InvalidInputError

from .connections import Connections
from .limits import Limits
from .middleware import EveryAnswer, refusal_response
from .order import RefusedError

HERE = "127.0.0.1"
LOCAL = ("localhost", HERE, "::1")
# Clients of httpx, such as openai's, keep a connection for 5 seconds without a request. A server
# that closes it just then loses the next request.
KEEP_ALIVE = 75


class LocalOrigin:
    """Refuse requests that a page of another site made a browser send to this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass requests on that come from no other site."""
        if scope["type"] != "http" or _are_local(Headers(scope=scope).getlist("origin")):
            await self.app(scope, receive, send)
            return
        message = "requests of other sites are refused; see --host"
        refusal = refusal_response(RefusedError(403, message, code="origin"))
        await refusal(scope, receive, send)


def _are_local(origins: list[str]) -> bool:
    try:
        return all(urlsplit(origin).hostname in LOCAL for origin in origins)
    except ValueError:
        return False


def local_only(app: ASGIApp, seconds: float) -> ASGIApp:
    """Return an app that answers this machine alone.

    A foreign name that points here (DNS rebinding) shows in the header Host, a foreign page in
    Origin.

    Args:
        app: The app.
        seconds: Time that a client may take to accept the next piece of an answer.
    """
    # Starlette 1.0 and older cannot read an address of IPv6 from Host, and refuse it.
    hosts = ["localhost", HERE, "[::1]"]
    guarded = TrustedHostMiddleware(LocalOrigin(app), allowed_hosts=hosts, www_redirect=False)
    return EveryAnswer(guarded, seconds)


def serve(app: Any, *, host: str, port: int, limits: Limits, say: Callable[[str], None]) -> None:
    """Serve an ASGI app until the process is told to end.

    Args:
        app: The app.
        host: The address to listen on.
        port: 0 takes a free one.
        limits: Bounds the connections.
        say: Called with the address once it listens.

    Raises:
        InvalidInputError: The address cannot be opened.
    """
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    # On a network the server has names that it cannot know.
    guarded = local_only(app, limits.seconds) if host in LOCAL else app
    # The log of accesses would contain addresses of clients; httpx2 logs every address it calls.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    connections = Connections(int(limits.connections), KEEP_ALIVE)
    config = uvicorn.Config(
        guarded,
        http=connections.protocol,  # type: ignore[arg-type]
        ws="none",
        log_level="warning",
        access_log=False,
        # Nothing in front of it is known, so that anybody could write such headers.
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=10,
    )
    say(f"http://{f'[{host}]' if ':' in host else host}:{number}/v1")
    # The socket is bound already: the address that was printed is the one that answers.
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        raise InvalidInputError(
            f"{host}:{port}: cannot be opened: {error}; choose another --port or --host"
        ) from None
    return listening
