"""Test that every answer is valid HTTP with `x-vldebias`, whatever a client or the upstream server
sends: no request fails silently, and no paid image is lost."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apps import test_image_endpoints as endpoints
from tests.apps.false_upstream import served
from tests.apps.test_image_endpoints import (
    CEO,
    GUARDRAIL,
    JUNK,
    FalseEmbeddings,
    edit_folder,
)
from tests.apps.test_images_api import ask, note
from vldebias import ProxyLimits, images_proxy

__all__ = ["edit_folder"]  # a fixture

IMAGES = "/v1/images/generations"
CHAT = endpoints.BODIES["v1/chat/completions"]
GEMINI = f"/{endpoints.GEMINI}"
IMAGEN = "/v1beta/models/imagen-4:predict"
BODIES = {f"/{path}": body for path, body in endpoints.BODIES.items()}


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


def reply(content: bytes = b"{}", status: int = 200, headers: Any = ()) -> httpx2.Response:
    """Return a response whose body has not been read, like one from a real server."""
    return httpx2.Response(status, content=pieces(content), headers=headers)


def before(
    content: bytes = b"{}", status: int = 200, kind: str = "application/json", **headers: str
) -> Any:
    """Return the proxy in front of a server that always gives this answer."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return reply(content, status, {"content-type": kind, **headers})

    transport = httpx2.MockTransport(answer)
    limits = ProxyLimits(retries=0)
    return images_proxy("http://there/v1", "gender", transport=transport, limits=limits)


def send(app: Any, path: str, body: Any, method: str = "POST", **headers: str) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    response = ask(app, lambda client: client.request(method, path, content=content, headers=pairs))
    assert response.headers["x-vldebias"]
    return response  # type: ignore[no-any-return]


def test_invalid_chat_json_is_rejected_only_if_it_asks_for_an_image() -> None:
    received = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        received.append(request.content)
        return reply()

    app = images_proxy("http://there", "gender", transport=httpx2.MockTransport(answer))
    image = json.dumps({**CHAT, "temperature": float("nan")}).encode()
    assert send(app, "/v1/chat/completions", image).status_code == 400
    text = b'{"messages": [{"role": "user", "content": "half of an emoji \\ud83d"}], "x": NaN}'
    assert send(app, "/v1/chat/completions", text).status_code == 200
    assert received == [text]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("content", "image"),
    [
        (b'{"created": NaN, "data": [{"url": "u", "score": Infinity}]}', {"score": None}),
        (b'{"data": [{"url": "u", "score": 1e999}]}', {"score": None}),
        (b'{"data": [{"url": "u"}], "usage": {"a": 1e999, "b": [1]}}', {}),
        (b'{"data": [{"url": "u"}], "usage": {"a": 1e308}}', {}),
        (b'{"data": [{"url": "u"}], "n": ' + b"9" * 5000 + b"}", {}),
        (b'{"data": [{"url": "u", "note": "\\ud800"}]}', {"note": "\ud800"}),
        (b'{"data": [{"url": "u", "note": "\xed\xa0\x80"}]}', {"note": "\ud800"}),
    ],
    ids=range(7),
)
def test_images_are_returned_regardless_of_what_else_the_answer_contains(
    content: bytes, image: dict[str, Any], n: int
) -> None:
    response = send(before(content), IMAGES, {"prompt": CEO, "n": n})
    assert response.status_code == 200
    # Strict JSON does not allow NaN or infinity.
    answer = json.loads(response.content, parse_constant=pytest.fail)
    assert len(answer["data"]) == n
    assert all({"url": "u", **image}.items() <= row.items() for row in answer["data"])
    assert len(note(response)["values"]) == n


def test_images_are_returned_despite_an_invalid_status() -> None:
    response = send(before(b'{"data": [{"url": "u"}]}', 999), IMAGES, {"prompt": CEO})
    assert response.status_code == 200
    assert response.json()["data"][0]["url"] == "u"
    assert send(before(b'{"data": []}', 999), IMAGES, {"prompt": CEO}).status_code == 502


