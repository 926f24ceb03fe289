"""Limit the memory used by incomplete requests and by responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from .order import RefusedError

_OVERHEAD = 65_536  # bytes that a server buffers for a request in addition to its body
_PATIENCE = 10.0  # seconds that a client may take to read a response while others wait for memory
_LONGEST_WAIT = 30.0  # maximum seconds that a response waits for memory while none is released


class ClientBody:
    """Read a request body piece by piece.

    Attributes:
        receive: The receive channel of the request.
        completed: Set once the entire body has been read.
    """

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.completed = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Return whether the entire body has been read."""
        return self.completed.is_set()

    async def next_piece(self) -> bytes:
        """Return the next piece.

        Raises:
            ClientDisconnect: If the client closed the connection.
        """
        message: Message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if not message.get("more_body", False):
            self.completed.set()
        return bytes(message.get("body", b""))


@dataclass(eq=False)
class IncompleteBody:
    """A request body that has not arrived completely.

    Attributes:
        deadline: The time by which it must have arrived.
        pieces: The bytes that have been read and not forwarded, as they arrived. A single buffer
            would have to grow, which doubles a server's memory use for many incomplete bodies.
        size: The number of bytes that are counted.
        is_evicted: Whether its memory was needed for other requests.
    """

    deadline: asyncio.Timeout
    pieces: list[bytes] = field(default_factory=list)
    size: int = _OVERHEAD
    is_evicted: bool = False


