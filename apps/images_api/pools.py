"""Keep the upstream connections of different clients apart."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2

from .headers import Headers, credentials_of

MOST_POOLS = 64  # maximum number of pools, unless more of them have requests in progress


class Pool:
    """The connections for clients with the same credentials.

    Args:
        parallel: Maximum number of idle connections.
        verified: The TLS settings, which all pools share because loading certificates is slow.
        transport: An httpx2 transport, for tests.
    """

    def __init__(
        self, parallel: int, verified: ssl.SSLContext, transport: httpx2.AsyncBaseTransport | None
    ) -> None:
        self.running = 0  # number of requests whose responses are not closed yet
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=parallel)
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        self.client = httpx2.AsyncClient(
            verify=verified, transport=transport, limits=limits, cookies=no_cookies
        )


class Pools:
    """Connections to the upstream server, with one pool for each set of credentials.

    If an upstream server sends more bytes than its response has, they would be read as the response
    to the next request on this connection. Two measures prevent a client from receiving such bytes:
    the connection is closed if it has any, and it is never used with other credentials.

    Args:
        parallel: Maximum number of idle connections per pool.
        transport: An httpx2 transport, for tests.
    """

    def __init__(self, parallel: int, transport: httpx2.AsyncBaseTransport | None) -> None:
        self.parallel = parallel
        self.transport = transport
        self._verified = httpx2.create_ssl_context()
        # The pool that was used last is the last one.
        self._pools: dict[tuple[tuple[bytes, bytes], ...], Pool] = {}

    async def send(self, request: httpx2.Request, headers: Headers) -> httpx2.Response:
        """Send a request on a connection for its credentials.

        Args:
            request: The request to the upstream. The query of its extension "target" may contain
                credentials.
            headers: The client's headers, which contain the others.

        Returns:
            The response, whose body is not read yet.
        """
        credentials = credentials_of(headers, request.extensions["target"].partition(b"?")[2])
        pool = self._pools.pop(credentials, None)
        if pool is None:
            pool = Pool(self.parallel, self._verified, self.transport)
        self._pools[credentials] = pool
        pool.running += 1
        try:
            await self._close_oldest()
            response = await pool.client.send(request, stream=True)
        except BaseException:
            pool.running -= 1
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _CheckedStream(response, response.stream, pool)
        return response

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.client.aclose()
        self._pools.clear()

    async def _close_oldest(self) -> None:
        """Close the pools that have been idle for the longest time, if there are too many."""
        surplus = len(self._pools) - MOST_POOLS
        if surplus <= 0:
            return
        idle = [credentials for credentials, pool in self._pools.items() if not pool.running]
        for credentials in idle[:surplus]:
            await self._pools.pop(credentials).client.aclose()


class _CheckedStream(httpx2.AsyncByteStream):
    """The body of a response, whose connection is closed if it has bytes after the body."""

    def __init__(
        self, response: httpx2.Response, stream: httpx2.AsyncByteStream, pool: Pool
    ) -> None:
        self._connection = response.extensions.get("network_stream")
        self._stream = stream
        self._pool = pool
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield piece
        # The pool does not reuse a connection whose socket is closed.
        if self._connection is not None and _has_surplus(self._stream):
            await self._connection.aclose()

    async def aclose(self) -> None:
        """Release the connection."""
        if self._is_open:
            self._is_open = False
            self._pool.running -= 1
        await self._stream.aclose()


def _has_surplus(stream: object) -> bool:
    """Return whether bytes were received after the end of a response.

    httpx2 has no public access to the buffer of a connection. If its internal structure changes,
    this returns True, so that connections are closed rather than shared.
    """
    connection = stream
    for name in ("_stream", "_httpcore_stream", "_stream", "_connection"):
        connection = getattr(connection, name, None)
    state = getattr(connection, "_h11_state", None)
    return state is None or bool(state.trailing_data[0])
