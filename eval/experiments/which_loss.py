"""Which loss when captions are wrong? The losses and the rivals that a reader will ask for, each with its own settings.

python -m eval.experiments.run which_loss_heads      # the shipped CLIP, its two projections: seconds a cell
python -m eval.experiments.run which_loss_scratch    # a small CLIP from random weights, 300 steps: half a minute a cell

Data, noise and start are those of noisy_pairs.py. Of every training that learned also the mean of its weights and those
that it began with is read (WiSE-FT), and of InfoNCE a training begun anew without the pairs that its early scores say
fit least ("filtered"). Intervals are over seeds and held-out images together.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from eval.experiments.cells import Cell, packed
from eval.experiments.experiment import Experiment
from eval.experiments.noisy_pairs import (
    BASE,
    FILTERED,
    METRIC,
    SHIPPED,
    VALIDATION,
    filtered,
    learned_from,
    learner,
    monitor,
    seen,
    train,
)
from eval.experiments.small_clip import ARCHITECTURE, HELD_OUT, HELD_OUT_SEED

MIXED = "WiSE-FT"


def work(cell: Cell) -> dict[str, Any]:
    """One arm on held-out renders; of InfoNCE also filtered; of a model that knew something also mixed with it."""
    if cell["arm"] == SHIPPED:
        return worth(cell, learner(cell["start"], cell["seed"]))
    what = (cell["noise"], cell["share"], cell["seed"])
    images, (_, texts, _) = seen(cell["start"], what), learned_from(*what)
    found, watch = train(cell, images, texts)
    if cell.get("tuning"):
        return {"validation": watch.seen[-1]}
    figures, end = worth(cell, found), copy.deepcopy(found.model.state_dict())
    if cell["start"] != "scratch" and cell["arm"] in cell["mixed"]:
        begun = learner(cell["start"], cell["seed"]).model.state_dict()
        found.model.load_state_dict({name: torch.lerp(begun[name].float(), end[name].float(), 0.5) for name in end})
        figures |= named(f"{cell['arm']}, {MIXED}", worth(cell, found))
    if cell["arm"] == BASE:
        again, *_ = filtered(cell, found, watch, images, texts, cell["kept"])
        figures |= named(FILTERED, worth(cell, again))
    return figures


def named(arm: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Name figures of another arm than the cell's."""
    return {f"{arm}: {name}": value for name, value in figures.items()}


def worth(cell: Cell, found: Any) -> dict[str, Any]:
    """Zero-shot on held-out renders, with what each of them scored."""
    rows = monitor(cell["start"], HELD_OUT, HELD_OUT_SEED).rows(found)[METRIC].numpy()
    return {METRIC: float(rows.mean()), **packed(METRIC, rows)}


def description(experiment: Experiment, steps: int) -> dict[str, Any]:
    """Data and models, for the protocol."""
    return {
        "scratch": {"model": "open_clip CLIP of random weights", "architecture": ARCHITECTURE},
        "heads": "the shipped miniature CLIP, its two projections alone, over the features of its frozen towers",
        "reported on": f"{HELD_OUT} clean renders, the same for all seeds",
        "tuned on": f"{VALIDATION} other clean renders, at a share of .4 of captions drawn from all",
        "filtered": "without the pairs of the lowest early scores, begun anew; share kept (the best by validation): "
        + ", ".join(map(str, experiment.given["kept"])),
        "WiSE-FT": "half of the trained weights and half of those that it began with",
    }
