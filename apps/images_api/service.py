"""Handle requests: balance prompts, edit query embeddings, and forward everything else."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import httpx2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vldebias.errors import REMOVED
from vldebias.wording import BalancedPrompts, Balancer

from .answer import encoded, has_images, joined, read_answer
from .bodies import check_json, encoded_json, is_compressed, is_form, read_fields
from .endpoints import (
    NO_IMAGE,
    Endpoint,
    ImagesEndpoint,
    endpoint_of,
    reason_to_leave,
    resembled_endpoint,
)
from .guardrail import guarded_texts
from .headers import INDEX, NOTE, OF_BODY, Headers, forwarded
from .limits import ProxyLimits
from .memory import ClientBody, HeldAnswers, IncompleteBodies, IncompleteBody
from .middleware import json_response, refusal_response
from .order import (
    LONGEST_PROMPT,
    TOO_LONG,
    Call,
    Json,
    Order,
    RefusedError,
    balanced_at,
)
from .paths import RequestPath, path_of
from .relay import HeldResponse, Relay
from .upstream import Reply, Upstream, late, unreachable, unreadable

if TYPE_CHECKING:
    from .embeddings import QueryEdits

T = TypeVar("T")
log = logging.getLogger("vldebias.images_api")
# Removed: a field and a header with the user's own words, for prompts that clients rewrote.
ORIGINAL_FIELD = "vldebias_original"
ORIGINAL_HEADER = "x-vldebias-original"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
GUARDRAIL = "beta/litellm_basic_guardrail_api"
PATHS_IN_LOG = 100  # maximum number of unbalanced paths that are logged, once each
SHORT = 1000  # prompt length up to which balancing is faster than starting a thread
DRAINED = 2.0  # maximum seconds for reading and discarding the rest of an oversized body
HEADERS = 100  # maximum number of headers in a request, as in Apache
GONE = 499  # logged status if the client has disconnected


@dataclass
class Exchange:
    """Describe a request that is being processed.

    Attributes:
        request: The method and headers of the request.
        path: The path of the request.
        body: The body of the request.
        until: Event loop time by which the response must have started.
        stack: Context managers to close after the response has been sent.
    """

    request: Request
    path: RequestPath
    body: ClientBody
    until: float
    stack: AsyncExitStack

    @property
    def headers(self) -> Headers:
        """Return the headers as bytes."""
        return self.request.headers.raw

    @property
    def query(self) -> bytes:
        """Return the query string as bytes."""
        return bytes(self.request.scope.get("query_string", b""))


@dataclass(eq=False)
class Service:
    """The ASGI app that handles all requests.

    Args:
        address: The address of the upstream server, or None if there is none.
        balancer: The balancer that assigns values. If None, prompts are not balanced.
        edits: The edits of query embeddings. If None, embeddings are not edited.
        limits: Limits on time, memory and the number of requests.
        batch: Whether to make one call per distinct prompt instead of one per image.
        log_prompts: Whether to log prompts.
        follow_seeds: Whether values are derived from the seed of a request.
        image_models: Name patterns of models that return images.
        transport: An httpx2 transport, for tests.
    """

    address: str | None
    balancer: Balancer | None
    edits: QueryEdits | None
    limits: ProxyLimits
    batch: bool
    log_prompts: bool
    follow_seeds: bool
    image_models: Sequence[str]
    transport: httpx2.AsyncBaseTransport | None
    running: int = 0  # number of image requests whose bodies have arrived
    _named_in_log: set[str] = field(default_factory=set)
    _upstream: tuple[asyncio.AbstractEventLoop, Upstream] | None = None

    def __post_init__(self) -> None:
        self.bodies = IncompleteBodies(int(self.limits.bodies))
        # Assigns values by seed or index, which must not depend on the process. Other values start
        # at random, so that short-lived servers do not all start with the same one.
        self.seeded = copy(self.balancer)
        if self.seeded is not None:
            self.seeded.restart(self.seeded.fixed_seed)

    @property
    def upstream(self) -> Upstream:
        """Return the upstream client for the running event loop.

        Raises:
            RefusedError: If there is no upstream server.
        """
        if self.address is None:
            message = "there is no upstream server; start the proxy with --upstream URL"
            raise RefusedError(404, message, code="no_upstream")
        loop = asyncio.get_running_loop()
        # httpx2 connections are tied to an event loop, and test clients start their own loops.
        if self._upstream is None or self._upstream[0] is not loop:
            self._upstream = (loop, Upstream(self.address, self.limits, self.transport))
        return self._upstream[1]

    async def close(self) -> None:
        """Close the connections to the server."""
        # Forget it first, so that a request that arrives meanwhile does not use a closed client.
        closed, self._upstream = self._upstream, None
        if closed is not None:
            await closed[1].close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle any request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope)
        body = ClientBody(receive)
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            shown = "?"
            try:
                _check_headers(request)
                path = path_of(scope)
                shown = path.shown
                until = asyncio.get_running_loop().time() + self.limits.seconds
                response = await self._answer(Exchange(request, path, body, until, stack))
            except RefusedError as refusal:
                response = refusal_response(refusal)
            except ClientDisconnect:
                response = Response(status_code=GONE)
            # A body with two lengths may be an attempt to hide a second request in it (RFC 9112,
            # section 6.1), and the rest of an incomplete body must not be read as a request.
            has_two_lengths = {"content-length", "transfer-encoding"} <= set(request.headers)
            must_close = has_two_lengths or not body.is_complete
            if must_close and scope.get("http_version") == "1.1":
                response.headers["connection"] = "close"
            seconds = time.monotonic() - began
            log.info("%s %s: %d in %.2f s", request.method, shown, response.status_code, seconds)
            await response(scope, receive, send)

    async def _answer(self, exchange: Exchange) -> Response:
        """Balance a request, or forward it with a header that reports that it was not balanced."""
        path, method = exchange.path, exchange.request.method
        if method not in METHODS:
            message = f"the method is not allowed; expected one of {', '.join(METHODS)}"
            raise RefusedError(405, message, code="invalid_method")
        if method == "POST" and self.edits is not None and self.edits.reads(path.name):
            return await self.embed(exchange, self.edits)
        plain = path.plain.lower()
        if method == "POST" and self.edits is not None and self.edits.reads(plain):
            _check_spelling(path, plain)
        if method != "POST" or self.balancer is None:
            return await self._pass_unread(exchange, _not_balanced(path))
        # Clients may or may not have the version in their base_url.
        name = path.name.removeprefix("v1/")
        if name == GUARDRAIL:
            return await self.guard(exchange, self.balancer)
        endpoint = endpoint_of(name)
        meant = ""
        if endpoint is None:
            meant = resembled_endpoint(path.plain)
            endpoint = endpoint_of(meant.removeprefix("v1/"))
        if endpoint is not None:
            return await self.generate(exchange, endpoint, self.balancer, meant)
        reason = reason_to_leave(name)
        if reason:
            return await self._pass_unread(exchange, _unchanged(reason))
        # Log each path once.
        shown = path.shown.removeprefix("v1/")
        is_new = shown not in self._named_in_log and len(self._named_in_log) < PATHS_IN_LOG
        if is_new:
            self._named_in_log.add(shown)
            log.warning("POST %s is forwarded without balancing", shown)
        return await self._pass_unread(exchange, _not_balanced(path))

    async def generate(
        self, exchange: Exchange, endpoint: Endpoint, balancer: Balancer, meant: str = ""
    ) -> Response:
        """Handle a request that may be for images.

        Args:
            exchange: The request.
            endpoint: The endpoint for the request's path.
            balancer: The balancer that assigns values.
            meant: The endpoint's path if the request's path only resembles it. Only requests for
                text are then forwarded.

        Raises:
            RefusedError: If the request is rejected, or if the server sends no valid response.
        """
        async with self._reading(exchange) as beginning:
            if not exchange.body.is_complete:
                # Forward requests that are too long if their path may also return text, such as
                # long conversations.
                if isinstance(endpoint, ImagesEndpoint):
                    await self._check_size(exchange)
                note = _unchanged(f"more than {self.limits.body:,} bytes")
                return await self.pass_on(exchange, exchange.path, note, beginning)
        pieces = beginning.pieces
        # Count a request only after its body has arrived, so that stalled clients do not block
        # others.
        if self.running >= self.limits.requests:
            message = f"{self.running} requests are being processed; try again later"
            raise RefusedError(503, message, code="busy")
        self.running += 1
        try:
            order = await self._order(exchange, endpoint, b"".join(pieces))
            if isinstance(order, Order):
                _check_spelling(exchange.path, meant)
                pieces.clear()
                return await self._generate(exchange, endpoint, order, balancer)
        finally:
            self.running -= 1
        # Forward the request without balancing. If it is invalid, the server reports the error.
        note = _unchanged(order) if order else _not_balanced(exchange.path)
        return await self.pass_on(exchange, exchange.path, note, beginning)

    def _reading(self, exchange: Exchange) -> AbstractAsyncContextManager[IncompleteBody]:
        """Read a request body, or its beginning if it exceeds the limit."""
        return self.bodies.reading(exchange.body, int(self.limits.body), exchange.until)

    async def _read_whole(self, exchange: Exchange) -> IncompleteBody:
        """Read a complete request body.

        Raises:
            RefusedError: If the body is too large.
        """
        async with self._reading(exchange) as beginning:
            await self._check_size(exchange)
        return beginning

    async def _check_size(self, exchange: Exchange) -> None:
        """Raise an error if the body is larger than the limit.

        Raises:
            RefusedError: If the body is too large.
        """
        if exchange.body.is_complete:
            return
        # A client that is still sending receives the response only if its body is read.
        try:
            async with asyncio.timeout(DRAINED):
                while not exchange.body.is_complete:
                    await exchange.body.next_piece()
        except TimeoutError:
            pass
        message = f"the body has more than {self.limits.body:,} bytes"
        raise RefusedError(413, message, code="too_large")

    async def _order(self, exchange: Exchange, endpoint: Endpoint, content: bytes) -> Order | str:
        """Parse a request, or return the reason why it is not balanced.

        Raises:
            RefusedError: If the request is invalid.
        """
        is_strict = isinstance(endpoint, ImagesEndpoint)
        if is_compressed(exchange.request) and not is_strict:
            return "compressed"
        try:
            body = await read_fields(exchange.request, content)
        except RefusedError:
            if is_strict:
                raise
            return NO_IMAGE
        if ORIGINAL_FIELD in body:
            raise _removed(ORIGINAL_FIELD)
        order = endpoint.read(body, int(self.limits.images), self.image_models)
        if not isinstance(order, Order):
            return order
        if len(order.prompt) > LONGEST_PROMPT:
            return TOO_LONG
        if not is_form(exchange.request):
            check_json(body)
        return order

    async def _generate(
        self, exchange: Exchange, endpoint: Endpoint, order: Order, balancer: Balancer
    ) -> Response:
        """Handle an image request: balance its prompt, and make a call for each image."""
        index = _index_of(exchange.request)
        is_seeded = self.follow_seeds and order.seed is not None
        assert self.seeded is not None  # there is a balancer
        if index is None and not is_seeded:
            balance = partial(balancer.next, [order.prompt] * order.n)
        else:
            balance = partial(balanced_at, self.seeded, order, index)
        # Balancing a long prompt takes several milliseconds and must not block other requests.
        if len(order.prompt) <= SHORT:
            prompts = balance()
        else:
            prompts = await asyncio.to_thread(balance)
        if self.log_prompts:
            log.info("prompt %r: %r", order.prompt, prompts.prompts)
        calls = endpoint.calls(order, prompts.prompts, batch=self.batch)
        if order.streams:
            return await self._stream(exchange, order, calls[0], prompts)
        held = await exchange.stack.enter_async_context(self.upstream.memory.holding())
        results = await _unless_disconnected(exchange, self._ask_all(exchange, calls, held))
        if not endpoint.items:
            return self._single_response(results[0], prompts, held)
        return self._joined_response(endpoint, order, calls, results, prompts, held)

    async def _stream(
        self, exchange: Exchange, order: Order, call: Call, prompts: BalancedPrompts
    ) -> Response:
        """Handle a request for one image by streaming its events."""
        content = encoded_json(call.body)
        headers = [*forwarded(exchange.headers, *OF_BODY), (b"content-type", b"application/json")]
        reply = await self._send(exchange, exchange.path, headers, content)
        is_success = 200 <= reply.status_code < 300
        shares = order.is_sequence
        note = _note(prompts, range(1), shares=shares) if is_success else _failed(prompts)
        return Relay(reply, note)

    async def _ask_all(
        self, exchange: Exchange, calls: Sequence[Call], held: HeldAnswers
    ) -> list[Reply | RefusedError]:
        """Return the response or the error for each call.

        Calls that take too long are cancelled without affecting the others.
        """
        upstream = self.upstream
        target = upstream.target(exchange.path.raw, exchange.query)
        headers = forwarded(exchange.headers, *OF_BODY)
        as_form = is_form(exchange.request)
        tasks = []
        for call in calls:
            asking = upstream.ask(target, headers, call.body, held, as_form=as_form)
            tasks.append(asyncio.create_task(asking))
        try:
            remaining = exchange.until - asyncio.get_running_loop().time()
            await asyncio.wait(tasks, timeout=remaining)
        finally:
            # If the client has disconnected, this avoids paying for calls that nobody needs.
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        return [self._result(outcome) for outcome in outcomes]

    def _result(self, outcome: Reply | BaseException) -> Reply | RefusedError:
        """Return the response to a call, or its error."""
        if isinstance(outcome, Reply | RefusedError):
            return outcome
        if isinstance(outcome, asyncio.CancelledError):
            return late(self.limits.seconds)
        # Log only the type, because the message may quote a prompt or a key.
        log.error("a call failed: %s", type(outcome).__name__)
        return RefusedError(500, "this request failed", code="internal_error")

    def _single_response(
        self, result: Reply | RefusedError, prompts: BalancedPrompts, held: HeldAnswers
    ) -> Response:
        """Return the unchanged upstream response to a request with one call.

        Raises:
            RefusedError: If the call failed, or its response does not match the API.
        """
        if isinstance(result, RefusedError):
            raise result
        if not result.is_success:
            return self._failure([result], prompts, held)
        if not result.is_media and read_answer(result.content) is None:
            raise unreadable()
        return self._held_response(result, [result.content], _note(prompts, range(1)), held)

    def _joined_response(
        self,
        endpoint: Endpoint,
        order: Order,
        calls: Sequence[Call],
        results: list[Reply | RefusedError],
        prompts: BalancedPrompts,
        held: HeldAnswers,
    ) -> Response:
        """Return a response with all received images, or the server's first error.

        Raises:
            RefusedError: If none of the calls received a response.
        """
        answers: list[Json | None] = []
        first: Reply | None = None
        for row, result in enumerate(results):
            answers.append(None)
            if isinstance(result, RefusedError):
                continue
            # Errors contain no images, but a server may send images with an invalid status.
            if result.is_success or not result.has_valid_status:
                answer = read_answer(result.content)
                if has_images(answer, endpoint.items, may_be_empty=result.is_success):
                    answers[row] = answer
                    # The body has been parsed, so free its memory.
                    results[row] = replace(result, content=b"")
                    first = first or replace(result, content=b"")
        # If there are no images, forward the server's own response.
        if first is None:
            return self._without_images(endpoint, calls, results, prompts, held)
        try:
            complete, rows = joined(endpoint, calls, answers)
            answers.clear()
            pieces = encoded(complete, endpoint.items)
        except RecursionError:
            raise unreadable() from None
        received = len(set(rows))
        shares = order.is_sequence or received < len(rows)
        note = _note(prompts, rows, failed=len(prompts.prompts) - received, shares=shares)
        reply = replace(first, headers=forwarded(first.headers, *OF_BODY))
        reply.headers.append((b"content-type", b"application/json"))
        return self._held_response(reply, pieces, note, held)

    def _without_images(
        self,
        endpoint: Endpoint,
        calls: Sequence[Call],
        results: Sequence[Reply | RefusedError],
        prompts: BalancedPrompts,
        held: HeldAnswers,
    ) -> Response:
        """Return the response if the server did not send any images.

        Raises:
            RefusedError: If the response does not match the API.
        """
        for result, call in zip(results, calls, strict=True):
            if not isinstance(result, Reply) or not result.is_success:
                continue
            if result.is_media:
                note = _note(prompts, call.rows[:1], failed=len(prompts.prompts) - 1)
                return self._held_response(result, [result.content], note, held)
            # The server rejected the request in the format of its API, such as Gemini, which
            # reports blocked prompts with status 200.
            if endpoint.is_refusal(read_answer(result.content)):
                return self._held_response(result, [result.content], _failed(prompts), held)
        return self._failure(results, prompts, held)

    def _failure(
        self, results: Sequence[Reply | RefusedError], prompts: BalancedPrompts, held: HeldAnswers
    ) -> Response:
        """Return the server's first error, unchanged.

        Raises:
            RefusedError: If the server did not send an error.
        """
        for result in results:
            if not isinstance(result, Reply):
                continue
            if result.is_success or not result.has_valid_status:
                raise unreadable()
            return self._held_response(result, [result.content], _failed(prompts), held)
        refusal = results[0]
        assert isinstance(refusal, RefusedError)
        raise refusal

    def _held_response(
        self, reply: Reply, pieces: Sequence[bytes | bytearray], note: str, held: HeldAnswers
    ) -> HeldResponse:
        """Build a response with the status and headers of an upstream reply."""
        # httpx2 has already decoded the body.
        headers = forwarded(reply.headers, b"content-encoding")
        status = reply.status if reply.has_valid_status else 200
        return HeldResponse(pieces, status, headers, note, held, self.limits.seconds)

    async def embed(self, exchange: Exchange, edits: QueryEdits) -> Response:
        """Handle an embedding request: edit query embeddings, and forward document embeddings.

        Args:
            exchange: The request.
            edits: The edits of query embeddings.

        Raises:
            RefusedError: If the edit belongs to a different model, or if the server sends no valid
                response.
        """
        from .embeddings import CHECKED, edited_answer, is_of_queries, texts_of

        whole = await self._read_whole(exchange)
        body = await read_fields(exchange.request, b"".join(whole.pieces))
        path = exchange.path
        is_query = is_of_queries(path.name, body)
        if path.name.startswith("queries/"):
            path = path.without_first_segment()
        if not is_query:
            return await self.pass_on(exchange, path, "not edited (documents)", whole)
        check_json(body)
        del whole
        upstream = self.upstream
        held = await exchange.stack.enter_async_context(upstream.memory.holding())
        target = upstream.target(path.raw, exchange.query)
        headers = forwarded(exchange.headers, *OF_BODY)
        model = str(body.get("model"))

        async def ask(fields: Json) -> Reply:
            try:
                async with asyncio.timeout_at(exchange.until):
                    return await upstream.ask(target, headers, fields, held)
            except TimeoutError:
                raise late(self.limits.seconds) from None

        # Keep a reference, because requests for other models may displace it while this one waits.
        queries = edits.queries_of_model.get(model)
        if queries is None:
            # Check each model once, because the edit of a different model would silently corrupt
            # its embeddings.
            sample = await _unless_disconnected(exchange, ask({**body, "input": list(CHECKED)}))
            if not sample.is_success:
                return self._failed_embeddings(sample, held)
            queries = await asyncio.to_thread(edits.checked, sample.content)
            edits.remember(model, queries)
        reply = await _unless_disconnected(exchange, ask(body))
        if not reply.is_success:
            return self._failed_embeddings(reply, held)
        edited = await asyncio.to_thread(edited_answer, queries, reply.content, texts_of(body))
        return self._held_response(reply, [edited], "edited", held)

    def _failed_embeddings(self, reply: Reply, held: HeldAnswers) -> Response:
        """Return the server's error.

        Raises:
            RefusedError: If its status cannot be forwarded.
        """
        if not reply.has_valid_status:
            raise unreadable()
        return self._held_response(reply, [reply.content], "not edited (failed)", held)

    async def guard(self, exchange: Exchange, balancer: Balancer) -> Response:
        """Handle a call to LiteLLM's Generic Guardrail API, and return the balanced texts.

        Args:
            exchange: The request.
            balancer: The balancer that assigns values.

        Raises:
            RefusedError: If the body does not match that API.
        """
        whole = await self._read_whole(exchange)
        body = await read_fields(exchange.request, b"".join(whole.pieces))
        check_json(body)
        texts = await asyncio.to_thread(guarded_texts, body, balancer, self.image_models)
        if texts is None:
            response = json_response({"action": "NONE"})
        else:
            response = json_response({"action": "GUARDRAIL_INTERVENED", "texts": texts})
        response.headers[NOTE] = "guardrail"
        return response

    async def _pass_unread(self, exchange: Exchange, note: str) -> Response:
        """Forward a request without parsing its body."""
        async with self._reading(exchange) as beginning:
            if not exchange.body.is_complete:
                return await self.pass_on(exchange, exchange.path, note, beginning)
        return await self.pass_on(exchange, exchange.path, note, beginning)

    async def pass_on(
        self, exchange: Exchange, path: RequestPath, note: str, beginning: IncompleteBody
    ) -> Response:
        """Forward a request unchanged and stream its response.

        Args:
            exchange: The request.
            path: The path at the upstream server.
            note: The value of the header that reports why nothing was balanced.
            beginning: The part of the body that has already been read.

        Raises:
            RefusedError: If the server cannot be reached.
        """
        headers = forwarded(exchange.headers)
        request = exchange.request
        uploaded = None
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        if has_body:
            # A content length must not be combined with chunked encoding (RFC 9112, section 6.3).
            is_chunked = "transfer-encoding" in request.headers
            length = None if is_chunked else request.headers.get("content-length")
            headers += [(b"content-length", length.encode())] if length else []
            uploaded = self._upload(exchange.body, beginning)
        reply = await self._send(exchange, path, headers, uploaded)
        return Relay(reply, note)

    async def _upload(self, body: ClientBody, beginning: IncompleteBody) -> AsyncIterator[bytes]:
        """Yield a request body piece by piece, starting with the part that was already read."""
        size = sum(map(len, beginning.pieces))
        while beginning.pieces:
            yield beginning.pieces.pop(0)
        # Its pieces may have been dropped between two of them, and the rest must not be sent alone.
        if beginning.is_evicted:
            raise TimeoutError
        self.bodies.count(beginning, -size)
        while not body.is_complete:
            piece = await body.next_piece()
            if piece:
                yield piece

    async def _send(
        self, exchange: Exchange, path: RequestPath, headers: Headers, content: object
    ) -> httpx2.Response:
        """Forward a request with new content, and return the response before its body is read.

        Raises:
            RefusedError: If the server cannot be reached, takes too long or sends an invalid
                status.
        """
        upstream = self.upstream
        target = upstream.target(path.raw, exchange.query)
        sent = upstream.send(exchange.request.method, target, headers, content=content)
        try:
            async with asyncio.timeout_at(exchange.until):
                reply = await _unless_disconnected(exchange, sent)
        except (TimeoutError, httpx2.TimeoutException):
            if exchange.body.is_complete:
                raise late(self.limits.seconds) from None
            message = "the body of the request did not arrive in time"
            raise RefusedError(408, message, code="body_timeout") from None
        except httpx2.RequestError as error:
            raise unreachable(error) from None
        if not 200 <= reply.status_code <= 599:
            await reply.aclose()
            raise unreadable()
        return reply


def _check_spelling(path: RequestPath, meant: str) -> None:
    """Raise an error if a path only resembles another one.

    Some upstream servers accept such a path, so forwarding it would skip the balancing.

    Args:
        path: The path of the request.
        meant: The path that it resembles, or "" if there is none.

    Raises:
        RefusedError: If it resembles a path.
    """
    if meant:
        message = f"/{path.shown}: there is no such path; send the request to /{meant}"
        raise RefusedError(404, message, code="unknown_path")


def _check_headers(request: Request) -> None:
    """Raise an error if a request has too many headers, or one that was removed.

    Raises:
        RefusedError: If there are more than `HEADERS`, or one of them was removed.
    """
    n = len(request.headers.raw)
    if n > HEADERS:
        message = f"the request has {n:,} headers; expected at most {HEADERS}"
        raise RefusedError(431, message, code="too_many_headers")
    if ORIGINAL_HEADER in request.headers:
        raise _removed(ORIGINAL_HEADER)


def _removed(name: str) -> RefusedError:
    """Return the error for a field or header that was removed, with what to do instead."""
    return RefusedError(400, f"{name}: this was removed; {REMOVED[name]}", param=name)


async def _unless_disconnected(exchange: Exchange, work: Coroutine[object, object, T]) -> T:
    """Run a coroutine and cancel it if the client disconnects.

    Raises:
        ClientDisconnect: If the client disconnected.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(exchange.body))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    except asyncio.CancelledError:
        # A response that arrived at the same moment has nobody else to close it.
        if working.done() and not working.cancelled() and not working.exception():
            response = working.result()
            if isinstance(response, httpx2.Response):
                await response.aclose()
        raise
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(body: ClientBody) -> None:
    """Return when the client disconnects.

    This first waits for the end of the upload, because two concurrent readers would take each
    other's messages.
    """
    await body.completed.wait()
    while (await body.receive())["type"] != "http.disconnect":
        continue


