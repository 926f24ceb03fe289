"""From what every method classifies right to figures: worst group, averages, gap, and every group by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data import Labels
from vldebias.evaluation.groups.bootstrap import (
    GroupCounts,
    Reweighted,
    Statistic,
    average,
    gap,
    weights_of,
    wilson_interval,
    worst,
)
from vldebias.evaluation.result import Figure

__all__ = ["Classified", "GroupFigures"]


@dataclass(frozen=True, eq=False)
class Classified:
    """What one method does on n images: (n,) mask of those it gets right.

    details: fields of its figures (lam, strength, uses_labels); about: what the protocol says of it.
    """

    method: str
    right: NDArray[np.bool_]
    details: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GroupFigures:
    """Makes the figures of methods on the same images of known groups; `base` is what changes are measured from.

    weights: group name -> size in a training split, for the reweighted average; None: none is given.

    Raises:
        InvalidInputError: weights that do not fit the groups, see `weights_of`.
    """

    base: NDArray[np.bool_]
    groups: Labels
    weights: Mapping[str, float] | None = None
    resamples: int = 2000
    seed: int = 0

    @cached_property
    def size(self) -> NDArray[np.int64]:
        """Images of each group (g,)."""
        return np.bincount(self.groups.codes, minlength=len(self.groups.names))

    def overall(self, task: str, methods: Sequence[Classified]) -> list[Figure]:
        """`worst_group`, `average`, `average_reweighted` where there are weights, and `gap`, of every method."""
        n = {"images": len(self.groups), "smallest group": int(self.size[self.size > 0].min())}
        counts = [(method, self._counts(method)) for method in methods]
        found = []
        for metric, better, statistic in self._statistics():
            for method, of in counts:
                change = None if method.method == "none" else of.change(statistic)
                interval = of.interval(statistic)
                found.append(_figure(task, metric, method, of.value(statistic), interval, change, better, n))
        return found

    def by_group(self, task: str, methods: Sequence[Classified]) -> list[Figure]:
        """`accuracy` of every group that has images, with Wilson's interval, of every method; subset: the group."""
        found = []
        for method in methods:
            counts = self._counts(method)
            for g, name in enumerate(self.groups.names):
                if self.size[g] == 0:
                    continue
                hits, n = int(counts.hits[g]), int(self.size[g])
                change = None if method.method == "none" else counts.group_change(g)
                interval = wilson_interval(hits, n, counts.level)
                found.append(
                    _figure(task, "accuracy", method, hits / n, interval, change, "higher", {"images": n}, subset=name)
                )
        return found

    def _statistics(self) -> list[tuple[str, str, Statistic]]:
        found: list[tuple[str, str, Statistic]] = [("worst_group", "higher", worst), ("average", "higher", average)]
        if self.weights is not None:
            weights = weights_of(self.weights, self.groups.names, self.size)
            found.append(("average_reweighted", "higher", Reweighted(weights)))
        return [*found, ("gap", "lower", gap)]

    def _counts(self, method: Classified) -> GroupCounts:
        return GroupCounts.of(
            self.base,
            method.right,
            self.groups.codes,
            len(self.groups.names),
            resamples=self.resamples,
            seed=self.seed,
        )


def _figure(
    task: str,
    metric: str,
    method: Classified,
    value: float,
    interval: tuple[float, float],
    change: tuple[float, float, float] | None,
    better: str,
    n: dict[str, int],
    subset: str = "",
) -> Figure:
    return Figure(
        task=task,
        metric=metric,
        method=method.method,
        value=value,
        interval=interval,
        change=change,
        better=better,
        n=n,
        subset=subset,
        **method.details,
    )
