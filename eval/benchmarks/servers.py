"""Start image servers and proxies for benchmarks, each in a new process.

`python -m eval.benchmarks.servers NAME` serves until it is stopped. This module imports as little
as possible, so that the times until servers answer can be compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROMPT = "A photo of a CEO in an office"
PORTS = {"direct": 8981, "bare": 8982, "balanced": 8983, "balancing": 8984, "serve": 8985}
DIRECT = f"http://127.0.0.1:{PORTS['direct']}/v1"


def server(name: str) -> Any:
    """Return an app: the image server ("direct"), a proxy that only forwards ("bare"), one that
    also calls `balance_prompts` ("balancing"), or ours ("balanced")."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    if name == "balanced":
        from vldebias import images_proxy

        return images_proxy(DIRECT, "gender", seed=0)

    async def generate(request: Any) -> Response:
        body = await request.json()
        images = [{"b64_json": "x" * 1000} for _ in range(body.get("n") or 1)]
        return JSONResponse({"created": 1, "data": images, "usage": {"total_tokens": 10}})

    clients: list[Any] = []

    async def forward(request: Any) -> Response:
        import httpx2

        if not clients:
            clients.append(httpx2.AsyncClient())
        content = await request.body()
        if name == "balancing":
            from vldebias.wording import balance_prompts

            body = json.loads(content)
            body["prompt"] = balance_prompts([body["prompt"]], "gender", seed=0).prompts[0]
            content = json.dumps(body).encode()
        url = f"{DIRECT}/images/generations"
        reply = await clients[0].post(url, content=content, headers={"content-type": "text/json"})
        return Response(reply.content, reply.status_code, media_type="application/json")

    answer = generate if name == "direct" else forward
    return Starlette(routes=[Route("/v1/images/generations", answer, methods=["POST"])])


@contextlib.contextmanager
def running(name: str) -> Iterator[tuple[str, Path]]:
    """Run a server in a new process until it answers, and yield its image endpoint and stat file.

    The server "serve" is the command `vldebias serve`.
    """
    import httpx2

    command = [sys.executable, "-m", "eval.benchmarks.servers", name]
    if name == "serve":
        options = f"--attribute gender --upstream {DIRECT} --seed 0 --port {PORTS[name]}"
        command = [sys.executable, "-m", "vldebias", "serve", *options.split()]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{PORTS[name]}/v1/images/generations"
    try:
        for _ in range(600):
            with contextlib.suppress(httpx2.TransportError):
                httpx2.get(url)
                break
            time.sleep(0.05)
        yield url, Path(f"/proc/{process.pid}/stat")
    finally:
        process.terminate()
        process.wait(timeout=10)


def processor_seconds(file: Path) -> float:
    """Return the user and system time that a process has used so far."""
    times = file.read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    import uvicorn

    served = sys.argv[1]
    uvicorn.run(server(served), port=PORTS[served], log_level="critical", access_log=False)
