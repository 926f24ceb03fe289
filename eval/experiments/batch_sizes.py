"""Fine-tune with the defaults of each loss at batch sizes from 64 to 8,192 (`batch_sizes`).

The best values of some settings, such as RINCE's lam, depend on the number of negatives. This
experiment shows whether defaults that work for one batch size ruin a model at a different one.
"""

from __future__ import annotations

from typing import Any

import torch

from eval.experiments import captions
from eval.experiments.captions import METRIC, TEXTS
from eval.experiments.every_loss import renders
from eval.experiments.run import Cell, scored
from vldebias.training.pairs import Pairs

POOL = 8208  # renders per seed: the smallest multiple of 48 species that fills a batch of 8,192
SHARE = 0.2  # share of the captions that are swapped with those of other images


def batch_sizes(cell: Cell) -> dict[str, Any]:
    """Return the held-out zero-shot accuracy after fine-tuning with a loss and a batch size."""
    pool = renders(POOL, 8000 + cell["seed"])
    model = captions.learner("heads", cell["seed"])
    if cell["arm"] != "not trained":
        named = pool.species[Pairs.noise(len(pool.species), SHARE, cell["seed"])]
        captions.train(
            model,
            pool.features,
            [TEXTS[code] for code in named],
            captions.objective_of(captions.loss_of(cell), len(named)),
            labels=torch.from_numpy(named),
            steps=cell["steps"],
            batch_size=cell["batch"],
            lr=cell["lr"],
            seed=cell["seed"],
        )
    unseen = renders(captions.HELD_OUT, captions.HELD_OUT_SEED)
    return scored(METRIC, unseen.right_zero_shot(model))
