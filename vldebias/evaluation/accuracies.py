"""Accuracies by group, and areas under the curve, with intervals over images.

Accuracies take a bootstrap that draws counts instead of images.

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

Areas have no bootstrap: those of all methods for one value of the attribute are drawn from a normal distribution with
DeLong's covariance, values by themselves, and the worst value is picked again in every draw. On the small sets of the
tests that agrees with resampled rows to what two runs of resampling differ by, at a cost and a memory that do not grow
with the resamples. Values of which one class is missing have no area and are left out.

Source: DeLong, DeLong and Clarke-Pearson (1988), "Comparing the areas under two or more correlated receiver operating
characteristic curves".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import TaskResult
from vldebias.metrics.bootstrap import percentile_interval, resampled_counts, wilson_interval
from vldebias.metrics.groups import lowest_accuracy, mean_accuracy, placements
from vldebias.metrics.metric import computed

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Bounds = tuple[float, float]
Statistic = Callable[[Counts, Counts], Floats]
Rights = Iterable[tuple[str, NDArray[np.bool_], Mapping[str, Any]]]  # method, (n,) what it gets right, details


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

    def closed_form(self, hits: Counts, size: Counts) -> Bounds:
        """Interval put together from Wilson's of every group: half widths times weights, squared and added.

        Source: Zou and Donner (2008), "Construction of confidence limits about effect measures".
        """
        used = (self.weights > 0) & (size > 0)
        share = self.weights[used] / self.weights[used].sum()
        accuracy = hits[used] / size[used]
        pairs = zip(hits[used].tolist(), size[used].tolist(), strict=True)
        low, high = np.array([wilson_interval(h, n) for h, n in pairs]).T
        value = float(share @ accuracy)
        below, above = (float(np.linalg.norm(share * width)) for width in (accuracy - low, high - accuracy))
        return max(value - below, 0.0), min(value + above, 1.0)


@dataclass(frozen=True, eq=False)
class GroupCounts:
    """Images counted by (group, right without the method, right with it): cells (g, 2, 2).

    resamples, seed: of the bootstrap.
    """

    cells: Counts
    resamples: int = 2000
    seed: int = 0

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
    ) -> GroupCounts:
        """Counts of n images from (n,) masks of what is right without and with a method and codes (n,) of groups."""
        code = 4 * np.asarray(groups, np.int64) + 2 * np.asarray(before, bool) + np.asarray(after, bool)
        cells = np.bincount(code, minlength=4 * n_groups).reshape(n_groups, 2, 2)
        return cls(cells, resamples, seed)

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
        return np.concatenate(list(resampled_counts(self.cells, self.resamples, self.seed)))

    def value(self, statistic: Statistic) -> float:
        """The statistic of the method."""
        return float(statistic(self.hits, self.size))

    def interval(self, statistic: Statistic) -> Bounds:
        """`percentile`, or one made of Wilson's where what decides cannot vary in any resample."""
        return self._cannot_vary(statistic) or self.percentile(statistic)

    def percentile(self, statistic: Statistic) -> Bounds:
        """Percentile interval of the statistic, of width 0 where no resample differs."""
        return percentile_interval(statistic(self.drawn[..., 1].sum(-1), self.drawn.sum((-1, -2))))

    def change(self, statistic: Statistic) -> tuple[float, float, float]:
        """Statistic with the method minus without: value and percentile interval of the paired difference."""
        before, size = self.drawn[:, :, 1].sum(-1), self.drawn.sum((-1, -2))
        difference = statistic(self.drawn[..., 1].sum(-1), size) - statistic(before, size)
        value = self.value(statistic) - float(statistic(self.cells[:, 1].sum(-1), self.size))
        return value, *percentile_interval(difference)

    def group_change(self, group: int) -> tuple[float, float, float]:
        """The same for the accuracy of one group, over the resamples that hold an image of it."""
        only, drawn = self.cells[group], self.drawn[:, group]
        size = drawn.sum((-1, -2))
        gained = (drawn[:, 0, 1] - drawn[:, 1, 0])[size > 0] / size[size > 0]
        return float((only[0, 1] - only[1, 0]) / only.sum()), *percentile_interval(gained)

    def _cannot_vary(self, statistic: Statistic) -> Bounds | None:
        """A closed form where all images that decide are right, or all are wrong; else None."""
        hits, size = self.hits, self.size
        if statistic is mean_accuracy and hits.sum() in (0, size.sum()):
            return wilson_interval(int(hits.sum()), int(size.sum()))
        if statistic is lowest_accuracy and self.value(statistic) in (0.0, 1.0):
            n = int(size[(size > 0) & (hits == self.value(statistic) * size)].min())  # the widest of several
            return wilson_interval(int(self.value(statistic)) * n, n)
        if isinstance(statistic, Reweighted):
            fixed = (size > 0) & (statistic.weights > 0) & ((hits == 0) | (hits == size))
            return statistic.closed_form(hits, size) if fixed.any() else None
        return None


