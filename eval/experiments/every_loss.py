"""Train with every loss in the package on the same towers, data and budget (`every_loss`).

The two projections of the packaged model are trained on features of its frozen towers, using
renders of birds and captions that name one of 48 species. `DATA` lists the kinds of training data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import skew, spearmanr
from torch import Tensor

from eval.experiments import captions
from eval.experiments.captions import TEXTS
from eval.experiments.run import Cell, scored
from eval.miniature import birds
from eval.miniature.birds import Birds
from eval.tables import place_of
from vldebias.report.result import Result
from vldebias.training.monitor import image_features, text_features
from vldebias.training.pairs import Pairs
from vldebias.utils.pictures import subplots, write_png

POOL = 6000  # renders per seed, from which each kind of data is selected
FEW = 8  # number of species if batches contain many images per species
TAIL = 50  # ratio between the frequencies of the most common and the rarest species
COARSE = 6  # number of species that share a caption
ACCURACY, FINE = "zero_shot_accuracy", "species by means"

SHARES = {"clean": 0.0, **{f"{share:.0%} wrong captions": share for share in (0.2, 0.4, 0.6)}}
"""The share of wrong captions in each kind of data."""

Species = NDArray[np.int64]
Learned = tuple[Species, Species]  # rows in the pool, and the species in each caption


@dataclass(frozen=True)
class Renders:
    """Renders with labels, as features (n, w, 1, 1) of the frozen image tower."""

    features: Tensor
    species: Species

    def right_zero_shot(self, model: Any) -> NDArray[np.float64]:
        """Return, for each image, 1 if the nearest caption names its species and 0 otherwise."""
        cosines = image_features(model, self.features) @ text_features(model, TEXTS).T
        nearest = cosines.argmax(dim=1).numpy()
        return (nearest == self.species).astype(float)

    def right_by_means(self, model: Any, pool: Renders, rows: Species) -> NDArray[np.float64]:
        """Return 1 for each image that is nearest to the training mean of its own species, else 0.

        This shows how well features that were trained on coarser captions distinguish species.
        """
        learned = image_features(model, pool.features[rows])
        species = torch.from_numpy(pool.species[rows])
        means = torch.stack([learned[species == code].mean(0) for code in range(len(TEXTS))])
        nearest = torch.cdist(image_features(model, self.features), means).argmin(dim=1).numpy()
        return (nearest == self.species).astype(float)


def clean(species: Species, seed: int) -> Learned:
    """Return a part of the pool with correct captions."""
    rows = np.arange(captions.FEWER)
    return rows, species[rows]


def wrong(share: float) -> Callable[[Species, int], Learned]:
    """Return a function that replaces a share of the captions with random ones."""

    def made(species: Species, seed: int) -> Learned:
        rows, named = clean(species, seed)
        return rows, named[Pairs.noise(len(rows), share, seed)]

    return made


def few_classes(species: Species, seed: int) -> Learned:
    """Return images of a few species, so that an eighth of the negatives are false."""
    rows = np.flatnonzero(species < FEW)
    return rows, species[rows]


def long_tail(species: Species, seed: int) -> Learned:
    """Return a long-tailed selection, in which the rarest species is `TAIL` times less frequent."""
    count = len(TEXTS)
    limit = np.bincount(species, minlength=count).min()
    sizes = np.round(limit * TAIL ** (-np.arange(count) / (count - 1))).astype(int).clip(1)
    rows = [np.flatnonzero(species == code)[:size] for code, size in enumerate(sizes)]
    chosen_rows = np.concatenate(rows)
    return chosen_rows, species[chosen_rows]


def coarse(species: Species, seed: int) -> Learned:
    """Return captions that name the same species for each group of `COARSE` species."""
    rows = np.arange(captions.FEWER)
    return rows, species[rows] // COARSE * COARSE


DATA: dict[str, Callable[[Species, int], Learned]] = {
    **{name: wrong(share) if share else clean for name, share in SHARES.items()},
    "few classes": few_classes,
    "long tail": long_tail,
    "coarse captions": coarse,
}
"""Functions from the pool's species and a seed to training data, for each kind of data."""


