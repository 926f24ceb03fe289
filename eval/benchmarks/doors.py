"""Measure the overhead of balancing prompts in image requests.

    python -m eval.benchmarks.doors                  # print the table
    python -m eval.benchmarks.doors --json FILE      # and write it

All variants in a row are timed alternately in one run, and rows contain medians of the time that a
client waits. Because the image server answers immediately, the remaining time is spent in the
proxies. The bare proxy uses the same libraries and forwards requests without parsing them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from eval.benchmarks.servers import PROMPT, running
from eval.tables import medians, parser, records, show

Row = dict[str, Any]
REQUESTS = 200


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


def main() -> None:
    """Measure and print."""
    path = parser(__doc__).parse_args().json
    rows = list(of_images())
    result = records(
        "bench_doors", f"medians in turn; {REQUESTS} requests", rows, "what", ("images",)
    )
    show(result)
    if path:
        result.write(path)


if __name__ == "__main__":
    main()