@dataclass(frozen=True, eq=False)
class GroupRows:
    """Rows of methods on the same images; `base` (n,) is what is right without one, and what changes are from.

    weights: group -> size in a training split, for the reweighted average.

    Raises:
        InvalidInputError: weights that do not fit the groups, see `weights_of`.
    """

    base: NDArray[np.bool_]
    groups: Labels
    weights: Mapping[str, float] | None = None
    resamples: int = 2000
    seed: int = 0

    def overall(self, result: TaskResult, rights: Rights) -> None:
        """Every metric of groups (`worst_group`, `average`, `gap`); with weights `average_reweighted` too."""
        counted = [(method, self._counts(mask), details) for method, mask, details in rights]
        size = np.bincount(self.groups.codes, minlength=len(self.groups.names))
        n = {"images": len(self.groups), "smallest group": int(size[size > 0].min())}
        metrics: dict[str, Statistic] = {one.name: statistic for one, statistic in computed("groups")}
        if self.weights is not None:
            metrics["average_reweighted"] = Reweighted(weights_of(self.weights, self.groups.names, size))
        for metric, of in metrics.items():
            for method, counts, details in counted:
                value, change = counts.value(of), counts.change(of)
                result.add(metric, method, value, counts.interval(of), n=n, change=change, **details)

    def by_group(self, result: TaskResult, rights: Rights) -> None:
        """`accuracy` of every group that has images, with Wilson's interval; subset: the group."""
        for method, mask, details in rights:
            counts = self._counts(mask)
            for g in np.flatnonzero(counts.size).tolist():
                hits, n, group = int(counts.hits[g]), int(counts.size[g]), self.groups.names[g]
                about = {"n": {"images": n}, "change": counts.group_change(g), "subset": group, **details}
                result.add("accuracy", method, hits / n, wilson_interval(hits, n), **about)

    def _counts(self, mask: NDArray[np.bool_]) -> GroupCounts:
        names, codes = self.groups.names, self.groups.codes
        return GroupCounts.of(self.base, mask, codes, len(names), resamples=self.resamples, seed=self.seed)


def weights_of(weights: Mapping[str, float], names: tuple[str, ...], size: Counts) -> Floats:
    """Weights (g,) in the order of the groups.

    Raises:
        InvalidInputError: names that are not the groups', weights that are negative, not finite or all 0, or a weight
            for a group without images, whose accuracy nobody knows.
    """
    if set(weights) != set(names):
        raise InvalidInputError(f"group weights: expected one for each of {list(names)}, got {list(weights)}")
    ordered = np.array([float(weights[name]) for name in names])
    if not np.isfinite(ordered).all() or ordered.min() < 0 or ordered.sum() == 0:
        raise InvalidInputError(f"group weights: expected finite values >= 0 that are not all 0, got {dict(weights)}")
    empty = [name for name, w, n in zip(names, ordered, size, strict=True) if w > 0 and n == 0]
    if empty:
        raise InvalidInputError(
            f"group weights: {empty} have a weight but no images; leave the weights out, or add some"
        )
    return ordered


@dataclass(frozen=True, eq=False)
class AreaRows:
    """Areas of n images: positive (n,) says which of two classes they are of, values which attribute value they show.

    resamples, seed: of the draws.
    """

    positive: NDArray[np.bool_]
    values: Labels
    resamples: int = 2000
    seed: int = 0

    @property
    def compared(self) -> list[NDArray[np.bool_]]:
        """The rows (n,) of every value that has both classes."""
        inside = [self.values.codes == code for code in range(len(self.values.names))]
        return [rows for rows in inside if (kinds := self.positive[rows]).any() and not kinds.all()]

    def add(self, result: TaskResult, scores: Mapping[str, NDArray[np.floating]]) -> None:
        """`worst_group_auc` of methods, "none" first, from scores (n,), high for positive rows; no value, no row."""
        order = np.lexsort((scores["none"], self.positive, self.values.codes))  # whatever order the rows come in
        ordered = AreaRows(self.positive[order], self.values[order], self.resamples, self.seed)
        inside = ordered.compared
        if not inside:
            return
        rng = np.random.default_rng(self.seed)
        drawn = [ordered._drawn([one[order[rows]] for one in scores.values()], rows, rng) for rows in inside]
        areas, draws = zip(*drawn, strict=True)
        n = {"images": int(sum(rows.sum() for rows in inside)), "values": len(inside)}
        values = dict(zip(scores, np.min(areas, axis=0).tolist(), strict=True))
        lowest = dict(zip(scores, np.min(draws, axis=0).T, strict=True))
        result.add_draws("worst_group_auc", values, lowest, n=n)

    def _drawn(
        self, scores: list[NDArray[np.floating]], rows: NDArray[np.bool_], rng: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """Areas (m,) of the m methods among some rows, and draws of them (resamples, m)."""
        positive = self.positive[rows]
        kinds = [np.stack(kind) for kind in zip(*(placements(one, positive) for one in scores), strict=True)]
        areas = kinds[0].mean(axis=1)
        covariance = np.zeros((len(scores), len(scores)))
        for kind in kinds:
            kind -= kind.mean(axis=1, keepdims=True)
            covariance += kind @ kind.T / (kind.shape[1] * max(kind.shape[1] - 1, 1))
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(values.clip(0)) @ vectors.T  # the one root that no choice of vectors changes
        draws = areas + rng.standard_normal((self.resamples, len(scores))) @ root
        same = [next(i for i, other in enumerate(scores) if np.array_equal(one, other)) for one in scores]
        return areas, draws[:, same]  # of methods that score alike the same to the last bit
