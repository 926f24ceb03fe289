"""Test `vldebias serve` in a separate process with 2,000 requests from 100 clients.

No request is lost, every reported value matches the prompt that was sent, memory stays flat, and
stalled clients have no effect.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from tests.apps.false_upstream import served, serving, text_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc"),
]
CLIENTS = 100
REQUESTS = 20  # requests per client
LOADED = 5  # requests per client after which everything is loaded and every prompt has been read
STALLED = 200  # number of half-sent bodies that stay open throughout
JOBS = ("doctor", "nurse", "pilot", "CEO", "teacher")
# Bytes per request, so that leaked bodies would be visible: 30 MB for the last 1,500 requests.
PADDING = "x" * 20_000
GROWTH = 10_000_000  # bytes
UPLOADS = 390  # number of uploads that stop in the middle
MOST_OF_UPLOADS = 100_000_000  # bytes
# The answers to two requests, the one being parsed, and loaded modules; see
# docs/how-to/images-api.md.
MOST_MEMORY = 600_000_000


class Received(NamedTuple):
    """Record a request for an image as the upstream server received it."""

    prompt: str
    cookie: str | None


class Recorder:
    """Answer image requests, and store the prompt and the cookie of each by its number."""

    def __init__(self) -> None:
        self.received: dict[str, list[Received]] = {}
        self.app = Starlette(routes=[Route("/v1/{path:path}", self.answer, methods=["POST"])])

    async def answer(self, request: Request) -> JSONResponse:
        body = await request.json()
        path = request.path_params["path"]
        number = body["user"].removesuffix(PADDING)
        prompt = text_of(path, body)
        received = Received(prompt, request.headers.get("cookie"))
        self.received.setdefault(number, []).append(received)
        image = {"index": 0, "message": {"content": prompt}, "b64_json": "eA=="}
        items = "choices" if "chat" in path else "data"
        return JSONResponse({items: [image]}, headers={"set-cookie": f"number={number}"})


def memory_of(process: int, field: str) -> int:
    """Return the memory used by a process in bytes: current (VmRSS) and peak (VmHWM)."""
    status = Path(f"/proc/{process}/status").read_text()
    kilobytes = re.search(rf"{field}:\s+(\d+) kB", status)
    assert kilobytes is not None
    return 1024 * int(kilobytes[1])


def value_of(prompt: str) -> str:
    """Return the value that a prompt states."""
    (value,) = re.findall(r"\b(female|male)\b", prompt)
    return str(value)


def ask(client: httpx2.Client, base_url: str, number: int) -> tuple[str, list[str], list[str]]:
    """Request one or two images, and return the number, the reported values, and the values in the
    images."""
    prompt = f"A photo of a {JOBS[number % len(JOBS)]}."
    images = 1 + number % 2
    fields: dict[str, Any] = {"n": images, "user": f"{number}{PADDING}"}
    if number % 3:
        path, items = "images/generations", "data"
        fields["prompt"] = prompt
    else:
        path, items = "chat/completions", "choices"
        fields |= {"messages": [{"role": "user", "content": prompt}], "modalities": ["image"]}
    client.cookies.clear()
    answer = client.post(f"{base_url}/{path}", json=fields, headers={"cookie": f"id={number}"})
    assert answer.status_code == 200
    assert answer.headers["set-cookie"] == f"number={number}"
    content = answer.json()[items]
    prompts = [
        image["revised_prompt"] if items == "data" else image["message"]["content"]
        for image in content
    ]
    assert len(prompts) == images
    reported = json.loads(answer.headers["x-vldebias"])["values"]
    return str(number), reported, [value_of(prompt) for prompt in prompts]


def stall(port: int) -> list[socket.socket]:
    """Open connections that each send only part of a body."""
    stalled = []
    for number in range(STALLED):
        client = socket.create_connection(("127.0.0.1", port))
        path = ("images/generations", "chat/completions", "files")[number % 3]
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n"
        client.sendall(head.encode() + b'{"prompt": "A photo')
        stalled.append(client)
    return stalled


def test_2000_requests_from_100_clients_get_their_own_values() -> None:
    recorder = Recorder()
    outcomes: list[tuple[str, list[str], list[str]]] = []
    with (
        served(recorder.app) as upstream,
        serving(upstream, "--seconds", "600") as (process, port),
        ThreadPoolExecutor(CLIENTS) as threads,
    ):
        base_url = f"http://127.0.0.1:{port}/v1"
        stalled = stall(port)

        def run(client_number: int, rounds: range) -> list[tuple[str, list[str], list[str]]]:
            with httpx2.Client(timeout=120) as client:
                numbers = [client_number * REQUESTS + round_number for round_number in rounds]
                return [ask(client, base_url, number) for number in numbers]

        def run_all(rounds: range) -> None:
            for answers in threads.map(lambda number: run(number, rounds), range(CLIENTS)):
                outcomes.extend(answers)

        run_all(range(LOADED))
        before = memory_of(process, "VmRSS")
        run_all(range(LOADED, REQUESTS))
        after = memory_of(process, "VmRSS")
        for client in stalled:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)  # the connection stayed open without an answer
            client.close()

    assert len(outcomes) == len(recorder.received) == CLIENTS * REQUESTS
    counts: Counter[tuple[str, str]] = Counter()
    for number, reported, returned in outcomes:
        received = recorder.received[number]
        sent = [value_of(request.prompt) for request in received]
        assert reported == returned
        # The calls for a request are concurrent, so the server may receive them in any order.
        assert sorted(reported) == sorted(sent)
        assert {request.cookie for request in received} == {f"id={number}"}
        job = JOBS[int(number) % len(JOBS)]
        counts.update((job, value) for value in reported)
    for job in JOBS:
        assert counts[job, "female"] == counts[job, "male"]
    assert after - before < GROWTH


def test_large_answers_to_many_clients_stay_within_the_memory_limit() -> None:
    """Request eight answers of 60 MB at once and four that are too large, 1.3 GB in total."""

    async def answer(request: Request) -> StreamingResponse:
        size = (await request.json())["size"]

        async def pieces() -> Any:
            yield b'{"data": [{"b64_json": "'
            for _ in range(size):
                yield b"x" * 1_000_000
            yield b'"}]}'

        return StreamingResponse(pieces(), media_type="application/json")

    upstream_app = Starlette(routes=[Route("/v1/images/generations", answer, methods=["POST"])])
    with (
        served(upstream_app) as upstream,
        serving(upstream, "--seconds", "200") as (process, port),
        ThreadPoolExecutor(12) as threads,
    ):
        url = f"http://127.0.0.1:{port}/v1/images/generations"

        def generate(size: int) -> tuple[int, int]:
            body = {"prompt": "A photo of a doctor", "size": size}
            response = httpx2.post(url, json=body, timeout=300)
            return response.status_code, len(response.content)

        sizes = [60, 60, 200] * 4
        answers = list(threads.map(generate, sizes))
        most = memory_of(process, "VmHWM")
        after = memory_of(process, "VmRSS")
    for size, (status, length) in zip(sizes, answers, strict=True):
        assert status == (200 if size == 60 else 502)
        assert size == 200 or length > 60_000_000
    assert most < MOST_MEMORY
    assert after < 200_000_000


@pytest.mark.parametrize("path", ["images/generations", "files"])
def test_half_uploads_take_little_memory(path: str) -> None:
    """Send 900 kB of each body, 351 MB in total; 64 MB of them may be kept."""
    recorder = Recorder()
    with served(recorder.app) as upstream, serving(upstream) as (process, port):
        fields = {"prompt": "A photo of a doctor", "user": PADDING}
        url = f"http://127.0.0.1:{port}/v1/images/generations"
        assert httpx2.post(url, json=fields).status_code == 200
        before = memory_of(process, "VmRSS")
        clients = []
        for _ in range(UPLOADS):
            client = socket.create_connection(("127.0.0.1", port), timeout=30)
            head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 990000\r\n\r\n"
            # Clients whose memory was needed for later uploads are disconnected.
            with contextlib.suppress(ConnectionError):
                client.sendall(head.encode() + b"x" * 900_000)
            clients.append(client)
        assert httpx2.post(url, json=fields, timeout=30).status_code == 200
        most = memory_of(process, "VmHWM")
        for client in clients:
            client.close()
    assert most - before < MOST_OF_UPLOADS
