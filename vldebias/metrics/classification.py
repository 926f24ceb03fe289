"""Measure accuracy by group, how well a score finds wrong rows, and how far the features of a class are spread.

`group_accuracy` takes the rows of a test split; the functions of counts (..., g) take many resamples at once. A group
is a target class x spurious attribute, as in Sagawa et al., "Distributionally Robust Neural Networks" (2020); eq. 7.1
of the thesis states the same gap in terms of losses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, need
from vldebias.metrics.bootstrap import Interval, Values, bootstrap_interval, codes, rows, vectors

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
_MOST = 100  # rows of a subset by default: costs grow with the square in memory and with the cube in time

# ---- groups --------------------------------------------------------------------------------------------------


def lowest_accuracy(hits: Counts, size: Counts) -> Floats:
    """Return min_g acc_g from hits and sizes (..., g); a group without images has no accuracy and is left out."""
    return np.where(size > 0, hits / np.maximum(size, 1), np.inf).min(axis=-1)


def mean_accuracy(hits: Counts, size: Counts) -> Floats:
    """Return the accuracy over all images (micro average) from hits and sizes (..., g)."""
    return hits.sum(axis=-1) / size.sum(axis=-1)


def accuracy_gap(hits: Counts, size: Counts) -> Floats:
    """Return the micro average minus the worst group's accuracy, >= 0."""
    return mean_accuracy(hits, size) - lowest_accuracy(hits, size)


@dataclass(frozen=True)
class GroupAccuracy:
    """Hold the accuracy and number of rows of each group that occurs; keys are the labels of `groups`."""

    accuracy: dict[Any, float]
    n: dict[Any, int]

    @property
    def worst_group(self) -> Any:
        """Return the label of the group with the lowest accuracy; the first on a tie."""
        return min(self.accuracy, key=lambda group: self.accuracy[group])

    @property
    def worst(self) -> float:
        """Return min_g acc_g."""
        return self.accuracy[self.worst_group]

    @property
    def average(self) -> float:
        """Return the micro average, sum_g n_g acc_g / sum_g n_g: the accuracy over all rows."""
        return float(np.average(list(self.accuracy.values()), weights=[float(n) for n in self.n.values()]))

    @property
    def gap(self) -> float:
        """Return average - worst."""
        return self.average - self.worst


def group_accuracy(predictions: Values, labels: Values, groups: Values) -> GroupAccuracy:
    """Return acc_g, the mean over rows of group g of 1[prediction = label].

    predictions, labels, groups: (n,) each; labels of any kind that compares.

    Raises:
        InvalidInputError: shapes that are not (n,), different lengths, no rows, NaN, texts beside numbers, scores in
            the place of predictions.
    """
    predicted, true, group = vectors(predictions=predictions, labels=labels, groups=groups)
    if (predicted.dtype.kind in "SU") != (true.dtype.kind in "SU"):  # "0" is never 0
        raise InvalidInputError(
            "predictions and labels: expected both as texts or both as numbers, got "
            f"{predicted.dtype} and {true.dtype}, of which none is equal; convert one of them"
        )
    if predicted.dtype.kind == "f" and not np.isin(predicted, true).all() and (predicted != np.round(predicted)).any():
        raise InvalidInputError(
            f"predictions: expected classes, got fractions such as {np.unique(predicted)[:3].tolist()}; of "
            "probabilities take the likeliest class"
        )
    names, index = codes(group, None)
    n = np.bincount(index)
    right = np.bincount(index, weights=np.asarray(predicted == true))
    keys = names.tolist()
    return GroupAccuracy(dict(zip(keys, (right / n).tolist(), strict=True)), dict(zip(keys, n.tolist(), strict=True)))


def worst_group_accuracy(predictions: Values, labels: Values, groups: Values) -> float:
    """Return min_g acc_g over the groups that occur. Raises: see `group_accuracy`."""
    return group_accuracy(predictions, labels, groups).worst


# ---- order ---------------------------------------------------------------------------------------------------


