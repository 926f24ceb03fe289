"""Do low positive scores find wrong captions? Figures 5-4 and 5-5 of the thesis.

python -m eval.experiments.run wrong_pairs

Small CLIPs learn from captions of which a share eta is wrong (as in noisy_captions.yaml, with its temperatures).
Then the pairs that they learned from are scored: the AUROC says how often a wrong pair has a lower score than a right
one. The picture is of one seed: densities of the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval.experiments import small_clip
from eval.experiments.cells import Cell
from eval.experiments.small_clip import TEXTS, captions, pixels, train, train_world
from eval.miniature.birds import Birds
from vldebias.evaluation.result import Result
from vldebias.hosts.towers import Towers
from vldebias.metrics import auroc
from vldebias.pictures import save_png, subplots
from vldebias.training.monitor import image_features, text_features
from vldebias.training.pairs import mixture_noise

PICTURED = 0.6  # eta of the picture
description = small_clip.description


def noisy(seed: int, eta: float) -> tuple[Birds, NDArray[np.int64], NDArray[np.bool_]]:
    """The renders of a seed, the row that each caption is taken from, and which captions are wrong."""
    world = train_world(seed)
    source = mixture_noise(len(world), eta, seed)
    species = world.species.numpy()
    return world, source, species[source] != species


def trained(loss: Mapping[str, Any], world: Birds, source: NDArray[np.int64], seed: int, steps: int) -> Towers:
    clean = captions(world)
    return train(loss, pixels(world), [clean[row] for row in source], seed, steps).towers


def scores(towers: Towers, world: Birds, source: NDArray[np.int64]) -> NDArray[np.float32]:
    """(n,) cosine of each image with the caption that it was given."""
    texts = text_features(towers, TEXTS, 64)[world.species[torch.from_numpy(source)]]
    return (image_features(towers, pixels(world)) * texts).sum(dim=1).numpy()


def work(cell: Cell) -> dict[str, float]:
    """One training: how well its scores tell wrong pairs from right ones, and how high they are."""
    world, source, wrong = noisy(cell["seed"], cell["eta"])
    towers = trained(cell["settings"], world, source, cell["seed"], cell["steps"])
    found = scores(towers, world, source)
    return {
        "auroc": auroc(found, wrong, resamples=2).value,
        "score of right pairs": float(found[~wrong].mean()),
        "score of wrong pairs": float(found[wrong].mean()),
    }


def draw(result: Result, path: Path, seed: int = 0) -> None:
    """Densities of the scores of right and wrong pairs, from a training of each loss on one seed."""
    (told,) = result.provenance
    world, source, wrong = noisy(seed, PICTURED)
    figure, axes = subplots(1, len(told.methods), (1 + 3.6 * len(told.methods), 3.1))
    for axis, (loss, settings) in zip(axes, told.methods.items(), strict=True):
        found = scores(trained(settings, world, source, seed, told.settings["steps"]), world, source)
        edges = np.histogram_bin_edges(found, bins=40)
        for name, rows in (("right", ~wrong), ("wrong", wrong)):
            axis.hist(found[rows], bins=edges, density=True, alpha=0.6, label=name)
        axis.set(title=f"{loss}, eta {PICTURED:g}: AUROC {auroc(found, wrong, resamples=2).value:.3f}", xlabel="cosine")
    axes[0].legend()
    save_png(figure, path.with_name("wrong_pairs_scores.png"), {"kind": "scores of pairs", "eta": PICTURED})