class IncompleteBodies:
    """Read request bodies and limit the total memory used by incomplete ones.

    Otherwise, clients that stall while sending a body could exhaust the server's memory. If the
    limit is exceeded, the body that has been incomplete for the longest time is dropped. Normal
    clients send a body within milliseconds.

    Args:
        most: Maximum total size of incomplete bodies, in bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._incomplete: dict[IncompleteBody, None] = {}  # oldest first

    @asynccontextmanager
    async def reading(
        self, body: ClientBody, limit: int, until: float
    ) -> AsyncIterator[IncompleteBody]:
        """Read a body, or only its beginning if it exceeds the limit.

        The bytes are counted until the context is left or they have been forwarded. A body that
        exceeds the limit must be forwarded within the context.

        Args:
            body: The request body as it arrives from the client.
            limit: Number of bytes after which reading stops.
            until: Event loop time by which the body must have arrived.

        Raises:
            RefusedError: If the body did not arrive in time, or if its memory was needed for other
                requests.
        """
        async with self._counted(until) as entry:
            arrived = 0
            while not body.is_complete and arrived <= limit:
                piece = await body.next_piece()
                arrived += len(piece)
                entry.pieces.append(piece)
                self.count(entry, len(piece))
            if entry.is_evicted:
                raise TimeoutError  # its content is gone
            if not entry.deadline.expired():
                entry.deadline.reschedule(None)  # the body may be forwarded until the response
            yield entry

    @asynccontextmanager
    async def _counted(self, until: float) -> AsyncIterator[IncompleteBody]:
        """Track a body while it is being read."""
        entry = None
        try:
            async with asyncio.timeout_at(until) as deadline:
                entry = IncompleteBody(deadline)
                self._incomplete[entry] = None
                self.size += entry.size
                self._evict()
                yield entry
        except TimeoutError:
            if entry is not None and entry.is_evicted:
                message = "too many requests are incomplete; send the body without pauses"
                raise RefusedError(503, message, code="busy") from None
            message = "the body of the request did not arrive in time"
            raise RefusedError(408, message, code="body_timeout") from None
        finally:
            if entry in self._incomplete:
                self._forget(entry)

    def count(self, entry: IncompleteBody, size: int) -> None:
        """Add to a body's bytes, and drop the oldest bodies while the total is too large.

        Args:
            entry: The body.
            size: The number of bytes, which is negative if they have been forwarded.
        """
        entry.size += size
        if entry in self._incomplete:
            self.size += size
        self._evict()

    def _evict(self) -> None:
        while self.size > self.most and self._incomplete:
            oldest = next(iter(self._incomplete))
            self._forget(oldest)
            # A deadline that has already passed cannot be changed.
            if not oldest.deadline.expired():
                oldest.is_evicted = True
                oldest.pieces.clear()  # its reader may only run after many others
                oldest.deadline.reschedule(0)  # in the past, so the reader gets a TimeoutError

    def _forget(self, entry: IncompleteBody) -> None:
        del self._incomplete[entry]
        self.size -= entry.size


@dataclass(eq=False)
class HeldAnswers:
    """Track the memory that the upstream responses to one request use."""

    size: int = 0
    waiting: int = 0  # number of calls whose responses are waiting for memory
    sending: asyncio.Timeout | None = None
    sending_since: float = 0.0

    @asynccontextmanager
    async def sent_within(self, seconds: float) -> AsyncIterator[None]:
        """Limit the time for sending a response, and drop slow clients if memory is short.

        Raises:
            TimeoutError: If the client did not read the response in time.
        """
        async with asyncio.timeout(seconds) as deadline:
            self.sending = deadline
            self.sending_since = asyncio.get_running_loop().time()
            try:
                yield
            finally:
                self.sending = None


@dataclass
class AnswerMemory:
    """Limit the memory used by upstream responses over all requests.

    Requests share `most` bytes. Once these are used up, the oldest waiting request may use a
    reserve of the same size until its response has been sent, then the next request. This prevents
    deadlocks between requests that wait for each other's memory, and many simultaneous requests do
    not cause the loss of images that have already been paid for.

    Args:
        most: Maximum number of bytes per request, which is half of the total.
    """

    most: int
    total: int = 0
    _owner: HeldAnswers | None = None  # the request that uses the reserve
    _held: dict[HeldAnswers, None] = field(default_factory=dict)  # oldest first
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[HeldAnswers]:
        """Count a request's upstream responses until its own response has been sent."""
        held = HeldAnswers()
        self._held[held] = None
        try:
            yield held
        finally:
            del self._held[held]
            self.total -= held.size
            if self._owner is held:
                self._owner = None
            self._wake()

    async def take(self, held: HeldAnswers, size: int) -> None:
        """Wait until there is memory for `size` more bytes of a response, then count them.

        Raises:
            RefusedError: If this request alone exceeds its limit, or if no memory became available
                in time.
        """
        held.waiting += 1
        try:
            await self._wait_for_room(held, size)
        finally:
            held.waiting -= 1
        held.size += size
        self.total += size

    async def _wait_for_room(self, held: HeldAnswers, size: int) -> None:
        now = asyncio.get_running_loop().time
        give_up = now() + _LONGEST_WAIT
        while not self._has_room(held, size):
            if now() > give_up:
                message = "responses to other requests use all available memory; try again later"
                raise RefusedError(503, message, code="busy")
            self._drop_slow_clients()
            # Wait at most a second, because more clients may become slow in the meantime.
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._released.wait()
                    give_up = now() + _LONGEST_WAIT

    def release(self, held: HeldAnswers, size: int) -> None:
        """Stop counting `size` bytes that are no longer in memory, and wake waiting requests."""
        held.size -= size
        self.total -= size
        self._wake()

    def _has_room(self, held: HeldAnswers, size: int) -> bool:
        """Return whether there is enough memory, and assign the reserve if it is not in use.

        Raises:
            RefusedError: If this request alone exceeds its limit.
        """
        if held.size + size > self.most:
            message = f"the upstream server sent more than {self.most:,} bytes for one request"
            raise RefusedError(502, message, code="upstream_size")
        if held is self._owner:
            return True
        reserved = self._owner.size if self._owner is not None else 0
        if self.total - reserved + size <= self.most:
            return True
        if self._owner is None:
            self._owner = next(other for other in self._held if other.waiting)
        return held is self._owner

    def _drop_slow_clients(self) -> None:
        """Stop sending to slow clients while other requests wait for memory."""
        now = asyncio.get_running_loop().time()
        for held in self._held:
            if held.sending is None or now - held.sending_since <= _PATIENCE:
                continue
            if not held.sending.expired():
                held.sending.reschedule(now)
            held.sending = None

    def _wake(self) -> None:
        self._released.set()
        self._released = asyncio.Event()
