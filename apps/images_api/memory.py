"""Bound the memory of incomplete requests and of answers that are held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from .order import RefusedError

_OVERHEAD = 65_536  # bytes that a server buffers for a request beside what was handed over
_PATIENCE = 10.0  # seconds that a client may take to read an answer while others wait for memory
_LONGEST_WAIT = 30.0  # seconds that an answer waits for memory while none is released


class ClientBody:
    """Read the body of a request piece by piece.

    Attributes:
        receive: The channel of the request.
        completed: Set once all of the body has been read.
    """

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.completed = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Return whether all of the body has been read."""
        return self.completed.is_set()

    async def next_piece(self) -> bytes:
        """Return the next piece.

        Raises:
            ClientDisconnect: The client closed the connection.
        """
        message: Message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if not message.get("more_body", False):
            self.completed.set()
        return bytes(message.get("body", b""))


@dataclass(eq=False)
class _Incomplete:
    """A body that is being read."""

    deadline: asyncio.Timeout
    size: int = _OVERHEAD
    is_evicted: bool = False


class IncompleteBodies:
    """Read bodies within a bound on the memory of all that are incomplete.

    Clients that send a body and stall would otherwise fill the memory, or every place of the
    server. If the bound is exceeded, the body that has been incomplete for longest is dropped:
    a client that sends at once needs milliseconds.

    Args:
        most: Bytes of all incomplete bodies.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._incomplete: dict[_Incomplete, None] = {}  # the oldest first

    async def read(self, body: ClientBody, limit: int, until: float) -> bytearray:
        """Return a body, or its start if it is longer than the limit; then it is not complete.

        Args:
            body: The body.
            limit: Bytes after which reading stops.
            until: Time of the event loop at which the body must have arrived.

        Raises:
            RefusedError: The body did not arrive in time, or others needed its memory.
        """
        content = bytearray()
        async with self._reading(until) as entry:
            while not body.is_complete and len(content) <= limit:
                piece = await body.next_piece()
                content += piece
                self._grow(entry, len(piece))
        return content

    @asynccontextmanager
    async def _reading(self, until: float) -> AsyncIterator[_Incomplete]:
        """Count a body while it is read."""
        entry = None
        try:
            async with asyncio.timeout_at(until) as deadline:
                entry = _Incomplete(deadline)
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

    def _grow(self, entry: _Incomplete, size: int) -> None:
        """Count bytes of a body, and drop the oldest bodies while there are too many."""
        entry.size += size
        if entry in self._incomplete:
            self.size += size
        self._evict()

    def _evict(self) -> None:
        while self.size > self.most and self._incomplete:
            oldest = next(iter(self._incomplete))
            self._forget(oldest)
            # A deadline that has just passed can no longer be moved.
            if not oldest.deadline.expired():
                oldest.is_evicted = True
                oldest.deadline.reschedule(0)  # a time that has passed: it raises TimeoutError

    def _forget(self, entry: _Incomplete) -> None:
        del self._incomplete[entry]
        self.size -= entry.size


@dataclass(eq=False)
class HeldAnswers:
    """The answers that one request holds; open it with `AnswerMemory.holding`."""

    memory: AnswerMemory
    size: int = 0
    waiting: int = 0  # calls whose answers wait for memory
    sending: asyncio.Timeout | None = None
    sending_since: float = 0.0

    async def take(self, size: int) -> None:
        """Wait until there is room for further bytes, and count them.

        Raises:
            RefusedError: This request alone holds more than its limit, or there was no room for
                long.
        """
        await self.memory.take(self, size)

    def release(self, size: int) -> None:
        """Give back bytes that are no longer held."""
        self.memory.release(self, size)

    @asynccontextmanager
    async def sent_within(self, seconds: float) -> AsyncIterator[None]:
        """Bound the time for sending an answer; a slow client makes way if memory is short.

        Raises:
            TimeoutError: The client did not read the answer in time.
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
    """Bound the bytes of upstream answers that all requests hold.

    Requests share `most` bytes. If these are used up, the oldest request that waits gets a reserve
    of as many again until it has been answered, then the next one does. So requests do not block
    each other by waiting for memory that the others hold, and images that were paid for are not
    lost because many requests came at once.

    Args:
        most: Bytes of one request, half of what all together hold.
    """

    most: int
    total: int = 0
    _owner: HeldAnswers | None = None  # of the reserve
    _held: dict[HeldAnswers, None] = field(default_factory=dict)  # the oldest first
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[HeldAnswers]:
        """Count the answers of a request, until its own answer has been sent."""
        held = HeldAnswers(self)
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
        """See `HeldAnswers.take`."""
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
                message = "the answers of other requests fill the memory; try again later"
                raise RefusedError(503, message, code="busy")
            self._drop_slow_clients()
            # At most a second, because clients become slow while this waits.
            if await _is_set_within(self._released, 1.0):
                give_up = now() + _LONGEST_WAIT

    def release(self, held: HeldAnswers, size: int) -> None:
        """See `HeldAnswers.release`."""
        held.size -= size
        self.total -= size
        self._wake()

    def _has_room(self, held: HeldAnswers, size: int) -> bool:
        """Return whether there is room, and assign the reserve if nobody has it.

        Raises:
            RefusedError: This request alone holds more than its limit.
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
        """Stop sending to clients that keep others waiting."""
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


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; return whether it came in time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
