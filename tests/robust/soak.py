"""Twenty people at once on each server for ten minutes: are they answered right, and does its memory grow?

    python -m tests.robust.soak                      # both at once; writes eval/results/soak.json
    python -m tests.robust.soak --server label --minutes 2

On `vldebias demo` every client asks in turn for pictures of a seed of its own, for a classification and for an
inspection, on `vldebias label` it answers one question after the other under a name of its own, with a moment to think.
Each answer is checked to be the one to its own question. The server is a process of its own, whose memory (RssAnon:
libraries that are mapped come and go with what else the machine does) is read once a second; its slope is a
least-squares line through what comes after a third of the time, when models are loaded and pools are filled. In the end
every answer has to be in the file of answers.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gradio_client import Client
from PIL import Image

from eval.experiments.records import rows_of, write_records
from vldebias.evaluation.answers import read_log
from vldebias.evaluation.result import Result
from vldebias.pictures import KEY

RESULT = Path(__file__).parents[2] / "eval" / "results" / "soak.json"
IMAGES, CHOICES, THINK = 2000, ("red", "blue"), 0.2  # seconds between two answers, on average
STEPS = 2  # of denoising
EXAMPLES = ("a landbird on land", "a landbird on water", "a waterbird on land", "a waterbird on water")


@dataclass
class Log:
    """What all clients saw."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def timed(self, kind: str, client: Client, *values: Any, **options: Any) -> Any:
        started = time.monotonic()
        answer = client.predict(*values, api_name=f"/{kind}", **options)
        with self.lock:
            self.seconds.setdefault(kind, []).append(time.monotonic() - started)
        return answer

    @contextmanager
    def client(self, address: str, number: int, start: threading.Barrier) -> Iterator[Client]:
        """One of them, from when all are there; whatever goes wrong, a wrong answer included, is written down."""
        try:
            client = Client(address, verbose=False)
            start.wait(timeout=300)
            yield client
            client.close()
        except Exception as error:
            with self.lock:
                self.errors.append(f"client {number}: {type(error).__name__}: {error}")


def until(deadline: float) -> Iterator[int]:
    """0, 1, 2 ... as long as there is time."""
    turn = 0
    while time.monotonic() < deadline:
        yield turn
        turn += 1


def visit(address: str, number: int, turns: Iterator[int], start: threading.Barrier, log: Log) -> None:
    """One visitor of the demo: draws, classifies, inspects."""
    with log.client(address, number, start) as client:
        for turn in turns:
            seed = 1000 * number + turn
            check_pictures(
                log.timed("generate", client, "A photo of a doctor.", number=1, seed=seed, steps=STEPS), seed
            )
            name = EXAMPLES[(number + turn) % len(EXAMPLES)]
            scores = log.timed("classify", client, name)["scores"]["mitigated"]
            if (scores[0] > scores[1]) != ("landbird" in name):
                raise AssertionError(f"{name}: {scores} is the answer to another question")
            log.timed("inspect", client, "model", lam=float(10 * (number + 1)), method="cali")


def check_pictures(found: dict[str, Any], seed: int) -> None:
    """The pictures are those of the seed that was asked for, on both sides."""
    for side, (text,) in found["pictures"].items():
        with Image.open(io.BytesIO(base64.b64decode(text))) as picture:
            told = json.loads(picture.info[KEY])
        if (told["seed"], told["variant"]) != (seed, side):
            raise AssertionError(f"asked for seed {seed} of {side}, got {told['seed']} of {told['variant']}")


def label(address: str, number: int, turns: Iterator[int], start: threading.Barrier, log: Log) -> None:
    """One annotator: looks at the picture, answers, and is shown the next."""
    rng, name = random.Random(number), f"annotator {number}"
    with log.client(address, number, start) as client:
        told = log.timed("question", client, name)
        for turn in turns:
            picture = base64.b64decode(told["picture"])
            if (told["step"], told["done"], picture[:4]) != (turn, turn, b"\x89PNG"):
                raise AssertionError(f"{name} is asked question {told['step']} after {turn} answers")
            told = log.timed("answer", client, name, told["step"], rng.choice(CHOICES))
            time.sleep(rng.random() * 2 * THINK)


