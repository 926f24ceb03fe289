"""Answer requests: balance those for images, edit embeddings of queries, pass on all others."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httpx2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vldebias.wording import BalancedPrompts, Balancer

from .answer import encoded, has_images, joined, read_answer
from .bodies import check_json, encoded_json, is_form, read_fields
from .endpoints import NO_IMAGE, Endpoint, ImagesEndpoint, endpoint_of, reason_to_leave
from .guardrail import guarded_texts
from .headers import INDEX, NOTE, OF_BODY, ORIGINAL, Headers, forwarded
from .limits import Limits
from .memory import ClientBody, HeldAnswers, IncompleteBodies
from .middleware import json_response, refusal_response
from .order import (
    LONGEST_PROMPT,
    TOO_LONG,
    Call,
    Order,
    RefusedError,
    balanced,
    calls_of,
)
from .paths import RequestPath, path_of
from .relay import HeldResponse, Relay
from .upstream import Reply, Upstream, late, unreachable, unreadable

if TYPE_CHECKING:
    from .embeddings import QueryEdits

log = logging.getLogger("vldebias.serving")
ORIGINAL_FIELD = "vldebias_original"  # the user's own words as a field, which is not passed on
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
GUARDRAIL = "beta/litellm_basic_guardrail_api"
PATHS_IN_LOG = 100  # paths that are not balanced, each named once
SHORT = 1000  # letters of a prompt that is balanced in less time than a thread takes
DRAINED = 2.0  # seconds in which the rest of a body that is too large is read and dropped
GONE = 499  # what logs call a client that went away; nobody receives it


@dataclass
class Exchange:
    """One request that is being answered.

    Attributes:
        request: Its method and headers.
        path: Its path.
        body: Its body.
        until: Time of the event loop at which its answer must have started.
        stack: Closes what is open until the answer has been sent.
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

    @property
    def remaining(self) -> float:
        """Return the seconds until the answer must have started."""
        return max(0.0, self.until - asyncio.get_running_loop().time())


