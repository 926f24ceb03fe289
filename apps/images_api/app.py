"""Serve the images API with balanced prompts, as an ASGI app."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import httpx
from starlette.applications import Starlette
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from vldebias.errors import InvalidInputError
from vldebias.wording import BalancedPrompts, Balancer

from .answer import joined, read_answer
from .endpoints import (
    IMAGE_MODELS,
    NO_IMAGE,
    Endpoint,
    ImagesEndpoint,
    endpoint_of,
    reason_to_leave,
)
from .guardrail import guarded_texts
from .limits import Limits
from .order import Call, Order, RefusedError, balanced, calls_of
from .upstream import (
    OF_BODY,
    Reply,
    Upstream,
    checked_address,
    kept,
    late,
    read_within,
    unreachable,
)

if TYPE_CHECKING:
    from .embeddings import QueryEdits

log = logging.getLogger("vldebias.serving")
NOTE = "x-vldebias"  # header of answers: values, reasons, and what failed
ORIGINAL = "x-vldebias-original"  # header of requests: the user's words, percent-encoded
ORIGINAL_FIELD = "vldebias_original"  # the same as a field, which is not passed on
INDEX = "x-vldebias-index"  # header of requests: place of the first image in a shared count
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
GUARDRAIL = "beta/litellm_basic_guardrail_api"
PATHS_IN_LOG = 100  # paths that are not balanced, each named once
SHORT = 1000  # letters of a prompt that is balanced in less time than a thread takes
GONE = 499  # what logs call a client that went away; nobody receives it


def images_proxy(  # noqa: PLR0913
    upstream: str | None,
    sets: Any,
    *,
    shares: Mapping[str, float] | None = None,
    seed: int | None = None,
    batch: bool = False,
    limits: Limits | None = None,
    log_prompts: bool = False,
    follow_seeds: bool = True,
    image_models: Sequence[str] = IMAGE_MODELS,
    edit: str | Path | None = None,
    transport: Any = None,
) -> Starlette:
    """Return an ASGI app that balances the prompts of requests for images and passes them on.

    Requests for images are those of OpenAI's `/images/generations`, `/chat/completions`,
    `/responses` and `/videos`, OpenRouter's `/images`, Gemini's `:generateContent` and Imagen's
    `:predict`. n images become n calls of the upstream server, each with a value in its prompt.
    All other paths are passed on as they are, and the answer's header `x-vldebias` says so. Keys,
    headers and errors go through unchanged; the app holds no key.

    Args:
        upstream: the `base_url` that a client has without this app, "https://api.openai.com/v1".
            None: there is no server behind it, and LiteLLM's guardrail alone is answered.
        sets, shares, seed: see `vldebias.balance_prompts`; values are even over all requests of
            this app, and without a seed one is drawn. For other settings sets may be a
            `vldebias.wording.Balancer`, which has its own shares and seed. None: no prompt is
            balanced, and `edit` alone acts.
        batch: one call for each distinct prompt, with its number of images, instead of one for
            each image.
        limits: of time, size and number; see `Limits`.
        log_prompts: write prompts into the log "vldebias.serving". Default: numbers alone.
        follow_seeds: let the `seed` of a request decide its values, so that the same request gives
            the same image. False: values are even over all requests, whatever seeds they have.
        image_models: patterns of names of models whose answers are images, for paths that answer
            with texts as well.
        edit: folder of an edit (`save_pretrained`) for the vectors of queries: those of requests to
            `/embeddings` with `input_type` "query", or of all below `/queries`. Documents stay as
            they are. It needs the extra "torch".
        transport: of httpx, for tests.

    Raises:
        InvalidInputError: an address, a set, shares or limits that do not fit.

    >>> app = images_proxy("https://api.openai.com/v1", "gender")  # doctest: +SKIP
    """
    balancer = sets
    if isinstance(sets, Balancer) and not (shares is None and seed is None):
        raise InvalidInputError(
            "sets: got a Balancer and shares or seed; leave these out, it has its own"
        )
    if sets is None and edit is None:
        raise InvalidInputError("got neither sets nor edit; expected what to balance, or to edit")
    if sets is not None and not isinstance(sets, Balancer):
        balancer = Balancer(sets, shares, seed)
    edits = None
    if edit is not None:
        # numpy and torch, which the images need not.
        from .embeddings import QueryEdits

        edits = QueryEdits(edit)
    limits = Limits() if limits is None else limits
    service = Service(
        None if upstream is None else checked_address(upstream),
        balancer,
        limits=limits,
        batch=batch,
        log_prompts=log_prompts,
        follow_seeds=follow_seeds,
        image_models=tuple(image_models),
        transport=transport,
    )
    service.edits = edits

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    # An app that is mounted in another has no lifespan of its own: connections open on demand.
    routes = [Route("/{path:path}", service.answer, methods=METHODS)]
    return Starlette(routes=routes, lifespan=lifespan)


class Service:
    """Answer requests: balance those for images, pass on all others."""

    def __init__(
        self,
        address: str | None,
        balancer: Balancer | None,
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
        self.limits = limits
        self.batch = batch
        self.log_prompts = log_prompts
        self.follow_seeds = follow_seeds
        self.image_models = image_models
        self.transport = transport
        self.edits: QueryEdits | None = None
        self.running = 0
        self._named_in_log: set[str] = set()
        self._upstream: tuple[asyncio.AbstractEventLoop, Upstream] | None = None

    @property
    def upstream(self) -> Upstream:
        """Return what asks the server, one for each event loop.

        Raises:
            RefusedError: there is no server.
        """
        if self.address is None:
            message = "no upstream server was named; start it with --upstream URL"
            raise RefusedError(404, message, code="no_upstream")
        loop = asyncio.get_running_loop()
        # httpx keeps connections for one event loop, and a test client starts its own.
        if self._upstream is None or self._upstream[0] is not loop:
            self._upstream = (loop, Upstream(self.address, self.limits, self.transport))
        return self._upstream[1]

    async def close(self) -> None:
        """Close the connections to the server."""
        if self._upstream is not None:
            await self._upstream[1].close()
            self._upstream = None

    async def answer(self, request: Request) -> Response:
        """Answer any request."""
        path = request.path_params["path"].strip("/")
        began = time.monotonic()
        try:
            response = await self._answer(request, path)
        except RefusedError as refusal:
            # The clients of the API wait as long as this says, and ask again.
            headers = {"retry-after": "1"} if refusal.status == 503 else None
            response = JSONResponse(refusal.content, refusal.status, headers)
        except ClientDisconnect:
            response = Response(status_code=GONE)
        seconds = time.monotonic() - began
        log.info("%s %s: %d in %.2f s", request.method, path, response.status_code, seconds)
        return response

    async def _answer(self, request: Request, path: str) -> Response:
        """Answer a request: balance it, or pass it on with a header that says that it was not."""
        # Clients may have the version in their base_url or not.
        name = path.removeprefix("v1/")
        if request.method == "POST" and self.edits is not None and self.edits.reads(path):
            return await self.embed(request, path, self.edits)
        if request.method != "POST" or self.balancer is None:
            return await self.pass_on(request, path, _not_balanced(name))
        if name == GUARDRAIL:
            return await self.guard(request, self.balancer)
        endpoint = endpoint_of(name)
        if endpoint is not None:
            return await self.generate(request, path, endpoint, self.balancer)
        reason = reason_to_leave(name)
        if reason:
            return await self.pass_on(request, path, _left_alone(reason))
        # Each path is named once.
        is_new = name not in self._named_in_log and len(self._named_in_log) < PATHS_IN_LOG
        if is_new:
            self._named_in_log.add(name)
            log.warning("POST %s is passed on and not balanced", quote(name))
        return await self.pass_on(request, path, _not_balanced(name))

    async def generate(
        self, request: Request, path: str, endpoint: Endpoint, balancer: Balancer
    ) -> Response:
        """Answer a request that may ask for images.

        Raises:
            RefusedError: a request that is not passed on, or a server that gives nothing.
        """
        # Before the body is read: what waits must not fill the memory.
        if self.running >= self.limits.requests:
            message = f"{self.running} requests are being answered; come again later"
            raise RefusedError(503, message, code="busy")
        self.running += 1
        try:
            content, order = await self._order(request, endpoint)
            if isinstance(order, Order):
                return await self._generate(request, path, endpoint, order, balancer)
        finally:
            self.running -= 1
        # Nothing was balanced; what the server says of the request is for the client.
        name = path.removeprefix("v1/")
        note = _left_alone(order) if order else _not_balanced(name)
        return await self.pass_on(request, path, note, content)

    async def _order(self, request: Request, endpoint: Endpoint) -> tuple[bytes, Order | str]:
        """Return what was read of the body, and what it asks for or why it is left alone.

        Raises:
            RefusedError: a request that no server could answer.
        """
        is_strict = isinstance(endpoint, ImagesEndpoint)
        # A few compressed bytes can stand for gigabytes.
        if request.headers.get("content-encoding", "identity") != "identity":
            if is_strict:
                message = "the body is compressed; send plain JSON"
                raise RefusedError(415, message, code="unsupported_value")
            return b"", "compressed"
        content = b""
        async for piece in request.stream():
            content += piece
            if len(content) <= self.limits.body:
                continue
            # Long conversations and images of paths that answer with texts as well are passed on.
            if is_strict:
                message = f"the body has more than {self.limits.body:,} bytes"
                raise RefusedError(413, message, code="too_large")
            return content, f"more than {self.limits.body:,} bytes"
        try:
            body = await _fields(request, content)
        except RefusedError:
            if is_strict:
                raise
            return content, NO_IMAGE
        original = body.pop(ORIGINAL_FIELD, None)
        if original is None and ORIGINAL in request.headers:
            original = unquote(request.headers[ORIGINAL])
        if not isinstance(original, str | None):
            message = f"{ORIGINAL_FIELD}: expected the text that the user wrote"
            raise RefusedError(400, message, param=ORIGINAL_FIELD)
        order = endpoint.read(body, int(self.limits.images), self.image_models)
        if isinstance(order, Order) and original is not None:
            order = replace(order, original=original)
        return content, order

    async def _generate(
        self,
        request: Request,
        path: str,
        endpoint: Endpoint,
        order: Order,
        balancer: Balancer,
    ) -> Response:
        """Answer a request for images: balance its prompt, ask for each image, join what came."""
        deal = partial(balanced, balancer, order, _index_of(request), follow_seed=self.follow_seeds)
        # Long prompts take some milliseconds, in which other requests go on.
        if len(order.prompt) <= SHORT:
            found = deal()
        else:
            found = await asyncio.to_thread(deal)
        if self.log_prompts:
            log.info("prompt %r: %r", order.prompt, found.prompts)
        calls = calls_of(endpoint, order, found.prompts, batch=self.batch)
        if order.streams:
            # One image, so one call, whose events go on as they come.
            content = json.dumps(calls[0].body).encode()
            headers = kept(request.headers.items(), ORIGINAL)
            sent = self._send(request, path, headers, content)
            reply = await _unless_client_goes(request, sent)
            return _streamed(reply, _note(found, range(order.n)))
        results = await _unless_client_goes(request, self._ask_all(request, path, calls))
        if not endpoint.items:
            # One call, whose answer goes back as it came; a success says what was balanced.
            response = _first_failure(results)
            if isinstance(results[0], Reply) and results[0].is_success:
                response.headers[NOTE] = _note(found, range(1))
            return response
        return _joined_response(endpoint, calls, results, found)

    async def embed(self, request: Request, path: str, edits: QueryEdits) -> Response:
        """Answer a request for embeddings: those of queries with the edit, those of documents as
        they come.

        Raises:
            RefusedError: an edit of another model, or a server that gives nothing.
        """
        from .embeddings import CHECKED, is_of_queries, path_of_service, texts_of

        too_large = RefusedError(
            413, f"the body has more than {self.limits.body:,} bytes", code="too_large"
        )
        content = await read_within(request.stream(), self.limits.body, too_large)
        body = await _fields(request, content)
        service_path = path_of_service(path)
        if not is_of_queries(path, body):
            return await self.pass_on(request, service_path, "not edited (documents)", content)
        url = self.upstream.url(service_path, request.url.query)
        headers = kept(request.headers.items(), *OF_BODY)
        model = str(body.get("model"))
        if not edits.checks(model):
            # Once for each model: an edit of another one would do harm that nobody sees.
            sample = await self.upstream.ask(url, headers, {**body, "input": list(CHECKED)})
            if not sample.is_success:
                return _first_failure([sample])
            await asyncio.to_thread(edits.check, model, sample.content)
        reply = await _unless_client_goes(request, self.upstream.ask(url, headers, body))
        if not reply.is_success:
            return _first_failure([reply])
        edited = await asyncio.to_thread(edits.edited, model, reply.content, texts_of(body))
        response = Response(edited, reply.status)
        _add_headers(response, kept(reply.headers.multi_items(), "content-encoding"), "edited")
        return response

    async def guard(self, request: Request, balancer: Balancer) -> Response:
        """Answer LiteLLM's Generic Guardrail API: the texts of a request, with values written.

        Raises:
            RefusedError: no JSON object of that API.
        """
        too_large = RefusedError(
            413, f"the body has more than {self.limits.body:,} bytes", code="too_large"
        )
        content = await read_within(request.stream(), self.limits.body, too_large)
        texts = await asyncio.to_thread(
            guarded_texts, await _fields(request, content), balancer, self.image_models
        )
        if texts is None:
            return JSONResponse({"action": "NONE"})
        return JSONResponse({"action": "GUARDRAIL_INTERVENED", "texts": texts})

    async def pass_on(self, request: Request, path: str, note: str, read: bytes = b"") -> Response:
        """Pass a request on as it is, and its answer as it comes.

        note: the header that says that nothing was balanced, and why. read: the start of the body,
        where it was looked at.

        Raises:
            RefusedError: the server cannot be reached.
        """
        headers = kept(request.headers.items())
        uploaded = asyncio.Event()
        content = None
        if "content-length" in request.headers or "transfer-encoding" in request.headers:
            content = _upload(request, uploaded, read)
            length = request.headers.get("content-length")
            headers += [("content-length", length)] if length else []
        else:
            uploaded.set()
        sent = self._send(request, path, headers, content)
        reply = await _unless_client_goes(request, sent, after=uploaded)
        return _streamed(reply, note)

    async def _ask_all(
        self, request: Request, path: str, calls: Sequence[Call]
    ) -> list[Reply | RefusedError]:
        """Return the answer to each call, or why there is none; those that take too long are
        cancelled, the others stay."""
        url = self.upstream.url(path, request.url.query)
        headers = kept(request.headers.items(), *OF_BODY, ORIGINAL)
        as_form = _is_form(request)
        tasks = []
        for call in calls:
            asking = self.upstream.ask(url, headers, call.body, as_form=as_form)
            tasks.append(asyncio.create_task(asking))
        try:
            await asyncio.wait(tasks, timeout=self.limits.seconds)
        finally:
            # Also where the client went or time is up: nobody pays for images that nobody receives.
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        results: list[Reply | RefusedError] = []
        for outcome in outcomes:
            if isinstance(outcome, asyncio.CancelledError):
                results.append(late(self.limits.seconds))
            elif isinstance(outcome, Reply | RefusedError):
                results.append(outcome)
            else:
                # The type alone: a message may quote a prompt or a key.
                log.error("a call failed: %s", type(outcome).__name__)
                results.append(unreachable(Exception()))
        return results

    async def _send(
        self, request: Request, path: str, headers: Sequence[tuple[str, str]], content: Any
    ) -> httpx.Response:
        """Send a request on with this content; return the answer before its body is read.

        Raises:
            RefusedError: the server cannot be reached.
        """
        url = self.upstream.url(path, request.url.query)
        client = self.upstream.client
        sent = client.build_request(request.method, url, headers=list(headers), content=content)
        try:
            return await client.send(sent, stream=True)
        except httpx.TimeoutException:
            raise late(self.limits.seconds) from None
        except httpx.TransportError as error:
            raise unreachable(error) from None


async def _unless_client_goes(
    request: Request, work: Coroutine[Any, Any, Any], *, after: asyncio.Event | None = None
) -> Any:
    """Return what the work gives; cancel it where the client goes away.

    after: set once the body of the request is read, which comes by the same channel.

    Raises:
        ClientDisconnect: the client went.
    """
    working = asyncio.create_task(work)
    # Two readers of one channel would take each other's messages, so this waits for the upload.
    watching = asyncio.create_task(_gone(request, after))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(request: Request, after: asyncio.Event | None) -> None:
    """Return when the client of a request goes away."""
    if after is not None:
        await after.wait()
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _upload(request: Request, uploaded: asyncio.Event, read: bytes) -> AsyncIterator[bytes]:
    """Yield the body of a request piece by piece, what was read of it first, and set the event at
    its end."""
    if read:
        yield read
    if not getattr(request, "_stream_consumed", False):
        async for piece in request.stream():
            yield piece
    uploaded.set()


async def _fields(request: Request, content: bytes) -> dict[str, Any]:
    """Return the fields of a body: JSON, or a form whose files stay files.

    Raises:
        RefusedError: neither of them.
    """
    if _is_form(request):

        async def pieces() -> AsyncGenerator[bytes, None]:
            yield content

        try:
            form = await MultiPartParser(request.headers, pieces()).parse()
        except MultiPartException as error:
            raise RefusedError(400, f"the form cannot be read: {error}") from None
        return dict(form)
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is not JSON", code="invalid_json") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "the body is no JSON object", code="invalid_json")
    return body


def _is_form(request: Request) -> bool:
    """Return whether a request has its fields in a form of several parts, as those for videos."""
    return request.headers.get("content-type", "").startswith("multipart/form-data")


def _streamed(reply: httpx.Response, note: str) -> Response:
    """Return an answer that is passed on as it comes."""
    response = StreamingResponse(_pieces(reply), reply.status_code)
    _add_headers(response, kept(reply.headers.multi_items()), note)
    length = reply.headers.get("content-length")
    if length:
        # The raw pieces are passed on, so that their number of bytes stays true.
        response.headers["content-length"] = length
    return response


def _add_headers(response: Response, headers: Iterable[tuple[str, str]], note: str) -> None:
    """Add headers of the upstream server to a response, and the note where there is one."""
    for name, text in headers:
        response.headers.append(name, text)
    if note:
        response.headers[NOTE] = note


async def _pieces(reply: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the raw pieces of an answer, and close it whatever happens."""
    try:
        async for piece in reply.aiter_raw():
            yield piece
    finally:
        await reply.aclose()


