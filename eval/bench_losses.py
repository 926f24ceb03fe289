"""Memory and time of the chunked losses against the dense ones, forward and backward, each in a process of its own.

python eval/bench_losses.py                    # all of it, one thread; writes eval/results/bench_losses.json
python eval/bench_losses.py --batch 4096       # one batch size, printed only

Memory is the growth of the resident peak over what the process held before the step, features and imports included
(VmHWM of /proc/self/status after a reset, so Linux only). Time is processor time, which other load hardly moves.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from vldebias import losses
from vldebias.evaluation.result import commit, versions

RESULT = Path(__file__).parent / "results" / "bench_losses.json"
DIM, CHUNK, TEMPERATURE = 64, 256, 0.05
LOSSES = {
    "info_nce": losses.info_nce,
    "rince": functools.partial(losses.rince, q=0.5, lam=0.01),
    "hard_negative_contrastive": functools.partial(losses.hard_negative_contrastive, tau_plus=0.1, beta=1.0),
}
# dense HCL keeps three n x n matrices per direction: at 16384 that is more than a small machine has
BATCHES = {4096: list(LOSSES), 16384: ["info_nce", "rince"]}


def _status(field: str) -> int:
    """Bytes in a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}: this benchmark needs Linux")


def _step(loss: Any, batch: int, chunk_size: int | None) -> tuple[float, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.nn.functional.normalize(torch.randn(batch, DIM, generator=generator), dim=1).requires_grad_()
        for _ in "xy"
    )
    value = loss(x, y, temperature=TEMPERATURE, chunk_size=chunk_size)
    return value.item(), list(torch.autograd.grad(value, (x, y)))


def measure(name: str, batch: int, chunk_size: int | None) -> dict[str, Any]:
    """One step of a loss in this process: peak memory, processor time, value and norm of the gradient."""
    torch.set_num_threads(1)
    _step(LOSSES[name], 4, 2)  # first use imports more of torch
    Path("/proc/self/clear_refs").write_text("5")
    before, start = _status("VmRSS"), time.process_time()
    value, gradients = _step(LOSSES[name], batch, chunk_size)
    seconds = time.process_time() - start
    return {
        "peak_bytes": _status("VmHWM") - before,
        "seconds": seconds,
        "value": value,
        "gradient_norm": float(torch.stack([gradient.norm() for gradient in gradients]).norm()),
    }


def _in_process(name: str, batch: int, chunk_size: int | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, str(batch), str(chunk_size or 0)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def compare(name: str, batch: int) -> dict[str, Any]:
    """Dense and chunked, with the ratios of both."""
    print(f"{name} at {batch} ...", file=sys.stderr)
    dense, chunked = _in_process(name, batch, None), _in_process(name, batch, CHUNK)
    return {
        "loss": name,
        "batch": batch,
        "dense": dense,
        "chunked": chunked,
        "memory_ratio": chunked["peak_bytes"] / dense["peak_bytes"],
        "time_ratio": chunked["seconds"] / dense["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, choices=BATCHES, help="only this batch size, and write nothing")
    parser.add_argument("--one", nargs=3, metavar=("LOSS", "BATCH", "CHUNK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, batch, chunk = arguments.one
        print(json.dumps(measure(name, int(batch), int(chunk) or None)))
        return
    batches = {arguments.batch: BATCHES[arguments.batch]} if arguments.batch else BATCHES
    result = {
        "settings": {
            "dim": DIM,
            "chunk_size": CHUNK,
            "temperature": TEMPERATURE,
            "dtype": "float32",
            "threads": 1,
            "seed": 0,
        },
        "rows": [compare(name, batch) for batch, names in batches.items() for name in names],
        "versions": versions(),
        "commit": commit(),
    }
    text = json.dumps(result, indent=1) + "\n"
    if arguments.batch is None:
        RESULT.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
