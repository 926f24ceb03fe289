"""Measure the overhead of editing queries in a search and of balancing prompts in image requests.

    python -m eval.benchmarks.doors                  # print both tables
    python -m eval.benchmarks.doors --json FILE      # and write them
    python -m eval.benchmarks.doors --only queries

All variants in a row are timed alternately in one run, and rows contain medians. For queries, these
are CPU times on a single thread. For requests, they are the time that a client waits. The flat
search uses faiss if it is installed, and otherwise a matrix product and torch's `topk`. Because the
image server answers immediately, the remaining time is spent in the proxies. The bare proxy uses
the same libraries and forwards requests without parsing them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any

from eval.benchmarks.servers import PROMPT, running
from eval.tables import medians, parser, records, show

Row = dict[str, Any]
VECTORS = 100_000
WIDTH = 512
FIRST = 50
QUERIES = (1, 8, 32, 128)
REQUESTS = 200


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
        seconds = medians(
            {
                "search": lambda vectors=vectors: search(vectors),
                "edit": lambda vectors=vectors, texts=texts: queries.edit(vectors, texts),
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


def of_images(requests: int = REQUESTS) -> Iterator[Row]:
    """Compare direct requests with requests through the bare proxy and the balancing proxy."""
    import httpx2

    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(running(name)) for name in ("direct", "bare", "balanced")
        }
        client = stack.enter_context(httpx2.Client(timeout=60))
        for n in (1, 4):
            body = {"prompt": PROMPT, "n": n}
            calls = {
                name: lambda url=url, body=body: client.post(url, json=body).raise_for_status()
                for name, (url, _) in servers.items()
            }
            seconds = medians(calls, requests, time.perf_counter)
            row = {"what": "images", "images": n}
            row |= {f"{name}, ms": 1000 * value for name, value in seconds.items()}
            row["added to a bare proxy, ms"] = 1000 * (seconds["balanced"] - seconds["bare"])
            yield row


PARTS = {"queries": of_queries, "images": of_images}


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--only", choices=PARTS, action="append", help="one of the parts")
    arguments = options.parse_args()
    rows = [row for part in arguments.only or PARTS for row in PARTS[part]()]
    description = f"medians in turn; {VECTORS:,} vectors of width {WIDTH}; {REQUESTS} requests"
    search = "faiss" if importlib.util.find_spec("faiss") else "torch"
    columns = ("queries", "images")
    result = records("bench_doors", description, rows, "what", columns, search=search)
    show(result)
    if arguments.json:
        result.write(arguments.json)


if __name__ == "__main__":
    main()
