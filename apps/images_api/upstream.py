"""Call the upstream server within limits, and retry calls that it did not work on."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import httpx2

from vldebias.errors import InvalidInputError

from .bodies import encoded_json
from .headers import Headers
from .limits import ProxyLimits
from .memory import AnswerMemory, HeldAnswers
from .order import Json, RefusedError

# Statuses of calls that the server did not work on. After 500, 502 and 504 it may have generated,
# and charged for, the images.
RETRIED = {408, 409, 429, 503}
# Errors of calls that did not reach the server.
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_VERSION = re.compile(r"v\d\w*")  # such as "v1" and "v1beta"
LONGEST_WAIT = 20.0  # maximum seconds before a retry; beyond that, it is left to the client


@dataclass(frozen=True)
class Reply:
    """Store an upstream response with its complete body."""

    status: int
    headers: Headers
    content: bytes | bytearray

    @property
    def is_success(self) -> bool:
        """Return whether the call succeeded."""
        return 200 <= self.status < 300

    @property
    def has_valid_status(self) -> bool:
        """Return whether the status can be forwarded, since HTTP defines none above 599."""
        return 200 <= self.status <= 599

    @property
    def is_media(self) -> bool:
        """Return whether the body is an image itself, or events that were not requested."""
        kinds = ("image/", "video/", "text/event-stream")
        return self.header("content-type").lower().startswith(kinds)

    def header(self, name: str) -> str:
        """Return the first header with this name, or "" if there is none."""
        for header_name, value in self.headers:
            if header_name.lower() == name.encode():
                return value.decode("latin-1")
        return ""


def checked_address(upstream: str) -> str:
    """Check the base URL of the upstream server.

    Returns:
        The URL without a trailing slash.

    Raises:
        InvalidInputError: If the URL does not have the form http://HOST/... or https://HOST/...
    """
    shown = "no address"
    try:
        parts = urlsplit(upstream)
        _ = parts.port  # raises ValueError if the port is not a number
        has_host = bool(parts.hostname)
        # Do not show the user, password or query, because they may contain keys.
        place = parts.path.rpartition("@")[2]
        shown = f"{parts.scheme}://{parts.hostname}{parts.path}" if has_host else repr(place)
        is_address = parts.scheme in ("http", "https") and has_host
        is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    except (AttributeError, TypeError, ValueError):
        is_address = is_plain = False
    if is_address and is_plain:
        return upstream.rstrip("/")
    raise InvalidInputError(
        f"upstream: got {shown}; expected a client's base_url without a key in it, such as"
        " https://api.openai.com/v1"
    )


class Upstream:
    """A client for one server and one event loop.

    Requests do not share any state. Each is built from the request of its client, without cookies
    or default headers, and has a connection of its own. If connections were kept, bytes that a
    server sends after the end of a response would be read as the response to another client.

    Args:
        address: The base URL, to which paths such as /images/generations are appended.
        limits: Limits on time, memory and the number of requests.
        transport: An httpx2 transport, for tests.
    """

    def __init__(
        self, address: str, limits: ProxyLimits, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self.address = address
        self.limits = limits
        # The limit applies to all requests together, because the server counts calls, not clients.
        self.places = asyncio.Semaphore(int(limits.parallel))
        self.memory = AnswerMemory(int(limits.answer))
        # If the server is down, fail within ten seconds.
        self._timeout = httpx2.Timeout(limits.seconds, connect=min(10.0, limits.seconds))
        self._client = httpx2.AsyncClient(
            transport=transport,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def target(self, raw_path: bytes, query: bytes) -> bytes:
        """Return the path and query for the server, with only one version in the path.

        Args:
            raw_path: The path of the client's request, without a leading slash.
            query: The query of the client's request.
        """
        base = urlsplit(self.address).path
        version, _, rest = raw_path.partition(b"/")
        segments = base.strip("/").split("/")
        name = version.decode("latin-1")
        # Clients may or may not have /v1 in their base_url. A version in the address takes
        # precedence.
        has_version = any(map(_VERSION.fullmatch, segments))
        if has_version and (name == "v1" or name in segments):
            raw_path = rest
        target = base.encode() + b"/" + raw_path
        return target + b"?" + query if query else target

    async def send(
        self, method: str, target: bytes, headers: Headers, **content: Any
    ) -> httpx2.Response:
        """Send a request, and return the response before its body is read.

        Args:
            method: The HTTP method.
            target: The path and query, which are sent byte for byte.
            headers: All headers except Host and those that describe the body, which are added.
            content: `content` or `files`, see httpx2.Request.

        Raises:
            RefusedError: If the target or a header is invalid.
            httpx2.RequestError: If the server cannot be reached.
        """
        extensions = {"timeout": self._timeout.as_dict(), "target": target}
        headers = [*headers, (b"connection", b"close")]
        try:
            url = httpx2.URL(self.address).copy_with(raw_path=target)
            request = httpx2.Request(method, url, headers=headers, extensions=extensions, **content)
            return await self._client.send(request, stream=True)
        except (httpx2.InvalidURL, httpx2.LocalProtocolError, UnicodeError):
            message = "the path or a header of the request cannot be sent to the upstream server"
            raise RefusedError(400, message, code="invalid_request") from None

    async def ask(
        self,
        target: bytes,
        headers: Headers,
        body: Mapping[str, object],
        held: HeldAnswers,
        *,
        as_form: bool = False,
    ) -> Reply:
        """Make a call, retry it if the server did not work on it, and return the response.

        Args:
            target: The path and query.
            headers: The headers forwarded from the request.
            body: The fields to send.
            held: The counter for the response's memory.
            as_form: Whether to send the fields as a multipart form instead of JSON.

        Raises:
            RefusedError: If the server cannot be reached, or if its response is too large or cannot
                be decoded.
        """
        headers = [*headers, (b"accept-encoding", b"gzip, deflate")]
        if not as_form:
            headers.append((b"content-type", b"application/json"))
        for attempt in range(int(self.limits.retries) + 1):
            is_last = attempt == self.limits.retries
            try:
                async with self.places:
                    # Encode the body only now, so that waiting calls do not need memory for it.
                    content = _content_of(body, as_form)
                    reply = await self._ask_once(target, headers, content, held)
            except NOT_SENT as error:
                if is_last:
                    raise unreachable(error) from None
                await asyncio.sleep(backoff(attempt))
                continue
            except httpx2.TimeoutException:
                # The server may still be working on this call, and a retry would be charged again.
                raise late(self.limits.seconds) from None
            except httpx2.DecodingError:
                raise unreadable() from None
            except httpx2.RequestError as error:
                raise unreachable(error) from None
            if is_last or reply.status not in RETRIED:
                return reply
            wait = wait_of(reply, attempt)
            # If the wait is long, forward the response, which tells the client how long to wait.
            if wait > LONGEST_WAIT:
                return reply
            self.memory.release(held, len(reply.content))
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _ask_once(
        self, target: bytes, headers: Headers, content: Json, held: HeldAnswers
    ) -> Reply:
        response = await self.send("POST", target, headers, **content)
        received = bytearray()
        try:
            # A decoded piece has at most one megabyte.
            async for piece in response.aiter_bytes():
                await self.memory.take(held, len(piece))
                received += piece
                # If several pieces are available at once, let other tasks run in between.
                await asyncio.sleep(0)
        except BaseException:
            self.memory.release(held, len(received))
            # The error's traceback refers to this frame, so free the bytes explicitly.
            received.clear()
            raise
        finally:
            await response.aclose()
        return Reply(response.status_code, response.headers.raw, received)


def _content_of(body: Mapping[str, object], as_form: bool) -> Json:
    """Return the body of a call as arguments for httpx2.Request."""
    if not as_form:
        return {"content": encoded_json(body)}
    parts = []
    for name, value in body.items():
        values = value if isinstance(value, list) else [value]
        parts += [(name, (None, text)) for text in values]
    return {"files": parts}


def backoff(attempt: int) -> float:
    """Return the seconds until the next attempt: 0.5, 1, 2, ..., reduced by a random amount."""
    return float(0.5 * 2**attempt * (1 - 0.25 * random.random()))


def wait_of(reply: Reply, attempt: int) -> float:
    """Return the seconds that the server asks to wait, or the value of `backoff`.

    Args:
        reply: The server's response.
        attempt: Zero-based number of the attempt.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(reply.header(name)) / unit)
        except ValueError:
            continue
    return backoff(attempt)


def unreachable(error: Exception) -> RefusedError:
    """Return the error for a server that cannot be reached, without revealing its address."""
    message = f"the upstream server cannot be reached ({type(error).__name__})"
    return RefusedError(502, message, code="upstream_unreachable")


def unreadable() -> RefusedError:
    """Return the error for a response that does not match the API."""
    message = "the upstream server's response does not match its API and contains no image"
    return RefusedError(502, message, code="upstream_form")


def late(seconds: float) -> RefusedError:
    """Return the error for a server that takes too long."""
    message = f"the upstream server did not respond within {seconds:g} seconds"
    return RefusedError(504, message, code="upstream_timeout")
