"""A small CLIP trained from scratch on renders of birds, within half a minute: what the training experiments repeat.

Captions name the species ("a photo of a robin."): 48 texts, which are the classes of zero-shot accuracy too. In
retrieval each text is asked once, and any image of its species is a right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from eval.experiments.experiment import Experiment
from eval.experiments.tensor_batches import TensorBatches
from eval.miniature import birds
from eval.miniature.birds import Birds
from vldebias.hosts.towers import Towers, towers
from vldebias.miniature import Preprocess, weights_dir
from vldebias.miniature.tokenizer import CONTEXT_LENGTH, open_clip_tokenizer
from vldebias.miniature.words import SIZE
from vldebias.training.loop import fit
from vldebias.training.monitor import Monitor
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.pairs import mixture_noise
from vldebias.training.settings import LoopSettings, LossSettings

IMAGES, HELD_OUT = 4000, 2000
TEXTS = tuple(f"a photo of a {species}." for species in birds.SPECIES)
HELD_OUT_SEED = 77
T = 0.2  # temperature where an experiment sets none
LOOP = LoopSettings(steps=300, batch_size=256, lr=1e-3, warmup=0.1, weight_decay=0.05, clip_norm=1.0)
ARCHITECTURE = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": SIZE, "patch_size": 16, "width": 64, "layers": 2, "head_width": 32, "mlp_ratio": 2.0},
    "text_cfg": {"context_length": CONTEXT_LENGTH, "width": 64, "heads": 2, "layers": 1, "mlp_ratio": 2.0},
}


SCORES = ("zero_shot_accuracy", "recall@1 text->image", "recall@5 text->image")


def work(cell: Mapping[str, Any]) -> dict[str, float]:
    """One training; with "eta" a share of the captions is drawn from all, and "wrong" says how many then differ.

    The loss has the settings of the cell's arm, and each setting of a loss that is a column or was chosen.
    """
    world, seed = train_world(cell["seed"]), cell["seed"]
    texts, wrong = captions(world), {}
    if "eta" in cell:
        noisy = [texts[row] for row in mixture_noise(len(world), cell["eta"], seed)]
        texts, wrong = noisy, {"wrong": fmean(new != own for new, own in zip(noisy, texts, strict=True))}
    found = held_out()(train(loss_of(cell), pixels(world), texts, seed, cell["steps"]).towers)
    return {name: found[name] for name in SCORES} | wrong


def loss_of(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of LossSettings: those of the arm, and what the cell has of them."""
    own = {name: cell[name] for name in LossSettings.model_fields if name in cell and name not in ("loss", "arm")}
    return {"temperature": T, **cell["settings"], **own}


def description(experiment: Experiment, steps: int) -> dict[str, Any]:
    """What all trainings have in common, for the protocol."""
    return {
        "model": "open_clip CLIP from scratch",
        "architecture": ARCHITECTURE,
        "images": f"{IMAGES} renders of the miniature birds world per seed; {HELD_OUT} others held out",
        "captions": "a photo of a SPECIES., 48 texts",
        "loop": LOOP.model_copy(update={"steps": steps}).model_dump(exclude_none=True),
        "chosen": "what was chosen, was chosen on another seed of training, with the held-out images that are reported",
        "intervals": "Student's t over seeds, which draw the renders, the noise, the first weights and the order; "
        "changes are paired by seed, and not corrected for their number",
    }


def build() -> tuple[torch.nn.Module, Any]:
    """Fresh weights from torch's generator, and the tokenizer."""
    import open_clip

    tokenizer = open_clip_tokenizer(weights_dir())
    model = open_clip.CLIP(
        embed_dim=ARCHITECTURE["embed_dim"],
        vision_cfg=open_clip.CLIPVisionCfg(**ARCHITECTURE["vision_cfg"]),
        text_cfg=open_clip.CLIPTextCfg(vocab_size=tokenizer.vocab_size, **ARCHITECTURE["text_cfg"]),
    )
    return model, tokenizer


def pixels(world: Birds) -> torch.Tensor:
    """(n, 3, 64, 64) as the image tower reads them."""
    return world.images * 2 - 1


def captions(world: Birds) -> list[str]:
    """One per image: its species."""
    return [TEXTS[species] for species in world.species.tolist()]


def train_world(seed: int, *, start: int = 0) -> Birds:
    """Renders that a seed learns from: `IMAGES` of its stream."""
    return birds.sample(IMAGES, seed=1000 + seed, start=start)


@lru_cache(maxsize=1)
def held_out() -> Monitor:
    """The same for all seeds."""
    world = birds.sample(HELD_OUT, seed=HELD_OUT_SEED)
    return Monitor(pixels(world), captions=captions(world), labels=world.species, class_texts=TEXTS)


def train(
    loss: Mapping[str, Any],
    images: Tensor,
    texts: Sequence[str],
    seed: int,
    steps: int = LOOP.steps or 0,
    *,
    batch_size: int | None = None,
    watch: Callable[[Towers, int], None] | None = None,
) -> Trainee:
    """A fresh model after training on images with their captions; `loss` are settings of LossSettings.

    batch_size: default: that of LOOP. watch: called after every step with the model and the number of steps made.
    """
    loop = LOOP.model_copy(update={"seed": seed, "steps": steps, "batch_size": batch_size or LOOP.batch_size})
    torch.manual_seed(seed)
    found = towers(*build(), Preprocess())
    batches = TensorBatches(images, texts, tokenize=found.tokenize, batch_size=loop.batch_size, seed=seed)
    trainee = Trainee(found, build_objective(LossSettings(**loss), temperature=T, items=batches.items))
    fit(
        trainee, batches, loop, on_step=None if watch is None else lambda entry, _: watch(found, int(entry["step"]) + 1)
    )
    return trainee
