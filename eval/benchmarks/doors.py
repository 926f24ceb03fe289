"""Measure the overhead of editing queries in a search and of balancing prompts in image requests.

    python -m eval.benchmarks.doors                  # print both tables
    python -m eval.benchmarks.doors --json FILE      # and write them
    python -m eval.benchmarks.doors --only queries

All variants in a row are timed alternately in one run, and rows contain medians. For queries, these
are CPU times on a single thread. For requests, they are the time that a client waits and the CPU
time of the proxies. The flat search uses faiss if it is installed, and otherwise a matrix product
and torch's `topk`. Because the image server answers immediately, the remaining time is spent in the
proxies. The bare proxy uses the same libraries and forwards requests without parsing them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.tables import medians, write_records

Row = dict[str, Any]
VECTORS = 100_000
WIDTH = 512
FIRST = 50
QUERIES = (1, 8, 32, 128)
REQUESTS = 200
PROMPT = "A photo of a CEO in an office"
PORTS = {"direct": 8981, "bare": 8982, "balanced": 8983}


def of_queries(repetitions: int = 5) -> Iterator[Row]:
    """Compare editing n queries with a flat search of 100,000 vectors for them."""
    import torch
    from torch.nn.functional import normalize

    import vldebias

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    base = normalize(torch.randn(VECTORS, WIDTH, generator=generator), dim=1)
    search = _faiss_search(base) or _torch_search(base)
    words = torch.randn(1 << 12, WIDTH, generator=generator)

    def embed(texts: list[str]) -> Any:
        rows = [words[[hash(word) % len(words) for word in text.split()]].mean(0) for text in texts]
        return torch.stack(rows).numpy()

    queries = vldebias.debias_queries(embed, "gender", method="cali")
    for n in QUERIES:
        texts = [f"A photo of an experienced doctor in hospital {row}." for row in range(n)]
        vectors = embed(texts)
        lists = vectors.tolist()
        seconds = medians(
            {
                "search": lambda vectors=vectors: search(vectors),
                "edit": lambda vectors=vectors, texts=texts: queries.edit(vectors, texts),
                "edit of lists": lambda lists=lists, texts=texts: queries.edit(lists, texts),
            },
            repetitions,
            time.process_time,
        )
        yield {
            "what": "queries",
            "queries": n,
            **{f"{name}, ms": 1000 * value for name, value in seconds.items()},
            "edit / search": seconds["edit"] / seconds["search"],
        }


def _faiss_search(base: Any) -> Callable[[Any], Any] | None:
    if importlib.util.find_spec("faiss") is None:
        return None
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(base.numpy())
    return lambda vectors: index.search(vectors, FIRST)


def _torch_search(base: Any) -> Callable[[Any], Any]:
    import torch

    return lambda vectors: (torch.from_numpy(vectors) @ base.T).topk(FIRST)


def server(name: str) -> Any:
    """Return the app for the image server, the bare proxy or the balancing proxy."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from vldebias.serving import images_proxy

    address = f"http://127.0.0.1:{PORTS['direct']}/v1"
    if name == "balanced":
        return images_proxy(address, "gender", seed=0)

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
        url = f"{address}/images/generations"
        reply = await clients[0].post(url, content=content, headers={"content-type": "text/json"})
        return Response(reply.content, reply.status_code, media_type="application/json")

    answer = generate if name == "direct" else forward
    return Starlette(routes=[Route("/v1/images/generations", answer, methods=["POST"])])


@contextlib.contextmanager
def running(name: str) -> Iterator[tuple[str, Path]]:
    """Run a server in a separate process, and yield its image endpoint and its stat file."""
    import httpx2

    command = [sys.executable, "-m", "eval.benchmarks.doors", "--serve", name]
    process = subprocess.Popen(command)
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


def of_images(requests: int = REQUESTS) -> Iterator[Row]:
    """Compare direct requests with requests through the bare proxy and the balancing proxy."""
    import httpx2

    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(running(name)) for name in PORTS}
        client = stack.enter_context(httpx2.Client(timeout=60))
        for n in (1, 4):
            body = {"prompt": PROMPT, "n": n}
            calls = {
                name: lambda url=url, body=body: client.post(url, json=body).raise_for_status()
                for name, (url, _) in servers.items()
            }
            before = {name: _processor_seconds(file) for name, (_, file) in servers.items()}
            seconds = medians(calls, requests, time.perf_counter)
            row = {"what": "images", "images": n}
            row |= {f"{name}, ms": 1000 * value for name, value in seconds.items()}
            row["added to a bare proxy, ms"] = 1000 * (seconds["balanced"] - seconds["bare"])
            for name in ("bare", "balanced"):
                spent = _processor_seconds(servers[name][1]) - before[name]
                row[f"{name}, processor ms"] = 1000 * spent / (requests + 1)
            yield row


def _processor_seconds(file: Path) -> float:
    """Return the user and system time that a process has used so far."""
    times = file.read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


PARTS = {"queries": of_queries, "images": of_images}


def show(rows: list[Row]) -> None:
    """Print a table for each part."""
    for part in dict.fromkeys(row["what"] for row in rows):
        chosen = [row for row in rows if row["what"] == part]
        table = Table(*chosen[0])
        for row in chosen:
            table.add_row(
                *(
                    f"{value:.4g}" if isinstance(value, float) else str(value)
                    for value in row.values()
                )
            )
        Console(width=140).print(table)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", type=Path, help="also write the result here")
    options.add_argument("--only", choices=PARTS, action="append", help="one of the parts")
    options.add_argument("--serve", choices=PORTS, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.serve:
        import uvicorn

        port = PORTS[arguments.serve]
        uvicorn.run(server(arguments.serve), port=port, log_level="critical", access_log=False)
        return
    rows = [row for part in arguments.only or PARTS for row in PARTS[part]()]
    show(rows)
    if arguments.json:
        description = f"medians in turn; {VECTORS:,} vectors of width {WIDTH}; {REQUESTS} requests"
        search = "faiss" if importlib.util.find_spec("faiss") else "torch"
        columns = ("queries", "images")
        write_records(arguments.json, description, rows, "what", columns, search=search)


if __name__ == "__main__":
    main()
