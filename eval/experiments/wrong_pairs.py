"""Do low positive scores find wrong captions? Figures 5-5 and A-3 of the thesis.

    python -m eval.experiments.wrong_pairs             # writes eval/results/wrong_pairs.json and a picture beside it
    python -m eval.experiments.wrong_pairs --work DIR  # where trainings are kept, for a second start

Small CLIPs learn from captions of which a share eta is wrong (as in noisy_captions.py, with its temperatures).
Then the pairs that they learned from are scored: the AUROC says how often a wrong pair has a lower score than a right
one. The picture is of one seed: densities of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from eval.experiments.cells import Cell, arguments_of, run_cells, summed_up, write_result
from eval.experiments.noisy_captions import LOSSES
from eval.experiments.small_clip import (
    LOOP,
    TEXTS,
    captions,
    description,
    pixels,
    train,
    train_world,
)
from vldebias.hosts.towers import Towers
from vldebias.metrics import auroc
from vldebias.miniature.birds import Birds
from vldebias.training.pairs import Noise, Pairs, PairSource, mixture_noise
from vldebias.training.report import score_histogram
from vldebias.training.scores import image_features, rank_pairs, text_features

COMPARED = {"InfoNCE": 0.2, "RINCE q=1.0": 0.1}  # temperatures of noisy_captions.py
ETAS = (0.2, 0.4, 0.6)
PICTURED = 0.6  # eta of the picture


def noisy(seed: int, eta: float) -> tuple[Birds, Noise]:
    """The renders of a seed, and the noise of noisy_captions.py."""
    world = train_world(seed)
    return world, mixture_noise(len(world), eta, seed, captions(world))


def trained(loss: str, world: Birds, noise: Noise, seed: int, steps: int) -> Towers:
    settings = {**LOSSES[loss], "temperature": COMPARED[loss]}
    return train(settings, pixels(world), noise.applied(captions(world)), seed, steps).towers


def scores(towers: Towers, world: Birds, noise: Noise) -> NDArray[np.float32]:
    """(n,) cosine of each image with the caption that it was given."""
    texts = text_features(towers, TEXTS, 64)[world.species[torch.from_numpy(noise.source)]]
    return (image_features(towers, pixels(world)) * texts).sum(dim=1).numpy()


def work(cell: Cell) -> dict[str, float]:
    """One training: how well its scores tell wrong pairs from right ones, and how high they are."""
    world, noise = noisy(cell["seed"], cell["eta"])
    towers = trained(cell["loss"], world, noise, cell["seed"], cell["steps"])
    found = scores(towers, world, noise)
    return {
        "auroc": auroc(found, noise.wrong, resamples=2).value,
        "score of right pairs": float(found[~noise.wrong].mean()),
        "score of wrong pairs": float(found[noise.wrong].mean()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    args = arguments_of(__doc__, "wrong-pairs", LOOP.steps or 0, arguments, seeds=3)
    seeds = range(args.seeds)
    cells: list[dict[str, Any]] = [
        {"loss": loss, "eta": eta, "seed": seed, "steps": args.steps}
        for eta in ETAS
        for loss in COMPARED
        for seed in seeds
    ]
    done = run_cells(work, cells, args.work, processes=args.processes, title="wrong pairs")
    protocol = {
        **description(args.steps),
        "losses": {loss: {**LOSSES[loss], "temperature": t} for loss, t in COMPARED.items()},
        "change": "to InfoNCE on the same seed",
        "seeds": list(seeds),
    }
    rows = summed_up(done, ("eta", "loss"), against={"loss": "InfoNCE"})
    write_result(args.out / "wrong_pairs.json", protocol, rows, done)
    draw(args.out, args.steps)


def draw(folder: Path, steps: int, seed: int = 0) -> None:
    """The picture, from two trainings of one seed."""
    world, noise = noisy(seed, PICTURED)
    pairs = _pairs(world, noise)
    ranked = {
        f"{loss}, eta {PICTURED:g}": rank_pairs(pairs, scores(trained(loss, world, noise, seed, steps), world, noise))
        for loss in COMPARED
    }
    score_histogram(ranked, folder / "wrong_pairs_scores.png")


def _pairs(world: Birds, noise: Noise) -> Pairs:
    clean = captions(world)
    ids = tuple(map(str, range(len(world))))
    own = PairSource("birds", ids, tuple(clean), partial(_image, world))
    return Pairs("birds", ids, noise.applied(clean), own.read, wrong=noise.wrong, own=own)


def _image(world: Birds, index: int) -> Image.Image:
    return Image.fromarray((world.images[index] * 255).byte().permute(1, 2, 0).numpy())


if __name__ == "__main__":
    main()
