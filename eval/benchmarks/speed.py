"""Compare the speed of operations with common alternatives (`make bench`).

export OMP_NUM_THREADS=1                           # for NumPy, whose threads cannot be set later
python -m eval.benchmarks.speed                    # print the table
python -m eval.benchmarks.speed --json FILE        # and write it
python -m eval.benchmarks.speed --only losses,fit  # only some parts; a file keeps its other rows

Times are medians of alternating calls after a warm-up, in CPU time on a single thread. Peak memory
is the increase over the memory that the process used before, in MB (from /proc if available). Times
depend on the machine, but ratios of times from the same run are comparable. A ratio above 1 means
that ours is faster by this factor. `difference` is the difference between the two results. If it is
unknown or exceeds `within`, the row is neither printed nor written, and the command exits with 1.
Rows whose ratio fell by more than a factor of 1.15 since the committed results are named.
For generation, training, labelling and serving, see `eval.benchmarks.overheads`.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import Tensor
from torch.nn.functional import normalize

from eval.benchmarks import overheads
from eval.tables import RESULTS, medians, parser, read_records, records
from vldebias import losses, metrics, rerank
from vldebias.projection.projection import CalibratedProjection
from vldebias.report.result import Result

DIM, T, CHUNK, LAM, CLASSES = 512, 0.05, 256, 1000.0, 10
SLOWER = 1.15  # a ratio that fell by more than this factor is named
PEAK = Path("/proc/self/clear_refs")  # writing 5 to this file resets the peak memory
Row = dict[str, Any]
Call = Callable[[], Any]
Loss = Callable[[Tensor, Tensor], Tensor]


def compared(
    label: str, size: str, ours: Call, plain: Call, repetitions: int, **agreement: float
) -> Row:
    """Return a row with both times, their ratio (plain / ours), and peak memory.

    `agreement` contains the difference between the two results, and the largest that is accepted.
    """
    seconds = medians({"ours": ours, "plain": plain}, repetitions)
    peaks = {"peak MB, ours": peak(ours), "peak MB, plain": peak(plain)} if PEAK.exists() else {}
    return overheads.row_of(label, size, seconds, **agreement) | peaks


def peak(call: Call) -> float:
    """Return the peak memory of a call in MB."""
    ctypes.CDLL(None).malloc_trim(0)  # do not reuse memory freed by earlier calls
    PEAK.write_text("5")
    before = _memory("VmRSS")
    call()
    return _memory("VmHWM") - before


def _memory(kind: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


def unit(*shape: int, seed: int = 0) -> Tensor:
    """Return a float64 tensor whose rows are random unit vectors."""
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def of_losses(
    batches: Iterable[int] = (256, 1024, 4096), repetitions: int | None = None
) -> Iterator[Row]:
    """Compare the value and gradients of losses, in full and in blocks, with open_clip's loss.

    Both sides get the same B images and B texts. open_clip's loss multiplies them twice, once per
    direction, so it computes 2 B^2 similarities. A loss with both views compares 2 B rows with each
    other. Since similarities are symmetric, it also needs about 2 B^2 of them, although each anchor
    has twice as many negatives. Rows with "one view" compare the same pairs as open_clip's loss.
    """
    from open_clip.loss import ClipLoss, SigLipLoss

    def clip(x: Tensor, y: Tensor) -> Tensor:
        return ClipLoss()(x, y, 1 / T)

    def siglip(x: Tensor, y: Tensor) -> Tensor:
        return SigLipLoss()(x, y, torch.tensor(1 / T), torch.tensor(-10.0))

    def cyclip(x: Tensor, y: Tensor) -> Tensor:
        across = x @ y.T
        within = x @ x.T - y @ y.T
        inconsistencies = (across - across.T).square() + within.square()
        return clip(x, y) + inconsistencies.sum(1).mean() / 4

    def isogclr(x: Tensor, y: Tensor, kl_radius: float = 3.0) -> Tensor:
        cosines = x @ y.T
        negatives = cosines.masked_fill(torch.eye(len(x), dtype=torch.bool), -torch.inf) / T
        sums = torch.stack([negatives.logsumexp(axis) for axis in (0, 1)])
        log_means = sums - cosines.diagonal() / T - math.log(len(x) - 1)
        return T * (log_means + kl_radius).mean()

    simclr = partial(losses.info_nce, temperature=T, within_view=True)
    for batch in batches:
        different = torch.arange(batch)
        classes = different % CLASSES
        sogclr = partial(losses.SogCLR(batch, temperature=T), index=different)

        def info_nce(x: Tensor, y: Tensor, sogclr: Loss = sogclr) -> Tensor:
            return sogclr(x, y) / T

        # Name, timed loss, open_clip's loss, and two losses that must be equal.
        cells: dict[str, tuple[Loss, Loss, Loss, Loss]] = {}
        for loss, theirs in ((losses.info_nce, clip), (losses.sigmoid, siglip)):
            for blocks in (None, CHUNK):
                ours = partial(loss, temperature=T, chunk_size=blocks)
                name = f"{loss.__name__}{f', blocks of {CHUNK}' if blocks else ''}"
                cells[name] = (ours, theirs, ours, theirs)
        cells["info_nce, both views"] = (simclr, clip, partial(simclr, chunk_size=CHUNK), simclr)
        # If the batch is the entire data set, the loss is t times InfoNCE.
        cells["sogclr"] = (sogclr, clip, info_nce, clip)
        nuclr = losses.NUCLR(batch, temperature=T, popularity_lr=0.1)
        cells["nuclr"] = (partial(nuclr, index=different), clip, info_nce, clip)
        consistent = partial(losses.cyclip, temperature=T)
        cells["cyclip"] = (consistent, clip, consistent, cyclip)
        learned = losses.ISogCLR(batch, temperature=T)
        fixed = losses.ISogCLR(batch, temperature=T, temperature_lr=0.0)
        cells["isogclr"] = (
            partial(learned, index=different),
            clip,
            partial(fixed, index=different),
            isogclr,
        )
        # Without shared classes or captions, these are the losses next to them.
        gce = partial(losses.gce, temperature=T)
        alone = partial(gce, captions=different, q=0.0)
        cells["gce, captions in pairs"] = (partial(gce, captions=different // 2), clip, alone, clip)
        for of_classes in (partial(losses.spread, alpha=1.0), partial(losses.supcon)):
            ours = partial(of_classes, labels=classes, temperature=T)
            alone = partial(of_classes, labels=different, temperature=T)
            name = f"{of_classes.func.__name__}, {CLASSES} classes"
            cells[name] = (ours, clip, alone, simclr)
            # As in open_clip's loss, without the similarities within a view.
            one_view = [partial(loss, within_view=False) for loss in (ours, alone)]
            cells[f"{name}, one view"] = (one_view[0], clip, one_view[1], clip)
        for name, (timed, plain, first, second) in cells.items():
            results = [step(loss, batch) for loss in (first, second)]
            difference = max(abs(a - b) for a, b in zip(*results, strict=True))
            yield compared(
                f"{name} / open_clip's",
                f"batch {batch}",
                partial(step, timed, batch),
                partial(step, plain, batch),
                repetitions or {256: 41, 1024: 9}.get(batch, 3),
                difference=difference,
                within=1e-4,
            )


@cache
def features(batch: int) -> tuple[Tensor, Tensor]:
    """Return random features of images and texts, which require gradients."""
    x, y = unit(2, batch, DIM).float()
    return x.requires_grad_(), y.requires_grad_()


def step(loss: Callable[[Tensor, Tensor], Tensor], batch: int) -> tuple[float, float]:
    """Return the loss and the norm of its gradient."""
    x, y = features(batch)
    value = loss(x, y)
    gradients = torch.autograd.grad(value, (x, y))
    return value.item(), float(
        torch.stack([gradient.double().norm() for gradient in gradients]).norm()
    )


def fits() -> Iterator[Row]:
    """Compare fits with fewer and with more pairs than dimensions."""
    for d in (512, 768, 1024, 2048):
        for pairs in (40, 400, 4000, 40_000):
            yield from fit(d, pairs, repetitions=5 if pairs > 10_000 else 7)


def fit(d: int, n_pairs: int, n_spurious: int = 8, repetitions: int = 7) -> Iterator[Row]:
    """Compare fitting to computing Lemma 7.1 with numpy's inverse or solve of a d x d matrix.

    The embeddings are float32, as encoders return them; both sides compute in float64. With d 512
    and thousands of pairs, the ratio is .75 to 1: about half to two thirds of a fit is D^T D, which
    both sides leave to the same BLAS at the processor's limit, and most of the rest is D.
    """
    pairs = unit(n_pairs, 2, d).float().numpy()
    spurious = unit(n_spurious, d, seed=1).float().numpy()

    def parts() -> tuple[np.ndarray, np.ndarray]:
        differences = pairs[:, 0].astype(np.float64) - pairs[:, 1]
        rows = spurious.astype(np.float64)
        removed = rows.T @ np.linalg.inv(rows @ rows.T) @ rows
        scatter = np.eye(d) + LAM / n_pairs * (differences.T @ differences)
        return np.eye(d) - removed, scatter

    def dense() -> np.ndarray:
        projection, scatter = parts()
        return projection @ np.linalg.inv(scatter)

    def solved() -> np.ndarray:
        projection, scatter = parts()
        return np.linalg.solve(scatter, projection).T

    def ours() -> CalibratedProjection:
        return CalibratedProjection(lam=LAM).fit(pairs, spurious)

    for name, plain in (("dense inverse", dense), ("solve", solved)):
        difference = float(np.abs(ours().matrix().numpy() - plain()).max())
        yield compared(
            f"fit / numpy's {name}",
            f"d {d}, pairs {n_pairs:,}, spurious {n_spurious}",
            ours,
            plain,
            repetitions,
            difference=difference,
            within=1e-12,
        )


def intervals() -> Iterator[Row]:
    """Compare the interval of a mean with scipy's, from different resamples."""
    for n in (1000, 10_000):
        values = np.random.default_rng(0).random(n)

        def theirs(values: np.ndarray = values) -> Any:
            return bootstrap((values,), np.mean, n_resamples=2000, method="percentile")

        ours = partial(metrics.bootstrap_interval, values)
        difference = abs(ours().low - float(theirs().confidence_interval.low))
        name, size = "interval of a mean / scipy's bootstrap", f"{n:,} rows"
        yield compared(name, size, ours, theirs, 5, difference=difference, within=0.1 / n**0.5)
        groups = np.random.default_rng(1).integers(4, size=n)
        rows = (values < 0.8).astype(int), np.ones(n, dtype=int), groups
        ours = partial(metrics.bootstrap_interval, *rows, statistic=metrics.worst_group_accuracy)
        plain = partial(worst_group_of_counts, rows[0], groups)
        difference = abs(ours().low - plain())
        name = "interval of a worst group / resampled counts"
        yield compared(name, size, ours, plain, 5, difference=difference, within=0.1 / n**0.5)


