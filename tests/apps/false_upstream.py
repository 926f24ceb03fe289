"""Provide a fake images API server that generates no images. Words in the prompt determine how it
fails."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from vldebias import images_proxy

KEY = "sk-right"
SLOW = 30.0  # seconds, longer than any test waits


def failure(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "requests", "param": None, "code": code}}


class FalseUpstream:
    """Record the requests it receives.

    Attributes:
        seen: The bodies of image requests.
        headers: The headers of each request.
        most: The largest number of concurrent calls.
        cancelled: The number of calls whose client disconnected.
        raw: The bodies of all other requests.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.raw: list[bytes] = []
        self.now = 0
        self.most = 0
        self.cancelled = 0
        routes = [
            Route("/v1/images/generations", self.generate, methods=["POST"]),
            Route("/v1/images/edits", self.keep, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/files/{name}", self.remove, methods=["DELETE"]),
        ]
        self.app = Starlette(routes=routes)

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        self.seen.append(body)
        self.headers.append(dict(request.headers))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self._generated(request, body)
        finally:
            self.now -= 1

    async def _generated(self, request: Request, body: dict[str, Any]) -> Response:
        prompt = body["prompt"]
        is_late = "slow" in prompt or ("sluggish" in prompt and "female" in prompt)
        if is_late:
            try:
                await self._wait(request)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        failed = self._failure(request, prompt)
        if failed is not None:
            return failed
        if body.get("stream"):
            return StreamingResponse(self._events(), media_type="text/event-stream")
        await asyncio.sleep(self.seconds)
        n = body.get("n") or 1
        images = [{"b64_json": f"{prompt}|{body.get('seed')}|{place}"} for place in range(n)]
        usage = {"total_tokens": 10 * n, "input_tokens_details": {"text_tokens": 4 * n}}
        answer = {"created": 5, "size": body.get("size"), "data": images, "usage": usage}
        return JSONResponse(answer, headers={"x-request-id": "r-200"})

    def _failure(self, request: Request, prompt: str) -> Response | None:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            wrong = failure("Incorrect API key provided", "invalid_api_key")
            return JSONResponse(wrong, 401, {"x-request-id": "r-401"})
        if "busy" in prompt:
            headers = {"retry-after-ms": "10", "x-request-id": "r-429"}
            return JSONResponse(failure("Rate limit", "rate_limit_exceeded"), 429, headers)
        if "tomorrow" in prompt:
            return JSONResponse(failure("Quota", "quota"), 429, {"retry-after": "86400"})
        is_unfair = "lopsided" in prompt and "female" in prompt
        if "forbidden" in prompt or is_unfair:
            return JSONResponse(failure("Rejected", "moderation_blocked"), 400)
        return JSONResponse({"images": []}) if "shapeless" in prompt else None

    async def _wait(self, request: Request) -> None:
        for _ in range(int(SLOW / 0.02)):
            if await request.is_disconnected():
                raise asyncio.CancelledError
            await asyncio.sleep(0.02)

    async def _events(self) -> Any:
        for number in range(3):
            yield f'event: image_generation.partial_image\ndata: {{"n": {number}}}\n\n'

    async def keep(self, request: Request) -> Response:
        self.raw.append(await request.body())
        self.headers.append(dict(request.headers))
        return PlainTextResponse("edited")

    async def models(self, request: Request) -> Response:
        models = [{"id": "tiny", "object": "model", "created": 0, "owned_by": "me"}]
        content = {"object": "list", "data": models, "query": str(request.query_params)}
        response = JSONResponse(content)
        response.headers.append("set-cookie", "a=1")
        response.headers.append("set-cookie", "b=2")
        return response

    async def remove(self, request: Request) -> Response:
        return Response(status_code=204)


class FalseServices:
    """Record requests on every path of image generation services, and answer in the format of the
    path.

    Attributes:
        seen: Path and fields of each request.
        headers: Headers of each request.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET", "POST"])])

    def prompts(self) -> list[str]:
        """Return the prompt in each request."""
        return [text_of(path, body) for path, body in self.seen]

    async def answer(self, request: Request) -> Response:
        path = request.path_params["path"]
        if request.headers.get("content-type", "").startswith("multipart/"):
            form = await request.form()
            body = {name: str(text) for name, text in form.items()}
        else:
            content = await request.body()
            body = json.loads(content) if content.startswith(b"{") else {}
        self.seen.append((path, body))
        self.headers.append(dict(request.headers))
        prompt = text_of(path, body)
        if "forbidden" in prompt:
            return JSONResponse(failure("Rejected", "moderation_blocked"), 400)
        if body.get("stream") or ":stream" in path:
            return StreamingResponse(self._events(path, prompt), media_type="text/event-stream")
        return JSONResponse(self._answer(path, body, prompt))

    async def _events(self, path: str, prompt: str) -> Any:
        answer = self._answer(path, {}, prompt)
        if path.endswith("responses"):
            done = {"type": "response.completed", "sequence_number": 0, "response": answer}
            yield f"event: response.completed\ndata: {json.dumps(done)}\n\n"
        elif path.endswith("chat/completions"):
            answer["object"] = "chat.completion.chunk"
            answer["choices"] = [{"index": 0, "delta": {"role": "assistant", "content": prompt}}]
            yield f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n"
        else:
            yield f"data: {json.dumps(answer)}\n\n"

    def _answer(self, path: str, body: dict[str, Any], prompt: str) -> dict[str, Any]:
        last = path.rpartition("/")[2]
        image = "aW1hZ2U="
        if last == "completions":
            message = {
                "role": "assistant",
                "content": prompt,
                "images": [{"type": "image_url", "image_url": {"url": f"data:;base64,{image}"}}],
            }
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
            return {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [choice],
                "usage": usage,
            }
        if last == "responses":
            call = {
                "type": "image_generation_call",
                "id": "i",
                "status": "completed",
                "result": image,
            }
            text = {"type": "output_text", "text": prompt, "annotations": []}
            message = {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
            return {
                "id": "r",
                "object": "response",
                "created_at": 1,
                "model": "m",
                "output": [call, message],
                "parallel_tool_calls": False,
                "tool_choice": "auto",
                "tools": [],
            }
        if last == "videos":
            return {"id": "v", "object": "video", "status": "queued", "prompt": prompt}
        if "enerateContent" in last:
            parts = [
                {"text": prompt},
                {"inlineData": {"mimeType": "image/png", "data": image}},
            ]
            candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
            return {"candidates": [candidate], "usageMetadata": {"totalTokenCount": 3}}
        if last.endswith(":predict"):
            made = {"bytesBase64Encoded": image, "mimeType": "image/png", "prompt": prompt}
            return {"predictions": [made]}
        n = body.get("n")
        images = n if isinstance(n, int) else 1
        return {"created": 1, "data": [{"b64_json": image, "prompt": prompt}] * images}


def text_of(path: str, body: dict[str, Any]) -> str:
    """Return the prompt text in a request to any path, or "" if there is none."""
    try:
        return _text_of(body)
    except (AttributeError, IndexError, KeyError, TypeError):
        return ""


def _text_of(body: dict[str, Any]) -> str:
    content: Any = body.get("prompt", "")
    if body.get("messages"):
        content = body["messages"][-1]["content"]
    elif body.get("input"):
        content = body["input"]
        if isinstance(content, list) and isinstance(content[-1], dict):
            content = content[-1]["content"]
    elif body.get("contents"):
        content = body["contents"][-1]["parts"]
    elif body.get("instances"):
        content = body["instances"][0]["prompt"]
    if isinstance(content, str):
        return content
    return " / ".join(part["text"] for part in content if "text" in part)


@contextmanager
def served(app: Any, **options: Any) -> Iterator[str]:
    """Serve an app on a free local port and yield its base_url."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listening.close()


@contextmanager
def proxied(upstream: Any, http: Any = "auto", **options: Any) -> Iterator[int]:
    """Serve the proxy in front of an app, or of an address, and yield its port."""
    with ExitStack() as stack:
        address = upstream if isinstance(upstream, str) else stack.enter_context(served(upstream))
        app = images_proxy(address, "gender", **options)
        yield port_of(stack.enter_context(served(app, http=http)))


def port_of(base_url: str) -> int:
    return int(base_url.rpartition(":")[2].partition("/")[0])


def received_until_closed(client: socket.socket) -> bytes:
    """Return everything that a server sends before it closes the connection."""
    client.settimeout(20)
    answer = b""
    while part := client.recv(65536):
        answer += part
    return answer


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < end, "waited for 20 s"
        time.sleep(0.01)


@contextmanager
def serving(upstream: str, *options: str) -> Iterator[tuple[int, int]]:
    """Run `vldebias serve` in front of a server, and yield the process id and the port."""
    command = [sys.executable, "-m", "vldebias", "serve", "--upstream", upstream, "--port", "0"]
    command += ["--attribute", "gender", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = ""
        while "base_url=" not in line:
            piece = process.stderr.readline()
            assert piece, f"the command ended: {line}"
            line += piece
        assert "base_url=http://127.0.0.1:" in line, "only this machine is served"
        yield process.pid, port_of(line)
    finally:
        process.terminate()
        rest = process.communicate(timeout=30)[1]
    assert not any(word in line + rest for word in ("A photo", KEY)), "neither is logged"
