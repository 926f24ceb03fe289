"""Accuracies by group with intervals: a bootstrap over images that draws counts instead of images.

Whatever is said about groups depends on an image only through its group and through whether it was classified right,
without a method and with it. Images that agree in all three are interchangeable, so the resamples of n images, drawn
with replacement, are multinomial counts over the 4 g cells (group, right without, right with): the very distribution
that drawing n indices has, at a cost that does not grow with n. The worst group is picked again in every resample, and
both methods are measured on the same resample, which makes differences paired.

Where the intervals do not cover (`eval/coverage.py` simulates all of this): the accuracy of the worst of several groups
that are about equally hard, since the smallest of several noisy accuracies is biased downwards, in the sample and once
more in every resample; a worst group of fewer than about 30 images; a worst accuracy within a few images of 0 or 1.
Where no image of a group is right, or none is wrong, resampling shows no variation at all. If that group decides the
worst accuracy, Wilson's interval takes the place of a width of 0; the reweighted average is then put together from
Wilson's intervals of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from vldebias.errors import InvalidInputError

__all__ = ["GroupCounts", "Reweighted", "average", "gap", "weights_of", "wilson_interval", "worst"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Bounds = tuple[float, float]
Statistic = Callable[[Counts, Counts], Floats]


def worst(hits: Counts, size: Counts) -> Floats:
    """min_g acc_g from hits and sizes (..., g); a group without images has no accuracy and is left out."""
    return np.where(size > 0, hits / np.maximum(size, 1), np.inf).min(axis=-1)


def average(hits: Counts, size: Counts) -> Floats:
    """Micro average: the accuracy over all images, from hits and sizes (..., g)."""
    return hits.sum(axis=-1) / size.sum(axis=-1)


def gap(hits: Counts, size: Counts) -> Floats:
    """Micro average minus worst group, >= 0."""
    return average(hits, size) - worst(hits, size)


@dataclass(frozen=True, eq=False)
class Reweighted:
    """sum_g w_g acc_g / sum_g w_g over the groups that have images, for weights (g,) such as training group sizes."""

    weights: Floats

    def __call__(self, hits: Counts, size: Counts) -> Floats:
        """Values (...) from hits and sizes (..., g)."""
        present = self.weights * (size > 0)
        total = present.sum(axis=-1)
        if not np.all(total > 0):
            raise InvalidInputError("group weights: a resample has no image of any group with a weight; too few images")
        return (present * hits / np.maximum(size, 1)).sum(axis=-1) / total

    def closed_form(self, hits: Counts, size: Counts, level: float) -> Bounds:
        """Interval put together from Wilson's of every group: half widths times weights, squared and added.

        Source: Zou and Donner (2008), "Construction of confidence limits about effect measures".
        """
        used = (self.weights > 0) & (size > 0)
        share = self.weights[used] / self.weights[used].sum()
        accuracy = hits[used] / size[used]
        pairs = zip(hits[used].tolist(), size[used].tolist(), strict=True)
        low, high = np.array([wilson_interval(h, n, level) for h, n in pairs]).T
        value = float(share @ accuracy)
        below, above = (float(np.linalg.norm(share * width)) for width in (accuracy - low, high - accuracy))
        return max(value - below, 0.0), min(value + above, 1.0)


def wilson_interval(hits: int, n: int, level: float = 0.95) -> Bounds:
    """Wilson's score interval of a proportion: closed form, of a width above 0 also where hits is 0 or n.

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference".

    >>> [round(bound, 4) for bound in wilson_interval(0, 20)]
    [0.0, 0.1611]

    Raises:
        InvalidInputError: no rows, hits outside 0 .. n, a level outside (0, 1).
    """
    if not 0 < level < 1 or not 0 <= hits <= n or n < 1:
        raise InvalidInputError(f"expected 0 <= hits <= n, n >= 1 and a level in (0, 1), got {hits}, {n}, {level}")
    z = float(norm.ppf((1 + level) / 2))
    share = hits / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if hits == 0 else (centre - half) / scale
    return low, 1.0 if hits == n else (centre + half) / scale


@dataclass(frozen=True, eq=False)
class GroupCounts:
    """Images counted by (group, right without the method, right with it): cells (g, 2, 2).

    resamples, seed: of the bootstrap; level: coverage of every interval.

    Raises:
        InvalidInputError: cells of another shape, negative, or all 0; a level or number of resamples out of range.
    """

    cells: Counts
    resamples: int = 2000
    seed: int = 0
    level: float = 0.95

    def __post_init__(self) -> None:
        cells = np.asarray(self.cells)
        if cells.ndim != 3 or cells.shape[1:] != (2, 2) or cells.dtype.kind not in "iu":
            raise InvalidInputError(f"cells: expected counts (g, 2, 2), got {cells.shape} of {cells.dtype}")
        if cells.size == 0 or cells.min() < 0 or cells.sum() == 0:
            raise InvalidInputError("cells: expected counts >= 0 with at least one image; are all labels unknown?")
        if self.resamples < 1 or not 0 < self.level < 1:
            raise InvalidInputError(
                f"expected resamples >= 1 and a level in (0, 1), got {self.resamples} and {self.level}"
            )

    @classmethod
    def of(
        cls,
        before: NDArray[np.bool_],
        after: NDArray[np.bool_],
        groups: Counts,
        n_groups: int,
        *,
        resamples: int = 2000,
        seed: int = 0,
        level: float = 0.95,
    ) -> GroupCounts:
        """Counts of n images from (n,) masks of what is right without and with a method and codes (n,) of groups."""
        lengths = {len(before), len(after), len(groups)}
        if len(lengths) > 1 or (len(groups) and not 0 <= groups.min() <= groups.max() < n_groups):
            raise InvalidInputError(
                f"expected columns of one length with groups 0 .. {n_groups - 1}, got lengths {sorted(lengths)}"
            )
        code = 4 * np.asarray(groups, np.int64) + 2 * np.asarray(before, bool) + np.asarray(after, bool)
        cells = np.bincount(code, minlength=4 * n_groups).reshape(n_groups, 2, 2)
        return cls(cells, resamples, seed, level)

    @property
    def size(self) -> Counts:
        """Images of each group (g,)."""
        return self.cells.sum(axis=(1, 2))

    @property
    def hits(self) -> Counts:
        """Images of each group (g,) that the method gets right."""
        return self.cells[:, :, 1].sum(axis=1)

    @cached_property
    def drawn(self) -> Counts:
        """Cells (resamples, g, 2, 2) of resamples of as many images, drawn with replacement."""
        n = int(self.cells.sum())
        drawn = np.random.default_rng(self.seed).multinomial(n, self.cells.reshape(-1) / n, size=self.resamples)
        return drawn.reshape(self.resamples, *self.cells.shape)

    def value(self, statistic: Statistic) -> float:
        """The statistic of the method."""
        return float(statistic(self.hits, self.size))

    def interval(self, statistic: Statistic) -> Bounds:
        """`percentile`, or one made of Wilson's where what decides cannot vary in any resample."""
        return self._cannot_vary(statistic) or self.percentile(statistic)

    def percentile(self, statistic: Statistic) -> Bounds:
        """Percentile interval of the statistic, of width 0 where no resample differs."""
        return self._bounds(statistic(self.drawn[..., 1].sum(-1), self.drawn.sum((-1, -2))))

    def change(self, statistic: Statistic) -> tuple[float, float, float]:
        """Statistic with the method minus without: value and percentile interval of the paired difference."""
        before, size = self.drawn[:, :, 1].sum(-1), self.drawn.sum((-1, -2))
        difference = statistic(self.drawn[..., 1].sum(-1), size) - statistic(before, size)
        value = self.value(statistic) - float(statistic(self.cells[:, 1].sum(-1), self.size))
        return value, *self._bounds(difference)

    def group_change(self, group: int) -> tuple[float, float, float]:
        """The same for the accuracy of one group, over the resamples that hold an image of it."""
        only = self.cells[group]
        drawn = self.drawn[:, group]
        size = drawn.sum((-1, -2))
        gained = (drawn[:, 0, 1] - drawn[:, 1, 0])[size > 0] / size[size > 0]
        return float((only[0, 1] - only[1, 0]) / only.sum()), *self._bounds(gained)

    def _cannot_vary(self, statistic: Statistic) -> Bounds | None:
        """A closed form where all images that decide are right, or all are wrong; else None."""
        hits, size = self.hits, self.size
        if statistic is average and hits.sum() in (0, size.sum()):
            return wilson_interval(int(hits.sum()), int(size.sum()), self.level)
        if statistic is worst and self.value(worst) in (0.0, 1.0):
            n = int(size[(size > 0) & (hits == self.value(worst) * size)].min())  # the widest of several
            return wilson_interval(int(self.value(worst)) * n, n, self.level)
        if isinstance(statistic, Reweighted):
            fixed = (size > 0) & (statistic.weights > 0) & ((hits == 0) | (hits == size))
            return statistic.closed_form(hits, size, self.level) if fixed.any() else None
        return None

    def _bounds(self, values: Floats) -> Bounds:
        low, high = np.quantile(values, [(1 - self.level) / 2, (1 + self.level) / 2])
        return float(low), float(high)


def weights_of(weights: Mapping[str, float], names: tuple[str, ...], size: Counts) -> Floats:
    """Weights (g,) in the order of the groups.

    Raises:
        InvalidInputError: names that are not the groups', weights that are negative, not finite or all 0, or a weight
            for a group without images, whose accuracy nobody knows.
    """
    if set(weights) != set(names):
        raise InvalidInputError(f"group weights: expected one for each of {list(names)}, got {list(weights)}")
    found = np.array([float(weights[name]) for name in names])
    if not np.isfinite(found).all() or found.min() < 0 or found.sum() == 0:
        raise InvalidInputError(f"group weights: expected finite values >= 0 that are not all 0, got {dict(weights)}")
    empty = [name for name, w, n in zip(names, found, size, strict=True) if w > 0 and n == 0]
    if empty:
        raise InvalidInputError(
            f"group weights: {empty} have a weight but no images; leave the weights out, or add some"
        )
    return found
