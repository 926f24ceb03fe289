"""The same figures for one thread and two, one process and two, and several batch sizes?

    python -m tests.robust.determinism                # some minutes; writes eval/results/determinism.json

Every line is one piece of work done twice by processes of their own: as in BASE, and with one thing changed. What came
out is compared bit by bit, or by the largest difference. Two identical runs come first: what differs there is chance.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).parents[2] / "eval" / "results" / "determinism.json"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Setting:
    """How a piece of work is done; batch: images, prompts or pairs that go through a model at once."""

    threads: int = 1
    processes: int = 1
    batch: int = 32


BASE = Setting()
THREADS, PROCESSES = replace(BASE, threads=2), replace(BASE, processes=2)
BATCHES = tuple(replace(BASE, batch=size) for size in (1, 7, 64))


# ---- the work --------------------------------------------------------------------------------------------------------


def embedding(dtype: str) -> Callable[[Setting, Path], Arrays]:
    """Features of rendered birds by the miniature CLIP, through the cache."""

    def work(setting: Setting, folder: Path) -> Arrays:
        from vldebias.data.cache import embed_images
        from vldebias.hosts.images import image_encoder
        from vldebias.miniature import load_clip
        from vldebias.miniature.data import open_world

        model, preprocess, _ = load_clip()
        data = open_world("birds", n=200, seed=3)
        kept = embed_images(
            data, image_encoder(model, preprocess), folder, dtype=dtype, batch_size=setting.batch, shard_size=64
        )
        return {"features": np.array(kept.features)}

    return work


def evaluation(setting: Setting, folder: Path) -> Arrays:
    """Every figure and bound of the quickstart's birds and portraits, with cali fitted on the way."""
    from vldebias.evaluation.run import run_suite
    from vldebias.evaluation.task import Options

    options = Options(out=folder / "out", cache=folder / "cache", limit=600, resamples=200)
    rows = run_suite("quickstart", options, only=["birds", "portraits"]).rows
    return {"figures": np.array([[row.value, *row.interval] for row in rows], dtype=np.float64)}


def drawing(setting: Setting, folder: Path) -> Arrays:
    """Portraits without and with cali: their pixels (0 .. 255), and the figures of the judge."""
    from vldebias.evaluation.drawing import DrawnSet
    from vldebias.evaluation.generation import GenerationTask
    from vldebias.evaluation.judges import MiniatureJudge
    from vldebias.miniature import load_pipeline

    small: dict[str, Any] = {"images": 2, "stated_images": 1, "steps": 3, "guidance": 3.0, "resamples": 50}
    task = GenerationTask(
        prompts="professions-gender", attributes=["gender"], variants={"cali": {}}, concepts="unseen",
        batch_size=setting.batch, **small,
    )  # fmt: skip
    parts = task.measure(folder, MiniatureJudge(), pipe=load_pipeline())
    drawn = DrawnSet.open(folder)
    figures = [row.value for part in parts for row in part.rows]
    return {
        "pixels": np.stack([np.asarray(drawn.read(image)) for image in drawn]).astype(np.float64),
        "figures": np.array(figures, dtype=np.float64),
    }


def training(setting: Setting, folder: Path) -> Arrays:
    """Weights and losses of four steps with two batches each; two processes have half of every batch."""
    from safetensors.numpy import load_file

    from vldebias.training.run import train_model
    from vldebias.training.settings import load_settings

    small: dict[str, Any] = {
        "items": 96,
        "val_items": 20,
        "steps": 4,
        "accumulation": 2,
        "workers": 0,
        "score_pairs": False,
    }
    settings = load_settings(
        data="birds", temperature=0.2, lr=1e-3, batch_size=setting.batch // setting.processes, ema=0.9, **small
    )
    if train_model(settings, folder, cpu=True) is None:  # not the first process
        return {}
    weights = load_file(folder / "model" / "clip.safetensors")
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "weights": np.concatenate([weights[name].ravel() for name in sorted(weights)]),
        "losses": np.array([json.loads(line)["loss"] for line in lines]),
    }


