"""Ask the upstream server, within limits, and ask again what failed."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from vldebias.errors import InvalidInputError

from .limits import Limits
from .order import RefusedError

# Headers of one connection (RFC 9110, section 7.6.1), and what follows from the body.
OF_CONNECTION = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
    "content-length",
}
OF_BODY = {"content-encoding", "accept-encoding", "content-type"}
AGAIN = {408, 409, 429, 500, 502, 503, 504}  # what the clients of the API ask again, too
_VERSION = re.compile(r"v\d+\w*")  # "v1", "v1beta"
LONGEST_WAIT = 20.0  # seconds that a server may ask for; longer waits are for the client


@dataclass(frozen=True)
class Reply:
    """Hold what the upstream server answered: a status, headers, and the whole body."""

    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def is_success(self) -> bool:
        """Tell whether images were made."""
        return 200 <= self.status < 300


def checked_address(upstream: str) -> str:
    """Return the address before /images/generations.

    Raises:
        InvalidInputError: something else than http://HOST/... or https://HOST/...
    """
    shown = "no address"
    try:
        parts = urlsplit(upstream)
        _ = parts.port  # raises where it is no number
        shown = f"{parts.scheme}://{parts.hostname}{parts.path}"  # no password, no key
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    except (AttributeError, TypeError, ValueError):
        is_address = is_plain = False
    if is_address and is_plain:
        return upstream.rstrip("/")
    raise InvalidInputError(
        f"upstream: got {shown}; expected the base_url of a client, without a key in it, such as"
        " https://api.openai.com/v1"
    )


def kept(pairs: Iterable[tuple[str, str]], *leave_out: str) -> list[tuple[str, str]]:
    """Return headers without those of one connection; several of one name stay several."""
    listed = list(pairs)
    dropped = {*OF_CONNECTION, *leave_out}
    for name, text in listed:
        # It may name further headers that are of this connection alone.
        if name.lower() == "connection":
            dropped |= {word.strip().lower() for word in text.split(",")}
    return [(name, text) for name, text in listed if name.lower() not in dropped]


class Upstream:
    """Ask one server; a client that is opened when it is first needed, for one event loop."""

    def __init__(self, address: str, limits: Limits, transport: Any = None) -> None:
        self.address = address
        self.limits = limits
        self.transport = transport
        # Over all requests together: a server counts calls, and not clients.
        self.places = asyncio.Semaphore(int(limits.parallel))
        # A machine that does not answer at all is noticed within ten seconds.
        timeout = httpx.Timeout(limits.seconds, connect=min(10.0, limits.seconds))
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=int(limits.parallel))
        self.client = httpx.AsyncClient(timeout=timeout, transport=transport, limits=pool)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.aclose()

    def url(self, path: str, query: str) -> str:
        """Return the address of a path of the server, with one version in it."""
        address = self.address
        version, _, rest = path.partition("/")
        segments = urlsplit(address).path.strip("/").split("/")
        # Clients may have /v1 in their base_url or not; an address that has a version keeps it.
        has_version = any(map(_VERSION.fullmatch, segments))
        if has_version and (version == "v1" or version in segments):
            path = rest
        return f"{address}/{path}" + (f"?{query}" if query else "")

    async def ask(
        self,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: Mapping[str, Any],
        *,
        as_form: bool = False,
    ) -> Reply:
        """Return the answer to one call; what failed for a moment is asked again.

        as_form: send the fields as a form of several parts, not as JSON.

        Raises:
            RefusedError: the server cannot be reached, or answers more than the limit.
        """
        for attempt in range(int(self.limits.retries) + 1):
            is_last = attempt == self.limits.retries
            try:
                reply = await self._ask_once(url, headers, body, as_form)
            except httpx.TimeoutException:
                # The server may be at work still: to ask again would be paid for twice.
                raise late(self.limits.seconds) from None
            except httpx.TransportError as error:
                if is_last:
                    raise unreachable(error) from None
                await asyncio.sleep(backoff(attempt))
                continue
            if is_last or reply.status not in AGAIN:
                return reply
            wait = wait_of(reply.headers, attempt)
            # The client sees the server's own answer, and how long it asks to wait.
            if wait > LONGEST_WAIT:
                return reply
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _ask_once(
        self,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: Mapping[str, Any],
        as_form: bool,
    ) -> Reply:
        async with self.places:
            fields: dict[str, Any] = {"json": body}
            if as_form:
                fields = {"files": [(name, (None, text)) for name, text in body.items()]}
            request = self.client.build_request("POST", url, headers=list(headers), **fields)
            response = await self.client.send(request, stream=True)
            message = f"the upstream server sent more than {self.limits.answer:,} bytes"
            too_long = RefusedError(502, message, code="upstream_size")
            try:
                content = await read_within(response.aiter_bytes(), self.limits.answer, too_long)
            finally:
                await response.aclose()
            return Reply(response.status_code, response.headers, content)


async def read_within(pieces: AsyncIterator[bytes], limit: float, refusal: RefusedError) -> bytes:
    """Return what comes piece by piece.

    Raises:
        RefusedError: the refusal, as soon as more bytes have come than the limit.
    """
    content = bytearray()
    async for piece in pieces:
        content += piece
        # Counted as they come, since a length that is stated before may be wrong.
        if len(content) > limit:
            raise refusal
    return bytes(content)


def backoff(attempt: int) -> float:
    """Return seconds to wait before the next attempt: .5, 1, 2, ..., less a random part."""
    return float(0.5 * 2**attempt * (1 - 0.25 * random.random()))


def wait_of(headers: Mapping[str, str], attempt: int) -> float:
    """Return the seconds that a server asks to wait, else those of `backoff`."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) / unit)
        except (KeyError, ValueError):
            continue
    return backoff(attempt)


def unreachable(error: Exception) -> RefusedError:
    """Return what a client is told of a server that does not answer; no address, no body."""
    message = f"the upstream server cannot be reached ({type(error).__name__})"
    return RefusedError(502, message, code="upstream_unreachable")


def late(seconds: float) -> RefusedError:
    """Return what a client is told of a server that takes too long."""
    message = f"the upstream server gave no answer within {seconds:g} seconds"
    return RefusedError(504, message, code="upstream_timeout")