@lru_cache(maxsize=12)
def renders(n: int, seed: int) -> Renders:
    """Return n renders, in which all species and backgrounds are equally frequent."""
    world: Birds = birds.sample(n, seed=seed, balanced=True)
    parts = [captions.frozen(part) for part in captions.pixels(world).split(500)]
    return Renders(torch.cat(parts), world.species.numpy())


def every_loss(cell: Cell) -> dict[str, Any]:
    """Score one arm on one kind of data.

    Scores are measured on validation renders for selecting settings, and on held-out renders
    otherwise. For InfoNCE, also score a second training run that excludes the pairs with the lowest
    early scores.
    """
    pool = renders(POOL, 8000 + cell["seed"])
    rows, named = DATA[cell["data"]](pool.species, cell["seed"])
    start = captions.learner("heads", cell["seed"])
    if cell["arm"] == "not trained":
        return worth(start, cell["data"], pool, rows)
    images = pool.features[rows]
    texts = [TEXTS[code] for code in named]
    learner = captions.train(
        start,
        images,
        texts,
        captions.objective_of(captions.loss_of(cell), len(rows)),
        labels=torch.from_numpy(named),
        steps=cell["steps"],
        batch_size=captions.FEWER_BATCH,
        lr=cell["lr"],
        seed=cell["seed"],
    )
    if cell.get("tuning"):
        return {"validation": validated(learner, cell["data"], pool, rows)}
    figures = worth(learner, cell["data"], pool, rows)
    if cell["arm"] == "InfoNCE" and "wrong" in cell["data"]:
        again = filtered(cell, images, texts)
        second = worth(again, cell["data"], pool, rows)
        figures |= {f"InfoNCE, filtered: {name}": value for name, value in second.items()}
    return figures


def learned_popularity(cell: Cell) -> dict[str, Any]:
    """Compare the popularity that NUCLR learns on a long tail with the frequency of the species."""
    pool = renders(POOL, 8000 + cell["seed"])
    rows, named = long_tail(pool.species, cell["seed"])
    objective = captions.objective_of(captions.loss_of(cell), len(rows))
    captions.train(
        captions.learner("heads", cell["seed"]),
        pool.features[rows],
        [TEXTS[code] for code in named],
        objective,
        steps=cell["steps"],
        batch_size=captions.FEWER_BATCH,
        lr=cell["lr"],
        seed=cell["seed"],
    )
    frequency = np.bincount(named)[named]
    figures: dict[str, float] = {}
    for side, values in zip(("captions", "images"), objective.loss.log_popularity, strict=True):
        learned = values.numpy()
        least, *_, most = np.array_split(frequency[learned.argsort()], 10)
        figures |= {
            f"rank correlation, {side}": float(spearmanr(learned, frequency).statistic),
            f"skewness, {side}": float(skew(np.exp(learned - learned.max()))),
            f"frequency of least popular, {side}": float(least.mean()),
            f"frequency of most popular, {side}": float(most.mean()),
        }
    return figures


def filtered(cell: Cell, images: Tensor, texts: list[str]) -> Any:
    """Train a new model only on the pairs with the highest early scores."""
    cell = {**cell, "start": "heads", "temperature": captions.loss_of(cell)["temperature"]}
    _, watch = captions.watched(cell, images, texts)
    early = captions.learner("heads", cell["seed"])
    early.model.load_state_dict(watch.early)
    return captions.filtered(cell, early, images, texts)


def validated(learner: Any, data: str, pool: Renders, rows: Species) -> float:
    """Return the species accuracy, by which settings are selected."""
    unseen = renders(captions.VALIDATION, captions.VALIDATION_SEED)
    if data == "coarse captions":
        return float(unseen.right_by_means(learner, pool, rows).mean())
    return float(unseen.right_zero_shot(learner).mean())


def worth(learner: Any, data: str, pool: Renders, rows: Species) -> dict[str, Any]:
    """Return the results for a model on held-out renders, with the scores of each render."""
    unseen = renders(captions.HELD_OUT, captions.HELD_OUT_SEED)
    if data == "coarse captions":
        return scored(FINE, unseen.right_by_means(learner, pool, rows))
    return scored(ACCURACY, unseen.right_zero_shot(learner))


def draw_losses(result: Result, path: Path) -> None:
    """Draw accuracy over the share of wrong captions, with a line and interval for each loss."""
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