def worst_group_of_counts(hits: np.ndarray, groups: np.ndarray) -> float:
    """Return the lower end of the interval of the lowest accuracy, from multinomial counts."""
    counts = np.bincount(2 * groups + hits)
    drawn = np.random.default_rng(0).multinomial(len(hits), counts / len(hits), size=2000)
    of_groups = drawn.reshape(2000, -1, 2)
    lowest = (of_groups[..., 1] / of_groups.sum(-1)).min(-1)
    return float(np.quantile(lowest, 0.025))


def rerankings() -> Iterator[Row]:
    """Compare re-ranking with sorting the scores of each query; all candidates are shown."""
    for queries, n in ((1, 1_000), (200, 1_000), (1, 100_000), (1, 1_000_000)):
        rng = np.random.default_rng(n)
        codes = rng.integers(2, size=n)
        scores = rng.normal(size=(queries, n)) + 0.8 * codes
        ours = partial(rerank, scores, labels=codes)

        def plain(scores: np.ndarray = scores) -> np.ndarray:
            return np.argsort(-scores, axis=1, kind="stable")

        # Both orders contain every candidate once.
        difference = float((np.sort(ours(), axis=1) != np.sort(plain(), axis=1)).sum())
        size = f"queries {queries}, candidates {n:,}"
        yield compared("rerank / a sort", size, ours, plain, 7, difference=difference, within=0.0)


