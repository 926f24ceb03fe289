"""What a step of training costs against the plain alternative, on one machine in one run.

    python eval/bench_training.py                                          # print the table
    python eval/bench_training.py --json eval/results/bench_training.json  # and write it

texts    the text tower over a batch of captions, forward and backward: what the trainee does (no padding, texts that
         repeat once) against all captions at the full context length. Widths of ViT-B-32's text tower with fewer
         layers, random weights, captions of the miniature's birds.
loop     a step of `fit` against the same step written by hand: what the loop itself costs.
sam      a sharpness-aware step against a plain one: two passes.

Ratios are of medians of processor time over repetitions in turn; below 1 is faster than the plain alternative.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import open_clip
import torch
from rich.console import Console
from rich.table import Table
from small_clip import LOOP, T, build, captions, pixels, train_world
from torch import Tensor

from vldebias.hosts.towers import towers
from vldebias.miniature.loading import Preprocess
from vldebias.training.batch import Batch
from vldebias.training.loop import fit
from vldebias.training.objectives import build_objective
from vldebias.training.settings import LoopSettings, LossSettings
from vldebias.training.tensors import TensorBatches
from vldebias.training.trainee import Trainee

TEXT_TOWER = {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8}


def medians(calls: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median processor time of each call, measured in turn after one call each."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def texts(batch: int, layers: int, repetitions: int) -> dict[str, Any]:
    torch.manual_seed(0)
    vision = open_clip.CLIPVisionCfg(image_size=32, patch_size=16, width=64, layers=1)
    text = open_clip.CLIPTextCfg(**TEXT_TOWER, layers=layers)
    model = open_clip.CLIP(embed_dim=512, vision_cfg=vision, text_cfg=text)
    found = towers(model, open_clip.get_tokenizer("ViT-B-32"), Preprocess())
    trainee = Trainee(found, build_objective(LossSettings(loss="info_nce"), temperature=T, items=batch))
    tokens = found.tokenize(train_world(0).captions[:batch])

    def step(features: Tensor) -> None:
        model.zero_grad()
        features.square().sum().backward()

    calls = {
        "ours": lambda: step(trainee.text_features(tokens)),
        "plain": lambda: step(model.encode_text(tokens["text"])),
    }
    return {
        "what": "texts",
        "batch": batch,
        "distinct": len(set(train_world(0).captions[:batch])),
        **_row(calls, repetitions),
    }


def small_trainee() -> tuple[Trainee, TensorBatches]:
    torch.manual_seed(0)
    found = towers(*build(), Preprocess())
    world = train_world(0)
    batches = TensorBatches(pixels(world), captions(world), tokenize=found.tokenize, batch_size=LOOP.batch_size)
    return Trainee(found, build_objective(LossSettings(loss="info_nce"), temperature=T, items=batches.items)), batches


def steps(sharpness: str, count: int) -> Callable[[], object]:
    trainee, batches = small_trainee()
    settings = LoopSettings(steps=count, batch_size=LOOP.batch_size, lr=1e-4, sharpness=sharpness)  # type: ignore[arg-type]
    return lambda: fit(trainee, batches, settings)


def by_hand(count: int) -> Callable[[], object]:
    trainee, batches = small_trainee()

    def run() -> None:
        optimizer = torch.optim.AdamW([p for p in trainee.parameters() if p.requires_grad], lr=1e-4)
        batch: Batch
        for _, batch in zip(range(count), batches.starting(0), strict=False):
            loss = trainee(batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trainee.parameters(), 1.0)
            optimizer.step()

    return run


def _row(calls: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    found = medians(calls, repetitions)
    return {**found, "ratio": found["ours"] / found["plain"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--batch", type=int, default=64, help="captions of the text tower")
    parser.add_argument("--layers", type=int, default=2, help="layers of the text tower")
    parser.add_argument("--steps", type=int, default=10, help="steps of a run")
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repetitions, count = arguments.repetitions, arguments.steps
    rows = [
        texts(arguments.batch, arguments.layers, repetitions),
        {"what": "loop", **_row({"ours": steps("none", count), "plain": by_hand(count)}, repetitions)},
        {"what": "sam", **_row({"ours": steps("sam", count), "plain": steps("none", count)}, repetitions)},
    ]
    table = Table("what", "ours, CPU s", "plain, CPU s", "ratio", title="a step of training")
    for row in rows:
        table.add_row(row["what"], f"{row['ours']:.3f}", f"{row['plain']:.3f}", f"{row['ratio']:.3f}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
