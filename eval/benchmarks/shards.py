"""Features in shards: ten million rows within memory; Ray with a worker killed; embedding that is killed and resumed.

python -m eval.benchmarks.shards                                         # some minutes; Ray has to be installed
python -m eval.benchmarks.shards --json eval/results/bench_shards.json
python -m eval.benchmarks.shards --parts mapped --rows 200000            # a quick look, without Ray

Each part runs in processes of its own on one thread, and files are made in a temporary folder (--folder), 1 kB a row:

mapped: retrieval over rows x 512 float16 in one .npy, by its name. Peaks are of the whole process above what it had
    before the call: `peak MB` with the pages that are mapped and can be dropped, `own peak MB` of its own memory alone,
    looked at every 50 ms.
ray: both tasks over a fiftieth of the rows in eight files: in one array; with two workers of Ray; the same with a
    worker killed in every pass. `equal` counts the rows of the result that are equal to the digit.
embedded: pictures of the miniature world (birds) by its own model with two actors of Ray: whole; all killed (SIGKILL)
    once a third of the shards is there, and begun again. `equal` counts the files that are equal by byte.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import vldebias
from eval.experiments.records import rows_of, write_records
from eval.tables import Cells, shows
from vldebias.data import Labels, OnRay, Shards, embed_images
from vldebias.evaluation.images import prompts_of
from vldebias.evaluation.result import Measurement, Result
from vldebias.evaluation.sources import imported, refuse_uncommitted
from vldebias.files import digest
from vldebias.progress import SILENT
from vldebias.prompts import load_prompts

DIM, FEW, RESAMPLES = 512, 50, 50  # FEW: the rows of ray are so many times fewer
ASKED = load_prompts("professions-gender").classes[:10]
PARTS = ("mapped", "ray", "embedded")
Row = dict[str, Any]


# ---- what is measured --------------------------------------------------------------------------------------


def figures(task: str, images: Any, n: int) -> list[Measurement]:
    """Rows of an evaluation of n images with made labels and texts."""
    rng = np.random.default_rng(0)
    texts = {text: rng.normal(size=DIM) + 1 for text in [*prompts_of(["gender", "waterbirds"]), *ASKED]}
    draw = {name: Labels(rng.integers(len(names), size=n), tuple(names)) for name, names in LABELS[task].items()}
    how: Row = {"methods": ["none", "orth-cali", "cali"], "resamples": RESAMPLES, "labels": draw, **HOW[task]}
    return vldebias.evaluate(texts, images, task=task, **how).rows


LABELS = {
    "retrieval": {"gender": ["female", "male"]},
    "groups": {"bird": ["landbird", "waterbird"], "place": ["land", "water"]},
}
HOW: dict[str, Row] = {
    "retrieval": {"prompts": {"gender": "gender"}, "queries": list(ASKED), "k": 1000},
    "groups": {"prompts": "waterbirds", "label": "bird", "spurious": "place"},
}


def write_features(path: Path, n: int, seed: int = 0) -> None:
    """n rows of float16 noise: a random block of 65,536 rows over and over, each time with other signs."""
    rng = np.random.default_rng(seed)
    block = rng.standard_normal((min(n, 1 << 16), DIM), dtype=np.float32).astype(np.float16)
    rows = np.lib.format.open_memmap(path, "w+", np.float16, (n, DIM))
    for start in range(0, n, len(block)):
        size = min(len(block), n - start)
        signs = rng.choice(np.array([0, 1 << 15], dtype=np.uint16), DIM)  # the bit that is a float's sign
        rows[start : start + size] = (block[:size].view(np.uint16) ^ signs).view(np.float16)
    rows.flush()


def _status(kind: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


@contextmanager
def watched(row: Row) -> Iterator[None]:
    """Seconds, processor seconds and peaks of a block, put into a row."""
    ended, own = threading.Event(), [0.0]
    before = {kind: _status(kind) for kind in ("VmRSS", "RssAnon")}
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew

    def look() -> None:
        while not ended.wait(0.05):
            own[0] = max(own[0], _status("RssAnon"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    wall, processor = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        row |= {"seconds": time.perf_counter() - wall, "processor seconds": time.process_time() - processor}
        ended.set()
        thread.join()
        row |= {"peak MB": _status("VmHWM") - before["VmRSS"], "own peak MB": max(0.0, own[0] - before["RssAnon"])}


def mapped(folder: Path, rows: int, _: int) -> list[Row]:
    path = folder / "features.npy"
    row: Row = {"what": "retrieval, one file", "size": f"{rows:,} x {DIM}"}
    write_features(path, rows)
    few = folder / "few.npy"
    write_features(few, 5000)
    figures("retrieval", few, 5000)  # what is imported when it is used
    row["GB of features"] = path.stat().st_size / 1e9
    with watched(row):
        figures("retrieval", path, rows)
    path.unlink()
    return [row]


def begun() -> float:
    """Seconds until two workers are there."""
    import ray

    start = time.perf_counter()
    ray.init(
        "local",
        num_cpus=2,
        object_store_memory=500_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    ray.get([ray.remote(_ready).remote() for _ in range(2)])
    return time.perf_counter() - start


def _ready() -> str:
    return vldebias.__version__


class Deadly(OnRay):
    """Kills a worker in every pass over the shards."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.passes = folder, 0

    def _tasks(self, work: Any, parts: Any) -> list[Any]:
        self.passes += 1
        mark = self.folder / f"{self.passes}.killed"

        def deadly(part: Any) -> Any:
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                return work(part)
            os.kill(os.getpid(), signal.SIGKILL)

        return super()._tasks(deadly, parts)


