"""SSA-CLR on miniature birds: what do flat minima and mixed amplitudes do for contrastive learning of two views?

python -m eval.experiments.run ssa         # half an hour on one core
python -m eval.experiments.run ssa_longer  # two arms, and four times the steps

Tables 1 to 4 of SSA-CLR (with CIFAR and a ResNet-50 there) on renders of 48 species in front of any background. An arm
learns from two views of each picture without labels: contrastive learning alone ("none"), with SAM, with ASAM, with
amplitudes mixed with those of the most similar view ("fft", alpha), with the last two ("ssa-clr", alpha). Then, with
the image tower frozen, a logistic regression on its features is fitted with labels and measured on other renders:
accuracy, and accuracy under the fast gradient sign method. The distribution shift gap is measured with the views as
they are and with mixed amplitudes, in the three ways that the paper prints its norm.

The most similar view is mostly the other view of the same picture, so one more arm leaves that out ("other image").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.experiments.cells import Cell
from eval.experiments.experiment import Experiment
from eval.experiments.small_clip import ARCHITECTURE
from eval.experiments.ssa_measures import MIXED, READINGS, C, measure
from eval.experiments.ssa_training import Arm, Recipe, train, world
from vldebias.evaluation.result import Result

PLAIN, OTHER = "#08306b", "#d95f02"
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("accuracy of a linear classifier", {"accuracy": PLAIN}),
    ("accuracy under FGSM, 2/255", {"robust_accuracy@2/255": PLAIN}),
    ("shift gap: original views, mixed views", {"gap, original": PLAIN, "gap, mixed": OTHER}),
)


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


def draw(result: Result, picture: Path) -> None:
    """One panel per measure: the mean over seeds with its 95 % interval, and every seed as a small dot."""
    arms = list(dict.fromkeys(row.method for row in result.rows))
    figure = Figure(figsize=(4.2 * len(PANELS), 0.36 * len(arms) + 1.1), layout="constrained")
    for axes, (title, metrics) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        for number, (metric, colour) in enumerate(metrics.items()):
            _column(axes, result, metric, arms, colour, (number - (len(metrics) - 1) / 2) * 0.3)
        axes.set_title(title, fontsize=9)
        axes.set_yticks(range(len(arms)), arms)
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3, axis="x")
    figure.savefig(picture, dpi=110, metadata={"Title": "SSA-CLR on miniature birds"})


def _column(axes: Axes, result: Result, metric: str, arms: Sequence[str], colour: str, offset: float) -> None:
    """Arms from top to bottom; a dotted line marks where "none" is."""
    cells = result.provenance[0].settings["cells"]
    for row in (row for row in result.rows if row.metric == metric):
        place = arms.index(row.method) + offset
        seeds = [cell["figures"][metric] for cell in cells if cell["arm"] == row.method]
        axes.scatter(seeds, [place] * len(seeds), s=8, color=colour, alpha=0.35, linewidths=0)
        axes.hlines(place, *row.interval, color=colour, linewidth=1.5)
        axes.scatter(row.value, place, s=28, color=colour, zorder=3)
        if row.method == "none":
            axes.axvline(row.value, color=colour, linewidth=0.8, linestyle=":", zorder=0)
