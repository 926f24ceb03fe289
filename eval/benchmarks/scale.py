"""What many images cost in time and memory: passes in blocks against the whole at once.

python -m eval.benchmarks.scale                                       # print the table
python -m eval.benchmarks.scale --json eval/results/bench_scale.json

The plain way holds what it works on: a weight for each row and resample (areas), a set of the bytes of all rows
(disjoint), float64 copies (references, means). Peak memory is what a process takes at most during a call above what it
had before it, in MB, read from /proc where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from eval.benchmarks.timing import arguments, compared, report
from vldebias.data import Embeddings, Labels
from vldebias.evaluation.groups import add_areas
from vldebias.evaluation.images import disjoint
from vldebias.evaluation.result import TaskProvenance, TaskResult
from vldebias.methods.equalise import GroupMeans
from vldebias.methods.reference import Reference
from vldebias.methods.target_shares import GroupMoments
from vldebias.metrics.bootstrap import resampled_weights

DIM, RESAMPLES, SEED = 512, 2000, 0
PEAK = Path("/proc/self/clear_refs")  # writing 5 there starts the peak anew
Row = dict[str, Any]
Call = Callable[[], Any]


def measured(what: str, n: int, ours: Call, plain: Call, repetitions: int, difference: float) -> Row:
    """Times and peaks of both."""
    peaks = {"peak MB": {"ours": peak(ours), "plain": peak(plain)}} if PEAK.exists() else {}
    return compared(what, f"{n:,} rows", ours, plain, repetitions, **peaks, difference=difference)


def peak(call: Callable[[], object]) -> float:
    """MB that a call takes at most."""
    PEAK.write_text("5")
    before = _memory("VmRSS")
    call()
    return _memory("VmHWM") - before


def _memory(kind: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


def areas(n: int, repetitions: int) -> Row:
    """`worst_group_auc` of four methods with intervals; difference: of the ends of the interval of the first."""
    rng = np.random.default_rng(SEED)
    positive, codes, shared = rng.random(n) < 0.5, rng.integers(2, size=n), rng.normal(size=n)
    scores = {m: positive * (1 + gain) + shared + rng.normal(size=n) for gain, m in enumerate(("none", *"abc"))}

    def ours() -> tuple[float, ...]:
        out = TaskResult(TaskProvenance(task="areas", description=""))
        add_areas(out, scores, positive, Labels(codes, ("a", "b")), resamples=RESAMPLES)
        return out.rows[0].interval

    def plain() -> tuple[float, ...]:
        weights = np.concatenate(list(resampled_weights(n, RESAMPLES, SEED)))
        inside = [codes == code for code in (0, 1)]
        lowest = [np.min([_resampled(one, positive, rows, weights) for rows in inside], 0) for one in scores.values()]
        return tuple(np.quantile(lowest[0], [0.025, 0.975]).tolist())

    difference = float(np.abs(np.subtract(ours(), plain())).max())
    return measured("areas with intervals: covariance / weights", n, ours, plain, repetitions, difference=difference)


def _resampled(scores: np.ndarray, positive: np.ndarray, inside: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Area among some rows in every resample, of rows that are sorted once."""
    low, high = np.flatnonzero(inside & ~positive), np.flatnonzero(inside & positive)
    low = low[np.argsort(scores[low], kind="stable")]
    below = np.searchsorted(scores[low], scores[high])
    sums = np.zeros((len(weights), len(low) + 1))
    np.cumsum(weights[:, low], axis=1, out=sums[:, 1:])
    return (sums[:, below] * weights[:, high]).sum(1) / (sums[:, -1] * weights[:, high].sum(1))


def embeddings(n: int, seed: int) -> Embeddings:
    rows = np.random.default_rng(seed).standard_normal((n, DIM), dtype=np.float32) + 0.5
    return Embeddings.of(rows.astype(np.float16))


def beside(n: int, repetitions: int) -> Row:
    """A reference of n rows beside n that are measured, a tenth of them the same; difference: of rows left."""
    measured_, reference = embeddings(n, 1), embeddings(n, 2)
    reference.features[: n // 10] = measured_.features[: n // 10]

    def ours() -> int:
        kept, _ = disjoint(reference, measured_)
        assert kept is not None
        return len(kept)

    def plain() -> int:
        held = {row.tobytes() for row in measured_.normalised().numpy()}
        new = np.array([row.tobytes() not in held for row in reference.normalised().numpy()])
        kept = reference[new]
        theirs = measured_.normalised().double()
        float((theirs - theirs.mean(0)).square().sum(1).mean()), kept.normalised().double().mean(0)
        return len(kept)

    difference = abs(ours() - plain())
    return measured("a reference beside: blocks / bytes and copies", n, ours, plain, repetitions, difference=difference)


def means(n: int, repetitions: int) -> Row:
    """Group means of two values in ten classes; difference: relative, of the pairs."""
    values = {name: _texts(3, seed) for seed, name in enumerate("ab")}
    classes = {str(i): _texts(1, 10 + i)[0] for i in range(10)}
    reference = Reference(embeddings(n, 3).features)

    def read(blocks: Iterable[Tensor]) -> Tensor:
        found = GroupMeans(values, classes, reference)
        for block in blocks:
            found.update(block)
        return found.scatter().rows

    return _statistics("equalise: float32 blocks / float64", n, reference, read, repetitions)


def moments(n: int, repetitions: int) -> Row:
    """Covariances of two groups; difference: relative, of the covariances."""
    reference = Reference(embeddings(n, 4).features)

    def read(blocks: Iterable[Tensor]) -> Tensor:
        found = GroupMoments([_texts(2, 5)], ["a", "b"], reference)
        for block in blocks:
            found.update(block)
        return found.covariances

    return _statistics("shares: float32 blocks / float64", n, reference, read, repetitions)


def _statistics(
    what: str, n: int, reference: Reference, read: Callable[[Iterable[Tensor]], Tensor], repetitions: int
) -> Row:
    exact = read(reference.batches())
    difference = float((read(reference.blocks()) - exact).norm() / exact.norm())
    ours, plain = (lambda: read(reference.blocks())), (lambda: read(reference.batches()))
    return measured(what, n, ours, plain, repetitions, difference=difference)


def _texts(k: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(k, DIM, generator=draw, dtype=torch.float64), dim=1)


def run(n: int = 100_000, few: int = 10_000, repetitions: int = 3) -> list[Row]:
    """All rows; few: of the areas, whose plain way holds a weight for each and every resample."""
    return [areas(few, repetitions), beside(n, repetitions), means(n, repetitions), moments(n, repetitions)]


if __name__ == "__main__":
    given = arguments(__doc__, repetitions=3)
    report("bench_scale", run(repetitions=given.repetitions), given.json)
