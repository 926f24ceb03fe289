"""SSA-CLR on miniature birds: what do flat minima and mixed amplitudes do for contrastive learning of two views?

python -m eval.experiments.run ssa         # half an hour on one core

Tables 1 to 4 of SSA-CLR (with CIFAR and a ResNet-50 there) on renders of 48 species in front of any background. An arm
learns from two views of each picture without labels: contrastive learning alone ("none"), with SAM, with ASAM, with
amplitudes mixed with those of the most similar view ("fft", alpha), with the last two ("ssa-clr", alpha). Then, with
the image tower frozen, a logistic regression on its features is fitted with labels and measured on other renders:
accuracy, and accuracy under the fast gradient sign method. The distribution shift gap is measured with the views as
they are and with mixed amplitudes, in the three ways that the paper prints its norm.

The most similar view is mostly the other view of the same picture, so one more arm leaves that out ("other image").
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from eval.experiments.cells import Cell
from eval.experiments.experiment import Experiment
from eval.experiments.small_clip import ARCHITECTURE
from eval.experiments.ssa_measures import MIXED, READINGS, C, measure
from eval.experiments.ssa_training import Arm, Recipe, train, world


def work(cell: Cell) -> dict[str, float]:
    """One learner: the mean of everything that is measured over its test images."""
    recipe = Recipe(**cell["recipe"], steps=cell["steps"])
    learn, test = world(cell["seed"], recipe)
    read, _ = train(Arm(**cell["settings"]), cell["seed"], recipe, learn.images)
    found = measure(read, learn, test, recipe, cell["seed"])
    return {metric: float(values.mean()) for metric, values in found.items()}


def description(experiment: Experiment, steps: int) -> dict[str, Any]:
    """Model, recipe and measures, for the protocol."""
    return {
        "model": "the image tower of an open_clip CLIP from scratch; features of norm 1, without a projection head",
        "architecture": ARCHITECTURE["vision_cfg"],
        "recipe": asdict(Recipe(**experiment.given["recipe"], steps=steps)),
        "classifier": f"logistic regression, l2, c = {C:g}, on standardised features",
        "gap": f"mixed: alpha {MIXED} under every arm; class means of the images without augmentation",
        "norms": READINGS,
    }
