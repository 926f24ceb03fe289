"""Pairs that are wrong in three ways, and learners of them: what which_loss.py compares losses on.

Noise: mixture (a caption taken from all), class (the species taken for the next one with half the share) and crop (a
fifth of the image's sides is left); Tables A.1 and A.2 of the thesis. A model learns from scratch, or the two
projections of the shipped one go on alone ("heads").
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eval.experiments.cells import Cell
from eval.experiments.noise import CropNoise, class_noise, softmax_scores
from eval.experiments.small_clip import TEXTS, build, pixels
from eval.experiments.tensor_batches import TensorBatches
from eval.miniature import birds
from eval.miniature.birds import Birds
from vldebias.hosts.towers import towers
from vldebias.miniature import Preprocess, load_clip
from vldebias.training.loop import fit
from vldebias.training.monitor import Monitor, image_features, text_features
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.pairs import mixture_noise
from vldebias.training.sampling import torch_generator
from vldebias.training.settings import LoopSettings, LossSettings

IMAGES, VALIDATION, VALIDATION_SEED, BATCH = 2000, 1000, 79, 128
LOOKS, EARLY = 5, 2  # validations in a run; the one whose model scores the pairs
BASE, FILTERED, SHIPPED = "InfoNCE", "InfoNCE, filtered", "not trained"
METRIC = "zero_shot_accuracy"


@lru_cache(maxsize=6)
def world(seed: int) -> Birds:
    return birds.sample(IMAGES, seed=6000 + seed, balanced=True)


def learned_from(noise: str, share: float, seed: int) -> tuple[Tensor, list[str], np.ndarray]:
    """Pixels, captions, and which pairs are wrong."""
    clean = world(seed)
    images, species = pixels(clean), clean.species.numpy()
    wrong = np.zeros(IMAGES, bool)
    if noise == "mixture":
        taken = species[mixture_noise(IMAGES, share, seed)]
        species, wrong = taken, taken != species
    elif noise == "class":
        flipped = class_noise(species, share, len(TEXTS), seed)
        species, wrong = flipped, flipped != species
    elif noise == "crop":
        cropped = CropNoise(share)(images, torch_generator("crops", seed))
        images, wrong = cropped, (cropped != images).flatten(1).any(1).numpy()
    return images, [TEXTS[k] for k in species], wrong


class Heads(nn.Module):
    """The projections of the shipped model over features of its frozen towers, which are computed once.

    It stands where towers do: an image is its feature (w, 1, 1), a text the number of its row.
    """

    def __init__(self) -> None:
        super().__init__()
        whole, *_ = load_clip()
        self.project_image, self.project_text = (_linear(w) for w in (whole.visual.proj, whole.text_projection))
        self.frozen_texts = _frozen(None)

    @property
    def model(self) -> nn.Module:
        return self

    def image(self, features: Tensor) -> Tensor:
        out: Tensor = self.project_image(features.flatten(1))
        return out

    def text(self, tokens: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.project_text(self.frozen_texts[tokens["text"][:, 0]])
        return out

    @staticmethod
    def tokenize(captions: Sequence[str]) -> dict[str, Tensor]:
        return {"text": torch.tensor([[TEXTS.index(caption)] for caption in captions])}


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(*weight.shape, bias=False)
    layer.weight.data.copy_(weight.detach().T)
    return layer


@torch.no_grad()
def _frozen(images: Tensor | None) -> Tensor:
    """What the shipped towers give before their projections: of images (n, w, 1, 1), or of the texts (48, w)."""
    model, _, tokenizer = load_clip()
    model.eval()
    if images is None:
        model.text_projection = None
        return model.encode_text(tokenizer(list(TEXTS)))  # type: ignore[no-any-return]
    model.visual.proj = None
    return torch.cat([model.encode_image(part) for part in images.split(200)])[:, :, None, None]


def learner(start: str, seed: int) -> Any:
    """Towers as they start."""
    if start == "heads":
        return Heads()
    torch.manual_seed(seed)
    if start == "scratch":
        return towers(*build(), Preprocess())
    model, preprocess, tokenizer = load_clip()
    made = towers(model, tokenizer, preprocess)
    made.model.requires_grad_(True)
    made.model.logit_scale.requires_grad_(False)
    return made


@lru_cache(maxsize=4)
def seen(start: str, what: tuple[str, float, int]) -> Tensor:
    """Images as the learner reads them."""
    images = learned_from(*what)[0]
    return _frozen(images) if start == "heads" else images


@lru_cache(maxsize=4)
def monitor(start: str, n: int, seed: int) -> Monitor:
    """Clean renders to validate or to report."""
    clean = birds.sample(n, seed=seed, balanced=True)
    images = _frozen(pixels(clean)) if start == "heads" else pixels(clean)
    return Monitor(images, labels=clean.species, class_texts=TEXTS)


class Watch:
    """Validates as the run goes, and keeps the best model and the early one."""

    def __init__(self, start: str) -> None:
        self.validation = monitor(start, VALIDATION, VALIDATION_SEED)
        self.seen: list[float] = []
        self.best: dict[str, Tensor] = {}
        self.early: dict[str, Tensor] = {}

    def __call__(self, found: Any) -> dict[str, float]:
        value = self.validation(found)[METRIC]
        weights = copy.deepcopy(found.model.state_dict())
        if not self.seen or value > max(self.seen):
            self.best = weights
        self.seen.append(value)
        if len(self.seen) == EARLY:
            self.early = weights
        return {"validation": value}


def train(cell: Cell, images: Tensor, texts: Sequence[str]) -> tuple[Any, Watch]:
    """One training of a cell's arm on these pairs."""
    steps = cell["steps"]
    found = learner(cell["start"], cell["seed"])
    watch = Watch(cell["start"])
    batches = TensorBatches(images, texts, tokenize=found.tokenize, batch_size=BATCH, seed=cell["seed"])
    loss = LossSettings(**cell["settings"], temperature=cell["temperature"])
    trainee = Trainee(found, build_objective(loss, temperature=cell["temperature"], items=len(images)))
    loop = LoopSettings(
        steps=steps,
        batch_size=BATCH,
        lr=cell["lr"],
        warmup=0.1,
        weight_decay=0.05,
        seed=cell["seed"],
        eval_every=max(1, steps // LOOKS),
    )
    fit(trainee, batches, loop, monitor=watch)
    return found, watch


def filtered(
    cell: Cell, found: Any, watch: Watch, images: Tensor, texts: Sequence[str], shares: Sequence[float]
) -> tuple[Any, float, Tensor]:
    """InfoNCE once more, on the pairs whose early scores are highest: the share that validates best, and the scores."""
    found.model.load_state_dict(watch.early)
    codes = torch.tensor([TEXTS.index(text) for text in texts])
    scores = softmax_scores(_features(found, images), text_features(found, TEXTS, 64), codes, t=cell["temperature"])
    order, best = scores.argsort(descending=True), (-1.0, 0.0, found)
    for share in shares:
        kept = order[: round(share * len(order))].sort().values
        again, validated = train(cell, images[kept], [texts[row] for row in kept.tolist()])
        best = max(best, (validated.seen[-1], share, again), key=lambda one: one[0])
    return best[2], best[1], scores


def _features(found: Any, images: Tensor) -> Tensor:
    return torch.cat([image_features(found, part) for part in images.split(500)])


def named(arm: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of another arm than the cell's."""
    return {f"{arm}: {name}": value for name, value in figures.items()}
