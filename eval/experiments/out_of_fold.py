"""Do scores of pairs that were learned find the wrong ones, and scores of pairs that were not?

python -m eval.experiments.run out_of_fold

Small CLIPs learn a few images over and over, with captions of which a share eta is wrong. In sample one model scores
all pairs that it learns. Out of fold a pair is scored by a model that learned the other folds, as
`vldebias pairs --folds` does. Both are scored on the way, after the same numbers of steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval.experiments import small_clip
from eval.experiments.cells import Cell
from eval.experiments.experiment import Experiment
from eval.experiments.small_clip import TEXTS, captions, pixels, train
from vldebias.hosts.towers import Towers
from vldebias.metrics import auroc
from vldebias.miniature import birds
from vldebias.training.pairs import mixture_noise
from vldebias.training.sampling import folds_of
from vldebias.training.scores import image_features, text_features

IMAGES, BATCH = 1000, 128
LOOKS = {"early": 4, "middle": 2, "late": 1}  # all steps divided by so many


def description(experiment: Experiment, steps: int) -> dict[str, Any]:
    """Of the data and the batches, beside what all small trainings have in common."""
    about = small_clip.description(experiment, steps)
    images = f"{IMAGES} renders of the miniature birds world per seed"
    return {**about, "images": images, "loop": {**about["loop"], "batch_size": BATCH}}


def work(cell: Cell) -> dict[str, float]:
    """The AUROC of low scores for wrong pairs after each number of steps, of one model or of one per fold."""
    seed, steps = cell["seed"], cell["steps"]
    world = birds.sample(IMAGES, seed=1000 + seed)
    noise = mixture_noise(IMAGES, cell["eta"], seed, captions(world))
    images, given = pixels(world), noise.applied(captions(world))
    said = torch.tensor([TEXTS.index(text) for text in given])
    scores: dict[int, NDArray[np.float32]] = {
        max(1, steps // part): np.full(IMAGES, np.nan, np.float32) for part in LOOKS.values()
    }
    folds = cell["settings"]["folds"]
    fold = folds_of(IMAGES, folds, seed) if folds > 1 else np.zeros(IMAGES, dtype=np.int64)
    for k in range(int(fold.max()) + 1):
        scored = np.flatnonzero(fold == k)
        learned = np.flatnonzero(fold != k) if folds > 1 else scored

        def watch(towers: Towers, step: int, scored: NDArray[np.int64] = scored) -> None:
            if step in scores:
                texts = text_features(towers, TEXTS, len(TEXTS))[said[scored]]
                scores[step][scored] = (image_features(towers, images[scored]) * texts).sum(dim=1).numpy()

        train(cell["loss"], images[learned], [given[i] for i in learned], seed, steps, batch_size=BATCH, watch=watch)
    return {
        f"auroc after {step}": auroc(found, noise.wrong, resamples=2).value for step, found in sorted(scores.items())
    }
