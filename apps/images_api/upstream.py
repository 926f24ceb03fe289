"""Call the upstream server within limits, and repeat calls that fail for a moment."""

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
from .headers import Headers, authenticates_connection
from .limits import Limits
from .memory import AnswerMemory, HeldAnswers
from .order import RefusedError

AGAIN = {408, 409, 429, 500, 502, 503, 504}  # what the clients of the API ask again, too
_VERSION = re.compile(r"v\d+\w*")  # "v1", "v1beta"
LONGEST_WAIT = 20.0  # seconds that a server may ask for; longer waits are for the client


@dataclass(frozen=True)
class Reply:
    """An answer of the upstream server with its whole body."""

    status: int
    headers: Headers
    content: bytes | bytearray

    @property
    def is_success(self) -> bool:
        """Return whether images were made."""
        return 200 <= self.status < 300

    @property
    def has_valid_status(self) -> bool:
        """Return whether the status can be passed on: HTTP has none beyond 599."""
        return 200 <= self.status <= 599

    @property
    def is_media(self) -> bool:
        """Return whether the body is an image itself, or events that nobody asked for."""
        kinds = ("image/", "video/", "text/event-stream")
        return self.header("content-type").lower().startswith(kinds)

    def header(self, name: str) -> str:
        """Return the first header of a name; "" without one."""
        for found, value in self.headers:
            if found.lower() == name.encode():
                return value.decode("latin-1")
        return ""


def checked_address(upstream: str) -> str:
    """Return the address before /images/generations.

    Raises:
        InvalidInputError: Not an address like http://HOST/... or https://HOST/...
    """
    shown = "no address"
    try:
        parts = urlsplit(upstream)
        _ = parts.port  # raises ValueError if it is not a number
        has_host = bool(parts.hostname)
        # Without the user, password and query, which may be keys.
        place = parts.path.rpartition("@")[2]
        shown = f"{parts.scheme}://{parts.hostname}{parts.path}" if has_host else repr(place)
        is_address = parts.scheme in ("http", "https") and has_host
        is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    except (AttributeError, TypeError, ValueError):
        is_address = is_plain = False
    if is_address and is_plain:
        return upstream.rstrip("/")
    raise InvalidInputError(
        f"upstream: got {shown}; expected the base_url of a client, without a key in it, such as"
        " https://api.openai.com/v1"
    )


