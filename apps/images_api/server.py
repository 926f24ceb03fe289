"""Run the images API on this machine until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from vldebias.errors import InvalidInputError

from .connections import Connections
from .limits import ProxyLimits
from .middleware import EveryAnswer, refusal_response
from .order import RefusedError

HERE = "127.0.0.1"
LOCAL = ("localhost", HERE, "::1")
# Clients based on httpx, such as OpenAI's, reuse idle connections for 5 seconds. If the server
# closed them earlier, requests would be lost.
KEEP_ALIVE = 75


class LocalOrigin:
    """Reject requests to this machine that come from pages on other sites."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request unless it comes from another site."""
        if scope["type"] != "http" or _are_local(Headers(scope=scope).getlist("origin")):
            await self.app(scope, receive, send)
            return
        message = "requests from other sites are rejected; see --host"
        refusal = refusal_response(RefusedError(403, message, code="origin"))
        await refusal(scope, receive, send)


class AnsweredAtTheEnd:
    """Respond with status 503 to requests that the end of the server cancels.

    Otherwise, uvicorn would respond with status 500 and log a traceback.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and answer it if it is cancelled."""
        try:
            await self.app(scope, receive, send)
        except asyncio.CancelledError:
            message = "the server is stopping; try again later"
            refusal = refusal_response(RefusedError(503, message, code="stopping"))
            # uvicorn raises this error if the response has already started.
            with suppress(RuntimeError):
                if scope["type"] == "http":
                    await refusal(scope, receive, send)


def _are_local(origins: list[str]) -> bool:
    try:
        return all(urlsplit(origin).hostname in LOCAL for origin in origins)
    except ValueError:
        return False


def local_only(app: ASGIApp, seconds: float) -> ASGIApp:
    """Restrict an app to requests from this machine.

    The header Host reveals foreign names that resolve to this machine (DNS rebinding), and the
    header Origin reveals pages on other sites.

    Args:
        app: The ASGI app to protect.
        seconds: Maximum time for a client to accept the next piece of a response.
    """
    # Starlette 1.0 and older reject IPv6 addresses in Host, because they cannot parse them.
    hosts = ["localhost", HERE, "[::1]"]
    guarded = TrustedHostMiddleware(LocalOrigin(app), allowed_hosts=hosts, www_redirect=False)
    return EveryAnswer(guarded, seconds)


def serve(
    app: ASGIApp, *, host: str, port: int, limits: ProxyLimits, announce: Callable[[str], None]
) -> None:
    """Serve an ASGI app until SIGINT or SIGTERM.

    Args:
        app: The ASGI app to serve.
        host: The address to listen on.
        port: The port, or 0 for any free port.
        limits: The limits on connections.
        announce: Called with the address once the server is listening.

    Raises:
        InvalidInputError: If the server cannot listen on the address.
    """
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    # A server on a network does not know its own names, so Host cannot be checked.
    guarded = local_only(app, limits.seconds) if host in LOCAL else app
    # An access log would contain client addresses, and httpx2 logs every address it calls.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    connections = Connections(int(limits.connections), KEEP_ALIVE)
    config = uvicorn.Config(
        AnsweredAtTheEnd(guarded),
        http=connections.protocol,  # type: ignore[arg-type]
        ws="none",
        log_level="warning",
        access_log=False,
        # These headers cannot be trusted, because the server may not be behind a proxy.
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        # Cancelling calls and closing connections takes another second or two, and a common grace
        # period is ten seconds.
        timeout_graceful_shutdown=7,
    )
    announce(f"http://{f'[{host}]' if ':' in host else host}:{number}/v1")
    # The socket is already bound, so the printed address is correct.
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
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
