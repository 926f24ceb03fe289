"""Does a learned popularity help where some captions are common and most are rare? NUCLR, SogCLR and InfoNCE.

    python -m eval.experiments.skewed_captions             # writes eval/results/skewed_captions.json
    python -m eval.experiments.skewed_captions --work DIR  # where trainings are kept, for a second start

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

from eval.experiments.cells import Cell, arguments_of, run_cells, summed_up, write_result
from eval.experiments.small_clip import (
    IMAGES,
    LOOP,
    TEXTS,
    T,
    captions,
    description,
    held_out,
    pixels,
    train,
    train_world,
)
from vldebias.miniature.birds import SPECIES
from vldebias.training.sampling import numpy_generator

LOSSES = ("info_nce", "sogclr", "nuclr")
STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3)
TUNING_SEED = 100
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


def work(cell: Cell) -> dict[str, float]:
    """One training: accuracy on all species, on the commoner and on the rarer half."""
    images, texts, order = skewed(cell["seed"])
    loss: dict[str, Any] = {"loss": cell["loss"], "temperature": T}
    if cell["popularity_lr"] is not None:
        loss["popularity_lr"] = cell["popularity_lr"]
    trainee = train(loss, images, texts, cell["seed"], cell["steps"])
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
        **(moved(trainee.objective.loss.log_popularity[0], texts) if cell["loss"] == "nuclr" else {}),
    }


def moved(log_popularity: Tensor, texts: Sequence[str]) -> dict[str, float]:
    """How far the popularity (n,) of the captions went, and whether to the captions that are common."""
    counts = {text: texts.count(text) for text in set(texts)}
    shares = torch.tensor([counts[text] for text in texts]).log()
    follows = torch.corrcoef(torch.stack([log_popularity, shares]))[0, 1] if log_popularity.std() > 1e-6 else 0.0
    return {FOLLOWS: float(follows), "popularity, log, deviation": float(log_popularity.std())}


def main(arguments: Sequence[str] | None = None) -> None:
    args = arguments_of(__doc__, "skewed-captions", LOOP.steps or 0, arguments)

    def cell(loss: str, seed: int, step_size: float | None = None) -> dict[str, Any]:
        return {"loss": loss, "seed": seed, "steps": args.steps, "popularity_lr": step_size}

    tuning = [cell("nuclr", TUNING_SEED, size) for size in STEP_SIZES]
    tried = run_cells(work, tuning, args.work, processes=args.processes, title="step sizes")
    best = max(tried, key=lambda done: done["figures"][FOLLOWS])["popularity_lr"]
    seeds = range(args.seeds)
    cells = [cell(loss, seed, best if loss == "nuclr" else None) for seed in seeds for loss in LOSSES]
    done = run_cells(work, cells, args.work, processes=args.processes, title="skewed captions")
    protocol = {
        **description(args.steps),
        "images": f"{IMAGES} renders per seed, species k of the seed's order with a share proportional to 1/k",
        "temperature": T,
        "popularity_lr": {"chosen": best, "by": FOLLOWS, "tried": STEP_SIZES, "seed": TUNING_SEED},
        "change": "to info_nce on the same seed",
        "seeds": list(seeds),
    }
    rows = summed_up(done, ("loss",), against={"loss": "info_nce"})
    write_result(args.out / "skewed_captions.json", protocol, rows, [*tried, *done])


if __name__ == "__main__":
    main()
