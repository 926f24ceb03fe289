"""Add the header `x-vldebias` to every response, even after an error."""

from __future__ import annotations

import asyncio
import json
import logging

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .headers import NOTE
from .order import RefusedError

log = logging.getLogger("vldebias.images_api")


def json_response(content: object, status: int = 200) -> Response:
    """Return a JSON response in ASCII, so that a lone surrogate remains escaped.

    Args:
        content: A JSON value.
        status: The HTTP status.
    """
    text = json.dumps(content, separators=(",", ":"))
    return Response(text.encode(), status, media_type="application/json")


def refusal_response(refusal: RefusedError) -> Response:
    """Return the response to a rejected request."""
    response = json_response(refusal.content, refusal.status)
    response.headers[NOTE] = f"refused ({refusal.code})"
    if refusal.status == 503:
        # API clients wait this number of seconds before trying again.
        response.headers["retry-after"] = "1"
    return response


class EveryAnswer:
    """Add the header if it is missing, turn errors into responses, and drop stalled clients.

    Args:
        app: The ASGI app.
        seconds: Maximum time for a client to accept the next piece of a response.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self.app = app
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def noted_send(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message.setdefault("headers", [])
                MutableHeaders(scope=message).setdefault(NOTE, "not balanced")
            async with asyncio.timeout(self.seconds):
                await send(message)

        try:
            await self.app(scope, receive, noted_send)
        except ClientDisconnect:
            log.info("a client disconnected")
        except Exception as error:
            # Log only the type, because the message may quote a prompt or a key. If the response
            # has already started, the server closes the connection.
            log.error("a request failed: %s", type(error).__name__)
            if not has_started:
                refusal = RefusedError(500, "this request failed", code="internal_error")
                await refusal_response(refusal)(scope, receive, noted_send)