@contextmanager
def served(arguments: Sequence[str]) -> Iterator[tuple[str, int]]:
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


def resident(pid: int) -> float:
    """A process's own memory in MiB, without the libraries that are mapped."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"RssAnon:\s+(\d+)", status).group(1)) / 1024  # type: ignore[union-attr]


def soak(arguments: list[str], one: Callable[..., None], clients: int, minutes: float) -> dict[str, Any]:
    """What the clients saw, and the memory of the server over time."""
    log, start = Log(), threading.Barrier(clients + 1)
    with served(arguments) as (address, pid):
        begun = time.monotonic()
        threads = [
            threading.Thread(target=one, args=(address, n, until(begun + 60 * minutes), start, log), daemon=True)
            for n in range(clients)
        ]
        for thread in threads:
            thread.start()
        start.wait(timeout=300)
        seconds, mib = [], []
        while any(thread.is_alive() for thread in threads):
            seconds.append(time.monotonic() - begun)
            mib.append(resident(pid))
            time.sleep(1)
    return {
        "requests": sum(map(len, log.seconds.values())),
        "errors": log.errors,
        "latency_seconds": {kind: quantiles(values) for kind, values in sorted(log.seconds.items())},
        **growth(np.array(seconds), np.array(mib)),
    }


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "n": len(ordered),
        "median": round(ordered[len(ordered) // 2], 3),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 3),
        "max": round(ordered[-1], 3),
    }


def growth(seconds: np.ndarray, mib: np.ndarray) -> dict[str, Any]:
    """Slope after a third of the time, and the means of every tenth."""
    late = seconds >= seconds[-1] / 3
    slope, level = np.polyfit(seconds[late] / 60, mib[late], 1)
    noise = mib[late] - (slope * seconds[late] / 60 + level)
    return {
        "minutes": round(float(seconds[-1]) / 60, 2),
        "mib_per_minute": round(float(slope), 3),
        "mib_around_the_line": round(float(noise.std()), 2),
        "mib_at_a_third": round(float(mib[late][0]), 1),
        "mib_at_the_end": round(float(mib[-1]), 1),
        "mib_by_tenth": [round(float(part.mean()), 1) for part in np.array_split(mib, 10)],
    }


def soak_demo(clients: int, minutes: float) -> dict[str, Any]:
    """The demo, on the embedded models."""
    return soak(["demo"], visit, clients, minutes)


def soak_label(clients: int, minutes: float) -> dict[str, Any]:
    """Labelling of a folder of small images; what is in the file of answers is what was answered."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, answers = Path(temporary) / "images", Path(temporary) / "answers.jsonl"
        folder.mkdir()
        for i in range(IMAGES):
            Image.new("RGB", (64, 64), (i % 256, i // 256, 9)).save(folder / f"{i}.png")
        asked = ["--attribute", "colour", "--choices", ",".join(CHOICES), "--out", str(answers)]
        told = soak(["label", str(folder), *asked], label, clients, minutes)
        there, torn = read_log(answers)
        answered = told["latency_seconds"]["answer"]["n"]
        if len(there) != answered or len({answer.key for answer in there}) != answered or torn:
            told["errors"].append(f"{answered} answers were given, {len(there)} are in the file")
        return told | {"answers": answered, "answers_in_the_file": len(there)}


SERVERS = {"demo": soak_demo, "label": soak_label}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=list(SERVERS), action="append", help="default: both")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    rows = rows_of(Result.read(given.out), "server") if given.out.exists() else []
    kept = {row["server"]: row for row in rows}
    about = {"clients": given.clients, "cpus": os.cpu_count()}
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(SERVERS[name], given.clients, given.minutes) for name in given.server or SERVERS}
        kept |= {name: {"server": name} | about | one.result() for name, one in running.items()}
    told = [kept[server] for server in SERVERS if server in kept]
    write_records(given.out, "Clients at once on a server, every answer checked", told, "server")
    print(json.dumps(told, indent=1))
    if any(server.get("errors") for server in kept.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
