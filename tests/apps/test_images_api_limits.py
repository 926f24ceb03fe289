"""Test that stalled clients, and servers whose answers never end, cannot use more than their share
of resources."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import Response, StreamingResponse

from tests.apps.false_upstream import (
    FalseUpstream,
    proxied,
    received_until_closed,
    served,
    serving,
    wait_until,
)
from tests.apps.test_images_api import CEO, PATH, RIGHT, ask, post, proxy
from vldebias import ProxyLimits, images_proxy

memory = import_module("apps.images_api.memory")
RefusedError = import_module("apps.images_api.order").RefusedError
EveryAnswer = import_module("apps.images_api.middleware").EveryAnswer

SECONDS = 4.0
PATHS = ("/v1/images/generations", "/v1/chat/completions", "/v1/files", "/v1/anything")


def half_sent(port: int, path: str, content: bytes = b"{") -> socket.socket:
    """Open a connection, and send the headers and part of the body."""
    client = socket.create_connection(("127.0.0.1", port))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
    client.sendall(head.encode() + content)
    return client


def is_closed(client: socket.socket) -> bool:
    """Return whether the server has closed a connection, after reading what it sent."""
    client.setblocking(False)
    try:
        while client.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def generate(port: int, **fields: Any) -> httpx2.Response:
    body = {"prompt": CEO, **fields}
    return httpx2.post(f"http://127.0.0.1:{port}{PATH}", json=body, headers=RIGHT, timeout=30)


@pytest.fixture(scope="module")
def upstream() -> FalseUpstream:
    return FalseUpstream()


@pytest.fixture(scope="module")
def port(upstream: FalseUpstream) -> Iterator[int]:
    """Run `vldebias serve` in a separate process and yield its port."""
    with served(upstream.app) as address, serving(address, "--seconds", str(SECONDS)) as (_, port):
        yield port


def test_incomplete_bodies_do_not_block_other_clients_and_time_out(
    upstream: FalseUpstream, port: int
) -> None:
    generate(port)  # let the first request load everything
    stalled = [half_sent(port, PATHS[number % 4]) for number in range(300)]
    assert generate(port).status_code == 200
    assert not is_closed(stalled[-1])
    for _ in range(9):
        assert generate(port).status_code == 200
    answer = received_until_closed(stalled[0])
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"x-vldebias: refused (body_timeout)" in answer
    assert b"connection: close" in answer
    assert b"did not arrive in time" in answer
    wait_until(lambda: all(map(is_closed, stalled)))
    assert not upstream.raw, "an incomplete body is not passed on"


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_connections_beyond_the_limit_close_the_oldest_idle_one(port: int, sent: bytes) -> None:
    opened = []
    for _ in range(ProxyLimits().connections + 100):
        opened.append(socket.create_connection(("127.0.0.1", port)))
        opened[-1].sendall(sent)
        if len(opened) % 50 == 0:
            assert generate(port).status_code == 200
    wait_until(lambda: sum(map(is_closed, opened)) >= 100)
    assert not is_closed(opened[-1]), "the newest connections stay open"
    assert is_closed(opened[0])
    for client in opened:
        client.close()


def test_a_connection_is_refused_if_all_others_are_busy() -> None:
    connections = import_module("apps.images_api.connections")
    upstream = FalseUpstream(seconds=2.0)
    with proxied(upstream.app, connections.Connections(2, 60).protocol) as port:
        threads = [threading.Thread(target=generate, args=(port,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: upstream.now == 2)
        refused = generate(port)
        for thread in threads:
            thread.join()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "busy"
        assert refused.headers["x-vldebias"] == "refused (busy)"
        assert generate(port).status_code == 200


def test_clients_that_do_not_read_are_closed_if_others_wait() -> None:
    connections = import_module("apps.images_api.connections")
    with proxied(_large, connections.Connections(2, 60).protocol) as port:
        not_reading = [_slow_reader(port) for _ in range(2)]
        time.sleep(1)  # until their windows are full
        url = f"http://127.0.0.1:{port}/v1/models"
        assert httpx2.get(url, timeout=30).status_code == 200
        wait_until(lambda: is_closed(not_reading[0]))
        for client in not_reading:
            client.close()


def _slow_reader(port: int) -> socket.socket:
    """Ask for a response with a small receive window, and do not read it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET /v1/large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


def test_a_connection_must_send_its_headers_within_a_time_limit() -> None:
    connections = import_module("apps.images_api.connections")
    protocol = connections.Connections(9, 0.3).protocol
    with proxied(FalseUpstream(seconds=0.6).app, protocol) as port:
        half = socket.create_connection(("127.0.0.1", port))
        half.sendall(b"GET / HTTP/1.1\r\n")
        assert generate(port).status_code == 200, "a request in progress has a separate limit"
        wait_until(lambda: is_closed(half))