def on_ray(folder: Path, rows: int, _: int) -> list[Row]:
    n = rows // FEW
    for i in range(8):
        write_features(folder / f"{i}.npy", n // 8, i)
    shards = Shards.open(f"{folder}/*.npy")
    n, whole, found = len(shards), shards[:], list[Row]()
    expected: list[Measurement] = []
    starting, killing = begun(), Deadly(folder)
    for what, images in {
        "one array": whole,
        "Ray, two workers": shards.on(OnRay()),
        "Ray, a worker killed in every pass": shards.on(killing),
    }.items():
        row: Row = {"what": what, "size": f"{n:,} x {DIM}, both tasks"}
        with watched(row):
            got = [one for task in HOW for one in figures(task, images, n)]
        expected = expected or got
        row |= {"rows": len(got), "equal": sum(a == b for a, b in zip(got, expected, strict=True))}
        found.append(row)
    found[1]["seconds to start"] = starting
    found[2]["killed"] = len(list(folder.glob("*.killed")))
    return found


def embed(store: Path, pictures: int, pool: bool) -> None:
    """All shards of a store, in this process or by two actors."""
    from vldebias.hosts.images import image_encoder
    from vldebias.miniature import load_clip
    from vldebias.miniature.data import open_world

    model, preprocess, _ = load_clip()
    how: Row = {"runner": OnRay(workers=2)} if pool and begun() else {}
    data = open_world("birds", n=pictures, seed=7)
    embed_images(data, image_encoder(model, preprocess), store, shard_size=500, workers=0, progress=SILENT, **how)


def embedded(folder: Path, _: int, pictures: int) -> list[Row]:
    found, expected = list[Row](), dict[str, str]()
    for what in ("one process", "Ray, two actors", "Ray, all killed and begun again"):
        store, row = folder / what.replace(" ", "-"), {"what": what, "size": f"{pictures:,} pictures"}
        command = [sys.executable, "-m", "eval.benchmarks.shards", "--embed", str(store), "--pictures", str(pictures)]
        command += [] if what == "one process" else ["--pool"]
        start = time.perf_counter()
        if "killed" in what:
            first = subprocess.Popen(command, start_new_session=True)
            while len(list(store.rglob("shard-*"))) < pictures // 500 // 3 and first.poll() is None:
                time.sleep(0.05)
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
            row["shards when killed"] = len(list(store.rglob("shard-*.safetensors")))
        subprocess.run(command, check=True)
        row["seconds"] = time.perf_counter() - start
        files = {path.name: digest(path) for path in store.rglob("*.safetensors")}
        expected = expected or files
        row |= {"shards": len(files), "equal": sum(expected[name] == one for name, one in files.items())}
        found.append(row)
    return found


# ---- the command -------------------------------------------------------------------------------------------


@shows("docs/how-to/past-one-machine.md", "bench_shards")
def page_rows(result: Result) -> Cells:
    """A row for each measurement of features in shards."""
    figures = ["GB of features", "seconds", "processor seconds", "own peak MB"]
    lines = [["", "of", *figures, "equal to the digit, or byte"]]
    for row in rows_of(result, "what"):
        told = ("" if (one := row.get(name)) is None else f"{one:,.0f}" for name in figures)
        of = row.get("rows") or row.get("shards")
        lines.append([row["what"], row["size"], *told, f"{row['equal']:.0f} of {of:.0f}" if of else ""])
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path, help="also write the rows here")
    options.add_argument("--rows", type=int, default=10_000_000, help="of mapped (%(default)s)")
    options.add_argument("--pictures", type=int, default=10_000, help="of embedded (%(default)s)")
    options.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    options.add_argument("--folder", type=Path, help="where files are made; default: a temporary folder")
    options.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)  # of a process that measures
    options.add_argument("--embed", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--pool", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.embed:
        embed(given.embed, given.pictures, given.pool)
        return
    if given.one:
        measure = {"mapped": mapped, "ray": on_ray, "embedded": embedded}[given.one]
        print(json.dumps(measure(given.folder, given.rows, given.pictures)))
        return
    if given.json:
        refuse_uncommitted(given.json, imported())
    found: list[Row] = []
    for part in given.parts.split(","):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            command = [sys.executable, "-W", "ignore", "-m", "eval.benchmarks.shards", "--one", part]
            command += ["--folder", folder, "--rows", str(given.rows), "--pictures", str(given.pictures)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            # Ray speaks too, to its last breath
            found += json.loads([line for line in done.stdout.splitlines() if line.startswith("[")][-1])
            Console(width=140).print(found[-3:])
    if given.json:
        about = "Features in shards: memory, Ray, embedding that is killed; each part in processes of its own"
        settings = {"threads": 1, "machine": platform.machine(), "resamples": RESAMPLES, "cores": os.cpu_count()}
        write_records(given.json, about, found, "what", ("size",), **settings)


if __name__ == "__main__":
    main()
