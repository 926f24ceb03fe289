"""Run the images API on this machine until SIGINT or SIGTERM."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.responses import JSONResponse

from vldebias.errors import InvalidInputError

from .order import RefusedError

HERE = "127.0.0.1"
LOCAL = {"localhost", HERE, "::1"}


class LocalOnly:
    """Refuse requests that a page of another site made a browser send to this machine."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass requests on that name this machine, and come from no other site."""
        headers = {
            name.decode("latin-1"): text.decode("latin-1")
            for name, text in scope.get("headers", ())
        }
        if scope["type"] != "http" or _names_this_machine(headers):
            await self.app(scope, receive, send)
            return
        refusal = RefusedError(
            403, "this server answers to localhost alone; see --host", code="host"
        )
        await JSONResponse(refusal.content, refusal.status)(scope, receive, send)


def _names_this_machine(headers: dict[str, str]) -> bool:
    """Tell whether Host, and Origin where there is one, are this machine."""
    # A foreign name that points here (DNS rebinding) shows in Host, a foreign page in Origin.
    addresses = [f"//{headers.get('host', '')}"]
    if "origin" in headers:
        addresses.append(headers["origin"])
    try:
        return all(urlsplit(address).hostname in LOCAL for address in addresses)
    except ValueError:
        return False


def serve(app: Any, *, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve an ASGI app until the process is told to end.

    Args:
        app: the app.
        host: address to listen on. port: 0 takes a free one.
        say: called with the address once it listens.

    Raises:
        InvalidInputError: the address cannot be opened.
    """
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    # On a network the server has names that it cannot know.
    guarded = LocalOnly(app) if host in LOCAL else app
    # The log of accesses would hold addresses of clients; httpx logs every address that is asked.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    config = uvicorn.Config(
        guarded,
        log_level="warning",
        access_log=False,
        # Nothing in front of it is known, so that anybody could write such headers.
        proxy_headers=False,
        server_header=False,
        # Clients of httpx, such as openai's, keep a connection for 5 seconds without a request. A
        # server that closes it just then loses the next request.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=10,
    )
    say(f"http://{f'[{host}]' if ':' in host else host}:{number}/v1")
    # The socket that is bound already: the address that was told is the one that answers.
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
