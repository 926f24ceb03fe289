"""Test the images API with more clients than any of its limits, in orders chosen by a seed.

Every message from and to a client or the upstream server waits until a scheduler lets it continue.
The scheduler chooses the next one at random with a fixed seed, so each order is repeatable.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.apps.test_image_endpoints import FalseEmbeddings, edit_folder
from vldebias import ProxyLimits, images_proxy

__all__ = ["edit_folder"]  # a fixture

CLIENTS = 200
LIMITS = ProxyLimits(
    requests=100, parallel=3, bodies=150 * 65_536, answer=20_000, images=4, retries=1, connections=1
)
JOBS = ("doctor", "nurse", "pilot", "chef")


class Scheduler:
    """Let one of the waiting steps continue at a time, in an order that a seed determines."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.waiting: list[asyncio.Future[None]] = []

    async def step(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await future

    async def run(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Run until all tasks have ended."""
        while not all(task.done() for task in tasks):
            for _ in range(self.random.choice((1, 3, 30))):
                await asyncio.sleep(0)
            if self.waiting:
                future = self.waiting.pop(self.random.randrange(len(self.waiting)))
                if not future.done():
                    future.set_result(None)


class Body(httpx2.AsyncByteStream):
    """A response that arrives in pieces, and counts whether it was closed."""

    def __init__(self, upstream: Upstream, content: bytes) -> None:
        self.upstream = upstream
        self.content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.content), 3000):
            await self.upstream.scheduler.step()
            yield self.content[start : start + 3000]

    async def aclose(self) -> None:
        self.upstream.open.discard(self)


class Upstream(httpx2.AsyncBaseTransport):
    """Answer each request with the name of its client, sometimes after an error.

    Attributes:
        open: the responses that were not closed.
        most: the largest number of image calls at once.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.open: set[Body] = set()
        self.running = 0
        self.most = 0
        self.embeddings = FalseEmbeddings()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        is_image = "images" in request.url.path
        self.running += is_image
        self.most = max(self.most, self.running)
        try:
            content = await request.aread()
            await self.scheduler.step()
        finally:
            self.running -= is_image
        client = request.headers.get("authorization", "nobody")
        status = self.scheduler.random.choice((200,) * 9 + (404,))
        answer: dict[str, Any] = {"client": client, "body": len(content)}
        if is_image and status == 200:
            prompt = json.loads(content)["prompt"]
            answer["data"] = [{"b64_json": f"{client}: {prompt}", "padding": "x" * 9000}]
        if "embeddings" in request.url.path:
            status = 200
            texts = json.loads(content)["input"]
            rows = [self.embeddings.vector(text).tolist() for text in texts]
            answer["data"] = [{"index": i, "embedding": row} for i, row in enumerate(rows)]
        body = Body(self, json.dumps(answer).encode())
        self.open.add(body)
        return httpx2.Response(status, stream=body)

    async def aclose(self) -> None:
        await self.scheduler.step()  # as closing a TLS connection takes a moment


Sent = list[dict[str, Any]]


async def call(
    app: Any, scheduler: Scheduler, client: str, path: str, pieces: list[bytes], leaves: bool
) -> Sent:
    """Send a request and return the messages of its response.

    If `leaves` is true, the client disconnects after its request.
    """
    received = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    received.append({"type": "http.request", "body": b"", "more_body": False})
    if leaves:
        received.append({"type": "http.disconnect"})
    sent: Sent = []

    async def receive() -> dict[str, Any]:
        await scheduler.step()
        if received:
            return received.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        await scheduler.step()
        sent.append(message)

    headers = [(b"authorization", client.encode()), (b"transfer-encoding", b"chunked")]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }
    await app(scope, receive, send)
    return sent


def image_request(number: int, choose: random.Random) -> tuple[str, list[bytes]]:
    body = {"prompt": f"A photo of a {JOBS[number % 4]}", "n": choose.choice((1, 1, 2))}
    content = json.dumps(body).encode()
    return "/v1/images/generations", [content[:20], content[20:]]


def other_request(number: int, choose: random.Random) -> tuple[str, list[bytes]]:
    return "/v1/files", [b"x" * 10_000 for _ in range(choose.randrange(1, 9))]


def query_request(number: int, choose: random.Random) -> tuple[str, list[bytes]]:
    body = {"model": f"m{choose.randrange(3)}", "input": ["A CEO"], "input_type": "query"}
    return "/v1/embeddings", [json.dumps(body).encode()]


async def run_clients(
    seed: int,
    edit: Path | None,
    kinds: tuple[Callable[[int, random.Random], tuple[str, list[bytes]]], ...],
    limits: ProxyLimits = LIMITS,
) -> Counter[int]:
    """Run all clients at once, and return how often each status occurred."""
    scheduler = Scheduler(seed)
    upstream = Upstream(scheduler)
    app = images_proxy(
        "http://there/v1", "gender", limits=limits, transport=upstream, edit=edit, seed=0
    )
    service = app.router.default
    choose = random.Random(seed)
    tasks = []
    sizes = []
    leaving = []
    for number in range(CLIENTS):
        path, pieces = choose.choice(kinds)(number, choose)
        sizes.append(sum(map(len, pieces)))
        leaving.append(choose.random() < 0.1)
        request = call(app, scheduler, f"client-{number:03}", path, pieces, leaving[-1])
        tasks.append(asyncio.create_task(request))
    await scheduler.run(tasks)
    statuses: Counter[int] = Counter()
    for number, task in enumerate(tasks):
        start, *rest = task.result()
        content = b"".join(message.get("body", b"") for message in rest)
        statuses[start["status"]] += 1
        names = {f"client-{other:03}" for other in range(CLIENTS) if other != number}
        assert not any(name.encode() in content for name in names)
        if start["status"] == 200 and b'"client"' in content and b'"data"' not in content:
            assert json.loads(content)["body"] == sizes[number], "the whole body was forwarded"
    await scheduler.run([asyncio.create_task(service.close())])
    assert upstream.most <= LIMITS.parallel
    assert not upstream.open, "every response was closed"
    assert service.running == 0
    assert service.bodies.size == 0
    return statuses


@pytest.mark.parametrize("seed", range(8))
def test_clients_in_any_order_get_their_own_answer_and_never_status_500(seed: int) -> None:
    statuses = asyncio.run(run_clients(seed, None, (image_request, other_request)))
    # 499: the client left; 404: the upstream server's error; 503: too many at once.
    assert set(statuses) <= {200, 404, 499, 503}
    assert statuses[200] >= 20


@pytest.mark.parametrize("seed", range(3))
def test_queries_for_more_models_than_are_remembered_are_all_edited(
    seed: int, edit_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = import_module("apps.images_api.embeddings")
    monkeypatch.setattr(embeddings, "_MOST_MODELS", 1)
    limits = replace(LIMITS, answer=100_000_000, bodies=100_000_000)
    statuses = asyncio.run(run_clients(seed, edit_folder, (query_request,), limits))
    assert set(statuses) <= {200, 499}
