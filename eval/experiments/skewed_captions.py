"""Does a learned popularity help where some captions are common and most are rare? NUCLR, SogCLR and InfoNCE.

python -m eval.experiments.run skewed_captions

The k-th species has a share of the training images proportional to 1/k (in an order that the seed draws), so an image
of the commonest meets its own caption among the negatives in more than a fifth of the rows, one of the rarest hardly
ever. Held-out images are of all species alike. NUCLR's step size of the popularity is the one whose popularity follows
the shares most closely on a seed that is not reported: with a step that does not move it, NUCLR is SogCLR.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eval.experiments import small_clip
from eval.experiments.cells import Cell
from eval.experiments.experiment import Experiment
from eval.experiments.small_clip import IMAGES, TEXTS, captions, held_out, loss_of, pixels, train, train_world
from vldebias.miniature.birds import SPECIES
from vldebias.training.sampling import numpy_generator

SHARES = 1 / np.arange(1, len(SPECIES) + 1)
SHARES /= SHARES.sum()
MOST_RENDERS = 14 * IMAGES  # the commonest needs some 43,000, of which it is 1 in 48
METRIC = "zero_shot_accuracy"
FOLLOWS = "popularity to share, correlation"


@lru_cache(maxsize=1)
def skewed(seed: int) -> tuple[Tensor, list[str], np.ndarray]:
    """Pixels and captions of which the k-th species in the seed's order has a share proportional to 1/k; that order."""
    order = numpy_generator("skew", seed).permutation(len(SPECIES))
    wanted = np.zeros(len(SPECIES), int)
    wanted[order] = np.round(IMAGES * SHARES)
    images, texts = [], []
    for start in range(0, MOST_RENDERS, IMAGES):
        world = train_world(seed, start=start)
        own = [np.flatnonzero(world.species.numpy() == k)[: wanted[k]] for k in range(len(SPECIES))]
        rows = np.concatenate(own)
        images.append(pixels(world)[torch.from_numpy(rows)])
        texts += [captions(world)[row] for row in rows]
        wanted -= [len(rows) for rows in own]
    assert not wanted.any(), "more renders are needed"
    return torch.cat(images), texts, order


def description(experiment: Experiment, steps: int) -> dict[str, Any]:
    """Of the data, beside what all small trainings have in common."""
    skew = "species k of the seed's order with a share proportional to 1/k"
    return {**small_clip.description(experiment, steps), "images": f"{IMAGES} renders per seed, {skew}"}


def work(cell: Cell) -> dict[str, float]:
    """One training: accuracy on all species, on the commoner and on the rarer half."""
    images, texts, order = skewed(cell["seed"])
    trainee = train(loss_of(cell), images, texts, cell["seed"], cell["steps"])
    monitor = held_out()
    correct = monitor.rows(trainee.towers)[METRIC].numpy()
    labels = monitor.labels
    assert labels is not None
    common = np.isin(labels.numpy(), order[: len(order) // 2])
    return {
        METRIC: float(correct.mean()),
        "accuracy on common species": float(correct[common].mean()),
        "accuracy on rare species": float(correct[~common].mean()),
        "share of the commonest": texts.count(TEXTS[int(order[0])]) / len(texts),
        **(moved(trainee.objective.loss.log_popularity[0], texts) if cell["settings"]["loss"] == "nuclr" else {}),
    }


def moved(log_popularity: Tensor, texts: Sequence[str]) -> dict[str, float]:
    """How far the popularity (n,) of the captions went, and whether to the captions that are common."""
    counts = {text: texts.count(text) for text in set(texts)}
    shares = torch.tensor([counts[text] for text in texts]).log()
    follows = torch.corrcoef(torch.stack([log_popularity, shares]))[0, 1] if log_popularity.std() > 1e-6 else 0.0
    return {FOLLOWS: float(follows), "popularity, log, deviation": float(log_popularity.std())}
