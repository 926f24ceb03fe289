"""What the embedding cache saves: reading features from it against computing them, timed in one run.

python eval/bench_embedding_cache.py                                             # print the table
python eval/bench_embedding_cache.py --json eval/results/bench_embedding_cache.json

Renders of the miniature world through the miniature CLIP. "compute" is the first call, into an empty folder: reading
the images, the model, writing the shards. "read" is every later call: hashing the weights for the key, checking the
shards, joining them. Times are CPU times on one thread, so that other work on the machine does not count, and the
median of several repetitions; the ratio from one run is what carries over. The miniature is the smallest of models:
with a larger one only computing takes longer. Both calls are checked to give the same features.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from vldebias.data import Embeddings, ImageData
from vldebias.data.cache import embed_images
from vldebias.evaluation.result import commit, versions
from vldebias.hosts.images import image_encoder
from vldebias.miniature import load_clip
from vldebias.miniature.data import open_world

SIZES = [(500, 100), (2000, 100), (2000, 2000)]  # images, images in a shard
SEED = 7001


@dataclass(frozen=True)
class Timing:
    """Seconds of computing and of reading, and the bytes that are kept."""

    images: int
    shard_size: int
    compute: float
    read: float
    bytes: int

    @property
    def ratio(self) -> float:
        """How many times faster reading is."""
        return self.compute / self.read


def seconds(call: Callable[[], Embeddings]) -> tuple[float, Embeddings]:
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def time_cache(data: ImageData, shard_size: int, repetitions: int) -> Timing:
    """A fresh encoder for every call, so that each pays for its key."""
    model, preprocess, _ = load_clip()
    computed, reads = [], []
    with tempfile.TemporaryDirectory() as folder:
        for repetition in range(repetitions):
            cache = Path(folder, str(repetition))

            def call(cache: Path = cache) -> Embeddings:
                silent = Progress(disable=True, console=Console(quiet=True))
                encoder = image_encoder(model, preprocess)
                return embed_images(data, encoder, cache, shard_size=shard_size, workers=0, progress=silent)

            first, again = seconds(call), seconds(call)
            if not np.array_equal(first[1].features, again[1].features):
                raise RuntimeError("the cache gives other features than the model")
            computed.append(first[0])
            reads.append(again[0])
        size = sum(path.stat().st_size for path in cache.rglob("*.safetensors"))
    return Timing(len(data), shard_size, median(computed), median(reads), size)


def run(sizes: Sequence[tuple[int, int]] = SIZES, repetitions: int = 3) -> list[Timing]:
    """All timings, on the first images of one world."""
    data = open_world("birds", n=max(images for images, _ in sizes), seed=SEED)
    time_cache(data[:50], 50, 1)  # the first calls load libraries
    return [time_cache(data[:images], shard_size, repetitions) for images, shard_size in sizes]


def report(timings: Sequence[Timing]) -> dict[str, Any]:
    return {
        "name": "bench_embedding_cache",
        "timings": [{**asdict(t), "ratio": t.ratio} for t in timings],
        "model": "miniature CLIP",
        "seed": SEED,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": versions(),
        "commit": commit(),
    }


def print_timings(timings: Sequence[Timing]) -> None:
    table = Table("images", "in a shard", "compute (s)", "read (s)", "times faster", "kept (KiB)", title="cache")
    for t in timings:
        row = (t.images, t.shard_size, f"{t.compute:.3f}", f"{t.read:.4f}", f"{t.ratio:.0f}", t.bytes // 1024)
        table.add_row(*map(str, row))
    Console(width=120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the timings here")
    parser.add_argument("--repetitions", type=int, default=3, help="timed calls of each kind (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    timings = run(repetitions=arguments.repetitions)
    print_timings(timings)
    if arguments.json:
        arguments.json.write_text(json.dumps(report(timings), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
