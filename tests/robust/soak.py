"""Does the memory of the two servers grow while people use them? Twenty clients for ten minutes, on each.

    python -m tests.robust.soak                      # both at once; writes eval/results/soak.json
    python -m tests.robust.soak --server label --minutes 2

On `vldebias demo` every client draws, classifies and inspects in turn (as in `clients`), on `vldebias label` it
answers one question after the other under a name of its own, with a moment to think. Each answer is checked. The
server's own memory (RssAnon: libraries that are mapped come and go with what else the machine does) is read once a
second; its slope is a least-squares line through what comes after a third of the time, when models are loaded and
pools are filled. In the end every answer has to be in the file of answers.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from gradio_client import Client
from PIL import Image

from tests.robust.clients import Log, quantiles, resident, served, visit
from vldebias.evaluation.answers import read_log
from vldebias.files import commit, versions

RESULT = Path(__file__).parents[2] / "eval" / "results" / "soak.json"
IMAGES, CHOICES, THINK = 2000, ("red", "blue"), 0.2  # seconds between two answers, on average
Visit = Callable[[str, int, Iterator[int], threading.Barrier, Log], None]


def until(deadline: float) -> Iterator[int]:
    """0, 1, 2 ... as long as there is time."""
    turn = 0
    while time.monotonic() < deadline:
        yield turn
        turn += 1


def label(address: str, number: int, turns: Iterator[int], start: threading.Barrier, log: Log) -> None:
    """One annotator: looks at the picture, answers, and is shown the next."""
    rng = random.Random(number)
    try:
        client, name = Client(address, verbose=False), f"annotator {number}"
        start.wait(timeout=300)
        told = log.timed("question", client, name)
        for turn in turns:
            picture = base64.b64decode(told["picture"])
            if (told["step"], told["done"], picture[:4]) != (turn, turn, b"\x89PNG"):
                raise AssertionError(f"{name} is asked question {told['step']} after {turn} answers")
            told = log.timed("answer", client, name, told["step"], rng.choice(CHOICES))
            time.sleep(rng.random() * 2 * THINK)
        client.close()
    except Exception as error:
        with log.lock:
            log.errors.append(f"client {number}: {type(error).__name__}: {error}")


def soak(arguments: list[str], one: Visit, clients: int, minutes: float) -> dict[str, Any]:
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
            mib.append(resident(pid, "RssAnon"))
            time.sleep(1)
    return {
        "requests": sum(map(len, log.seconds.values())),
        "errors": log.errors,
        "latency_seconds": {kind: quantiles(values) for kind, values in sorted(log.seconds.items())},
        **growth(np.array(seconds), np.array(mib)),
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
    kept = json.loads(given.out.read_text(encoding="utf-8"))["servers"] if given.out.exists() else {}
    about = {"clients": given.clients, "cpus": os.cpu_count(), "versions": versions(), "commit": commit()}
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(SERVERS[name], given.clients, given.minutes) for name in given.server or SERVERS}
        kept |= {name: about | one.result() for name, one in running.items()}
    told = {"servers": {server: kept[server] for server in SERVERS if server in kept}}
    given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=1))
    if any(server["errors"] for server in kept.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