class Upstream:
    """Call one server, from one event loop.

    No state of one request reaches another: requests are built from what the client sent, and the
    client of httpx2 keeps neither cookies nor default headers for them.

    Args:
        address: The address before /images/generations.
        limits: Of time, size and number.
        transport: Of httpx2, for tests.
    """

    def __init__(self, address: str, limits: Limits, transport: Any = None) -> None:
        self.address = address
        self.limits = limits
        # Over all requests together: a server counts calls, not clients.
        self.places = asyncio.Semaphore(int(limits.parallel))
        self.memory = AnswerMemory(int(limits.answer))
        # A machine that does not answer at all is noticed within ten seconds.
        self._timeout = httpx2.Timeout(limits.seconds, connect=min(10.0, limits.seconds))
        pool = httpx2.Limits(max_connections=None, max_keepalive_connections=int(limits.parallel))
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        self._client = httpx2.AsyncClient(transport=transport, limits=pool, cookies=no_cookies)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def target(self, raw_path: bytes, query: bytes) -> bytes:
        """Return the path and query at the server, with one version in the path.

        Args:
            raw_path: The path that the client sent, without a slash before it.
            query: What the client sent after the question mark.
        """
        base = urlsplit(self.address).path
        version, _, rest = raw_path.partition(b"/")
        segments = base.strip("/").split("/")
        name = version.decode("latin-1")
        # Clients may have /v1 in their base_url or not; an address that has a version keeps it.
        has_version = any(map(_VERSION.fullmatch, segments))
        if has_version and (name == "v1" or name in segments):
            raw_path = rest
        target = base.encode() + b"/" + raw_path
        return target + b"?" + query if query else target

    async def send(
        self, method: str, target: bytes, headers: Headers, **content: Any
    ) -> httpx2.Response:
        """Send a request; return the answer before its body is read.

        Args:
            method: The HTTP method.
            target: Path and query, which are sent byte for byte.
            headers: All headers; only Host and those of the body are added.
            content: `content` or `files`, see httpx2.Request.

        Raises:
            RefusedError: The target is too long or not printable.
            httpx2.RequestError: The server cannot be reached.
        """
        extensions = {"timeout": self._timeout.as_dict(), "target": target}
        if authenticates_connection(headers):
            # Such a login holds for the connection, which must not serve another client then.
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
        body: Mapping[str, Any],
        held: HeldAnswers,
        *,
        as_form: bool = False,
    ) -> Reply:
        """Return the answer to one call, repeating it if it fails for a moment.

        Args:
            target: Path and query.
            headers: Those of the request that pass.
            body: The fields that are sent.
            held: Counts the bytes of the answer.
            as_form: Whether to send the fields as a form of several parts, not as JSON.

        Raises:
            RefusedError: The server cannot be reached, or its answer is too large or unreadable.
        """
        headers = [*headers, (b"accept-encoding", b"gzip, deflate")]
        if not as_form:
            headers.append((b"content-type", b"application/json"))
        for attempt in range(int(self.limits.retries) + 1):
            is_last = attempt == self.limits.retries
            try:
                async with self.places:
                    # Encoded here: calls that wait for a place would fill the memory.
                    content = _content_of(body, as_form)
                    reply = await self._ask_once(target, headers, content, held)
            except httpx2.TimeoutException:
                # The server may still be at work: a second call would be paid for twice.
                raise late(self.limits.seconds) from None
            except httpx2.DecodingError:
                raise unreadable() from None
            except httpx2.RequestError as error:
                if is_last:
                    raise unreachable(error) from None
                await asyncio.sleep(backoff(attempt))
                continue
            if is_last or reply.status not in AGAIN:
                return reply
            wait = wait_of(reply, attempt)
            # The client sees the server's own answer, and how long it asks to wait.
            if wait > LONGEST_WAIT:
                return reply
            held.release(len(reply.content))
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _ask_once(
        self, target: bytes, headers: Headers, content: Mapping[str, Any], held: HeldAnswers
    ) -> Reply:
        response = await self.send("POST", target, headers, **content)
        received = bytearray()
        try:
            # Decoded in pieces of at most a megabyte.
            async for piece in response.aiter_bytes():
                await held.take(len(piece))
                received += piece
                # Pieces that were decoded from one are there at once; others go on in between.
                await asyncio.sleep(0)
        except BaseException:
            held.release(len(received))
            # The traceback of the error keeps this frame, and with it the bytes.
            received.clear()
            raise
        finally:
            await response.aclose()
        return Reply(response.status_code, response.headers.raw, received)


def _content_of(body: Mapping[str, Any], as_form: bool) -> dict[str, Any]:
    """Return the content of a call, as arguments of httpx2.Request."""
    if not as_form:
        return {"content": encoded_json(body)}
    parts = []
    for name, value in body.items():
        values = value if isinstance(value, list) else [value]
        parts += [(name, (None, text)) for text in values]
    return {"files": parts}


def backoff(attempt: int) -> float:
    """Return seconds to wait before the next attempt: .5, 1, 2, ..., less a random part."""
    return float(0.5 * 2**attempt * (1 - 0.25 * random.random()))


def wait_of(reply: Reply, attempt: int) -> float:
    """Return the seconds that a server asks to wait, else those of `backoff`."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(reply.header(name)) / unit)
        except ValueError:
            continue
    return backoff(attempt)


def unreachable(error: Exception) -> RefusedError:
    """Return the refusal for a server that does not answer; without its address or a body."""
    message = f"the upstream server cannot be reached ({type(error).__name__})"
    return RefusedError(502, message, code="upstream_unreachable")


def unreadable() -> RefusedError:
    """Return the refusal for an answer that is no answer of the API."""
    message = "the upstream server's answer is not one of its API, and contains no image"
    return RefusedError(502, message, code="upstream_form")


def late(seconds: float) -> RefusedError:
    """Return the refusal for a server that takes too long."""
    message = f"the upstream server gave no answer within {seconds:g} seconds"
    return RefusedError(504, message, code="upstream_timeout")
