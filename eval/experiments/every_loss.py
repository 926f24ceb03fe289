"""Train every loss of the package on the same towers, data and budget: the work of `every_loss`.

The two projections of the packaged model are trained on features of its frozen towers, from renders
of birds and captions that name the species (48 texts). The kinds of wrong data are listed in
`DATA`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.experiments import captions
from eval.experiments.captions import TEXTS
from eval.experiments.run import Cell, packed
from eval.miniature import birds
from eval.miniature.birds import Birds
from eval.tables import place_of
from vldebias.report.result import Result
from vldebias.training.monitor import image_features, text_features
from vldebias.training.pairs import Pairs
from vldebias.utils.pictures import subplots, write_png

POOL = 6000  # renders per seed, some of which a kind of data uses
FEW = 8  # number of species if a batch has many images of each
TAIL = 50  # ratio of the frequencies of the most frequent and the rarest species
COARSE = 6  # number of species that share one caption
ACCURACY, RECALL = "zero_shot_accuracy", "recall@1 text->image"
WORST, FINE, COST = "worst group", "species by means", "ms a step"

SHARES = {
    "clean": 0.0,
    "20% wrong captions": 0.2,
    "40% wrong captions": 0.4,
    "60% wrong captions": 0.6,
}
"""Kind of data -> its share of wrong captions."""

Species = NDArray[np.int64]
Learned = tuple[Species, Species]  # rows of the pool, and the species that each caption names


@dataclass(frozen=True)
class Renders:
    """Store features of renders from the frozen image tower, (n, w, 1, 1), and their labels."""

    features: Tensor
    species: Species
    group: Species

    def cosines(self, model: Any) -> Tensor:
        """Return the cosine of each image with the text of each species, (n, texts)."""
        return image_features(model, self.features) @ text_features(model, TEXTS).T

    def right_zero_shot(self, model: Any) -> NDArray[np.float64]:
        """Return (n,) 1 if the nearest text names the species of an image, else 0."""
        nearest = self.cosines(model).argmax(dim=1).numpy()
        return (nearest == self.species).astype(float)

    def first_is_right(self, model: Any) -> NDArray[np.float64]:
        """Return (texts,) 1 if the image nearest to a text shows its species, else 0."""
        nearest = self.cosines(model).argmax(dim=0).numpy()
        return (self.species[nearest] == np.arange(len(nearest))).astype(float)

    def right_by_means(self, model: Any, pool: Renders, rows: Species) -> NDArray[np.float64]:
        """Return (n,) 1 if the nearest class mean of training images, rows of the pool, has the
        image's species.

        This shows how much of the species remains in features that were trained on coarser words.
        """
        learned = image_features(model, pool.features[rows])
        species = torch.from_numpy(pool.species[rows])
        means = torch.stack([learned[species == code].mean(0) for code in range(len(TEXTS))])
        nearest = torch.cdist(image_features(model, self.features), means).argmin(dim=1).numpy()
        return (nearest == self.species).astype(float)


def clean(species: Species, seed: int) -> Learned:
    """Return a part of the pool with its own captions."""
    rows = np.arange(captions.FEWER)
    return rows, species[rows]


def wrong(share: float) -> Callable[[Species, int], Learned]:
    """Return data in which a share of the captions is sampled from all captions."""

    def made(species: Species, seed: int) -> Learned:
        rows, named = clean(species, seed)
        return rows, named[Pairs.noise(len(rows), share, seed)]

    return made


def few_classes(species: Species, seed: int) -> Learned:
    """Return the images of a few species, so that an eighth of the negatives are false; all species
    are tested."""
    rows = np.flatnonzero(species < FEW)
    return rows, species[rows]


def long_tail(species: Species, seed: int) -> Learned:
    """Return fewer images of each species than of the previous one, down to one in `TAIL` of the
    first."""
    count = len(TEXTS)
    limit = np.bincount(species, minlength=count).min()
    sizes = np.round(limit * TAIL ** (-np.arange(count) / (count - 1))).astype(int).clip(1)
    rows = [np.flatnonzero(species == code)[:size] for code, size in enumerate(sizes)]
    chosen_rows = np.concatenate(rows)
    return chosen_rows, species[chosen_rows]


def coarse(species: Species, seed: int) -> Learned:
    """Return captions that use one species for each group of `COARSE` species."""
    rows = np.arange(captions.FEWER)
    return rows, species[rows] // COARSE * COARSE


DATA: dict[str, Callable[[Species, int], Learned]] = {
    "clean": clean,
    "20% wrong captions": wrong(0.2),
    "40% wrong captions": wrong(0.4),
    "60% wrong captions": wrong(0.6),
    "few classes": few_classes,
    "long tail": long_tail,
    "coarse captions": coarse,
}
"""Kind of data -> (species of the pool, seed) -> what is learned from."""


@lru_cache(maxsize=12)
def renders(n: int, seed: int) -> Renders:
    """Return renders of a seed, with each species equally often and in front of each background."""
    world: Birds = birds.sample(n, seed=seed, balanced=True)
    parts = [captions.frozen(part) for part in captions.pixels(world).split(500)]
    return Renders(torch.cat(parts), world.species.numpy(), world.group.numpy())


def every_loss(cell: Cell) -> dict[str, Any]:
    """Score one arm on one kind of data.

    The score uses validation renders if settings are selected, and held-out ones otherwise. For
    InfoNCE, also score a second training run without the pairs with the lowest early scores.
    """
    pool = renders(POOL, 8000 + cell["seed"])
    rows, named = DATA[cell["data"]](pool.species, cell["seed"])
    start = captions.learner("heads", cell["seed"])
    if cell["arm"] == "not trained":
        return worth(start, cell["data"], pool, rows)
    images = pool.features[rows]
    texts = [TEXTS[code] for code in named]
    began = time.process_time()
    learner = captions.train(
        start,
        images,
        texts,
        captions.loss_of(cell),
        labels=torch.from_numpy(named),
        steps=cell["steps"],
        batch_size=captions.FEWER_BATCH,
        lr=cell["lr"],
        seed=cell["seed"],
    )
    spent = (time.process_time() - began) / cell["steps"] * 1000
    if cell.get("tuning"):
        return {"validation": validated(learner, cell["data"], pool, rows)}
    figures = worth(learner, cell["data"], pool, rows) | {COST: spent}
    if cell["arm"] == "InfoNCE" and "wrong" in cell["data"]:
        again = filtered(cell, images, texts)
        second = worth(again, cell["data"], pool, rows)
        figures |= {f"InfoNCE, filtered: {name}": value for name, value in second.items()}
    return figures


def filtered(cell: Cell, images: Tensor, texts: list[str]) -> Any:
    """Return a new model trained only on the pairs with the highest early scores."""
    cell = {**cell, "start": "heads", "temperature": captions.loss_of(cell)["temperature"]}
    _, watch = captions.watched(cell, images, texts)
    early = captions.learner("heads", cell["seed"])
    early.model.load_state_dict(watch.early)
    return captions.filtered(cell, early, images, texts)


def validated(learner: Any, data: str, pool: Renders, rows: Species) -> float:
    """Return the score by which settings are selected, the accuracy of the species."""
    unseen = renders(captions.VALIDATION, captions.VALIDATION_SEED)
    if data == "coarse captions":
        return float(unseen.right_by_means(learner, pool, rows).mean())
    return float(unseen.right_zero_shot(learner).mean())


def worth(learner: Any, data: str, pool: Renders, rows: Species) -> dict[str, Any]:
    """Return the figures of a model on held-out renders, and the scores of each render."""
    unseen = renders(captions.HELD_OUT, captions.HELD_OUT_SEED)
    if data == "coarse captions":
        right = unseen.right_by_means(learner, pool, rows)
        return {FINE: float(right.mean()), **packed(FINE, right)}
    right = unseen.right_zero_shot(learner)
    groups = [right[unseen.group == code].mean() for code in np.unique(unseen.group)]
    first = unseen.first_is_right(learner)
    return {
        ACCURACY: float(right.mean()),
        **packed(ACCURACY, right),
        RECALL: float(first.mean()),
        WORST: float(min(groups)),
    }


def draw_losses(result: Result, path: Path) -> None:
    """Draw accuracy over the share of wrong captions, one line with its interval for each loss."""
    figure, axes = subplots(1, 1, (8, 4.5))
    (axis,) = np.ravel(axes)
    points = dict[str, list[tuple[float, float, float, float]]]()
    for row in result.rows:
        data = str(place_of(row).get("data"))
        if row.task == "losses" and row.metric == ACCURACY and data in SHARES:
            points.setdefault(row.method, []).append((SHARES[data], row.value, *row.interval))
    styles: dict[str, dict[str, Any]] = {
        "not trained": {"color": "grey", "linestyle": ":"},
        "InfoNCE": {"color": "black"},
        "InfoNCE, filtered": {"color": "black", "linestyle": "--"},
    }
    for arm, rows in points.items():
        shares, values, lows, highs = np.array(sorted(rows)).T
        (line,) = axis.plot(shares, values, marker="o", ms=4, label=arm, **styles.get(arm, {}))
        axis.fill_between(shares, lows, highs, alpha=0.08, color=line.get_color())
    axis.set(xlabel="share of wrong captions", ylabel=ACCURACY.replace("_", " "))
    axis.legend(fontsize=8, loc="lower left", ncols=2)
    write_png(figure, path, {"from": f"{path.stem}.json"}, small=True)
