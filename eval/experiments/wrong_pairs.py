"""Do low positive scores find wrong captions? Figures 5-4 and 5-5 of the thesis.

python -m eval.experiments.run wrong_pairs

Small CLIPs learn from captions of which a share eta is wrong (as in noisy_captions.yaml, with its temperatures).
Then the pairs that they learned from are scored: the AUROC says how often a wrong pair has a lower score than a right
one. The picture is of one seed: densities of the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from eval.experiments import small_clip
from eval.experiments.cells import Cell
from eval.experiments.small_clip import TEXTS, captions, pixels, train, train_world
from vldebias.evaluation.result import Result
from vldebias.hosts.towers import Towers
from vldebias.metrics import auroc
from vldebias.miniature.birds import Birds
from vldebias.training.pairs import Noise, Pairs, PairSource, mixture_noise
from vldebias.training.report import score_histogram
from vldebias.training.scores import image_features, rank_pairs, text_features

PICTURED = 0.6  # eta of the picture
description = small_clip.description


def noisy(seed: int, eta: float) -> tuple[Birds, Noise]:
    """The renders of a seed, and the noise of noisy_captions.yaml."""
    world = train_world(seed)
    return world, mixture_noise(len(world), eta, seed, captions(world))


def trained(loss: Mapping[str, Any], world: Birds, noise: Noise, seed: int, steps: int) -> Towers:
    return train(loss, pixels(world), noise.applied(captions(world)), seed, steps).towers


def scores(towers: Towers, world: Birds, noise: Noise) -> NDArray[np.float32]:
    """(n,) cosine of each image with the caption that it was given."""
    texts = text_features(towers, TEXTS, 64)[world.species[torch.from_numpy(noise.source)]]
    return (image_features(towers, pixels(world)) * texts).sum(dim=1).numpy()


def work(cell: Cell) -> dict[str, float]:
    """One training: how well its scores tell wrong pairs from right ones, and how high they are."""
    world, noise = noisy(cell["seed"], cell["eta"])
    towers = trained(cell["settings"], world, noise, cell["seed"], cell["steps"])
    found = scores(towers, world, noise)
    return {
        "auroc": auroc(found, noise.wrong, resamples=2).value,
        "score of right pairs": float(found[~noise.wrong].mean()),
        "score of wrong pairs": float(found[noise.wrong].mean()),
    }


def draw(result: Result, path: Path, seed: int = 0) -> None:
    """The densities, from a training of each loss on one seed."""
    (told,), ranked = result.provenance, {}
    world, noise = noisy(seed, PICTURED)
    pairs = _pairs(world, noise)
    for loss, settings in told.methods.items():
        towers = trained(settings, world, noise, seed, told.settings["steps"])
        ranked[f"{loss}, eta {PICTURED:g}"] = rank_pairs(pairs, scores(towers, world, noise))
    score_histogram(ranked, path.with_name("wrong_pairs_scores.png"))


def _pairs(world: Birds, noise: Noise) -> Pairs:
    clean = captions(world)
    ids = tuple(map(str, range(len(world))))
    own = PairSource("birds", ids, tuple(clean), partial(_image, world))
    return Pairs("birds", ids, noise.applied(clean), own.read, wrong=noise.wrong, own=own)


def _image(world: Birds, index: int) -> Image.Image:
    return Image.fromarray((world.images[index] * 255).byte().permute(1, 2, 0).numpy())
