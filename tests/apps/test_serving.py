"""Test how a page is protected from the network: hosts, origins, passwords, uploads, ports,
signals."""

import asyncio
import json
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import httpx2
import pytest
from browsing import free_port, served
from label_parts import draw

from apps import abandoned, serving
from tests.apps.test_images_api import ask as in_process
from tests.processes import run_python
from vldebias.errors import InvalidInputError


async def page_app(scope: Any, receive: Any, send: Any) -> None:
    """Return a page behind the guard, without a password."""
    status = 400 if scope["path"].endswith("/login") else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def ask(
    guard: Any,
    path: str = "/",
    method: str = "GET",
    client: str = "10.0.0.1",
    body: bytes = b"",
    **headers: str,
) -> int:
    """Return the status of the answer to a request with headers such as `x_forwarded_host`."""
    messages: list[Any] = []
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "method": method, "client": (client, 1), "headers": raw}

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(guard(scope, receive, send))
    return int(messages[0]["status"])


HERE = ["localhost:7860", "127.0.0.1", "LOCALHOST", "[::1]:7860"]
OTHERS = ["evil.example", "evil.example:7860", "localhost.evil.example", "", "192.168.0.7:7860"]


@pytest.mark.parametrize("host", HERE + OTHERS)
def test_other_host_names_are_rejected_on_a_local_page(host: str) -> None:
    status = 200 if host in HERE else 400
    local = serving.guarded(page_app, public=False)
    assert ask(local, host=host) == status
    assert ask(local, host=host, origin=f"http://{host}") == status
    assert ask(serving.guarded(page_app, public=True), host=host or "a") == 200


@pytest.mark.parametrize("public", [True, False])
def test_cross_site_requests_are_rejected_and_a_proxys_name_is_accepted(public: bool) -> None:
    guard = serving.Guard(page_app, public=public)
    for origin in (
        "http://evil.example",
        "http://localhost:1",
        "null",
        "https://localhost.evil.example",
    ):
        assert ask(guard, host="localhost:7860", origin=origin) == 403
    headers = {
        "host": "127.0.0.1:8000",
        "origin": "https://demo.example.org",
        "x_forwarded_host": "demo.example.org",
    }
    assert ask(guard, **headers) == (200 if public else 403)


def test_logins_per_address_and_minute_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard = serving.Guard(page_app)
    login = {"path": "/login", "method": "POST", "host": "localhost"}
    statuses = [ask(guard, **login) for _ in range(serving.LOGINS + 2)]
    assert statuses == [400] * serving.LOGINS + [429] * 2
    assert ask(guard, **login, client="10.0.0.2") == 400, "other addresses can still log in"
    assert ask(guard, host="localhost") == 200, "logged-in visitors stay logged in"
    now = time.monotonic()
    monkeypatch.setattr(serving.time, "monotonic", lambda: now + 61)
    assert ask(guard, **login) == 400


def test_old_addresses_are_forgotten_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "ADDRESSES", 3)
    guard = serving.Guard(page_app)
    for number in range(10):
        ask(guard, "/login", "POST", f"10.0.0.{number}", host="localhost")
    assert len(guard.logins) == 3


def test_the_size_of_a_body_is_limited() -> None:
    guard = serving.Guard(page_app)
    long = b"x" * (serving.MOST_BODY + 1)
    assert ask(guard, "/call/x", "POST", body=long, host="localhost") == 413
    assert ask(guard, "/call/x", "POST", body=long[1:], host="localhost") == 200


def test_the_body_reaches_the_application_complete() -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200 + len(body), "headers": []})

    assert ask(serving.Guard(echo), method="POST", body=b"abc", host="localhost") == 203


def test_an_error_in_the_guarded_app_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("what a visitor sent")

    assert ask(serving.Guard(fails), "/x", "POST", host="localhost") == 500
    assert [record.message for record in caplog.records] == ["POST /x: ValueError"]
    assert caplog.records[0].exc_info is None


