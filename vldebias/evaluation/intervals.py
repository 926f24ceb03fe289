"""From values per unit and method to figures: an interval for each, and one for its paired difference to "none".

Percentile intervals of a mean over units cover where there are some tens of units that differ. Units that are all
alike give a width of 0, which says that resampling shows no variation and not that there is none; accuracies by group
have intervals of their own for that (`vldebias.evaluation.groups.bootstrap`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vldebias.evaluation.result import Figure
from vldebias.metrics import bootstrap_interval

__all__ = ["Measured", "figures", "worst_group"]

Statistic = Callable[..., np.ndarray]


def _mean(values: np.ndarray) -> np.ndarray:
    return values.mean(axis=-1)


@dataclass(frozen=True)
class Measured:
    """Values (n,) of the same n units (images, queries, professions) under every method.

    statistic: from resampled values (b, n) and the `shared` arrays (b, n) to (b,); the mean by default.
    n: what a unit is, and counts that help to read the figure. subset: see Figure.
    details: method -> fields of its figures beyond the common ones (lam, strength, uses_labels).
    """

    task: str
    metric: str
    better: str
    n: dict[str, int]
    values: Mapping[str, np.ndarray]
    statistic: Statistic = _mean
    shared: tuple[np.ndarray, ...] = field(default=())
    subset: str = ""
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def figures(measured: Measured, *, resamples: int = 2000, seed: int = 0) -> list[Figure]:
    """One figure per method, with 95 % percentile intervals over units; differences are resampled together."""
    base = measured.values.get("none")
    settings: dict[str, Any] = {"resamples": resamples, "seed": seed, "vectorized": True}

    def difference(after: np.ndarray, before: np.ndarray, *shared: np.ndarray) -> np.ndarray:
        return measured.statistic(after, *shared) - measured.statistic(before, *shared)

    found = []
    for method, values in measured.values.items():
        own = bootstrap_interval(values, *measured.shared, statistic=measured.statistic, **settings)
        change = None
        if base is not None and method not in ("none", "random"):
            paired = bootstrap_interval(values, base, *measured.shared, statistic=difference, **settings)
            change = (paired.value, paired.low, paired.high)
        found.append(
            Figure(
                task=measured.task,
                metric=measured.metric,
                method=method,
                value=own.value,
                interval=(own.low, own.high),
                change=change,
                better=measured.better,
                n=measured.n,
                subset=measured.subset,
                **measured.details.get(method, {}),
            )
        )
    return found


def worst_group(correct: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """min over groups of the accuracy, for each row of `correct` and `groups` (b, n): the vectorised statistic.

    A group that a resample does not hold has no accuracy and is left out, as in `worst_group_accuracy`.
    """
    accuracies = []
    for group in np.unique(groups):
        inside = groups == group
        count = inside.sum(axis=-1)
        hits = (correct * inside).sum(axis=-1)
        accuracies.append(np.where(count > 0, hits / np.maximum(count, 1), np.inf))
    return np.min(accuracies, axis=0)
