"""Features as of Waterbirds: a class direction, and a stronger spurious one that agrees with it in 95 % of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.metrics import GroupAccuracy, group_accuracy


@dataclass(frozen=True)
class World:
    """Split of n rows: features (n, d), labels (n,), place (n,), group = 2 * label + place, class texts (2, d)."""

    features: Tensor
    labels: NDArray[np.int64]
    place: NDArray[np.int64]
    zero_shot: Tensor

    @property
    def groups(self) -> NDArray[np.int64]:
        return 2 * self.labels + self.place

    @property
    def split(self) -> tuple[Tensor, NDArray[np.int64], NDArray[np.int64]]:
        return self.features, self.labels, self.groups


def world(n: int, *, seed: int, agree: float = 0.95, dim: int = 32) -> World:
    """Zero-shot texts mix both directions, and both kinds of features have an offset of their own, as CLIP's have."""
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, 4)))[0].T
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, n)
    place = np.where(draw.random(n) < agree, labels, 1 - labels)
    bird = 2 * labels - 1 + 0.7 * draw.normal(size=n)
    scene = 2 * (2 * place - 1 + 0.3 * draw.normal(size=n))
    noise = 3 / np.sqrt(dim) * draw.normal(size=(n, dim))
    features = np.outer(bird, axes[0]) + np.outer(scene, axes[1]) + 4 * axes[2] + noise
    texts = np.outer([-1, 1], axes[0] + 0.6 * axes[1]) + 4 * axes[3]
    return World(_unit(features), labels, place, _unit(texts))


def _unit(rows: NDArray[np.float64]) -> Tensor:
    return normalize(torch.from_numpy(rows).float(), dim=1)


def accuracy(logits: Tensor, test: World) -> GroupAccuracy:
    return group_accuracy(logits.argmax(1), test.labels, test.groups)


def fit(baseline: Any, train: World, **options: Any) -> Any:
    return baseline.fit(train.features, train.labels, train.zero_shot, **options)