class Queue:
    """Accept calls, return their results, and record cancelled ones."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        content = b""
        if path.endswith("/cancel"):
            self.cancelled.append(json.loads((await receive())["body"])["event_id"])
        elif scope["method"] == "POST":
            number = json.loads((await receive())["body"])["number"]
            content = json.dumps({"event_id": f"event{number}"}).encode()
        else:
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": content})


async def request(app: Any, method: str, path: str, query: str = "", **body: Any) -> None:
    scope = {"type": "http", "path": path, "method": method, "query_string": query.encode()}

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Any) -> None:
        """Discard the answer."""

    await app(scope, receive, send)


def test_abandoned_calls_are_cancelled_and_others_continue() -> None:
    queued_page = Queue()

    async def visit() -> None:
        app = abandoned.Abandoned(queued_page, patience=0.05)
        await request(app, "POST", "/gradio_api/call/generate", number=1)
        await request(app, "POST", "/gradio_api/call/generate", number=2)
        await request(app, "GET", "/gradio_api/call/generate/event2")
        await request(app, "POST", "/gradio_api/queue/join", number=3, session_hash="a")
        await request(app, "POST", "/gradio_api/queue/join", number=4, session_hash="b")
        await request(app, "GET", "/gradio_api/queue/data", query="session_hash=b")
        await request(app, "POST", "/gradio_api/call/v2/generate", number=5, session_hash="b")
        await request(app, "POST", "/gradio_api/call/v2/generate/", number=6)
        await request(app, "POST", "/gradio_api/call/v2/generate", number=7)
        await request(app, "GET", "/gradio_api/call/v2/generate/event7")
        await request(app, "POST", "/gradio_api/call/v2/generate", number=8)
        await request(app, "GET", "/gradio_api/call/generate/event8")
        await asyncio.sleep(0.2)
        assert app.calls == {}
        assert app.streams == {}

    asyncio.run(visit())
    assert sorted(queued_page.cancelled) == ["event1", "event3", "event5", "event6"]


def gradio_page() -> Any:
    """Return a page whose function takes a fifth of a second."""
    import gradio
    from fastapi import FastAPI

    def work(text: str) -> str:
        time.sleep(0.2)
        return text

    with gradio.Blocks(analytics_enabled=False) as page:
        box = gradio.Textbox(label="text")
        gradio.Button().click(work, box, box, api_name="work", concurrency_limit=1)
    page.queue()
    mounted = gradio.mount_gradio_app(FastAPI(), page, path="/", ssr_mode=False)
    return abandoned.Abandoned(mounted, patience=0.1)


@pytest.mark.parametrize("route", ["call/work", "call/v2/work"])
def test_abandoned_calls_leave_the_queue_free(route: str) -> None:
    async def visit(client: httpx2.AsyncClient) -> str:
        await client.get("/gradio_api/startup-events")
        for _ in range(20):
            body = {"text": "left"} if "v2" in route else {"data": ["left"]}
            await client.post(f"/gradio_api/{route}", json=body)
        await asyncio.sleep(0.2)
        called = await client.post("/gradio_api/call/work", json={"data": ["visitor"]})
        event = called.json()["event_id"]
        async with asyncio.timeout(10):  # 20 calls would take 4 seconds
            answer = await client.get(f"/gradio_api/call/work/{event}")
        return answer.text

    app = gradio_page()
    begin = time.monotonic()
    assert "visitor" in in_process(app, visit)
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("call/v2/work", {"txt": "a"}),
        ("call/v2/work", {}),
        ("call/v2/work", {"text": "a", "more": 1}),
        ("call/v2/work", {"text": "a", "session_hash": "b"}),
        ("call/v2/work", [1]),
        ("call/v2/nothing", {"text": "a"}),
        ("call/v2", {"data": ["a"]}),
        ("call/nothing", {"data": ["a"]}),
        ("call/work", {"text": "a"}),
        ("queue/join", {"data": ["a"], "fn_index": 99, "session_hash": "b"}),
    ],
)
def test_a_call_with_wrong_names_is_rejected(route: str, body: Any) -> None:
    app = gradio_page()
    answer = in_process(app, lambda client: client.post(f"/gradio_api/{route}", json=body))
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert not app.calls


@pytest.mark.parametrize("is_sent", [False, True])
def test_an_error_that_is_not_about_names_stays_one(is_sent: bool) -> None:
    messages: list[Any] = []

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"failed"})
        if not is_sent:
            raise OSError("the disk is full")

    async def send(message: Any) -> None:
        messages.append(message)

    async def visit() -> None:
        scope = {"type": "http", "path": "/call/v2/work", "method": "POST"}
        await abandoned.Abandoned(fails)(scope, None, send)  # type: ignore[arg-type]

    if is_sent:
        asyncio.run(visit())
        assert messages[0]["status"] == 500
    else:
        with pytest.raises(OSError, match="the disk is full"):
            asyncio.run(visit())


def test_no_site_may_embed_a_page_in_a_frame() -> None:
    messages: list[Any] = []
    headers = [
        (b"X-Frame-Options", b"ALLOWALL"),
        (b"content-security-policy", b"default-src *"),
        (b"etag", b"1"),
    ]

    async def send(message: Any) -> None:
        messages.append(message)

    async def framing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    asyncio.run(serving.Headers(framing)({"type": "http"}, None, send))
    names = [name.lower() for name, _ in messages[0]["headers"]]
    assert names.count(b"content-security-policy") == 1
    assert {b"etag", b"x-frame-options"} <= set(names)
    assert b"frame-ancestors 'none'" in dict(messages[0]["headers"])[b"content-security-policy"]


def test_no_page_accepts_uploads() -> None:
    assert ask(serving.Guard(page_app), "/gradio_api/upload", "POST", host="localhost") == 403


def test_credentials_have_two_parts_and_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(serving.AUTH, "ada:with:colon")
    assert serving.credentials(public=True) == ("ada", "with:colon")
    monkeypatch.setenv(serving.AUTH, "ada:1234567")
    assert serving.credentials(public=False) == ("ada", "1234567")
    wrong = dict.fromkeys(("", "ada", "ada:", ":secret", ":"), "expected user:password")
    for auth, message in (wrong | {"ada:1234567": "needs at least 8 characters, got 7"}).items():
        monkeypatch.setenv(serving.AUTH, auth)
        with pytest.raises(InvalidInputError, match=message):
            serving.credentials(public=True)
    monkeypatch.delenv(serving.AUTH)
    assert serving.credentials(public=False) is None


SERVED = """
import os, sys
import gradio as gr
from apps.serving import serve