@pytest.mark.parametrize("kind", ["image/png", "text/event-stream; charset=utf-8"])
def test_an_answer_that_consists_of_the_image_is_passed_through(kind: str) -> None:
    response = send(before(b"\x89PNG", kind=kind), IMAGES, {"prompt": CEO, "n": 2})
    assert (response.status_code, response.content) == (200, b"\x89PNG")
    assert response.headers["content-type"] == kind
    assert len(note(response)["values"]) == 1
    assert note(response)["failed"] == 1


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"data": [{"url": ',
        b"[[[]]]",
        b"[" * 100_000,
        b"null",
        b"{}",
        b'{"data": [1, 2]}',
        b'{"data": {"url": "u"}}',
        b'{"images": []}',
        b"<html>a login page</html>",
        b'{"data": [' + b"{}," * 1_000_000 + b"{}]}",
    ],
    ids=range(11),
)
def test_an_answer_without_images_becomes_an_error(content: bytes, n: int) -> None:
    response = send(before(content), IMAGES, {"prompt": CEO, "n": n})
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_form"
    assert response.headers["x-vldebias"] == "refused (upstream_form)"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("content", "status"), [(b"<html>", 200), (b"{}", 999), (b"{}", 600)])
def test_an_invalid_answer_is_an_error_on_every_path(
    path: str, content: bytes, status: int
) -> None:
    response = send(before(content, status), path, BODIES[path])
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_form"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (GEMINI, {"promptFeedback": {"blockReason": "SAFETY"}}),
        (IMAGEN, {}),
        ("/v1/chat/completions", {"error": {"message": "moderated", "code": 403}}),
        (IMAGES, {"error": {"message": "moderated"}}),
    ],
)
def test_a_refusal_with_status_200_is_passed_unchanged(path: str, answer: Any) -> None:
    response = send(before(json.dumps(answer).encode()), path, BODIES[path])
    assert (response.status_code, response.json()) == (200, answer)
    assert note(response) == {"values": [], "reasons": [], "failed": 1}


@pytest.mark.parametrize("path", [*BODIES, "/v1/files"])
@pytest.mark.parametrize("status", [301, 400, 401, 404, 418, 499, 500, 599])
def test_upstream_errors_are_passed_unchanged(path: str, status: int) -> None:
    app = before(b"<no json>", status, "text/html", **{"x-request-id": "7"})
    response = send(app, path, BODIES.get(path, {}))
    assert (response.status_code, response.content) == (status, b"<no json>")
    assert response.headers["content-type"] == "text/html"
    assert response.headers["x-request-id"] == "7"


def test_non_ascii_headers_are_passed_in_both_directions() -> None:
    received = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        received.append(dict(request.headers.raw)[b"x-name"])
        headers = [(b"x-name", "日本".encode()), (b"x-vldebias", b"forged")]
        return reply(b'{"data": [{"url": "u"}]}', headers=headers)

    app = images_proxy("http://there", "gender", transport=httpx2.MockTransport(answer))
    for path, body in ((IMAGES, {"prompt": CEO}), ("/v1/files", {})):
        response = send(app, path, body, **{"x-name": "\xe9"})
        assert dict(response.headers.raw)[b"x-name"] == "日本".encode()
        assert "forged" not in response.headers.get_list("x-vldebias")
    assert received == [b"\xe9"] * 2


def test_a_path_that_is_too_long_together_with_the_address_gets_400() -> None:
    upstream = httpx2.MockTransport(lambda _: reply())
    app = images_proxy(f"http://there/{'a' * 200}", "gender", transport=upstream)
    response = send(app, f"/v1/files/{'a' * 65_400}", {})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"