class Service:
    """Answer requests, as an ASGI app.

    Args:
        address: The upstream server's address; None if there is none.
        balancer: Assigns values to prompts; None if no prompt is balanced.
        edits: Edit embeddings of queries; None if there is no edit.
        limits: Of time, size and number.
        batch: Whether to make one call for each distinct prompt, not for each image.
        log_prompts: Whether to write prompts into the log.
        follow_seeds: Whether the seed of a request decides its values.
        image_models: Patterns of names of models whose answers are images.
        transport: Of httpx2, for tests.
    """

    def __init__(  # noqa: PLR0913
        self,
        address: str | None,
        balancer: Balancer | None,
        edits: QueryEdits | None,
        *,
        limits: Limits,
        batch: bool,
        log_prompts: bool,
        follow_seeds: bool,
        image_models: Sequence[str],
        transport: Any,
    ) -> None:
        self.address = address
        self.balancer = balancer
        self.edits = edits
        self.limits = limits
        self.batch = batch
        self.log_prompts = log_prompts
        self.follow_seeds = follow_seeds
        self.image_models = image_models
        self.transport = transport
        self.running = 0  # requests for images whose bodies have arrived
        self.bodies = IncompleteBodies(int(limits.bodies))
        self._named_in_log: set[str] = set()
        self._upstream: tuple[asyncio.AbstractEventLoop, Upstream] | None = None

    @property
    def upstream(self) -> Upstream:
        """Return the client of the upstream server for the running event loop.

        Raises:
            RefusedError: There is no server.
        """
        if self.address is None:
            message = "no upstream server was named; start it with --upstream URL"
            raise RefusedError(404, message, code="no_upstream")
        loop = asyncio.get_running_loop()
        # httpx2 keeps connections for one event loop, and a test client starts its own.
        if self._upstream is None or self._upstream[0] is not loop:
            self._upstream = (loop, Upstream(self.address, self.limits, self.transport))
        return self._upstream[1]

    async def close(self) -> None:
        """Close the connections to the server."""
        if self._upstream is not None:
            await self._upstream[1].close()
            self._upstream = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer any request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope)
        body = ClientBody(receive)
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            shown = "?"
            try:
                path = path_of(scope)
                shown = path.shown
                until = asyncio.get_running_loop().time() + self.limits.seconds
                response = await self._answer(Exchange(request, path, body, until, stack))
            except RefusedError as refusal:
                response = refusal_response(refusal)
            except ClientDisconnect:
                response = Response(status_code=GONE)
            if not body.is_complete and scope.get("http_version") == "1.1":
                # Whatever the client still sends belongs to no further request.
                response.headers["connection"] = "close"
            seconds = time.monotonic() - began
            log.info("%s %s: %d in %.2f s", request.method, shown, response.status_code, seconds)
            await response(scope, receive, send)

    async def _answer(self, exchange: Exchange) -> Response:
        """Balance a request, or pass it on with a header that says that it was not balanced."""
        path, method = exchange.path, exchange.request.method
        if method not in METHODS:
            message = f"the method is refused; expected one of {', '.join(METHODS)}"
            raise RefusedError(405, message, code="invalid_method")
        if method == "POST" and self.edits is not None and self.edits.reads(path.name):
            return await self.embed(exchange, self.edits)
        if method != "POST" or self.balancer is None:
            return await self._pass_unread(exchange, _not_balanced(path))
        # Clients may have the version in their base_url or not.
        name = path.name.removeprefix("v1/")
        if name == GUARDRAIL:
            return await self.guard(exchange, self.balancer)
        endpoint = endpoint_of(name)
        if endpoint is not None:
            return await self.generate(exchange, endpoint, self.balancer)
        reason = reason_to_leave(name)
        if reason:
            return await self._pass_unread(exchange, _left_alone(reason))
        # Each path is named once.
        shown = path.shown.removeprefix("v1/")
        is_new = shown not in self._named_in_log and len(self._named_in_log) < PATHS_IN_LOG
        if is_new:
            self._named_in_log.add(shown)
            log.warning("POST %s is passed on and not balanced", shown)
        return await self._pass_unread(exchange, _not_balanced(path))

    async def generate(
        self, exchange: Exchange, endpoint: Endpoint, balancer: Balancer
    ) -> Response:
        """Answer a request that may ask for images.

        Raises:
            RefusedError: The request cannot be answered, or the server answers with nothing.
        """
        content = await self._read(exchange)
        # A request counts once its body has arrived, so that clients that stall block nobody.
        if self.running >= self.limits.requests:
            message = f"{self.running} requests are being answered; come again later"
            raise RefusedError(503, message, code="busy")
        self.running += 1
        try:
            order = await self._order(exchange, endpoint, content)
            if isinstance(order, Order):
                del content
                return await self._generate(exchange, endpoint, order, balancer)
        finally:
            self.running -= 1
        # Nothing was balanced; if the request is wrong, the server says so.
        note = _left_alone(order) if order else _not_balanced(exchange.path)
        return await self.pass_on(exchange, exchange.path, note, content)

    async def _read(self, exchange: Exchange) -> bytearray:
        """Return the body of a request, or its start if it is beyond the limit."""
        return await self.bodies.read(exchange.body, int(self.limits.body), exchange.until)

    async def _read_whole(self, exchange: Exchange) -> bytearray:
        """Return the body of a request that is not passed on as it is.

        Raises:
            RefusedError: The body is too large or compressed.
        """
        content = await self._read(exchange)
        await self._check_size(exchange)
        # A few compressed bytes can stand for gigabytes.
        if exchange.request.headers.get("content-encoding", "identity") != "identity":
            message = "the body is compressed; send plain JSON"
            raise RefusedError(415, message, code="unsupported_value")
        return content

    async def _check_size(self, exchange: Exchange) -> None:
        """Refuse a body that is too large.

        Raises:
            RefusedError: It is.
        """
        if exchange.body.is_complete:
            return
        # A client that is still sending sees the answer only if somebody reads what it sends.
        try:
            async with asyncio.timeout(DRAINED):
                while not exchange.body.is_complete:
                    await exchange.body.next_piece()
        except TimeoutError:
            pass
        message = f"the body has more than {self.limits.body:,} bytes"
        raise RefusedError(413, message, code="too_large")

    async def _order(
        self, exchange: Exchange, endpoint: Endpoint, content: bytearray
    ) -> Order | str:
        """Return what a request asks for, or why it is left alone.

        Raises:
            RefusedError: No server could answer the request.
        """
        headers = exchange.request.headers
        is_strict = isinstance(endpoint, ImagesEndpoint)
        # Long conversations, and paths that answer with texts as well, are passed on.
        if not exchange.body.is_complete:
            if is_strict:
                await self._check_size(exchange)
            return f"more than {self.limits.body:,} bytes"
        if headers.get("content-encoding", "identity") != "identity":
            if is_strict:
                message = "the body is compressed; send plain JSON"
                raise RefusedError(415, message, code="unsupported_value")
            return "compressed"
        try:
            body = await read_fields(exchange.request, content)
        except RefusedError:
            if is_strict:
                raise
            return NO_IMAGE
        original = body.pop(ORIGINAL_FIELD, None)
        order = endpoint.read(body, int(self.limits.images), self.image_models)
        if not isinstance(order, Order):
            return order
        if len(order.prompt) > LONGEST_PROMPT:
            return TOO_LONG
        if not is_form(exchange.request):
            check_json({**body, ORIGINAL_FIELD: original})
        if original is None and ORIGINAL in headers:
            original = unquote(headers[ORIGINAL])
        if not isinstance(original, str | None) or len(original or "") > LONGEST_PROMPT:
            message = (
                f"{ORIGINAL_FIELD}: expected the text that the user wrote, of at most"
                f" {LONGEST_PROMPT:,} characters"
            )
            raise RefusedError(400, message, param=ORIGINAL_FIELD)
        return order if original is None else replace(order, original=original)

    async def _generate(
        self, exchange: Exchange, endpoint: Endpoint, order: Order, balancer: Balancer
    ) -> Response:
        """Answer a request for images: balance its prompt, and call for each image."""
        index = _index_of(exchange.request)
        deal = partial(balanced, balancer, order, index, follow_seed=self.follow_seeds)
        # Long prompts take some milliseconds, in which other requests go on.
        if len(order.prompt) <= SHORT:
            found = deal()
        else:
            found = await asyncio.to_thread(deal)
        if self.log_prompts:
            log.info("prompt %r: %r", order.prompt, found.prompts)
        calls = calls_of(endpoint, order, found.prompts, batch=self.batch)
        if order.streams:
            return await self._stream(exchange, calls[0], found)
        held = await exchange.stack.enter_async_context(self.upstream.memory.holding())
        asking = self._ask_all(exchange, calls, held)
        results = await _unless_client_goes(exchange, asking)
        if not endpoint.items:
            return self._single_response(results[0], found, held)
        return self._joined_response(endpoint, calls, results, found, held)

    async def _stream(self, exchange: Exchange, call: Call, found: BalancedPrompts) -> Response:
        """Answer a request for one image whose events are passed on as they come."""
        content = encoded_json(call.body)
        headers = [*forwarded(exchange.headers, *OF_BODY), (b"content-type", b"application/json")]
        reply = await self._send(exchange, exchange.path, headers, content)
        is_success = 200 <= reply.status_code < 300
        note = _note(found, range(1)) if is_success else _failed(found)
        return Relay(reply, note)

    async def _ask_all(
        self, exchange: Exchange, calls: Sequence[Call], held: HeldAnswers
    ) -> list[Reply | RefusedError]:
        """Return the answer to each call, or why there is none.

        Calls that take too long are cancelled; the answers of the others stay.
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
            await asyncio.wait(tasks, timeout=exchange.remaining)
        finally:
            # Also if the client went: nobody pays for images that nobody receives.
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        return [self._result(outcome) for outcome in outcomes]

    def _result(self, outcome: Reply | BaseException) -> Reply | RefusedError:
        """Return the answer to a call, or why there is none."""
        if isinstance(outcome, Reply | RefusedError):
            return outcome
        if isinstance(outcome, asyncio.CancelledError):
            return late(self.limits.seconds)
        # The type alone: a message may quote a prompt or a key.
        log.error("a call failed: %s", type(outcome).__name__)
        return unreachable(Exception())

    def _single_response(
        self, result: Reply | RefusedError, found: BalancedPrompts, held: HeldAnswers
    ) -> Response:
        """Return the answer to a request of one call as it came.

        Raises:
            RefusedError: The call failed, or its answer is not one of the API.
        """
        if isinstance(result, RefusedError):
            raise result
        if not result.is_success:
            return self._failure([result], found, held)
        if not result.is_media and read_answer(result.content) is None:
            raise unreadable()
        return self._held_response(result, [result.content], _note(found, range(1)), held)

    def _joined_response(
        self,
        endpoint: Endpoint,
        calls: Sequence[Call],
        results: list[Reply | RefusedError],
        found: BalancedPrompts,
        held: HeldAnswers,
    ) -> Response:
        """Return one answer with the images that came; without any, the first failure as it is.

        Raises:
            RefusedError: No call was answered.
        """
        answers: list[dict[str, Any] | None] = []
        first: Reply | None = None
        for row, result in enumerate(results):
            answers.append(None)
            if isinstance(result, RefusedError):
                continue
            # An error has no images, but a server with an invalid status may still send some.
            if result.is_success or not result.has_valid_status:
                answer = read_answer(result.content)
                if has_images(answer, endpoint.items, may_be_empty=result.is_success):
                    answers[row] = answer
                    # Once it is parsed, the body is not needed any more.
                    results[row] = replace(result, content=b"")
                    first = first or replace(result, content=b"")
        # Part of the images is an answer; without any the client gets what the server said.
        if first is None:
            return self._without_images(endpoint, calls, results, found, held)
        try:
            complete, rows = joined(endpoint, calls, answers)
            answers.clear()
            pieces = encoded(complete, endpoint.items)
        except RecursionError:
            raise unreadable() from None
        failed = len(found.prompts) - len(rows)
        note = _note(found, rows, failed=failed) if failed else _note(found, rows)
        reply = replace(first, headers=forwarded(first.headers, *OF_BODY))
        reply.headers.append((b"content-type", b"application/json"))
        return self._held_response(reply, pieces, note, held)

    def _without_images(
        self,
        endpoint: Endpoint,
        calls: Sequence[Call],
        results: Sequence[Reply | RefusedError],
        found: BalancedPrompts,
        held: HeldAnswers,
    ) -> Response:
        """Return the answer of a server that sent no list of images.

        Raises:
            RefusedError: No client of the API could read it.
        """
        for result, call in zip(results, calls, strict=True):
            if not isinstance(result, Reply) or not result.is_success:
                continue
            if result.is_media:
                failed = len(found.prompts) - 1
                note = _note(found, call.rows[:1], **({"failed": failed} if failed else {}))
                return self._held_response(result, [result.content], note, held)
            # A refusal in the form of the API: Gemini blocks prompts with status 200.
            if endpoint.is_refusal(read_answer(result.content)):
                return self._held_response(result, [result.content], _failed(found), held)
        return self._failure(results, found, held)

    def _failure(
        self, results: Sequence[Reply | RefusedError], found: BalancedPrompts, held: HeldAnswers
    ) -> Response:
        """Return the first error of the server as it came.

        Raises:
            RefusedError: There is none.
        """
        for result in results:
            if not isinstance(result, Reply):
                continue
            if result.is_success or not result.has_valid_status:
                raise unreadable()
            return self._held_response(result, [result.content], _failed(found), held)
        refusal = results[0]
        assert isinstance(refusal, RefusedError)
        raise refusal

    def _held_response(
        self, reply: Reply, pieces: Sequence[bytes | bytearray], note: str, held: HeldAnswers
    ) -> HeldResponse:
        """Return an answer with the status and headers of a reply."""
        # httpx2 has decoded the body.
        headers = forwarded(reply.headers, b"content-encoding")
        status = reply.status if reply.has_valid_status else 200
        return HeldResponse(pieces, status, headers, note, held, self.limits.seconds)

    async def embed(self, exchange: Exchange, edits: QueryEdits) -> Response:
        """Answer a request for embeddings: edit those of queries, pass on those of documents.

        Raises:
            RefusedError: The edit is of another model, or the server answers with nothing.
        """
        from .embeddings import CHECKED, is_of_queries, texts_of

        content = await self._read_whole(exchange)
        body = await read_fields(exchange.request, content)
        path = exchange.path
        is_query = is_of_queries(path.name, body)
        if path.name.startswith("queries/"):
            path = path.without_first_segment()
        if not is_query:
            return await self.pass_on(exchange, path, "not edited (documents)", content)
        check_json(body)
        del content
        upstream = self.upstream
        held = await exchange.stack.enter_async_context(upstream.memory.holding())
        target = upstream.target(path.raw, exchange.query)
        headers = forwarded(exchange.headers, *OF_BODY)
        model = str(body.get("model"))

        async def ask(fields: dict[str, Any]) -> Reply:
            try:
                async with asyncio.timeout_at(exchange.until):
                    return await upstream.ask(target, headers, fields, held)
            except TimeoutError:
                raise late(self.limits.seconds) from None

        if not edits.checks(model):
            # Once for each model: an edit of another one would do harm that nobody sees.
            sample = await _unless_client_goes(exchange, ask({**body, "input": list(CHECKED)}))
            if not sample.is_success:
                return self._failed_embeddings(sample, held)
            await asyncio.to_thread(edits.check, model, sample.content)
        reply = await _unless_client_goes(exchange, ask(body))
        if not reply.is_success:
            return self._failed_embeddings(reply, held)
        edited = await asyncio.to_thread(edits.edited, model, reply.content, texts_of(body))
        return self._held_response(reply, [edited], "edited", held)

    def _failed_embeddings(self, reply: Reply, held: HeldAnswers) -> Response:
        """Return the server's own error.

        Raises:
            RefusedError: Its status cannot be passed on.
        """
        if not reply.has_valid_status:
            raise unreadable()
        return self._held_response(reply, [reply.content], "not edited (failed)", held)

    async def guard(self, exchange: Exchange, balancer: Balancer) -> Response:
        """Answer LiteLLM's Generic Guardrail API: the texts of a request, with values written.

        Raises:
            RefusedError: The body is not one of that API.
        """
        content = await self._read_whole(exchange)
        body = await read_fields(exchange.request, content)
        check_json(body)
        texts = await asyncio.to_thread(guarded_texts, body, balancer, self.image_models)
        if texts is None:
            response = json_response({"action": "NONE"})
        else:
            response = json_response({"action": "GUARDRAIL_INTERVENED", "texts": texts})
        response.headers[NOTE] = "guardrail"
        return response

    async def _pass_unread(self, exchange: Exchange, note: str) -> Response:
        """Pass on a request whose body nobody looks at, once it has arrived or is long."""
        content = await self._read(exchange)
        return await self.pass_on(exchange, exchange.path, note, content)

    async def pass_on(
        self, exchange: Exchange, path: RequestPath, note: str, content: bytearray
    ) -> Response:
        """Pass a request on as it is, and its answer as it comes.

        Args:
            exchange: The request.
            path: Its path at the server.
            note: The header that says that nothing was balanced, and why.
            content: What was read of the body.

        Raises:
            RefusedError: The server cannot be reached.
        """
        headers = forwarded(exchange.headers)
        request = exchange.request
        uploaded = None
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        if has_body:
            # A length beside chunks is wrong (RFC 9112, section 6.3).
            is_chunked = "transfer-encoding" in request.headers
            length = None if is_chunked else request.headers.get("content-length")
            headers += [(b"content-length", length.encode())] if length else []
            uploaded = _upload(exchange.body, content)
        reply = await self._send(exchange, path, headers, uploaded)
        return Relay(reply, note)

    async def _send(
        self, exchange: Exchange, path: RequestPath, headers: Headers, content: Any
    ) -> httpx2.Response:
        """Send a request on with this content; return the answer before its body is read.

        Raises:
            RefusedError: The server cannot be reached, takes too long or has an invalid status.
        """
        upstream = self.upstream
        target = upstream.target(path.raw, exchange.query)
        sent = upstream.send(exchange.request.method, target, headers, content=content)
        try:
            async with asyncio.timeout_at(exchange.until):
                reply = await _unless_client_goes(exchange, sent)
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


async def _unless_client_goes(exchange: Exchange, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine, and cancel it if the client goes away.

    Raises:
        ClientDisconnect: The client went.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(exchange.body))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(body: ClientBody) -> None:
    """Return when the client goes away.

    Two readers of one channel would take each other's messages: an upload notices it itself.
    """
    await body.completed.wait()
    while (await body.receive())["type"] != "http.disconnect":
        continue


async def _upload(body: ClientBody, content: bytearray) -> AsyncIterator[bytes]:
    """Yield the body of a request piece by piece, first what was read of it."""
    if content:
        first = bytes(content)
        content.clear()
        yield first
        del first
    while not body.is_complete:
        piece = await body.next_piece()
        if piece:
            yield piece


def _index_of(request: Request) -> int | None:
    """Return the place of the first image in a count that the client has; None without one.

    Raises:
        RefusedError: The header is not a whole number.
    """
    text = request.headers.get(INDEX)
    if text is None:
        return None
    # 18 digits fit into 64 bits.
    if not text.isdecimal() or len(text) > 18:
        raise RefusedError(400, f"{INDEX}: expected a whole number from 0 on", param=INDEX)
    return int(text)


def _note(found: BalancedPrompts, rows: Sequence[int], **facts: Any) -> str:
    """Return the header that says which values the images have, or why a prompt was left alone."""
    note = {
        "values": [found.values[row] for row in rows],
        "reasons": [found.reasons[row] for row in rows],
    }
    people = [found.people[row] for row in rows]
    if max(map(len, people), default=0) > 1:
        note["people"] = people  # each person of a scene has their own value
    return json.dumps({**note, **facts})


def _failed(found: BalancedPrompts) -> str:
    """Return the header of an answer without images."""
    return _note(found, [], failed=len(found.prompts))


def _left_alone(reason: str) -> str:
    """Return the header that says why a request for images is left alone."""
    return json.dumps({"values": [], "reasons": [reason]})


def _not_balanced(path: RequestPath) -> str:
    """Return the header that says that a path, or a request of it, is not balanced."""
    return f"not balanced ({path.shown.removeprefix('v1/')})"