def _index_of(request: Request) -> int | None:
    """Return the position of the first image in the client's count, or None without a count.

    Raises:
        RefusedError: If the header is not an integer.
    """
    text = request.headers.get(INDEX)
    if text is None:
        return None
    # A number with 18 digits fits into 64 bits.
    if not text.isdecimal() or len(text) > 18:
        raise RefusedError(400, f"{INDEX}: expected a whole number of at least 0", param=INDEX)
    return int(text)


def _note(
    prompts: BalancedPrompts, rows: Sequence[int], failed: int = 0, shares: bool = False
) -> str:
    """Return the header with the images' values and the reasons why prompts are unchanged.

    Args:
        prompts: The balanced prompts.
        rows: The row of each image.
        failed: The number of requested images that are missing.
        shares: Whether a call may return several images, which then share their value.
    """
    note: dict[str, object] = {
        "values": [prompts.values[row] for row in rows],
        "reasons": [prompts.reasons[row] for row in rows],
    }
    people = [prompts.people[row] for row in rows]
    if max(map(len, people), default=0) > 1:
        note["people"] = people  # one value per person in the prompt
    if failed:
        note["failed"] = failed
    if shares:
        note["shared"] = "several images of one call share a value"
    return json.dumps(note)


def _failed(prompts: BalancedPrompts) -> str:
    """Return the header for a response without images."""
    return _note(prompts, [], failed=len(prompts.prompts))


def _unchanged(reason: str) -> str:
    """Return the header that reports why a request for images is not balanced."""
    return json.dumps({"values": [], "reasons": [reason]})


def _not_balanced(path: RequestPath) -> str:
    """Return the header that reports that a path or request is not balanced."""
    return f"not balanced ({path.shown.removeprefix('v1/')})"