PARTS: dict[str, Callable[[], Iterable[Row]]] = {
    "losses": of_losses,
    "fit": fits,
    "intervals": intervals,
    "rerank": rerankings,
    "generation": overheads.generation,
    "training": overheads.training,
    "label": overheads.label,
    "serve": overheads.serve,
}


def earlier_rows(path: Path, rows: list[Row]) -> list[Row]:
    """Return the rows of a file that have not been measured again."""
    measured = {row["what"] for row in rows}
    earlier = []
    for (name, subset), numbers in read_records(Result.read(path)).items():
        if name not in measured:
            earlier.append({"what": name, "size": subset.removeprefix("size = "), **numbers})
    return earlier


def slower(rows: list[Row], before: Result) -> Iterator[str]:
    """Yield a line for each row whose ratio fell by more than a factor of `SLOWER`."""
    ratios = {key: numbers["ratio"] for key, numbers in read_records(before).items()}
    for row in rows:
        ratio = ratios.get((row["what"], f"size = {row['size']}"))
        if ratio is not None and row["ratio"] * SLOWER < ratio:
            yield (
                f"slower than in the committed run: {row['what']}, {row['size']}: ratio"
                f" {ratio:.2f} before, {row['ratio']:.2f} now"
            )


def unequal(row: Row) -> str:
    """Return why the results in a row may differ, or "" if they agree."""
    difference = row.get("difference", float("nan"))
    within = row.get("within", float("nan"))
    # If either result is NaN, this condition is False.
    if difference <= within:
        return ""
    return f"difference {difference:g}, expected at most {within:g}"


def main() -> int:
    options = parser(__doc__)
    options.add_argument(
        "--only", default=",".join(PARTS), help="comma-separated parts (default: %(default)s)"
    )
    args = options.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        options.error("set OMP_NUM_THREADS=1, so that NumPy also computes on a single thread")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    left_out = 0
    for name in args.only.split(","):
        print(f"{name} ...", file=sys.stderr)
        for row in PARTS[name]():
            reason = unequal(row)
            if reason:
                left_out += 1
                print(f"  left out: {row['what']}, {row['size']}: {reason}", file=sys.stderr)
                continue
            rows.append(row)
            times = (f"{1e3 * row[side]:.2f} ms" for side in ("ours", "plain"))
            print(f"{row['what']}, {row['size']}:", *times, f"{row['ratio']:.2f} times faster")
    for line in slower(rows, Result.read(RESULTS / "bench_speed.json")):
        print(line)
    if args.json:
        if args.json.exists():
            rows = earlier_rows(args.json, rows) + rows
        settings = {"threads": torch.get_num_threads(), "machine": platform.machine()}
        about = "Processor times; ratio: plain / ours"
        records("bench_speed", about, rows, "what", ("size",), **settings).write(args.json)
    return int(left_out > 0)


if __name__ == "__main__":
    sys.exit(main())
