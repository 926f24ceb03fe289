"""Do scores of pairs that were learned find the wrong ones, and scores of pairs that were not?

    python -m eval.experiments.out_of_fold             # writes eval/results/out_of_fold.json
    python -m eval.experiments.out_of_fold --work DIR  # where trainings are kept, for a second start

Small CLIPs learn a few images over and over, with captions of which a share eta is wrong. In sample one model scores
all pairs that it learns. Out of fold a pair is scored by a model that learned the other folds, as
`vldebias pairs --folds` does. Both are scored on the way, after the same numbers of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval.experiments.cells import Cell, arguments_of, run_cells, summed_up, write_result
from eval.experiments.noisy_captions import LOSSES
from eval.experiments.small_clip import TEXTS, captions, description, pixels, train
from eval.experiments.wrong_pairs import COMPARED
from vldebias.hosts.towers import Towers
from vldebias.metrics import auroc
from vldebias.miniature import birds
from vldebias.training.pairs import mixture_noise
from vldebias.training.sampling import folds_of
from vldebias.training.scores import image_features, text_features

IMAGES, BATCH, STEPS = 1000, 128, 240  # 31 passes in sample, 38 over four folds of five
ETA, LOSS, FOLDS = 0.4, "InfoNCE", 5
LEARNED, UNSEEN = "of pairs that it learns", "out of fold"
LOOKS = {"early": 4, "middle": 2, "late": 1}  # all steps divided by so many


def work(cell: Cell) -> dict[str, float]:
    """The AUROC of low scores for wrong pairs after each number of steps, of one model or of one per fold."""
    seed, steps = cell["seed"], cell["steps"]
    world = birds.sample(IMAGES, seed=1000 + seed)
    noise = mixture_noise(IMAGES, ETA, seed, captions(world))
    images, given = pixels(world), noise.applied(captions(world))
    said = torch.tensor([TEXTS.index(text) for text in given])
    scores: dict[int, NDArray[np.float32]] = {
        max(1, steps // part): np.full(IMAGES, np.nan, np.float32) for part in LOOKS.values()
    }
    fold = folds_of(IMAGES, FOLDS, seed) if cell["scores"] == UNSEEN else np.zeros(IMAGES, dtype=np.int64)
    for k in range(int(fold.max()) + 1):
        scored = np.flatnonzero(fold == k)
        learned = np.flatnonzero(fold != k) if cell["scores"] == UNSEEN else scored

        def watch(towers: Towers, step: int, scored: NDArray[np.int64] = scored) -> None:
            if step in scores:
                texts = text_features(towers, TEXTS, len(TEXTS))[said[scored]]
                scores[step][scored] = (image_features(towers, images[scored]) * texts).sum(dim=1).numpy()

        loss = {**LOSSES[LOSS], "temperature": COMPARED[LOSS]}
        train(loss, images[learned], [given[i] for i in learned], seed, steps, batch_size=BATCH, watch=watch)
    return {
        f"auroc after {step}": auroc(found, noise.wrong, resamples=2).value for step, found in sorted(scores.items())
    }


def main(arguments: Sequence[str] | None = None) -> None:
    args = arguments_of(__doc__, "out-of-fold", STEPS, arguments)
    seeds = range(args.seeds)
    cells: list[dict[str, Any]] = [
        {"scores": scores, "seed": seed, "steps": args.steps} for seed in seeds for scores in (LEARNED, UNSEEN)
    ]
    done = run_cells(work, cells, args.work, processes=args.processes, title="out of fold")
    about = description(args.steps)
    protocol = {
        **about,
        "images": f"{IMAGES} renders of the miniature birds world per seed",
        "loop": {**about["loop"], "batch_size": BATCH},
        "loss": {LOSS: {**LOSSES[LOSS], "temperature": COMPARED[LOSS]}},
        "noise": f"mixture, eta {ETA}",
        "folds": FOLDS,
        "chosen": "the number of images and of steps, on seed 100, where in-sample scores get worse with the steps",
        "change": f"to scores {LEARNED} on the same seed",
        "seeds": list(seeds),
    }
    rows = summed_up(done, ("scores",), against={"scores": LEARNED})
    write_result(args.out / "out_of_fold.json", protocol, rows, done)


if __name__ == "__main__":
    main()
