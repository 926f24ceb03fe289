"""What a step of training costs (ours) against the plain alternative.

    python -m eval.benchmarks.training                                          # print the table
    python -m eval.benchmarks.training --json eval/results/bench_training.json  # and write it

texts    the text tower over a batch of captions, forward and backward: what the trainee does (no padding, texts that
         repeat once) against all captions at the full context length. Widths of ViT-B-32's text tower with fewer
         layers, random weights, captions of the miniature's birds.
loop     a step of `fit` against the same step written by hand: what the loop itself costs.
sam      a sharpness-aware step against a plain one: two passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import open_clip
import torch
from torch import Tensor

from eval.benchmarks.timing import arguments, compared, report
from eval.experiments.small_clip import LOOP, T, build, captions, pixels, train_world
from eval.experiments.tensor_batches import TensorBatches
from vldebias.hosts.towers import towers
from vldebias.miniature import Preprocess
from vldebias.training.batches import Batch
from vldebias.training.loop import fit
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.settings import LoopSettings, LossSettings

BATCH, LAYERS = 64, 2  # captions and layers of the text tower
STEPS = 10
TEXT_TOWER = {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8}


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

    distinct = len(set(train_world(0).captions[:batch]))
    return compared(
        "text tower",
        f"{batch} captions, {distinct} distinct",
        lambda: step(trainee.text_features(tokens)),
        lambda: step(model.encode_text(tokens["text"])),
        repetitions,
    )


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


def main() -> None:
    given = arguments(__doc__)
    size = f"{STEPS} steps"
    rows = [
        texts(BATCH, LAYERS, given.repetitions),
        compared("loop / by hand", size, steps("none", STEPS), by_hand(STEPS), given.repetitions),
        compared("sam / plain step", size, steps("sam", STEPS), steps("none", STEPS), given.repetitions),
    ]
    report("bench_training", rows, given.json)


if __name__ == "__main__":
    main()