def test_an_unexpected_error_is_answered_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: httpx2.Request) -> httpx2.Response:
        raise ZeroDivisionError("a secret")

    app = images_proxy("http://there", "gender", transport=httpx2.MockTransport(fail))
    with caplog.at_level(logging.ERROR, "vldebias.images_api"):
        passed = send(app, "/v1/files", {})
        balanced = send(app, IMAGES, {"prompt": CEO})
    assert (passed.status_code, balanced.status_code) == (500, 500)
    assert passed.json()["error"]["code"] == "internal_error"
    assert balanced.json()["error"]["code"] == "internal_error"
    assert caplog.text.count("ZeroDivisionError") == 2
    assert "secret" not in caplog.text + passed.text + balanced.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8790"}, 200),
        ({"host": "127.0.0.1"}, 200),
        ({"host": "evil.example"}, 400),
        ({"host": "localhost.evil.example"}, 400),
        ({"host": "127.0.0.1", "origin": "http://localhost:3000"}, 200),
        ({"host": "127.0.0.1", "origin": "https://evil.example"}, 403),
        ({"host": "127.0.0.1", "origin": "null"}, 403),
    ],
)
def test_a_local_server_rejects_cross_site_requests(headers: dict[str, str], status: int) -> None:
    local_only = import_module("apps.images_api.server").local_only
    app = local_only(before(b'{"data": [{"url": "u"}]}'), 5.0)
    assert send(app, IMAGES, {"prompt": CEO}, **headers).status_code == status


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_every_method_gets_an_answer(method: str) -> None:
    response = send(before(), "/v1/a%0Ab", b"", method)
    assert response.status_code == (405 if method in ("TRACE", "BREW") else 200)


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"
# Bytes that an upstream server sends before it closes the connection, and what the client receives.
# Only an upstream server's own error has status 500.
RAW: dict[str, tuple[bytes, int, bytes | None]] = {
    "an error": (b"HTTP/1.1 500 Broken\r\ncontent-length: 2\r\n\r\n{}", 500, b"{}"),
    "an undefined status": (b"HTTP/1.1 999 No\r\ncontent-length: 2\r\n\r\n{}", 502, None),
    "nothing": (b"", 502, None),
    "other bytes than HTTP": (b"\0\1\2\r\n\r\n", 502, None),
    "half of the headers": (b"HTTP/1.1 200 OK\r\ncontent-le", 502, None),
    "another protocol": (b"HTTP/1.1 101 Other\r\nupgrade: x\r\n\r\n", 502, None),
    "an endless header": (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000, 502, None),
    "no length": (b"HTTP/1.1 200 OK\r\n\r\n{}", 200, b"{}"),
    "a length that is no number": (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n{}", 502, None),
    "a short length for chunks": (
        CHUNKED + b"content-length: 1\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        200,
        b"{}",
    ),
    "a long length for chunks": (
        CHUNKED + b"content-length: 9\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        200,
        b"{}",
    ),
    "no content": (b"HTTP/1.1 304 Same\r\ncontent-length: 9\r\n\r\n", 304, b""),
    "an invalid redirect": (
        b"HTTP/1.1 302 There\r\nlocation: http://[::1\r\ncontent-length: 0\r\n\r\n",
        302,
        b"",
    ),
}


HALVES = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}",
    CHUNKED + b"\r\n2\r\n{}\r\n",
    CHUNKED + b"\r\n2\r\n{}\r\nx\r\n",
)


class Raw(StreamRequestHandler):
    """Send the bytes whose number is the last part of the path."""

    def handle(self) -> None:
        number = self.rfile.readline().split()[1].rpartition(b"/")[2]
        while self.rfile.readline().strip():
            continue
        with suppress(ConnectionError):
            self.wfile.write([*(row[0] for row in RAW.values()), *HALVES][int(number)])


@pytest.fixture(scope="module")
def raw() -> Iterator[httpx2.Client]:
    """Return a client of a proxy in front of a server that sends raw bytes."""
    with TCPServer(("127.0.0.1", 0), Raw) as upstream:
        threading.Thread(target=upstream.serve_forever, args=(0.01,), daemon=True).start()
        app = images_proxy(f"http://127.0.0.1:{upstream.server_address[1]}/v1", "gender")
        with served(app) as base_url, httpx2.Client(base_url=base_url) as client:
            yield client
        upstream.shutdown()


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("kind", RAW)
def test_only_an_error_of_the_upstream_server_has_status_500(
    raw: httpx2.Client, kind: str, method: str
) -> None:
    _, status, body = RAW[kind]
    response = raw.request(method, str(list(RAW).index(kind)))
    assert response.status_code == status
    note = response.headers["x-vldebias"]
    assert note.startswith("refused (upstream_" if body is None else "not balanced (")
    if method != "HEAD" and body is not None:
        assert response.content == body


@pytest.mark.parametrize("number", range(len(HALVES)))
def test_half_of_a_body_ends_the_clients_connection(raw: httpx2.Client, number: int) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        raw.get(str(len(RAW) + number))


def embeddings(folder: Path, content: bytes, status: int = 200) -> httpx2.Response:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return reply(content, status)

    transport = httpx2.MockTransport(answer)
    app = images_proxy(
        "http://there/v1", None, edit=folder, transport=transport, limits=ProxyLimits(retries=0)
    )
    return send(app, "/v1/embeddings", {"model": "m", "input": CEO, "input_type": "query"})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"[1]",
        b'{"data": 1}',
        b'{"data": []}',
        b'{"data": [1, 2]}',
        b'{"data": [{"embedding": [NaN, 1]}]}',
        b'{"data": [{"embedding": [1e999]}]}',
        b'{"data": [{"embedding": [[1]]}]}',
        b'{"data": [{"embedding": "%%%"}]}',
        b'{"data": [{"embedding": [1], "index": "a"}, {"embedding": [1], "index": 0}]}',
        b'{"data": [{"embedding": [1, 2]}, {"embedding": [1]}]}',
    ],
    ids=range(12),
)
def test_an_answer_without_embeddings_becomes_an_error(edit_folder: Path, content: bytes) -> None:
    response = embeddings(edit_folder, content)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_form"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_vectors_that_are_not_finite_are_rejected(number: float) -> None:
    vectors_of = import_module("apps.images_api.embeddings").vectors_of
    refused = import_module("apps.images_api.order").RefusedError
    assert vectors_of({"data": [{"embedding": [1.0, 2.0]}]}, 1)[0].shape == (1, 2)
    with pytest.raises(refused, match="no readable embeddings"):
        vectors_of({"data": [{"embedding": [number, 2.0]}]}, 1)


