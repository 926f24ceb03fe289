"""Test that clients of the images API never receive each other's data, and that requests pass
through byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tests.apps.false_upstream import port_of, proxied, served
from tests.apps.test_image_endpoints import FalseEmbeddings, edit_folder
from vldebias import images_proxy

__all__ = ["edit_folder"]  # a fixture

CEO = "A photo of a CEO"
IMAGE = {"prompt": CEO}
CHAT = {"modalities": ["image"], "messages": [{"role": "user", "content": CEO}]}
QUERY = {"model": "m", "input": CEO, "input_type": "query"}
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "images": ("POST", "/v1/images/generations", IMAGE),
    "several images": ("POST", "/v1/images/generations", {**IMAGE, "n": 3}),
    "a stream": ("POST", "/v1/images/generations", {**IMAGE, "stream": True}),
    "chat": ("POST", "/v1/chat/completions", CHAT),
    "chat without images": ("POST", "/v1/chat/completions", {"messages": []}),
    "a path that is passed on": ("POST", "/v1/files", {"a": 1}),
    "GET": ("GET", "/v1/models", None),
    "query embeddings": ("POST", "/v1/embeddings", QUERY),
    "document embeddings": ("POST", "/v1/embeddings", {"model": "m", "input": CEO}),
}


class Seen(NamedTuple):
    """Store a request as the upstream server received it."""

    target: str
    headers: list[tuple[str, str]]

    def values(self, name: str) -> list[str]:
        return [value for found, value in self.headers if found == name]


class Echo(FalseEmbeddings):
    """Answer every request, and set a cookie that names the client."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Seen] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        query = scope["query_string"].decode()
        target = scope["raw_path"].decode() + (f"?{query}" if query else "")
        pairs = [(name.decode(), value.decode()) for name, value in request.headers.raw]
        self.requests.append(Seen(target, pairs))
        response: Response
        if target.endswith("embeddings"):
            response = await self.answer(request)
        else:
            items = {"data": [{"b64_json": "x"}], "choices": [{"index": 0}]}
            response = JSONResponse(items)
        client = request.headers.get("authorization", "nobody")
        response.headers.append("set-cookie", f"session=of-{client}; Path=/")
        response.headers.append("set-cookie", "affinity=7")
        await response(scope, receive, send)


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def port(echo: Echo, edit_folder: Path) -> Iterator[int]:
    with (
        served(echo) as upstream,
        proxied(f"{upstream}/team", seed=0, edit=edit_folder) as proxy_port,
    ):
        yield proxy_port


@pytest.fixture(autouse=True)
def _forget(echo: Echo) -> None:
    echo.requests.clear()


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