WORKS: dict[str, tuple[Callable[[Setting, Path], Arrays], Sequence[Setting]]] = {
    "embedding of 200 images, kept in float16": (embedding("float16"), (BASE, THREADS, PROCESSES, *BATCHES)),
    "embedding of 200 images, kept in float32": (embedding("float32"), (BASE, THREADS, PROCESSES, *BATCHES)),
    "eval run quickstart, birds and portraits": (evaluation, (BASE, THREADS, PROCESSES)),
    "drawing of 200 portraits": (drawing, (BASE, THREADS, PROCESSES, *BATCHES)),
    "training, 4 steps": (training, (BASE, THREADS, PROCESSES)),
}


# ---- doing it --------------------------------------------------------------------------------------------------------


def done(name: str, setting: Setting) -> Arrays:
    """What a process of its own, or two, make of it."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "out.npz"
        command = [sys.executable, "-m"]
        if setting.processes > 1:
            command += ["torch.distributed.run", "--standalone", "--nproc_per_node", str(setting.processes), "-m"]
        command += [__spec__.name if __spec__ else "tests.robust.determinism", "--work", name, "--out", str(out)]
        for key, value in asdict(setting).items():
            command += [f"--{key}", str(value)]
        alone = {"OMP_NUM_THREADS": str(setting.threads), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        environment = os.environ | alone | {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{name}, {setting}: {ran.stderr[-3000:]}")
        with np.load(out) as arrays:
            return dict(arrays)


def one(name: str, setting: Setting, out: Path) -> None:
    """The work itself, in the process that was started for it."""
    import torch

    torch.set_num_threads(setting.threads)
    folder = out.parent / "work"
    arrays = WORKS[name][0](setting, folder)
    if int(os.environ.get("RANK", "0")) == 0:
        np.savez(out, **arrays)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def compared(name: str, setting: Setting, before: Arrays, after: Arrays) -> list[dict[str, Any]]:
    """One row for every array."""
    rows = []
    for what, first in before.items():
        second = after[what]
        if first.shape != second.shape:
            raise SystemExit(f"{name}: {what} has shape {first.shape}, and {second.shape} with {setting}")
        same = first.tobytes() == second.tobytes()
        apart = np.abs(first.astype(np.float64) - second.astype(np.float64))
        rows.append(
            {
                "work": name,
                **asdict(setting),
                "what": what,
                "values": int(first.size),
                "identical": same,
                "differ": int((apart > 0).sum()),
                "largest_difference": float(apart.max(initial=0)),
                "largest_value": float(np.abs(first.astype(np.float64)).max(initial=0)),
            }
        )
    return rows


def measured(names: Sequence[str] = tuple(WORKS)) -> list[dict[str, Any]]:
    """The rows of all, told on stderr as they come."""
    rows: list[dict[str, Any]] = []
    for name in names:
        before = done(name, BASE)
        for setting in WORKS[name][1]:
            rows += compared(name, setting, before, done(name, setting))
            print(*map(json.dumps, rows[-len(before) :]), sep="\n", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="work whose name has this in it")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--work", help=argparse.SUPPRESS)  # of a process that this one starts
    for key, value in asdict(BASE).items():
        parser.add_argument(f"--{key}", type=int, default=value, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        one(given.work, Setting(given.threads, given.processes, given.batch), given.out)
        return
    from eval.experiments.records import rows_of, write_records
    from vldebias.evaluation.result import Result

    rows = measured([name for name in WORKS if given.only in name])
    if given.only and given.out.exists():  # the others stay as they were measured
        fresh = {row["work"] for row in rows}
        rows += [row for row in rows_of(Result.read(given.out), "work") if row["work"] not in fresh]
        rows.sort(key=lambda row: list(WORKS).index(row["work"]))
    about, columns = "The same work again, with one thing changed", ("what", "threads", "processes", "batch")
    write_records(given.out, about, rows, "work", columns, base=asdict(BASE), cpus=os.cpu_count())
    print(f"{sum(row['identical'] for row in rows)} of {len(rows)} identical to the bit")


if __name__ == "__main__":
    main()