def test_errors_of_an_embedding_server_are_passed_through(edit_folder: Path) -> None:
    response = embeddings(edit_folder, b"no key", 401)
    assert (response.status_code, response.content) == (401, b"no key")
    assert embeddings(edit_folder, b"{}", 999).status_code == 502


def test_embeddings_in_a_different_order_keep_their_index(edit_folder: Path) -> None:
    service = FalseEmbeddings()
    texts = ["A photo of a doctor", "A photo of a tree", "A photo of a nurse"]

    def vectors(is_reversed: bool) -> dict[int, Any]:
        async def shuffled(scope: Any, receive: Any, send: Any) -> None:
            async def reordering(message: Any) -> None:
                if message["type"] == "http.response.body" and is_reversed:
                    answer = json.loads(message["body"])
                    answer["data"].reverse()
                    message = {**message, "body": json.dumps(answer).encode()}
                if message["type"] == "http.response.start":
                    message = {**message, "headers": []}
                await send(message)

            await service.app(scope, receive, reordering)

        transport = httpx2.ASGITransport(app=shuffled)
        app = images_proxy("http://there/v1", None, edit=edit_folder, transport=transport)
        body = {"model": "m", "input": texts, "input_type": "query"}
        answer = send(app, "/v1/embeddings", body).json()
        return {item["index"]: item["embedding"] for item in answer["data"]}

    assert vectors(is_reversed=True) == vectors(is_reversed=False)


def test_the_cache_of_checked_models_is_bounded(edit_folder: Path) -> None:
    edits_class = import_module("apps.images_api.embeddings").QueryEdits
    edits = edits_class(edit_folder)
    texts = import_module("apps.images_api.embeddings").CHECKED
    service = FalseEmbeddings()
    rows = [{"embedding": service.vector(text).tolist()} for text in texts]
    for number in range(100):
        edits.remember(f"model-{number}", edits.checked(json.dumps({"data": rows}).encode()))
    assert list(edits.queries_of_model) == [f"model-{number}" for number in range(68, 100)]


@settings(max_examples=60, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from(["texts", "images", "tools", "model", "structured_messages", "input_type"]),
        JUNK,
        max_size=3,
    )
)
def test_no_body_crashes_the_guardrail(changes: dict[str, Any]) -> None:
    body = {"input_type": "request", "texts": [CEO], "structured_messages": [], **changes}
    response = send(images_proxy(None, "gender"), f"/{GUARDRAIL}", body)
    assert response.status_code in (200, 400)


@pytest.mark.parametrize(
    "content", [b"{", b'{"texts": ["\\ud83d"]}', b'{"texts": [NaN]}', b'{"texts": "A CEO"}']
)
def test_invalid_guardrail_json_gets_400(content: bytes) -> None:
    assert send(images_proxy(None, "gender"), f"/{GUARDRAIL}", content).status_code == 400


def test_a_form_with_a_file_or_without_a_boundary_is_passed_unchanged() -> None:
    received = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        received.append(request.content)
        return reply(b'{"id": "v"}')

    app = images_proxy("http://there", "gender", transport=httpx2.MockTransport(answer))
    kind = {"content-type": "Multipart/Form-Data; Boundary=b"}
    field = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nA photo of a CEO\r\n'
    file = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\nx\r\n--b--\r\n'
    left = send(app, "/v1/videos", field + file, **kind)
    assert note(left)["reasons"] == ["edits a given image"]
    twice = (
        field + b'--b\r\nContent-Disposition: form-data; name="tag"\r\n\r\n1\r\n' * 2 + b"--b--\r\n"
    )
    assert note(send(app, "/v1/videos", twice, **kind))["values"] in (["female"], ["male"])
    broken = send(app, "/v1/videos", field, **{"content-type": "multipart/form-data"})
    assert broken.headers["x-vldebias"] == "not balanced (videos)"
    for files in (file, file.removesuffix(b"--\r\n") + b"\r\n" + file[5:]):
        left = send(app, "/v1/images/generations", field + files, **kind)
        assert left.status_code == 200
        assert note(left)["reasons"] == ["edits a given image"]
    assert received[0] == field + file
    assert received[1].count(b'name="tag"') == 2
    assert received[2] == field
