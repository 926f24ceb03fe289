"""SSA-CLR on miniature birds: what do flat minima and mixed amplitudes do for contrastive learning of two views?

    python -m eval.experiments.ssa  # every cell, writes eval/results/ssa.json and .png; half an hour on one core
    python -m eval.experiments.ssa --longer  # two arms in four times the steps, writes eval/results/ssa_longer.json
    python -m eval.experiments.ssa --work DIR  # where cells are kept, for a second start
    python -m eval.experiments.ssa --seeds 2 --steps 20 --out /tmp/try  # a quick look

Tables 1 to 4 of SSA-CLR (with CIFAR and a ResNet-50 there) on renders of 48 species in front of any background. An arm
learns from two views of each picture without labels: contrastive learning alone ("none"), with SAM, with ASAM, with
amplitudes mixed with those of the most similar view ("fft", alpha), with the last two ("ssa-clr", alpha). Then, with
the image tower frozen, a logistic regression on its features is fitted with labels and measured on other renders:
accuracy, and accuracy under the fast gradient sign method. The distribution shift gap is measured with the views as
they are and with mixed amplitudes, in the three ways that the paper prints its norm.

The most similar view is mostly the other view of the same picture, so one more arm leaves that out ("other image").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.experiments.cells import Cell, arguments_of, run_cells, summed_up, write_result
from eval.experiments.small_clip import ARCHITECTURE
from eval.experiments.ssa_measures import MIXED, READINGS, C, measure
from eval.experiments.ssa_training import ARMS, MORE_ARMS, Arm, Recipe, train, world

MORE_SEEDS, LONGER = 3, 4
RECIPE = Recipe()
PLAIN, OTHER = "#08306b", "#d95f02"
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("accuracy of a linear classifier", {"accuracy": PLAIN}),
    ("accuracy under FGSM, 2/255", {"robust_accuracy@2/255": PLAIN}),
    ("shift gap: original views, mixed views", {"gap, original": PLAIN, "gap, mixed": OTHER}),
)


def work(cell: Cell) -> dict[str, float]:
    """One learner: the mean of everything that is measured over its test images."""
    recipe = replace(RECIPE, **cell["recipe"])
    learn, test = world(cell["seed"], recipe)
    read, _ = train(Arm(**cell["adds"]), cell["seed"], recipe, learn.images)
    found = measure(read, learn, test, recipe, cell["seed"])
    return {metric: float(values.mean()) for metric, values in found.items()}


def plan(seeds: int, recipe: Recipe) -> list[dict[str, Any]]:
    """The paper's arms with every seed, then the others with fewer."""
    told = asdict(recipe)
    arms = [(name, arm, seed) for seed in range(seeds) for name, arm in ARMS.items()]
    arms += [(name, arm, seed) for seed in range(min(seeds, MORE_SEEDS)) for name, arm in MORE_ARMS.items()]
    return [{"arm": name, "adds": asdict(arm), "seed": seed, "recipe": told} for name, arm, seed in arms]


def plan_longer(seeds: int, recipe: Recipe) -> list[dict[str, Any]]:
    """Does SSA-CLR catch up? It and "none", each in the same cosine over the steps and over more of them."""
    return [
        {"arm": name, "adds": asdict(ARMS[name]), "seed": seed, "steps": more.steps, "recipe": asdict(more)}
        for seed in range(min(seeds, MORE_SEEDS))
        for more in (recipe, replace(recipe, steps=LONGER * recipe.steps))
        for name in ("none", "ssa-clr 0.2")
    ]


def protocol(seeds: int, recipe: Recipe) -> dict[str, Any]:
    return {
        "model": "the image tower of an open_clip CLIP from scratch; features of norm 1, without a projection head",
        "architecture": ARCHITECTURE["vision_cfg"],
        "images": "renders of the miniature birds world, background independent of the species; others for every seed",
        "views": "crop, mirror image, brightness; no change of hue or saturation and no grayscale, since species of "
        "this world differ by their colours",
        "recipe": asdict(recipe),
        "recipe chosen": 'temperature and learning rate by the accuracy of the arm "none" on a seed that is not '
        "reported, steps by the time of two cores",
        "classifier": f"logistic regression, l2, c = {C:g}, on standardised features",
        "attack": "FGSM on pixels in [0, 1], epsilon in the name",
        "gap": f"mixed: alpha {MIXED} under every arm; class means of the images without augmentation",
        "norms": READINGS,
        "seeds": seeds,
        "intervals": "Student's t over seeds, which draw the renders of training and test, the first weights and the "
        "views; changes are paired by seed",
    }


def draw(result: Path, picture: Path) -> None:
    """One panel per measure: the mean over seeds with its 95 % interval, and every seed as a small dot."""
    told = json.loads(result.read_text())
    arms = list(dict.fromkeys(row["arm"] for row in told["rows"]))
    figure = Figure(figsize=(4.2 * len(PANELS), 0.36 * len(arms) + 1.1), layout="constrained")
    for axes, (title, metrics) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        for number, (metric, colour) in enumerate(metrics.items()):
            _column(axes, told, metric, arms, colour, (number - (len(metrics) - 1) / 2) * 0.3)
        axes.set_title(title, fontsize=9)
        axes.set_yticks(range(len(arms)), arms)
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3, axis="x")
    figure.savefig(picture, dpi=110, metadata={"Title": "SSA-CLR on miniature birds"})


def _column(axes: Axes, told: Mapping[str, Any], metric: str, arms: Sequence[str], colour: str, offset: float) -> None:
    """Arms from top to bottom; a dotted line marks where "none" is."""
    for row in (row for row in told["rows"] if row["metric"] == metric):
        place = arms.index(row["arm"]) + offset
        seeds = [cell["figures"][metric] for cell in told["cells"] if cell["arm"] == row["arm"]]
        axes.scatter(seeds, [place] * len(seeds), s=8, color=colour, alpha=0.35, linewidths=0)
        axes.hlines(place, row["low"], row["high"], color=colour, linewidth=1.5)
        axes.scatter(row["value"], place, s=28, color=colour, zorder=3)
        if row["arm"] == "none":
            axes.axvline(row["value"], color=colour, linewidth=0.8, linestyle=":", zorder=0)


def main(arguments: Sequence[str] | None = None) -> None:
    flags = {"--longer": f"two arms with --steps and with {LONGER} times as many, up to {MORE_SEEDS} seeds"}
    args = arguments_of(__doc__, "ssa", RECIPE.steps, arguments, flags=flags)
    longer = args.longer
    recipe = replace(RECIPE, steps=args.steps)
    planned = (plan_longer if longer else plan)(args.seeds, recipe)
    cells = run_cells(work, planned, args.work, processes=args.processes, title="ssa")
    columns = ("steps", "arm") if longer else ("arm",)
    rows = summed_up(cells, columns, against={"arm": "none"})
    result = args.out / ("ssa_longer.json" if longer else "ssa.json")
    write_result(result, protocol(args.seeds, recipe), rows, cells)
    if not longer:
        draw(result, result.with_suffix(".png"))


if __name__ == "__main__":
    main()
