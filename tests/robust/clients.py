"""Twenty visitors at once on the page of `vldebias demo`: no error, answers in order, memory bounded.

    python -m tests.robust.clients --clients 20 --rounds 3 --out eval/results/clients.json

Each client asks in turn for pictures of a seed of its own, for a classification and for an inspection, and checks that
every answer is the one to its own question. The server is a process of its own; its memory is read while it serves.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradio_client import Client
from PIL import Image

from vldebias.files import commit, versions
from vldebias.pictures import KEY

STEPS = 2
EXAMPLES = ("a landbird on land", "a landbird on water", "a waterbird on land", "a waterbird on water")


@dataclass
class Log:
    """What all clients saw."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    order: list[tuple[int, int, float]] = field(default_factory=list)  # client, round, when its answer came
    lock: threading.Lock = field(default_factory=threading.Lock)

    def timed(self, kind: str, client: Client, *values: Any, **options: Any) -> Any:
        started = time.monotonic()
        answer = client.predict(*values, api_name=f"/{kind}", **options)
        with self.lock:
            self.seconds.setdefault(kind, []).append(time.monotonic() - started)
        return answer


def visit(address: str, number: int, turns: Iterable[int], start: threading.Barrier, log: Log) -> None:
    """One client. Whatever goes wrong, a wrong answer included, is written down."""
    try:
        client = Client(address, verbose=False)
        start.wait(timeout=300)
        for turn in turns:
            seed = 1000 * number + turn
            found = log.timed("generate", client, "A photo of a doctor.", number=1, seed=seed, steps=STEPS)
            with log.lock:
                log.order.append((number, turn, time.monotonic()))
            check_pictures(found, seed)
            name = EXAMPLES[(number + turn) % len(EXAMPLES)]
            scores = log.timed("classify", client, name)["scores"]["mitigated"]
            if (scores[0] > scores[1]) != ("landbird" in name):
                raise AssertionError(f"{name}: {scores} is the answer to another question")
            log.timed("inspect", client, "model", lam=float(10 * (number + 1)), method="cali")
        client.close()
    except Exception as error:
        with log.lock:
            log.errors.append(f"client {number}: {type(error).__name__}: {error}")


def check_pictures(found: dict[str, Any], seed: int) -> None:
    """The pictures are those of the seed that was asked for, on both sides."""
    for side, (text,) in found["pictures"].items():
        with Image.open(io.BytesIO(base64.b64decode(text))) as picture:
            told = json.loads(picture.info[KEY])
        if (told["seed"], told["variant"]) != (seed, side):
            raise AssertionError(f"asked for seed {seed} of {side}, got {told['seed']} of {told['variant']}")


@contextmanager
def served(arguments: Sequence[str] = ("demo",)) -> Iterator[tuple[str, int]]:
    """(address, process id) of `vldebias` with arguments that make it a server, on a free port."""
    command = [sys.executable, "-m", "vldebias", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said, address = "", None
        for line in process.stderr:
            said += line
            if (address := re.search(r"http://\S+", line)) is not None:
                break
        if address is None:
            process.kill()
            raise SystemExit(f"the server did not start: {said}")
        drain = threading.Thread(target=process.stderr.read, daemon=True)  # or a full pipe would stop it
        drain.start()
        try:
            yield address.group(), process.pid
        finally:
            process.kill()


def resident(pid: int, kind: str = "VmRSS") -> float:
    """Resident memory of a process in MiB; of kind RssAnon its own alone, without the libraries that are mapped."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(rf"{kind}:\s+(\d+)", status).group(1)) / 1024  # type: ignore[union-attr]


@contextmanager
def watched(pid: int) -> Iterator[list[float]]:
    """Resident memory while the block runs, ten times a second."""
    seen, done = [resident(pid)], threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            seen.append(resident(pid))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def crowd(address: str, clients: int, rounds: int) -> tuple[Log, float]:
    """All clients at once: (what they saw, seconds)."""
    log, start = Log(), threading.Barrier(clients + 1)
    threads = [
        threading.Thread(target=visit, args=(address, number, range(rounds), start, log), daemon=True)
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    start.wait(timeout=300)
    begun = time.monotonic()
    for thread in threads:
        thread.join(timeout=1800)
    return log, time.monotonic() - begun


def in_order(log: Log, clients: int) -> bool:
    """Did everybody have a first answer before anybody had a third? The queue serves in the order of asking."""
    came = [(turn, when) for _, turn, when in log.order]
    firsts = [when for turn, when in came if turn == 0]
    thirds = [when for turn, when in came if turn == 2]
    return len(firsts) == clients and (not thirds or max(firsts) < min(thirds))


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "n": len(ordered),
        "median": round(ordered[len(ordered) // 2], 3),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 3),
        "max": round(ordered[-1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("eval/results/clients.json"))
    given = parser.parse_args()
    with served() as (address, pid):
        warm = Log()
        barrier = threading.Barrier(1)
        visit(address, 0, range(1), barrier, warm)  # models are loaded when they are first asked for
        loaded = resident(pid)
        with watched(pid) as first:
            log, seconds = crowd(address, given.clients, given.rounds)
        with watched(pid) as second:
            again, _ = crowd(address, given.clients, given.rounds)
    errors = [*warm.errors, *log.errors, *again.errors]
    result = {
        "name": "clients",
        "clients": given.clients,
        "rounds": given.rounds,
        "steps": STEPS,
        "requests": sum(map(len, log.seconds.values())),
        "errors": errors,
        "answers_in_order": in_order(log, given.clients) and in_order(again, given.clients),
        "seconds": round(seconds, 1),
        "latency_seconds": {kind: quantiles(values) for kind, values in sorted(log.seconds.items())},
        "memory_mib": {
            "after_loading": round(loaded),
            "peak_first_crowd": round(max(first)),
            "peak_second_crowd": round(max(second)),
        },
        "cpus": os.cpu_count(),
        "versions": versions(),
        "commit": commit(),
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    if errors or not result["answers_in_order"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