def placements(scores: NDArray[np.floating], positive: Mask) -> tuple[Floats, Floats]:
    """Return the share of other rows below each positive row, and of positive rows above each other row.

    The mean of either is the area under the curve, for scores (n,), high for the rows that are positive (n,); a tie
    counts half. Their variances give the variance of the area (DeLong et al., 1988).
    """

    def share_below(rows: NDArray[np.floating], others: NDArray[np.floating]) -> Floats:
        ordered = np.sort(others)
        return (np.searchsorted(ordered, rows, "left") + np.searchsorted(ordered, rows, "right")) / (2 * len(ordered))

    high, low = scores[positive], scores[~positive]
    return share_below(high, low), 1 - share_below(low, high)


def auroc(scores: Values, wrong: Values, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Return P(score of a wrong row < score of a right row); ties count half, 0.5 is chance, 1 finds all.

    The interval is a percentile bootstrap that resamples wrong and right rows separately, so that their numbers stay.
    Source: Hanley and McNeil, "The meaning and use of the area under a ROC curve" (1982).

    Args:
        scores: (n,), finite; low scores are taken as suspicious.
        wrong: (n,) truth values.

    Raises:
        InvalidInputError: shapes that do not fit, scores that are not finite, no wrong or no right row.
    """
    values, mask = vectors(scores=scores, wrong=wrong)
    if not np.isfinite(values).all():
        raise InvalidInputError(f"scores: {int((~np.isfinite(values)).sum())} of {len(values)} are not finite")
    if np.unique(mask).tolist() not in ([0, 1], [False, True]):  # a text "0" would be true, and so would -1
        raise InvalidInputError(f"wrong: expected truth values of both kinds, got {np.unique(mask)[:8].tolist()}")
    levels, is_wrong = np.unique(values, return_inverse=True)[1], mask.astype(bool)
    size = int(levels.max()) + 1

    def area(low: Counts, high: Counts) -> float:
        at = np.bincount(high, minlength=size)
        above = len(high) - at.cumsum() + at / 2
        return float(above[low].mean()) / len(high)

    how: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed, "paired": False}
    return replace(bootstrap_interval(levels[is_wrong], levels[~is_wrong], statistic=area, **how), n=len(levels))


# ---- spread -------------------------------------------------------------------------------------------------


def k_variance(features: Values, *, k: int | None = None, seed: int = 0) -> float:
    """Return the mean Wasserstein-1 distance between disjoint pairs of random k-row subsets of `features` (n, d).

    It is small where the features of the class are concentrated. The distance of two subsets is the cheapest one-to-one
    matching by Euclidean length, divided by k; cubic in k. As many disjoint pairs are sampled as fit (Lemma 8.5).
    Source: Solomon et al., "k-variance: a clustered notion of variance" (2022), unnormalised as in definition 8.1 of
    Chuang's thesis.

    Args:
        features: (n, d) features of one class, in any unit; the result has the same unit.
        k: size of each subset, at most n // 2; default: that, which is the thesis's choice, and at most 100.

    Raises:
        InvalidInputError: not (n, d) with finite values and n >= 2, or k outside 1 .. n // 2.
    """
    points = rows(features, "features")
    if points.ndim != 2 or len(points) < 2 or not np.isfinite(points).all():
        raise InvalidInputError(f"features: expected finite (n, d) with n >= 2, got shape {points.shape}")
    half = len(points) // 2
    size = min(half, _MOST) if k is None else k
    if not 1 <= size <= half:
        raise InvalidInputError(f"k: two disjoint subsets of {len(points)} rows have 1 .. {half} rows, got {k}")
    pairs = len(points) // (2 * size)
    order = np.random.default_rng(seed).permutation(len(points))[: 2 * size * pairs]
    blocks = (points[block].astype(np.float64) for block in order.reshape(pairs, 2, size))
    return float(np.mean([_transport(one, other) for one, other in blocks]))


def _transport(one: Floats, other: Floats) -> float:
    """The mean length of the best matching of two sets of k points.

    Products of the points choose the matching, since all differences would take (k, k, d) steps that no library blocks;
    what it costs is then taken from the k differences that were chosen, free of the rounding of products.
    """
    x, y = one - one[0], other - one[0]  # near the origin, where products lose least
    squares = (x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T
    match = need("scipy.optimize").linear_sum_assignment(np.maximum(squares, 0) ** 0.5)[1]
    return float(np.linalg.norm(one - other[match], axis=1).mean())
