"""A server of the images API that makes no images: words of a prompt say how it fails."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

KEY = "sk-right"
SLOW = 30.0  # seconds: longer than any test waits


def failure(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "requests", "param": None, "code": code}}


class FalseUpstream:
    """Record what was asked for.

    seen: bodies of requests for images. headers: of each. most: calls that were answered at once.
    cancelled: calls whose client went. raw: bodies of other requests.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.raw: list[bytes] = []
        self.now = 0
        self.most = 0
        self.cancelled = 0
        self.failed: set[str] = set()
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
        if "moody" in prompt and prompt not in self.failed:
            self.failed.add(prompt)
            return JSONResponse(failure("Overloaded", "overloaded"), 503, {"retry-after-ms": "10"})
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
            await asyncio.sleep(0)

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


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an app on a free port of this machine; yield its base_url."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
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
