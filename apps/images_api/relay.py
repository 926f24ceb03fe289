"""Send answers of the upstream server to the client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import httpx2
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .headers import NOTE, Headers, forwarded
from .memory import HeldAnswers

_PIECE = 65_536  # bytes that are handed to the server at once, which buffers what a client leaves


def _noted(headers: Iterable[tuple[bytes, bytes]], note: str) -> Headers:
    return [*headers, (NOTE.encode(), note.encode("latin-1"))]


class Relay(StreamingResponse):
    """Pass an answer on as it comes.

    Args:
        reply: The answer, whose body has not been read.
        note: The header `x-vldebias`.
    """

    def __init__(self, reply: httpx2.Response, note: str) -> None:
        super().__init__(reply.aiter_raw(), reply.status_code)
        self.reply = reply
        self.raw_headers = _noted(forwarded(reply.headers.raw), note)
        length = reply.headers.get("content-length")
        if length:
            # The raw bytes are passed on, so their number stays true.
            self.raw_headers.append((b"content-length", length.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, and close the connection to the server whatever happens."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.reply.aclose()


class HeldResponse(Response):
    """Send an answer that is held in memory, in small pieces.

    Handed over at once, an answer would stay in the buffers of the server for as long as the client
    likes, and nobody would count it.

    Args:
        pieces: The body.
        status: The HTTP status.
        headers: All headers but the length of the body.
        note: The header `x-vldebias`.
        held: Counts the memory of the answer.
        seconds: Time in which the client has to read it.
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
        # These two have no body, and no length of it.
        if status not in (204, 304):
            length = sum(map(len, pieces))
            self.raw_headers.append((b"content-length", b"%d" % length))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; to a client that went, the server sends nothing."""
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
    """Yield the same bytes in pieces of one size."""
    group = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), _PIECE):
            group += piece[start : start + _PIECE]
            if len(group) >= _PIECE:
                yield bytes(group)
                group.clear()
    if group:
        yield bytes(group)
