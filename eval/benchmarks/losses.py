"""What one similarity matrix for both directions saves: losses (ours) against open_clip's (plain), time and memory.

python -m eval.benchmarks.losses                                        # print the table
python -m eval.benchmarks.losses --json eval/results/bench_losses.json  # and write it

A step is value and gradient for both features. ClipLoss and SigLipLoss are the plain alternatives; of the losses that
open_clip does not have, the ratio says what they cost beside ClipLoss. Memory is the growth of the resident peak over
what a process of its own held before the step (VmHWM of /proc/self/status after a reset, so Linux only).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.benchmarks.timing import arguments, compared, report
from vldebias import losses

T, CHUNK = 0.05, 256
Loss = Callable[[Tensor, Tensor], Tensor]


def clip_loss(x: Tensor, y: Tensor) -> Tensor:
    from open_clip.loss import ClipLoss

    return ClipLoss()(x, y, 1 / T)


def siglip_loss(x: Tensor, y: Tensor) -> Tensor:
    from open_clip.loss import SigLipLoss

    return SigLipLoss()(x, y, torch.tensor(1 / T), torch.tensor(-10.0))


OURS: dict[str, Loss] = {
    "info_nce": partial(losses.info_nce, temperature=T),
    "rince": partial(losses.rince, temperature=T),
    "hard_negative_contrastive": partial(losses.hard_negative_contrastive, temperature=T),
    "sigmoid": partial(losses.sigmoid, temperature=T),
}
PLAIN: dict[str, Loss] = {"ClipLoss": clip_loss, "SigLipLoss": siglip_loss}
BLOCKS: dict[str, Loss] = {f"{name}, blocks of {CHUNK}": partial(loss, chunk_size=CHUNK) for name, loss in OURS.items()}
EVERY = OURS | PLAIN | BLOCKS
PAIRS = [(name, "SigLipLoss" if name.startswith("sigmoid") else "ClipLoss") for name in (*OURS, *BLOCKS)]
LARGE = [(f"{name}, blocks of {CHUNK}", name) for name in ("info_nce", "rince")]  # ours in blocks against ours whole
CASES = [(pair, 1024, 512) for pair in PAIRS] + [(p, 4096, 512) for p in PAIRS] + [(p, 16384, 64) for p in LARGE]


def step(loss: Loss, batch: int, dim: int) -> tuple[float, float]:
    """Value and norm of the gradient."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, batch, dim, generator=generator)
    x, y = torch.nn.functional.normalize(features, dim=2).requires_grad_()
    value = loss(x, y)
    gradients = torch.autograd.grad(value, (x, y))
    return value.item(), float(torch.stack([gradient.double().norm() for gradient in gradients]).norm())


def status(field: str) -> int:
    """Bytes in a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def peak(name: str, batch: int, dim: int) -> int:
    """Bytes that a step needs in this process."""
    torch.set_num_threads(1)
    step(EVERY[name], 4, 2)  # first use imports more of torch
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    step(EVERY[name], batch, dim)
    return status("VmHWM") - before


def peak_in_process(name: str, batch: int, dim: int) -> int:
    code = f"from eval.benchmarks.losses import peak; print(peak({name!r}, {batch}, {dim}))"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def measured(name: str, plain: str, batch: int, dim: int, repetitions: int) -> dict[str, Any]:
    print(f"{name} and {plain} at {batch} ...", file=sys.stderr)
    results = {"ours": step(EVERY[name], batch, dim), "plain": step(EVERY[plain], batch, dim)}
    memory = {side: peak_in_process(each, batch, dim) for side, each in (("ours", name), ("plain", plain))}
    return compared(
        f"{name} / {plain}",
        f"batch {batch}, d {dim}",
        partial(step, EVERY[name], batch, dim),
        partial(step, EVERY[plain], batch, dim),
        repetitions if batch < 16384 else 1,
        loss=name.split(",")[0],
        batch=batch,
        blocks="blocks" in name,
        against=plain,
        memory=memory | {"ratio": memory["plain"] / memory["ours"]},
        values={side: result[0] for side, result in results.items()},
        gradient_norms={side: result[1] for side, result in results.items()},
    )


def main() -> None:
    options = arguments(__doc__, repetitions=3)
    rows = [measured(*pair, batch, dim, options.repetitions) for pair, batch, dim in CASES]
    report("bench_losses", rows, options.json)
    for row in rows:
        print(f"{row['what']:60} {row['size']:18} memory: {1 / row['memory']['ratio']:.2f} of the plain one")


if __name__ == "__main__":
    main()
