"""Does each process read its own share of a stream alone, and go on after a kill without reading again?

    python -m tests.robust.streaming                 # 50,000 captions, writes eval/results/streaming.json
    python -m tests.robust.streaming --rows 4000 --out /tmp/try

Rows (a small PNG, a caption that is its number) lie in parquet files. One, two and four processes pass over them once.
Each notes the captions of its batches and now and then, as `fit` does with a checkpoint, writes them down with the
place where the next batch begins. Halfway all processes are killed (SIGKILL) and started again. Counted are the bytes
that the system says a process has read (rchar of /proc/self/io, from the first batch to the last note of every life),
the rows that it has looked at, and how often every caption was learned from.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from eval.experiments.cells import RESULTS
from eval.experiments.records import write_records
from vldebias.data import open_data
from vldebias.files import write_atomically
from vldebias.training.sampling import numpy_generator
from vldebias.training.stream import Place, StreamBatches

ROWS, SHARDS, BATCH, BUFFER = 50_000, 8, 50, 500
NOTED_EVERY = 10  # batches


def write_rows(folder: Path, rows: int) -> int:
    """Parquet files of rows / SHARDS each; their bytes."""
    generator, size = numpy_generator("streaming"), rows // SHARDS
    for shard in range(SHARDS):
        images = []
        for _ in range(size):
            file = io.BytesIO()
            Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(file, "PNG")
            images.append({"bytes": file.getvalue(), "path": None})
        texts = [str(number) for number in range(shard * size, (shard + 1) * size)]
        path = folder / f"train-{shard:05d}-of-{SHARDS:05d}.parquet"
        pq.write_table(pa.table({"image": images, "text": texts}), path, row_group_size=100)
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


class Counted:
    """A stream that counts the rows that were looked at."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.seen = stream, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def records(self, start: int = 0, shard: int | None = None) -> Iterator[Any]:
        for record in self.stream.records(start, shard):
            self.seen += 1
            yield record


def learn(data: Path, notes: Path, rank: int, world: int, rows: int, pause: float) -> None:
    """One process: what it has learned from, with the place to go on from."""
    stream = Counted(open_data("huggingface", data, "train", image="image", caption="text", streaming=True))
    known = (
        json.loads(notes.read_text()) if notes.is_file() else {"batches": 0, "place": None, "captions": [], "parts": []}
    )
    batches = StreamBatches(
        stream,  # type: ignore[arg-type]
        lambda image, generator: torch.zeros(1),
        batch_size=BATCH,
        tokenize=lambda texts: {"text": torch.tensor([[int(text)] for text in texts])},
        buffer=BUFFER,
        rank=rank,
        world=world,
    )
    place = None if known["place"] is None else Place(*known["place"])
    Image.init()  # Pillow's modules are read from the disk as well, by the first picture
    before, first = _bytes_read(), known["batches"]
    with closing(batches.starting(first, place)) as coming:
        for number in range(first + 1, rows // (BATCH * world) + 1):
            known["captions"] += next(coming).texts["text"][:, 0].tolist()
            time.sleep(pause)
            if number % NOTED_EVERY == 0 or number == rows // (BATCH * world):
                part = {"bytes": _bytes_read() - before, "rows_looked_at": stream.seen, "from": first, "to": number}
                now = {**known, "batches": number, "place": batches.place(number), "parts": [*known["parts"], part]}
                write_atomically(notes, json.dumps(now))


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def measure(data: Path, folder: Path, world: int, rows: int, *, killed: bool, pause: float) -> dict[str, Any]:
    """One pass by some processes, killed halfway or not."""
    notes = [folder / f"{world}-{killed}-{rank}.json" for rank in range(world)]

    def started() -> list[subprocess.Popen[bytes]]:
        own = [[str(data), str(path), str(rank), str(world), str(rows), str(pause)] for rank, path in enumerate(notes)]
        return [subprocess.Popen([sys.executable, "-m", __spec__.name, "--learn", *arguments]) for arguments in own]

    running = started()
    if killed:
        half = rows // (BATCH * world) // 2
        while not all(_batches(path) >= half for path in notes) and all(p.poll() is None for p in running):
            time.sleep(0.02)
        for process in running:
            process.send_signal(signal.SIGKILL)
        assert {process.wait() for process in running} == {-signal.SIGKILL}, "they must be killed while they run"
        running = started()
    assert {process.wait() for process in running} == {0}
    told = [json.loads(path.read_text()) for path in notes]
    times = Counter(caption for one in told for caption in one["captions"])
    return {
        "processes": world,
        "killed": killed,
        "captions": len(times),
        "learned_from_once": sum(count == 1 for count in times.values()),
        "each": [one["parts"] for one in told],
    }


def _batches(path: Path) -> int:
    return int(json.loads(path.read_text())["batches"]) if path.is_file() else 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"captions, a multiple of {SHARDS * BATCH}")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that learning from a batch takes")
    parser.add_argument("--learn", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.learn:
        data, notes, rank, world, rows, pause = args.learn
        learn(Path(data), Path(notes), int(rank), int(world), int(rows), float(pause))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows"
        data.mkdir()
        size = write_rows(data, args.rows)
        results = [
            measure(data, Path(folder), world, args.rows, killed=killed, pause=args.pause)
            for world in args.processes
            for killed in (False, True)
        ]
    rows = []
    for one in results:
        last = [{part["from"]: part for part in parts} for parts in one.pop("each")]  # the last note of every life
        read = [sum(part["bytes"] for part in lives.values()) for lives in last]
        looked = [sum(part["rows_looked_at"] for part in lives.values()) for lives in last]
        rows.append({**one, "bytes_read": read, "of_all_bytes": [b / size for b in read], "rows_looked_at": looked})
        print(json.dumps(rows[-1]))
    protocol = {"rows": args.rows, "files": SHARDS, "bytes": size, "batch_size": BATCH, "buffer": BUFFER}
    rows = [{"what": "stream", **row} for row in rows]
    about = "Processes that share one stream, and one of them killed"
    more = {**protocol, "noted every": f"{NOTED_EVERY} batches"}
    write_records(args.out / "streaming.json", about, rows, "what", ("processes", "killed"), **more)


if __name__ == "__main__":
    main()
