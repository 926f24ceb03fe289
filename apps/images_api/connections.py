"""Limit a server's connections, so that stalled clients do not block others."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from .headers import NOTE
from .order import RefusedError

_READ = 65_536  # maximum number of bytes to read from a connection at once


class Connections:
    """Track a server's open connections.

    If there are too many, the connection is closed that has been waiting for its client for the
    longest time, either for a complete request or for reading the response. Normal clients send a
    request and read a response within milliseconds.

    Args:
        most: Maximum number of open connections.
        seconds: Time within which a client must send the headers of its next request.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self._open: dict[BoundedConnection, None] = {}

    def admit(self, connection: BoundedConnection) -> bool:
        """Register a new connection, and return whether it is accepted."""
        if len(self._open) >= self.most:
            waiting = [other for other in self._open if other.is_waiting]
            if not waiting:
                return False
            longest = min(waiting, key=lambda other: other.waiting_since)
            del self._open[longest]
            longest.transport.abort()
        self._open[connection] = None
        return True

    def forget(self, connection: BoundedConnection) -> None:
        """Unregister a closed connection."""
        self._open.pop(connection, None)

    def protocol(self, **arguments: Any) -> BoundedConnection:
        """Return the protocol for a new uvicorn connection."""
        return BoundedConnection(self, **arguments)


class BoundedConnection(H11Protocol):
    """HTTP protocol for one of a server's limited number of connections."""

    def __init__(self, open_connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.open_connections = open_connections
        self.waiting_since = self.loop.time()
        self._is_refused = False
        self._timer = self.loop.call_later(open_connections.seconds, self._close_if_idle)

    @property
    def is_waiting(self) -> bool:
        """Return whether a complete request is missing or a response is not being read."""
        is_idle = self.cycle is None or self.cycle.response_complete
        is_unread = self.flow.write_paused or self.transport.is_closing()
        return is_idle or self.cycle.more_body or is_unread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or respond with status 503 if there are too many."""
        # asyncio reads 256 kB at once, which adds up over hundreds of connections.
        if hasattr(transport, "max_size"):
            transport.max_size = _READ
        super().connection_made(cast(asyncio.Transport, transport))
        if self.open_connections.admit(self):
            self._wait_for_headers()
            return
        self._is_refused = True
        self._answer(503, "too many requests are being processed; try again later", "busy")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        self.open_connections.forget(self)
        self._timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the time limit for a client that does not read its response."""
        self.waiting_since = self.loop.time()
        super().pause_writing()

    def data_received(self, data: bytes) -> None:
        """Parse data, and end the time limit for headers once they are complete."""
        if self._is_refused:
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            # The headers of the request are complete. The time for the body is limited by the app.
            self.waiting_since = self.loop.time()
            self._timer.cancel()

    def shutdown(self) -> None:
        """Close the connection after its response, which tells the client not to reuse it."""
        if self.cycle is not None:
            self.cycle.default_headers = [*self.cycle.default_headers, (b"connection", b"close")]
        super().shutdown()

    def on_response_complete(self) -> None:
        """Start the time limit for the headers of the next request."""
        self._wait_for_headers()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP in the format of the API."""
        self._answer(400, msg, "invalid_request")

    def _wait_for_headers(self) -> None:
        self.waiting_since = self.loop.time()
        self._timer.cancel()
        self._timer = self.loop.call_later(self.open_connections.seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def _answer(self, status: int, message: str, code: str) -> None:
        """Send a response without calling the app, then close the connection."""
        content = json.dumps(RefusedError(status, message, code=code).content).encode()
        head = (
            f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(content)}\r\n{NOTE}: refused ({code})\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.transport.close()