def _index_of(request: Request) -> int | None:
    """Return the place of the first image in a count that the client has; None without one.

    Raises:
        RefusedError: the header holds no whole number.
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
        note["people"] = people  # each of a scene, with a value of their own
    return json.dumps({**note, **facts})


def _left_alone(reason: str) -> str:
    """Return the header that says why a request for images is left alone."""
    return json.dumps({"values": [], "reasons": [reason]})


def _not_balanced(name: str) -> str:
    """Return the header that says that a path, or a request of it, is not balanced."""
    return f"not balanced ({quote(name)})"


def _joined_response(
    endpoint: Endpoint,
    calls: Sequence[Call],
    results: Sequence[Reply | RefusedError],
    found: BalancedPrompts,
) -> Response:
    """Return one answer: the images that came, or where none came the first failure as it is.

    Raises:
        RefusedError: no call was answered at all.
    """
    replies = [result for result in results if isinstance(result, Reply)]
    answers = []
    for result in results:
        answer = None
        if isinstance(result, Reply) and result.is_success:
            answer = read_answer(result.content, endpoint.items)
        answers.append(answer)
    # Part of the images is an answer; without any the client gets what the server said.
    if not any(answers):
        return _first_failure(results)
    complete, rows = joined(endpoint, calls, answers)
    failed = len(found.prompts) - len(rows)
    note = _note(found, rows, failed=failed) if failed else _note(found, rows)
    first = next(reply for reply in replies if reply.is_success)
    response = JSONResponse(complete, first.status)
    _add_headers(response, kept(first.headers.multi_items(), *OF_BODY), note)
    return response


def _first_failure(results: Sequence[Reply | RefusedError]) -> Response:
    """Return the first answer of the server as it came.

    Raises:
        RefusedError: no call was answered.
    """
    for result in results:
        if isinstance(result, Reply):
            response = Response(result.content, result.status)
            headers = kept(result.headers.multi_items(), "content-encoding")
            _add_headers(response, headers, "")
            return response
    refusal = results[0]
    assert isinstance(refusal, RefusedError)
    raise refusal


__all__ = ["Limits", "Service", "images_proxy"]
