"""Compare the speed of operations with common alternatives (`make bench`).

python -m eval.benchmarks.speed                    # print the table
python -m eval.benchmarks.speed --json FILE        # and write it
python -m eval.benchmarks.speed --only losses,fit  # only some parts; a file keeps its other rows

Times are medians of alternating calls after a warm-up, in CPU time on a single thread. Peak memory
is the increase over the memory that the process used before, in MB (from /proc if available). Times
depend on the machine, but ratios of times from the same run are comparable. A ratio above 1 means
that ours is faster by this factor. `difference` is the difference between the two results. If it is
unknown or exceeds `within`, the row is neither printed nor written, and the command exits with 1.
For attached towers, see `eval.benchmarks.towers`; for generation, training, labelling and serving,
see `eval.benchmarks.overheads`.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from eval.benchmarks import overheads
from eval.benchmarks.towers import towers
from eval.tables import medians, parser, read_records, records
from vldebias import losses
from vldebias.projection.projection import CalibratedProjection
from vldebias.report.result import Result

DIM, T, CHUNK, LAM, CLASSES = 512, 0.05, 256, 1000.0, 10
PEAK = Path("/proc/self/clear_refs")  # writing 5 to this file resets the peak memory
Row = dict[str, Any]
Call = Callable[[], Any]


def compared(label: str, size: str, ours: Call, plain: Call, repetitions: int, **more: Any) -> Row:
    """Return a row with both times, their ratio (plain / ours), peak memory, and further facts."""
    seconds = medians({"ours": ours, "plain": plain}, repetitions)
    peaks = {"peak MB, ours": peak(ours), "peak MB, plain": peak(plain)} if PEAK.exists() else {}
    return {
        "what": label,
        "size": size,
        **seconds,
        "ratio": seconds["plain"] / seconds["ours"],
        **peaks,
        **more,
    }


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


def of_losses(batches: Iterable[int] = (1024, 4096), repetitions: int = 3) -> Iterator[Row]:
    """Compare the value and gradients of losses, in full and in blocks, with open_clip's loss."""
    from open_clip.loss import ClipLoss, SigLipLoss

    pairs = {
        losses.sigmoid: lambda x, y: SigLipLoss()(x, y, torch.tensor(1 / T), torch.tensor(-10.0)),
        losses.info_nce: lambda x, y: ClipLoss()(x, y, 1 / T),
    }
    for loss, theirs in pairs.items():
        for blocks in (None, CHUNK):
            ours = partial(loss, temperature=T, chunk_size=blocks)
            name = f"{loss.__name__}{f', blocks of {CHUNK}' if blocks else ''} / open_clip's"
            for batch in batches:
                steps = [partial(step, model, batch) for model in (ours, theirs)]
                difference = max(abs(a - b) for a, b in zip(steps[0](), steps[1](), strict=True))
                size = f"batch {batch}"
                row = compared(name, size, *steps, repetitions, difference=difference, within=1e-4)
                yield row
    simclr = partial(losses.info_nce, temperature=T, within_view=True)
    for loss in (partial(losses.spread, alpha=1.0), partial(losses.supcon)):
        name = f"{loss.func.__name__}, {CLASSES} classes / SimCLR's loss"
        for batch in batches:
            # If no two rows share a class, both sides are the same loss.
            alone = partial(loss, labels=torch.arange(batch), temperature=T)
            ours = partial(loss, labels=torch.arange(batch) % CLASSES, temperature=T)
            first, plain, own = (partial(step, model, batch) for model in (alone, simclr, ours))
            difference = max(abs(a - b) for a, b in zip(first(), plain(), strict=True))
            sides = (f"batch {batch}", own, plain)
            yield compared(name, *sides, repetitions, difference=difference, within=1e-4)


def step(loss: Callable[[Tensor, Tensor], Tensor], batch: int) -> tuple[float, float]:
    """Return the loss and the norm of its gradient."""
    x, y = unit(2, batch, DIM).float().requires_grad_()
    value = loss(x, y)
    gradients = torch.autograd.grad(value, (x, y))
    return value.item(), float(
        torch.stack([gradient.double().norm() for gradient in gradients]).norm()
    )


def fit(d: int = 768, n_pairs: int = 80, n_spurious: int = 8, repetitions: int = 5) -> Row:
    """Compare fitting to computing Lemma 7.1 with a general inverse of a d x d matrix."""
    pairs, spurious = unit(n_pairs, 2, d), unit(n_spurious, d, seed=1)

    def dense() -> Tensor:
        eye, differences = torch.eye(d, dtype=torch.float64), pairs[:, 0] - pairs[:, 1]
        inverse = torch.linalg.inv(eye + LAM / n_pairs * differences.T @ differences)
        p0 = eye - spurious.T @ torch.linalg.pinv(spurious @ spurious.T, hermitian=True) @ spurious
        return p0 @ inverse

    def ours() -> CalibratedProjection:
        return CalibratedProjection(lam=LAM).fit(pairs, spurious)

    difference = float((ours().matrix() - dense()).abs().max())
    size = f"d {d}, pairs {n_pairs}, spurious {n_spurious}"
    return compared(
        "fit: ours / dense inverse",
        size,
        ours,
        dense,
        repetitions,
        difference=difference,
        within=1e-8,
    )


PARTS: dict[str, Callable[[], Iterable[Row]]] = {
    "losses": of_losses,
    # The second has more pairs than dimensions.
    "fit": lambda: [fit(), fit(d=1024, n_pairs=4000)],
    "towers": towers,
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
    if args.json:
        if args.json.exists():
            rows = earlier_rows(args.json, rows) + rows
        settings = {"threads": torch.get_num_threads(), "machine": platform.machine()}
        about = "Processor times; ratio: plain / ours"
        records("bench_speed", about, rows, "what", ("size",), **settings).write(args.json)
    return int(left_out > 0)


if __name__ == "__main__":
    sys.exit(main())
