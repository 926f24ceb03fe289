"""Send the upstream server's responses to the client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import httpx2
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .headers import NOTE, Headers, forwarded
from .memory import HeldAnswers

_PIECE = 65_536  # bytes sent at once, which the server buffers until the client reads them


def _noted(headers: Iterable[tuple[bytes, bytes]], note: str) -> Headers:
    return [*headers, (NOTE.encode(), note.encode("latin-1"))]


class Relay(StreamingResponse):
    """Stream a response to the client.

    Args:
        reply: The response, whose body has not been read yet.
        note: The header `x-vldebias`.
    """

    def __init__(self, reply: httpx2.Response, note: str) -> None:
        super().__init__(reply.aiter_raw(), reply.status_code)
        self.reply = reply
        self.raw_headers = _noted(forwarded(reply.headers.raw), note)
        length = reply.headers.get("content-length")
        # The raw bytes are forwarded, so the length does not change. If the response is chunked,
        # its length is ignored (RFC 9112, section 6.3) and may be wrong.
        if length and "transfer-encoding" not in reply.headers:
            self.raw_headers.append((b"content-length", length.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, and always close the connection to the server."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.reply.aclose()


class HeldResponse(Response):
    """Send a response from memory in small pieces.

    If it were sent at once, it would remain in the server's buffers until the client reads it, and
    its memory would not be counted.

    Args:
        pieces: The body.
        status: The HTTP status.
        headers: All headers except the length of the body.
        note: The header `x-vldebias`.
        held: The counter for the response's memory.
        seconds: Time within which the client must read the response.
    """

    def __init__(
        self,
        pieces: Sequence[bytes | bytearray],
        status: int,
        headers: Headers,
        note: str,
        held: HeldAnswers,
        seconds: float,
    ) -> None:
        super().__init__(status_code=status)
        self.pieces = pieces
        self.held = held
        self.seconds = seconds
        self.raw_headers = _noted(headers, note)
        # Responses with these statuses do not have a body.
        if status not in (204, 304):
            length = sum(map(len, pieces))
            self.raw_headers.append((b"content-length", b"%d" % length))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, unless the client has disconnected."""
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        async with self.held.sent_within(self.seconds):
            await send(start)
            for piece in _regrouped(self.pieces):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _regrouped(pieces: Sequence[bytes | bytearray]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of equal size."""
    group = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), _PIECE):
            group += piece[start : start + _PIECE]
            if len(group) >= _PIECE:
                yield bytes(group)
                group.clear()
    if group:
        yield bytes(group)