def announce(address):
    print("matplotlib.pyplot" in sys.modules, flush=True)
    os._exit(0)

with gr.Blocks() as demo:
    pass
serve(demo, announce=announce)
"""


@pytest.mark.slow
def test_the_first_visitor_does_not_wait_for_an_import() -> None:
    assert run_python(SERVED).stdout == "True\n"


ADDRESSED = """
import os, urllib.request
import gradio as gr
from apps import serving

async def name_client(scope, receive, send):
    start = {"type": "http.response.start", "status": 200, "headers": []}
    await send(start)
    await send({"type": "http.response.body", "body": scope["client"][0].encode()})

serving.guarded = lambda *_, **__: name_client

def announce(address):
    headers = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    request = urllib.request.Request(address, headers=headers)
    print(urllib.request.urlopen(request, timeout=60).read().decode(), flush=True)
    os._exit(0)

with gr.Blocks() as demo:
    pass
serving.serve(demo, announce=announce)
"""


@pytest.mark.slow
def test_a_visitor_cannot_choose_his_own_address() -> None:
    """Otherwise, he would escape the limit on logins per address."""
    assert run_python(ADDRESSED).stdout == "127.0.0.1\n"


def status_of(address: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=60
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.slow
# Both commands use the same function to serve and handle both signals.
@pytest.mark.parametrize(
    ("command", "number"),
    [("demo", signal.SIGTERM), ("label", signal.SIGINT)],
    ids=["demo-SIGTERM", "label-SIGINT"],
)
def test_a_signal_ends_the_server_within_two_seconds(
    command: str, number: int, tmp_path: Path
) -> None:
    """The server also ends with an open stream and while the demo generates. Finished answers are
    in the file."""
    from gradio_client import Client

    arguments = ["demo"]
    if command == "label":
        draw(tmp_path / "images")
        arguments = ["label", str(tmp_path / "images"), "--attribute", "gender"]
    with served(arguments, tmp_path / "log", free_port()) as (address, process):
        assert status_of(address) == 200
        assert status_of(address, Host="evil.example") == 400
        assert status_of(address, Origin="http://evil.example") == 403
        client = Client(address, verbose=False)
        if command == "demo":
            request_arguments = ("A photo of a doctor.", "gender", 16, 1, "none", 0, 100, 3)
            drawing = client.submit(*request_arguments, api_name="/generate")
            # The first output says that the models are loading. The second one says that images
            # are being generated.
            while len(drawing.outputs()) < 2:
                assert not drawing.done(), drawing.result()
                time.sleep(0.1)
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
        assert time.monotonic() - began < 2
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert f"{address}/" in log, "the printed address is the page's"
