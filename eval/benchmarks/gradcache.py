"""Memory and time of one step with 8,192 pairs: all at once, and in micro-batches that keep all negatives (GradCache).

    python -m eval.benchmarks.gradcache                                           # print the table
    python -m eval.benchmarks.gradcache --json eval/results/bench_gradcache.json  # and write it

Every arm is a process of its own, whose largest resident memory the system tells. The model is the small CLIP of
small_clip.py in random weights; the captions are all different, so that the text tower reads every one. "apart" is
plain accumulation, whose pairs have the negatives of their micro-batch alone: what keeping all of them costs in time.
The gradients of the arms are compared with those of "at once".
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eval.experiments.records import write_records
from eval.experiments.small_clip import T, build
from vldebias.hosts.towers import towers
from vldebias.miniature import Preprocess
from vldebias.miniature.world import SIZE
from vldebias.training.batches import Batch
from vldebias.training.loop import make_accelerator
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.passes import Passes, Precision
from vldebias.training.settings import LoopSettings, LossSettings

PAIRS, MICRO, CHUNK = 8192, 256, 1024
ARMS: dict[str, dict[str, Any]] = {
    "at once": {"micro": PAIRS, "negatives": "micro", "chunk_size": None},
    "GradCache": {"micro": MICRO, "negatives": "step", "chunk_size": None},
    "GradCache, loss in blocks": {"micro": MICRO, "negatives": "step", "chunk_size": CHUNK},
    "apart": {"micro": MICRO, "negatives": "micro", "chunk_size": None},
}


def step(arm: str, pairs: int, gradients: Path) -> dict[str, float]:
    """One step of an arm in this process: seconds, and the largest memory in GB."""
    settings = ARMS[arm]
    micro = pairs if settings["micro"] == PAIRS else min(settings["micro"], pairs)
    torch.manual_seed(0)
    found = towers(*build(), Preprocess())
    loss = LossSettings(loss="rince", q=0.5, temperature=T, chunk_size=settings["chunk_size"])
    trainee = Trainee(found, build_objective(loss, temperature=T, items=pairs))
    generator = torch.Generator().manual_seed(1)
    tokens = found.tokenize([f"a photo of a bird, number {i}" for i in range(pairs)])
    pixels = torch.randn(pairs, 3, SIZE, SIZE, generator=generator)
    places = range(0, pairs, micro)
    batches = [Batch(pixels[i : i + micro], {name: ids[i : i + micro] for name, ids in tokens.items()}) for i in places]
    loop = LoopSettings(
        steps=1, batch_size=micro, accumulation=len(batches), negatives=settings["negatives"], precision="no"
    )
    accelerator = make_accelerator(cpu=True)
    passes = Passes(accelerator, trainee, trainee, loop, Precision("no", accelerator.device))
    before = _peak()
    begun = time.perf_counter()
    value = float(passes(0, batches))
    seconds = time.perf_counter() - begun
    save_file({name: p.grad for name, p in trainee.named_parameters() if p.grad is not None}, gradients)
    return {"seconds": seconds, "peak_gb": _peak(), "before_the_step_gb": before, "loss": value}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def compare(pairs: int, repetitions: int) -> list[dict[str, Any]]:
    """A row per arm: the fastest of some processes, and how far its gradient is from that of "at once"."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for arm in ARMS:
            path = Path(folder) / f"{arm}.safetensors"
            runs = [_elsewhere(arm, pairs, path) for _ in range(repetitions)]
            row = {**min(runs, key=lambda run: run["seconds"]), "peak_gb": max(run["peak_gb"] for run in runs)}
            plain, own = (load_file(Path(folder) / f"{name}.safetensors") for name in ("at once", arm))
            largest = max(float((own[name] - value).norm() / value.norm()) for name, value in plain.items())
            rows.append({"arm": arm, **ARMS[arm], "pairs": pairs, **row, "gradient_difference": largest})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def _elsewhere(arm: str, pairs: int, path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "eval.benchmarks.gradcache", "--arm", arm, "--pairs", str(pairs)]
    done = subprocess.run([*command, "--gradients", str(path)], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file of the result")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--arm", choices=ARMS, help="one step of one arm in this process")
    parser.add_argument("--gradients", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.arm is not None:
        print(json.dumps(step(args.arm, args.pairs, args.gradients)))
        return
    rows = compare(args.pairs, args.repetitions)
    if args.json is not None:
        about = {"threads": 1, "loss": "rince", "gradient_difference": "relative L2, largest tensor"}
        write_records(args.json, "One step of each arm in a process of its own", rows, "arm", **about)


if __name__ == "__main__":
    main()
