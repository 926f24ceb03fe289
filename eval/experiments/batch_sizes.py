"""Fine-tune with each loss and its defaults at batches of 64 to 8,192 pairs (`batch_sizes`).

The best value of some constants, such as RINCE's lam, depends on the number of negatives. This
experiment shows whether a default that works for one batch size ruins a model at another.
"""

from __future__ import annotations

from typing import Any

import torch

from eval.experiments import captions
from eval.experiments.captions import METRIC, TEXTS
from eval.experiments.every_loss import renders
from eval.experiments.run import Cell, packed
from vldebias.training.pairs import Pairs

POOL = 8208  # renders of a seed: the least multiple of 48 species that fills a batch of 8,192
SHARE = 0.2  # of the captions, which are those of other images


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
            captions.loss_of(cell),
            labels=torch.from_numpy(named),
            steps=cell["steps"],
            batch_size=cell["batch"],
            lr=cell["lr"],
            seed=cell["seed"],
        )
    unseen = renders(captions.HELD_OUT, captions.HELD_OUT_SEED)
    right = unseen.right_zero_shot(model)
    return {METRIC: float(right.mean()), **packed(METRIC, right)}
