"""A run that is killed at a hundred random moments: does it always go on, and to the same weights?

    python -m eval.experiments.killed             # writes eval/results/killed.json
    python -m eval.experiments.killed --kills 10 --out /tmp/try

A small CLIP learns for some steps with a checkpoint after each, by the loss with the largest state (NUCLR), averaged
weights, accumulation with all negatives, and mixed images. Each life of a run is a process that is killed (SIGKILL)
after a random time, and the next goes on in its folder, until one reaches the end; then another run begins. Compared is
the SHA-256 of all weights and of the loss's state with that of a run that nobody killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from eval.experiments.cells import RESULTS, write_result
from eval.experiments.small_clip import T, build, captions, pixels
from vldebias.errors import InvalidInputError
from vldebias.hosts.towers import towers
from vldebias.miniature import Preprocess, birds
from vldebias.training.batches import TensorBatches
from vldebias.training.loop import STATE, fit
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.sampling import numpy_generator
from vldebias.training.settings import LoopSettings, LossSettings
from vldebias.training.state import read_metadata

IMAGES, BATCH, STEPS, KILLS = 128, 16, 12, 100
LOOP = LoopSettings(
    steps=STEPS, batch_size=BATCH, accumulation=2, negatives="step", lr=1e-3, ema=0.9, save_every=0.0, precision="no"
)


def train(folder: Path | None) -> str:
    """What the weights are at the end of the run in a folder."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = towers(*build(), Preprocess())
    world = birds.sample(IMAGES, seed=9000)
    batches = TensorBatches(pixels(world), captions(world), tokenize=found.tokenize, batch_size=BATCH)
    loss = LossSettings(loss="nuclr", popularity_lr=0.05, popularity_start=0.1)
    trainee = Trainee(found, build_objective(loss, temperature=T, items=batches.items), fourier=0.2)
    fit(trainee, batches, LOOP, folder=folder)
    digest = hashlib.sha256()
    for name, tensor in sorted(trainee.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def life(folder: Path, answer: Path) -> None:
    """One process; what it ends with, if it does."""
    answer.write_text(train(folder))


def _step(folder: Path) -> int:
    stored = read_metadata(folder / STATE)
    return 0 if stored is None else int(stored["step"])


def outlive(folder: Path, kills: int, longest: float, number: int) -> dict[str, Any]:
    """One run, killed at random moments until it ends or has been killed often enough."""
    moments, steps, answer = numpy_generator("kills", number), list[int](), folder / "answer"
    saving = 0
    context = multiprocessing.get_context("fork")
    while True:
        process = context.Process(target=life, args=(folder, answer))
        process.start()
        if len(steps) < kills:
            process.join(float(moments.uniform(0, longest)))
            process.kill()
            process.join()
            if process.exitcode == -signal.SIGKILL:  # and not at its end before
                saving += any(folder.glob(f".{STATE}.*.partial"))
                try:
                    steps.append(_step(folder))
                except InvalidInputError as error:
                    return {"kills": len(steps) + 1, "refused": str(error)}
                print(json.dumps({"run": number, "kill": len(steps), "step": steps[-1]}))
                continue
        process.join()
        weights = answer.read_text() if process.exitcode == 0 else f"exit {process.exitcode}"
        return {"kills": len(steps), "while_saving": saving, "steps_behind_it": steps, "weights": weights}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--kills", type=int, default=KILLS)
    args = parser.parse_args(arguments)
    begun = time.monotonic()
    expected = train(None)
    longest = (time.monotonic() - begun) / 3
    runs: list[dict[str, Any]] = []
    while (left := args.kills - sum(run["kills"] for run in runs)) > 0:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(outlive(Path(folder), left, longest, len(runs)))
    saving = sum(run.get("while_saving", 0) for run in runs)
    same = sum(run.get("weights") == expected for run in runs)
    summary = {
        "kills": sum(run["kills"] for run in runs),
        "while_saving": saving,
        "runs": len(runs),
        "same_weights": same,
    }
    print(json.dumps(summary))
    protocol = {"loop": LOOP.model_dump(exclude_none=True), "killed within seconds": longest, "weights": expected}
    write_result(args.out / "killed.json", {**protocol, **summary}, runs, [])


if __name__ == "__main__":
    main()
