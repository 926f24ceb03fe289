"""Does a learned popularity help where some captions are common and most are rare? NUCLR, SogCLR and InfoNCE.

    python eval/skewed_captions.py                    # writes eval/results/skewed_captions.json
    python eval/skewed_captions.py --work DIR         # where trainings are kept; a second start does the missing ones

The k-th species has a share of the training images proportional to 1/k (in an order that the seed draws), so an image
of the commonest meets its own caption among the negatives in more than a fifth of the rows, one of the rarest hardly
ever. Held-out images are of all species alike. NUCLR's step size of the popularity is the one that did best on a seed
that is not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from cells import Cell, arguments_of, run_cells, summed_up, write_result
from small_clip import DESCRIPTION, IMAGES, LOOP, T, captions, held_out, train, train_world

from vldebias.miniature.birds import SPECIES, Birds
from vldebias.training.sampling import numpy_generator

LOSSES = ("info_nce", "sogclr", "nuclr")
STEP_SIZES = (0.01, 0.1, 1.0, 10.0)
TUNING_SEED = 100
POOL = 4 * IMAGES
METRIC = "zero_shot_accuracy"


def skewed(seed: int) -> tuple[Birds, np.ndarray]:
    """Renders of which the k-th species in the seed's order has a share proportional to 1/k, and that order."""
    generator = numpy_generator("skew", seed)
    pool = train_world(seed, POOL)
    order = generator.permutation(len(SPECIES))
    share = np.empty(len(SPECIES))
    share[order] = 1 / np.arange(1, len(SPECIES) + 1)
    weight = share[pool.species.numpy()]
    rows = torch.from_numpy(np.sort(generator.choice(POOL, IMAGES, replace=False, p=weight / weight.sum())))
    fields = {name: value[rows] for name, value in vars(pool).items() if isinstance(value, torch.Tensor)}
    return Birds(**fields, captions=[pool.captions[row] for row in rows]), order


def work(cell: Cell) -> dict[str, float]:
    """One training: accuracy on all species, on the commoner and on the rarer half."""
    world, order = skewed(cell["seed"])
    loss: dict[str, Any] = {"loss": cell["loss"], "temperature": T}
    if cell["popularity_lr"] is not None:
        loss["popularity_lr"] = cell["popularity_lr"]
    towers = train(loss, world, captions(world), cell["seed"], cell["steps"]).towers
    monitor = held_out()
    correct = monitor.rows(towers)[METRIC].numpy()
    labels = monitor.held_out.labels
    assert labels is not None
    common = np.isin(labels.numpy(), order[: len(order) // 2])
    return {
        METRIC: float(correct.mean()),
        "accuracy on common species": float(correct[common].mean()),
        "accuracy on rare species": float(correct[~common].mean()),
        "share of the commonest": float((world.species == int(order[0])).double().mean()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    args = arguments_of(__doc__, "skewed-captions", LOOP.steps or 0, arguments)

    def cell(loss: str, seed: int, step_size: float | None = None) -> dict[str, Any]:
        return {"loss": loss, "seed": seed, "steps": args.steps, "popularity_lr": step_size}

    tuning = [cell("nuclr", TUNING_SEED, size) for size in STEP_SIZES]
    tried = run_cells(work, tuning, args.work, processes=args.processes, title="step sizes")
    best = max(tried, key=lambda done: done["figures"][METRIC])["popularity_lr"]
    seeds = range(args.seeds)
    cells = [cell(loss, seed, best if loss == "nuclr" else None) for loss in LOSSES for seed in seeds]
    done = run_cells(work, cells, args.work, processes=args.processes, title="skewed captions")
    protocol = {
        **DESCRIPTION,
        "images": f"{IMAGES} renders per seed, species k of the seed's order with a share proportional to 1/k",
        "temperature": T,
        "popularity_lr": {"chosen": best, "tried": STEP_SIZES, "seed": TUNING_SEED},
        "change": "to info_nce on the same seed",
        "seeds": list(seeds),
    }
    rows = summed_up(done, ("loss",), against={"loss": "info_nce"})
    write_result(args.out / "skewed_captions.json", protocol, rows, [*tried, *done])


if __name__ == "__main__":
    main()