def send(port: int, method: str, target: str, body: Any = None, **headers: str) -> Answer:
    """Send a request over a socket without changing or encoding its target."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    content = None if body is None else json.dumps(body).encode()
    connection.request(
        method, target, content, {name.replace("_", "-"): text for name, text in headers.items()}
    )
    response = connection.getresponse()
    answer = Answer(response.status, [(n.lower(), v) for n, v in response.headers.items()], b"")
    answer = answer._replace(body=response.read())
    connection.close()
    return answer


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_cookie_reaches_only_the_client_it_was_set_for(echo: Echo, port: int, kind: str) -> None:
    for client in ("alice", "bob", "carol", "alice"):
        echo.requests.clear()
        answer = send(port, *REQUESTS[kind], authorization=client)
        assert answer.status == 200
        cookies = [value for name, value in answer.headers if name == "set-cookie"]
        assert cookies == [f"session=of-{client}; Path=/", "affinity=7"]
        assert echo.requests
        for seen in echo.requests:
            assert seen.values("authorization") == [client]
            assert seen.values("cookie") == []


@pytest.mark.parametrize("kind", REQUESTS)
def test_the_clients_own_cookies_are_passed_on(echo: Echo, port: int, kind: str) -> None:
    send(port, *REQUESTS[kind], cookie="session=of-bob; theme=dark", authorization="bob")
    send(port, *REQUESTS[kind], authorization="carol")
    for seen in echo.requests:
        is_bob = seen.values("authorization") == ["bob"]
        assert seen.values("cookie") == (["session=of-bob; theme=dark"] if is_bob else [])


def test_concurrent_clients_are_isolated(echo: Echo, port: int) -> None:
    def ask(number: int) -> None:
        name = list(REQUESTS)[number % len(REQUESTS)]
        client = f"client-{number}"
        headers = {"authorization": client}
        if number % 2:
            headers["cookie"] = f"session={client}"
        answer = send(port, *REQUESTS[name], **headers)
        assert ("set-cookie", f"session=of-{client}; Path=/") in answer.headers

    with ThreadPoolExecutor(30) as threads:
        list(threads.map(ask, range(90)))
    for seen in echo.requests:
        (client,) = seen.values("authorization")
        is_odd = int(client.removeprefix("client-")) % 2
        assert seen.values("cookie") == ([f"session={client}"] if is_odd else [])


def test_only_the_requests_own_headers_are_sent_upstream(echo: Echo, port: int) -> None:
    headers = {
        "x_trace": "7",
        "accept": "text/plain",
        "connection": "Keep-Alive, X-Mine",
        "x_mine": "hop",
        "te": "trailers",
        "proxy_authorization": "secret",
        "x_vldebias_index": "0",
    }
    send(port, "GET", "/v1/models", None, **headers)
    send(port, "POST", "/v1/images/generations", IMAGE, **headers)
    names = [{name for name, _ in seen.headers} for seen in echo.requests]
    # Python's own client adds accept-encoding to a GET.
    forwarded = {"host", "accept-encoding", "x-trace", "accept", "connection"}
    assert names[0] == forwarded
    assert names[1] == {*forwarded, "content-type", "content-length"}


def test_the_upstream_server_is_asked_to_close_each_connection(echo: Echo, port: int) -> None:
    send(port, "GET", "/v1/models", None, authorization="Negotiate YII=")
    send(port, *REQUESTS["images"], authorization="Bearer k")
    assert [seen.values("connection") for seen in echo.requests] == [["close"], ["close"]]


@pytest.mark.parametrize(
    "target",
    [
        "/v1/files/a%2Fb",
        "/v1/files/a%3Fb%23c",
        "/v1/files/%E4%BD%A0%ff",
        "/v1/files/a%20b%0d%0aX-Evil:%201",
        "/v1/files/a%252Fb",
        "/v1/files/...",
        "/v1/files/.hidden/a..b/..c",
        "/v1/files/a;x=..",
        "/v1/models/owner%2fname/",
        "/v1//files",
        "/v1/files/~a!$&'()*+,;=:@{}|^`\"<>\\",
        "/v1/files?a=%00&b=..%2f&c=a%20b+c",
        "/v1/files?a=1?b=2",
    ],
)
def test_the_request_target_is_passed_byte_for_byte(echo: Echo, port: int, target: str) -> None:
    assert send(port, "GET", target).status == 200
    assert send(port, "POST", target, {"a": 1}).status == 200
    assert [seen.target for seen in echo.requests] == [f"/v1/team{target.removeprefix('/v1')}"] * 2


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../../admin",
        "/v1/%2e%2e/%2E%2E/admin",
        "/v1/.%2e/admin",
        "/v1/%252e%252e/admin",
        "/v1/%25252e%25252e/admin",
        "/v1/..%2fadmin",
        "/v1/a%2F..%2f..%2fadmin",
        "/v1/..%5cadmin",
        "/v1/..\\admin",
        "/v1/%c0%ae%c0%ae/admin",
        "/v1/..;x=1/admin",
        "/v1/..%3Bx/admin",
        "/v1/..%20/admin",
        "/v1/./images/generations",
        "/v1/images/../images/generations",
        "/v1/images/generations/..",
        "/v1/files/a%00b",
        "/v1/files/a%2500b",
        "/v1/%" + "25" * 5 + "2e",
        "/v1/%" + "25" * 5 + "41",
        "http://elsewhere.example/v1/models",
        "*",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_that_could_leave_the_base_path_is_rejected(
    echo: Echo, port: int, method: str, target: str
) -> None:
    answer = send(port, method, target, IMAGE if method == "POST" else None)
    assert answer.status == 400
    assert ("x-vldebias", "refused (invalid_path)") in answer.headers
    assert "the request path is rejected" in json.loads(answer.body)["error"]["message"]
    assert not echo.requests


def test_an_endpoint_is_balanced_regardless_of_how_its_path_is_encoded(
    echo: Echo, port: int
) -> None:
    answer = send(port, "POST", "/v1/%69mages/generation%73", IMAGE)
    assert '"values": [null]' not in str(answer.headers)
    assert '"reasons": [null]' in str(answer.headers)
    assert [seen.target for seen in echo.requests] == ["/v1/team/%69mages/generation%73"]


GEMINI = {
    "contents": [{"parts": [{"text": CEO}]}],
    "generationConfig": {"responseModalities": ["IMAGE"]},
}


@pytest.mark.parametrize(
    ("target", "meant", "body"),
    [
        ("/v1//images//generations", "/v1/images/generations", IMAGE),
        ("/v1/images/generations;x=1", "/v1/images/generations", IMAGE),
        ("/V1/Images/GENERATIONS", "/v1/images/generations", IMAGE),
        ("/v1/images%2Fgenerations", "/v1/images/generations", IMAGE),
        ("/v1/images%252fgenerations", "/v1/images/generations", IMAGE),
        ("/v1\\images\\generations", "/v1/images/generations", IMAGE),
        ("/v1/images/generations%23", "/v1/images/generations", IMAGE),
        ("/v1/images/generations%3fx=1", "/v1/images/generations", IMAGE),
        ("/v1/images/generations%253Fx=1", "/v1/images/generations", IMAGE),
        ("/v1/images/generations.", "/v1/images/generations", IMAGE),
        ("/v1/images./generations%2e%20.", "/v1/images/generations", IMAGE),
        (
            "/OpenAI/Deployments/a/images//generations",
            "/openai/deployments/a/images/generations",
            IMAGE,
        ),
        ("/v1//chat/completions", "/v1/chat/completions", CHAT),
        ("/v1beta/Models/Gem-1:generatecontent", "/v1beta/models/Gem-1:generateContent", GEMINI),
        ("/v1//embeddings", "/v1/embeddings", QUERY),
    ],
)
def test_a_path_that_resembles_an_endpoint_gets_404_with_the_right_path(
    echo: Echo, port: int, target: str, meant: str, body: Any
) -> None:
    answer = send(port, "POST", target, body)
    assert answer.status == 404
    assert ("x-vldebias", "refused (unknown_path)") in answer.headers
    assert json.loads(answer.body)["error"]["message"].endswith(f"send the request to {meant}")
    assert not echo.requests


def test_requests_that_are_not_for_images_are_forwarded_from_paths_that_resemble_an_endpoint(
    echo: Echo, port: int
) -> None:
    chat = {"messages": [{"role": "user", "content": CEO}]}
    for method, target, body in (
        ("POST", "/v1//chat/completions", chat),
        ("POST", "/V1/chat/completions", chat),
        ("GET", "/v1//images", None),
        ("POST", "/v1//images/edits", None),
    ):
        assert send(port, method, target, body).status == 200
    targets = ["//chat/completions", "/V1/chat/completions", "//images", "//images/edits"]
    assert [seen.target for seen in echo.requests] == [f"/v1/team{target}" for target in targets]


def test_a_mounted_app_passes_on_the_path_below_its_prefix(echo: Echo) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    with served(echo) as upstream:
        app = images_proxy(upstream, "gender")
        with served(Starlette(routes=[Mount("/a b", app=app)])) as base_url:
            port = port_of(base_url)
            for prefix in ("/a%20b", "/%61%20b"):
                assert send(port, "GET", f"{prefix}/v1/files/a%2Fb").status == 200
            assert send(port, "GET", "/a%20b/v1/../secret").status == 400
    assert [seen.target for seen in echo.requests] == ["/v1/files/a%2Fb"] * 2


class RawUpstream:
    """Answer image requests from the raw socket, so that a test controls every byte.

    Attributes:
        connections: The number of connections that were opened.
        surplus: The bytes to send after the end of each response.
    """

    def __init__(self, surplus: bytes = b"") -> None:
        self.connections = 0
        self.surplus = surplus
        self.tasks: list[asyncio.Task[None]] = []

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.append(asyncio.create_task(self.answer(reader, writer)))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                await reader.readexactly(int(fields["content-length"]))
                client = fields.get("authorization", "nobody")
                writer.write(self.response(f"for {client}") + self.surplus)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    @staticmethod
    def response(image: str) -> bytes:
        body = json.dumps({"data": [{"b64_json": image}]}).encode()
        head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
        return f"{head}{len(body)}\r\n\r\n".encode() + body


async def _images(upstream: RawUpstream, clients: list[str]) -> list[str]:
    """Return the image that each client receives, one after the other."""
    server = await asyncio.start_server(upstream, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    app = images_proxy(f"http://127.0.0.1:{port}/v1", "gender")
    transport = httpx2.ASGITransport(app)
    received = []
    async with (
        server,
        app.router.lifespan_context(app),  # closes the connections
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        for name in clients:
            reply = await client.post(
                "/v1/images/generations", json=IMAGE, headers={"authorization": name}
            )
            received.append(reply.json()["data"][0]["b64_json"])
    await asyncio.gather(*upstream.tasks)
    return received


@pytest.mark.parametrize(
    "surplus", [b"", RawUpstream.response("left over"), b"HTTP/1.1 200 OK\r\nx: "]
)
def test_bytes_after_a_response_never_reach_the_next_client(surplus: bytes) -> None:
    clients = ["mallory", "mallory", "alice", "bob"]
    upstream = RawUpstream(surplus)
    assert asyncio.run(_images(upstream, clients)) == [f"for {name}" for name in clients]
    assert upstream.connections == len(clients)
