"""What the low rank of the projection saves: each fast path against its dense twin, timed in one run.

python eval/bench_projection.py                                        # print the table
python eval/bench_projection.py --json eval/results/bench_projection.json

Times are CPU times on one thread, so that other work on the machine does not count, and the median of several
repetitions. They hold for one machine; the ratio of two times from one run is what carries over. Every pair of paths
is checked to give the same numbers.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.evaluation.result import commit, versions
from vldebias.projection import CalibratedProjection, PairScatter

LAM = 1000.0
FITS = [(512, 31, 2), (768, 80, 2), (1024, 100, 10), (2048, 400, 20)]  # d, pairs, spurious
APPLIES = [(512, 33, 1000), (768, 82, 1000), (1024, 110, 1000), (4096, 100, 1000)]  # d, rank, embeddings
GROUPS = [(5, 20), (20, 20), (40, 10)]  # prompts in a group, groups; d = 768


@dataclass(frozen=True)
class Timing:
    """Seconds of the fast path and of its dense twin, and their largest difference in value."""

    what: str
    size: str
    fast: float
    dense: float
    difference: float

    @property
    def ratio(self) -> float:
        """How many times faster."""
        return self.dense / self.fast


def embeddings(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def dense_matrix(pairs: Tensor, spurious: Tensor, lam: float) -> Tensor:
    """Lemma 7.1 with d x d matrices."""
    eye = torch.eye(pairs.shape[-1], dtype=torch.float64)
    differences = pairs[:, 0] - pairs[:, 1]
    inverse = torch.linalg.inv(eye + lam / len(pairs) * differences.T @ differences)
    p0 = eye - spurious.T @ torch.linalg.pinv(spurious @ spurious.T, hermitian=True) @ spurious
    return p0 @ inverse


def seconds(call: Callable[[], object], repetitions: int) -> float:
    """Median CPU time of a call, after one that is not counted."""
    call()
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return median(times)


def time_fit(d: int, n_pairs: int, n_spurious: int, repetitions: int) -> Timing:
    pairs, spurious = embeddings(n_pairs, 2, d), embeddings(n_spurious, d, seed=1)
    projection, dense = CalibratedProjection.fit(pairs, spurious, LAM), dense_matrix(pairs, spurious, LAM)
    return Timing(
        "fit: thin SVD / dense inverse",
        f"d {d}, pairs {n_pairs}, spurious {n_spurious}",
        seconds(lambda: CalibratedProjection.fit(pairs, spurious, LAM), repetitions),
        seconds(lambda: dense_matrix(pairs, spurious, LAM), repetitions),
        float((projection.matrix() - dense).abs().max()),
    )


def time_apply(d: int, rank: int, n: int, repetitions: int) -> Timing:
    projection = CalibratedProjection.fit(embeddings(rank, 2, d), None, LAM)
    z, matrix = embeddings(n, d, seed=1).float(), projection.matrix().T.float()
    return Timing(
        "apply: two thin products / d x d product",
        f"d {d}, rank {projection.rank}, embeddings {n}",
        seconds(lambda: projection(z), repetitions),
        seconds(lambda: z @ matrix, repetitions),
        float((projection(z) - z @ matrix).abs().max()),
    )


def time_groups(members: int, n_groups: int, repetitions: int, d: int = 768) -> Timing:
    groups = [embeddings(members, d, seed=k) for k in range(n_groups)]
    first, second = zip(*combinations(range(members), 2), strict=True)

    def explicit() -> CalibratedProjection:
        pairs = torch.cat([torch.stack([g[list(first)], g[list(second)]], 1) for g in groups])
        return CalibratedProjection.solve([PairScatter.from_pairs(pairs)], None, LAM)

    def grouped() -> CalibratedProjection:
        return CalibratedProjection.fit_groups(groups, None, LAM)

    return Timing(
        "fit: centred scatter / all pairs",
        f"d {d}, {n_groups} groups of {members}, pairs {n_groups * len(first)}",
        seconds(grouped, repetitions),
        seconds(explicit, repetitions),
        float((grouped().matrix() - explicit().matrix()).abs().max()),
    )


def run(
    fits: Sequence[tuple[int, int, int]] = FITS,
    applies: Sequence[tuple[int, int, int]] = APPLIES,
    groups: Sequence[tuple[int, int]] = GROUPS,
    repetitions: int = 5,
) -> list[Timing]:
    """All timings; a difference in value would make them meaningless, so it is checked here."""
    timings = [
        *(time_fit(*size, repetitions) for size in fits),
        *(time_apply(*size, repetitions) for size in applies),
        *(time_groups(*size, repetitions) for size in groups),
    ]
    wrong = [t for t in timings if t.difference > (1e-5 if t.what.startswith("apply") else 1e-8)]
    if wrong:
        raise RuntimeError(f"fast and dense paths differ: {wrong}")
    return timings


def report(timings: Sequence[Timing]) -> dict[str, Any]:
    return {
        "name": "bench_projection",
        "timings": [{**asdict(t), "ratio": t.ratio} for t in timings],
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": versions(),
        "commit": commit(),
    }


def print_timings(timings: Sequence[Timing]) -> None:
    table = Table("fast / dense", "size", "fast (ms)", "dense (ms)", "times faster", title="projection")
    for t in timings:
        table.add_row(t.what, t.size, f"{1e3 * t.fast:.2f}", f"{1e3 * t.dense:.2f}", f"{t.ratio:.1f}")
    Console(width=140).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the timings here")
    parser.add_argument("--repetitions", type=int, default=5, help="timed calls of each path (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    timings = run(repetitions=arguments.repetitions)
    print_timings(timings)
    if arguments.json:
        arguments.json.write_text(json.dumps(report(timings), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
