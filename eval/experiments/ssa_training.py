"""The learner of ssa.py: a small image tower, two views of every picture, and the arms that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from eval.experiments.small_clip import build
from eval.experiments.tensor_batches import TensorBatches
from eval.miniature.birds import Birds, sample
from vldebias.hosts.towers import Towers, towers
from vldebias.miniature import Preprocess
from vldebias.training.loop import Entry, fit
from vldebias.training.model import tune
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.settings import LoopSettings, LossSettings

WORLD = 52_000  # seeds of the renders: two for each seed of a run


@dataclass(frozen=True)
class Arm:
    """What one arm adds to contrastive learning: sharpness-aware steps of radius rho, mixing of amplitudes by alpha.

    partner: of the mixing; "other" leaves out the other view of the same image.
    """

    sharpness: Literal["none", "sam", "asam"] = "none"
    rho: float | None = None
    fourier: float = 0.0
    partner: Literal["any", "other"] = "any"


@dataclass(frozen=True)
class Recipe:
    """What all arms share.

    items, test_items: renders to learn from (without labels, then with them for the linear classifier) and to test.
    smallest_crop: share of the area that a view keeps at least. brightness: by which share it may change.
    views: augmentations per test image of which the shift gap takes the mean; even.
    """

    items: int = 4000
    test_items: int = 2000
    batch_size: int = 128
    steps: int = 200
    lr: float = 3e-3
    warmup: float = 0.07
    weight_decay: float = 0.05
    temperature: float = 0.1
    smallest_crop: float = 0.5
    brightness: float = 0.2
    views: int = 8


@dataclass(frozen=True)
class Views:
    """Random crop, mirror image and brightness of a batch in memory: pixels (b, 3, h, w) in [0, 1] -> the same.

    Neither hue nor saturation changes: species of this world differ by the colours of their plumage alone, so a view
    without its colours would be a view without its class.
    """

    smallest_crop: float
    brightness: float

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        b = len(images)
        drawn = torch.rand(5, b, generator=generator)
        side = (self.smallest_crop + (1 - self.smallest_crop) * drawn[0]).sqrt()
        mirror = torch.where(drawn[1] < 0.5, -1.0, 1.0)
        zero = torch.zeros(b)
        left, top = ((2 * share - 1) * (1 - side) for share in drawn[2:4])
        crop = torch.stack([torch.stack([side * mirror, zero, left], 1), torch.stack([zero, side, top], 1)], 1)
        grid = F.affine_grid(crop, list(images.shape), align_corners=False)
        seen = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
        light = 1 + self.brightness * (2 * drawn[4] - 1)
        return (seen * light[:, None, None, None]).clamp(0, 1)


@lru_cache(maxsize=1)
def world(seed: int, recipe: Recipe) -> tuple[Birds, Birds]:
    """Renders to learn from and to test on; the background says nothing about the species."""
    return (
        sample(recipe.items, seed=WORLD + 2 * seed, balanced=True),
        sample(recipe.test_items, seed=WORLD + 2 * seed + 1, balanced=True),
    )


def train(arm: Arm, seed: int, recipe: Recipe, images: Tensor) -> tuple[Towers, list[Entry]]:
    """Towers of fresh weights after contrastive learning on two views of `images` (n, 3, 64, 64) in [0, 1].

    The weights, the order of the images and their views are those of the seed, the same for every arm.
    """
    read = fresh_towers(seed)
    tune(read, "image")
    loss = LossSettings(loss="info_nce", temperature=recipe.temperature)
    objective = build_objective(loss, temperature=recipe.temperature, items=len(images), two_views=True)
    settings = LoopSettings(
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        lr=recipe.lr,
        warmup=recipe.warmup,
        weight_decay=recipe.weight_decay,
        sharpness=arm.sharpness,
        rho=arm.rho,
        fourier=arm.fourier,
        seed=seed,
    )
    augment = Views(recipe.smallest_crop, recipe.brightness)
    batches = TensorBatches(images, batch_size=recipe.batch_size, augment=augment, two_views=True, seed=seed)
    trainee = Trainee(read, objective, fourier=arm.fourier, partner=arm.partner)
    return read, fit(trainee, batches, settings)


def fresh_towers(seed: int) -> Towers:
    """Towers that read pixels in [0, 1], so that amplitudes are mixed, and attacks counted, in pixels."""
    torch.manual_seed(seed)
    read = towers(*build(), Preprocess())
    mean, std = (torch.tensor(values)[:, None, None] for values in (read.mean, read.std))
    of_normalised = read.image
    read.image = lambda pixels: of_normalised((pixels - mean) / std)  # type: ignore[method-assign]
    read.mean, read.std = (0.0,) * 3, (1.0,) * 3
    return read