def test_only_open_connections_are_counted_and_each_serves_several_requests() -> None:
    open_connections = import_module("apps.images_api.connections").Connections(99, 60)
    with proxied(FalseUpstream().app, open_connections.protocol) as port:
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        wait_until(lambda: len(open_connections._open) == 5)
        for client in clients:
            client.close()
        wait_until(lambda: not open_connections._open)
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            for _ in range(2):
                response = client.post(PATH, json={"prompt": CEO}, headers=RIGHT)
                assert response.status_code == 200
            assert len(open_connections._open) == 1


def test_invalid_http_gets_an_api_response(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = received_until_closed(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"x-vldebias: refused (invalid_request)" in answer


def test_a_request_with_two_body_lengths_closes_its_connection(port: int) -> None:
    head = b"POST /v1/images/edits HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        answer = received_until_closed(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


def test_a_request_only_counts_once_its_body_has_arrived() -> None:
    with proxied(FalseUpstream().app, limits=ProxyLimits(requests=1)) as port:
        stalled = [half_sent(port, path) for path in PATHS * 3]
        assert generate(port).status_code == 200
        for client in stalled:
            client.close()


def test_the_oldest_incomplete_body_is_dropped_if_memory_is_short() -> None:
    with proxied(FalseUpstream().app, limits=ProxyLimits(bodies=1_500_000)) as port:
        stalled = []
        for _ in range(6):
            stalled.append(half_sent(port, PATH, b"x" * 400_000))
            time.sleep(0.1)
            assert generate(port).status_code == 200
        answer = received_until_closed(stalled[0])
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"send the body without pauses" in answer
        assert [is_closed(client) for client in stalled] == [True] * 3 + [False] * 3
        for client in stalled:
            client.close()


def test_a_new_request_drops_the_oldest_before_any_of_its_body_has_arrived() -> None:
    """Buffers of requests that send nothing take memory, too."""

    async def dropped() -> list[str]:
        bodies = memory.IncompleteBodies(2 * 65_536)

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(60)
            raise AssertionError("nothing arrives")

        async def read() -> None:
            until = asyncio.get_running_loop().time() + 60
            async with bodies.reading(memory.ClientBody(receive), 10, until):
                raise AssertionError("the body is not complete")

        tasks = [asyncio.create_task(read()) for _ in range(3)]
        await asyncio.sleep(0.1)
        codes = [task.exception().code if task.done() else "" for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert bodies.size == 0
        return codes

    assert asyncio.run(dropped()) == ["busy", "", ""]


def test_a_long_body_counts_until_the_upstream_server_accepts_it() -> None:
    size = 9_000_000  # more than the buffers of the operating system hold
    with socket.socket() as upstream:
        upstream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        upstream.bind(("127.0.0.1", 0))
        upstream.listen()  # and never read
        address = f"http://127.0.0.1:{upstream.getsockname()[1]}/v1"
        limits = ProxyLimits(body=size - 1_000_000, bodies=int(2.5 * size))
        with proxied(address, limits=limits) as port:
            head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99000000\r\n\r\n"
            stalled = []
            for _ in range(3):
                stalled.append(socket.create_connection(("127.0.0.1", port)))
                stalled[-1].sendall(head + b"x" * size)
            stalled[0].settimeout(20)
            assert stalled[0].recv(65536).startswith(b"HTTP/1.1 503 ")
            assert [is_closed(client) for client in stalled[1:]] == [False, False]
            for client in stalled:
                client.close()


def test_a_long_body_does_not_count_once_the_upstream_server_has_read_it() -> None:
    limits = ProxyLimits(body=300_000, bodies=1_000_000)
    with proxied(FalseUpstream().app, limits=limits) as port:
        clients = []
        for _ in range(6):  # 1.9 MB in total
            clients.append(half_sent(port, "/v1/images/edits", b"x" * 310_000))
            time.sleep(0.2)
        assert [is_closed(client) for client in clients] == [False] * 6
        for client in clients:
            client.setblocking(True)
            client.sendall(b"x" * 590_000)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
            client.close()


def test_a_slow_server_is_blamed_after_a_long_body_has_arrived() -> None:
    with socket.socket() as upstream:
        upstream.bind(("127.0.0.1", 0))
        upstream.listen()  # and never answer
        address = f"http://127.0.0.1:{upstream.getsockname()[1]}/v1"
        with proxied(address, limits=ProxyLimits(body=1_000, seconds=0.5)) as port:
            url = f"http://127.0.0.1:{port}/v1/files"
            answer = httpx2.post(url, content=b"x" * 200_000, timeout=20)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "upstream_timeout"


def test_requests_with_too_many_headers_are_refused(port: int) -> None:
    url = f"http://127.0.0.1:{port}{PATH}"
    few, many = ({f"x-{number}": "a" for number in range(n)} for n in (80, 101))
    assert httpx2.post(url, json={"prompt": CEO}, headers={**RIGHT, **few}).status_code == 200
    answer = httpx2.post(url, json={"prompt": CEO}, headers={**RIGHT, **many})
    assert answer.status_code == 431
    assert answer.json()["error"]["code"] == "too_many_headers"
    assert "expected at most 100" in answer.json()["error"]["message"]


def test_a_body_in_many_chunks_arrives_complete() -> None:
    upstream = FalseUpstream()
    content = b"".join(b"%07d " % number for number in range(300_000))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 50_000):
            yield content[start : start + 50_000]

    response = ask(
        proxy(upstream),
        lambda client: client.post("/v1/images/edits", content=pieces(), headers=RIGHT),
    )
    assert response.text == "edited"
    assert upstream.raw == [content]


def test_a_body_that_is_too_large_is_answered_while_it_is_being_sent(port: int) -> None:
    client = half_sent(port, PATH, b"x" * 100)
    client.sendall(b"x" * 899_900)
    assert client.recv(12) == b"HTTP/1.1 400"
    client.close()
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % PATH.encode())
    client.sendall(b"Content-Length: 5000000\r\n\r\n" + b"x" * 5_000_000)
    assert client.recv(12) == b"HTTP/1.1 413"
    client.close()


async def _large(scope: Any, receive: Any, send: Any) -> None:
    """Answer with a single 3 MB list of images, or with 3 MB of events, which are passed on."""
    body = b'{"data": [{"b64_json": "' + b"x" * 3_000_000 + b'"}]}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    response: Response = StreamingResponse(pieces(), media_type="application/json")
    if scope["type"] == "http":
        await response(scope, receive, send)


def test_an_answer_beyond_the_limit_is_rejected_and_one_within_it_is_not() -> None:
    for most, status in ((2_000_000, 502), (4_000_000, 200)):
        transport = httpx2.ASGITransport(app=_large)
        app = images_proxy(
            "http://there/v1", "gender", limits=ProxyLimits(answer=most), transport=transport
        )
        response = post(app, {"prompt": CEO})
        assert response.status_code == status
        if status == 502:
            assert response.json()["error"]["code"] == "upstream_size"
        else:
            assert len(response.json()["data"][0]["b64_json"]) == 3_000_000
        passed = ask(app, lambda client: client.get("/v1/files"))
        assert len(passed.content) > 3_000_000, "streamed events are not buffered"


def test_answers_to_one_request_share_its_limit() -> None:
    transport = httpx2.ASGITransport(app=_large)
    app = images_proxy(
        "http://there/v1", "gender", limits=ProxyLimits(answer=7_000_000), transport=transport
    )
    response = post(app, {"prompt": CEO, "n": 4})
    assert response.status_code == 200
    assert len(response.json()["data"]) == 2
    assert json.loads(response.headers["x-vldebias"])["failed"] == 2


def test_concurrent_requests_all_complete_within_the_memory_limit() -> None:
    """Each of ten requests needs nine tenths of the limit."""
    most = 0

    async def run(answers: Any) -> None:
        nonlocal most
        async with answers.holding() as held:
            for _ in range(9):
                await answers.take(held, 100)
                most = max(most, answers.total)
                await asyncio.sleep(0)

    async def run_all() -> None:
        answers = memory.AnswerMemory(1000)
        async with asyncio.timeout(20):
            await asyncio.gather(*[run(answers) for _ in range(10)])
        assert answers.total == 0

    asyncio.run(run_all())
    assert 1000 < most <= 2000


def test_a_slow_request_does_not_block_the_memory_of_others() -> None:
    """The server of the slow request does not use memory, while all other requests hold part of
    what they need."""

    async def read(answers: Any, first: asyncio.Event) -> None:
        async with answers.holding() as held:
            await answers.take(held, 250)
            await first.wait()
            await answers.take(held, 500)

    async def run() -> None:
        answers = memory.AnswerMemory(1000)
        all_started = asyncio.Event()
        async with answers.holding(), asyncio.timeout(20):
            others = [asyncio.create_task(read(answers, all_started)) for _ in range(4)]
            await asyncio.sleep(0.05)
            all_started.set()
            await asyncio.gather(*others)
        assert answers.total == 0

    asyncio.run(run())


def test_calls_of_one_request_share_its_limit() -> None:
    async def run() -> None:
        answers = memory.AnswerMemory(1000)
        async with answers.holding() as first, answers.holding() as owner:
            await answers.take(first, 1000)
            await answers.take(owner, 1)
            async with answers.holding() as held:
                taking = [asyncio.create_task(answers.take(held, 600)) for _ in range(2)]
                await asyncio.sleep(0.05)
                answers.release(first, 1000)
                results = await asyncio.gather(*taking, return_exceptions=True)
                assert sorted(map(type, results), key=str) == [type(None), RefusedError]
                assert held.size == 600

    asyncio.run(run())


def test_a_client_that_does_not_read_is_dropped_if_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_PATIENCE", 0.1)
    outcomes = []

    async def leave_unread(answers: Any) -> None:
        async with answers.holding() as held:
            await answers.take(held, 900)
            try:
                async with held.sent_within(60):
                    await asyncio.sleep(60)
            except TimeoutError:
                outcomes.append("dropped")

    async def run() -> None:
        answers = memory.AnswerMemory(1000)
        slow = [asyncio.create_task(leave_unread(answers)) for _ in range(2)]
        await asyncio.sleep(0.2)
        assert outcomes == [], "no other request needs the memory"
        async with asyncio.timeout(20), answers.holding() as held:
            await answers.take(held, 900)
        await asyncio.gather(*slow)

    asyncio.run(run())
    assert outcomes == ["dropped"] * 2


def test_answers_do_not_wait_for_memory_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_LONGEST_WAIT", 0.1)

    async def run() -> None:
        answers = memory.AnswerMemory(1000)
        async with answers.holding() as first, answers.holding() as second:
            await answers.take(first, 1000)
            await answers.take(second, 1)  # taken from the reserve
            async with answers.holding() as third:
                with pytest.raises(RefusedError) as refusal:
                    await answers.take(third, 1)
                assert refusal.value.status == 503
                answers.release(first, 500)
                await answers.take(third, 500)

    asyncio.run(run())


def test_a_client_that_does_not_accept_data_is_dropped() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response("an answer")(scope, receive, send)

    async def accept_nothing(message: Any) -> None:
        await asyncio.sleep(60)

    async def run() -> None:
        async with asyncio.timeout(10):
            await EveryAnswer(app, 0.05)({"type": "http"}, None, accept_nothing)

    asyncio.run(run())


def stopped_during(has_started: bool) -> httpx2.Response:
    """Return the response to a request during which the server stops."""
    arrived = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if has_started:
            await send({"type": "http.response.start", "status": 200})
        arrived.set()
        await asyncio.Event().wait()

    answered_app = import_module("apps.images_api.server").AnsweredAtTheEnd(app)
    protocol = import_module("apps.images_api.connections").Connections(9, 60).protocol
    with ThreadPoolExecutor(1) as threads:
        with served(answered_app, lifespan="off", http=protocol) as base_url:
            asking = threads.submit(httpx2.get, f"{base_url}/models", timeout=30)
            arrived.wait()
        return asking.result()


def test_a_request_that_the_end_of_the_server_cancels_gets_503() -> None:
    response = stopped_during(has_started=False)
    assert response.status_code == 503
    assert response.headers["x-vldebias"] == "refused (stopping)"
    assert "retry-after" in response.headers
    # Otherwise the client would send its next request over a connection that is being closed.
    assert response.headers["connection"] == "close"
    with pytest.raises(httpx2.RemoteProtocolError):
        stopped_during(has_started=True)


def test_the_page_lists_the_default_of_each_limit() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "images-api.md"
    for field in fields(ProxyLimits):
        option = "--seconds" if field.name == "seconds" else field.name
        row = rf"`{option}` \| (\d+)( MB)? \|"
        ((number, unit),) = re.findall(row, page.read_text(encoding="utf-8"))
        assert field.default == int(number) * (1_000_000 if unit else 1)


def test_an_invalid_limit_is_rejected() -> None:
    for name in ("bodies", "answer", "connections"):
        with pytest.raises(Exception, match=f"{name}: got 0; expected a number of at least 1"):
            ProxyLimits(**{name: 0})


def test_a_prompt_beyond_the_limit_is_passed_on_unbalanced_without_delay() -> None:
    upstream = FalseUpstream()
    began = time.monotonic()
    response = post(proxy(upstream), {"prompt": f"{CEO} {'a' * 900_000}", "n": 16})
    assert time.monotonic() - began < 5
    assert json.loads(response.headers["x-vldebias"])["reasons"] == [
        "longer than 32,000 characters"
    ]
    assert [call["n"] for call in upstream.seen] == [16]


@pytest.mark.parametrize("text", ["a", "5", "\n", "A", "_", "a-", "(", "5,", "\u0438", "doctor"])
def test_the_longest_prompt_is_processed_in_seconds(text: str) -> None:
    """Regression test: a long run of a single character used to take minutes and block all other
    requests. The limit leaves room for a busy machine."""
    upstream = FalseUpstream()
    prompt = f"{CEO} {text * (31_000 // len(text))}"
    began = time.monotonic()
    assert post(proxy(upstream), {"prompt": prompt}).status_code == 200
    assert time.monotonic() - began < 120
