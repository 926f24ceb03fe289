"""Accuracy and area under the curve by group: worst group, average and the gap between them.

The functions of arrays take the rows of a test split; those of counts (..., g) take many resamples at once. Groups are
target class x spurious attribute, as in Sagawa et al., "Distributionally Robust Neural Networks" (2020);
eq. 7.1 of the thesis states the same gap in terms of losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.metrics.arrays import Values, codes, truth, vectors
from vldebias.metrics.bootstrap import counted

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def lowest_accuracy(hits: Counts, size: Counts) -> Floats:
    """min_g acc_g from hits and sizes (..., g); a group without images has no accuracy and is left out."""
    return np.where(size > 0, hits / np.maximum(size, 1), np.inf).min(axis=-1)


def mean_accuracy(hits: Counts, size: Counts) -> Floats:
    """Micro average: the accuracy over all images, from hits and sizes (..., g)."""
    return hits.sum(axis=-1) / size.sum(axis=-1)


def accuracy_gap(hits: Counts, size: Counts) -> Floats:
    """Micro average minus worst group, >= 0."""
    return mean_accuracy(hits, size) - lowest_accuracy(hits, size)


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy and number of rows of each group that occurs; keys are the labels of `groups`."""

    accuracy: dict[Any, float]
    n: dict[Any, int]

    @property
    def worst_group(self) -> Any:
        """Label of the group with the lowest accuracy; the first of them on a tie."""
        return min(self.accuracy, key=lambda group: self.accuracy[group])

    @property
    def worst(self) -> float:
        """min_g acc_g."""
        return self.accuracy[self.worst_group]

    @property
    def average(self) -> float:
        """Micro average: sum_g n_g acc_g / sum_g n_g, the accuracy over all rows."""
        return self.weighted(self.n)

    @property
    def gap(self) -> float:
        """average - worst."""
        return self.average - self.worst

    def weighted(self, weights: Mapping[Any, float]) -> float:
        """sum_g w_g acc_g / sum_g w_g, for instance with the group sizes of a training split.

        Raises:
            InvalidInputError: a group has no weight, a weight no group, or the weights are negative or all zero.
        """
        if set(weights) != set(self.accuracy):
            raise InvalidInputError(f"weights: expected one per group {list(self.accuracy)}, got {list(weights)}")
        values = [float(weights[group]) for group in self.accuracy]
        if min(values) < 0 or sum(values) == 0 or not np.isfinite(values).all():
            raise InvalidInputError(f"weights: expected finite values >= 0 that are not all 0, got {values}")
        return float(np.average(list(self.accuracy.values()), weights=values))


def group_accuracy(predictions: Values, labels: Values, groups: Values) -> GroupAccuracy:
    """acc_g = mean over rows of group g of 1[prediction = label].

    predictions, labels, groups: (n,) each; labels of any kind that compares.

    Raises:
        InvalidInputError: shapes that are not (n,), different lengths, no rows, NaN, texts beside numbers, scores in
            the place of predictions.
    """
    predicted, true, group = vectors(predictions=predictions, labels=labels, groups=groups)
    names, index = codes(group, None)
    n = np.bincount(index)
    right = np.bincount(index, weights=_equal(predicted, true))
    keys = names.tolist()
    return GroupAccuracy(
        accuracy=dict(zip(keys, (right / n).tolist(), strict=True)),
        n=dict(zip(keys, n.tolist(), strict=True)),
    )


def _equal(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """(n,) whether a prediction is the label, of two arrays of one kind: "0" is never 0, and .93 no class."""
    text = {name: array.dtype.kind in "SU" for name, array in (("predictions", predicted), ("labels", true))}
    if len(set(text.values())) > 1:
        raise InvalidInputError(
            "predictions and labels: expected both as texts or both as numbers, got "
            f"{predicted.dtype} and {true.dtype}, of which none is equal; convert one of them"
        )
    if predicted.dtype.kind == "f" and not np.isin(predicted, true).all() and (predicted != np.round(predicted)).any():
        raise InvalidInputError(
            f"predictions: expected classes, got fractions such as {np.unique(predicted)[:3].tolist()}; of "
            "probabilities take the likeliest class"
        )
    return np.asarray(predicted == true)


def _of_counts(of: Callable[[Counts, Counts], Floats]) -> Callable[..., Floats]:
    """A function of hits and sizes (b, g) as one of different rows (m,) and their counts (b, m)."""

    def measure(predictions: np.ndarray, labels: np.ndarray, *given: np.ndarray) -> Floats:
        (*groups, counts) = given
        _, index = np.unique(groups[0], return_inverse=True) if groups else (None, np.zeros(len(labels), np.intp))
        member = np.equal.outer(index, np.arange(index.max() + 1)).astype(np.int64)
        return of((counts * _equal(predictions, labels)) @ member, counts @ member)

    return measure


@counted(_of_counts(lowest_accuracy))
def worst_group_accuracy(predictions: Values, labels: Values, groups: Values) -> float:
    """min_g acc_g over the groups that occur. Raises: see `group_accuracy`."""
    return group_accuracy(predictions, labels, groups).worst


@counted(_of_counts(mean_accuracy))
def average_accuracy(
    predictions: Values,
    labels: Values,
    groups: Values | None = None,
    weights: Mapping[Any, float] | None = None,
) -> float:
    """Accuracy over all rows (micro), or sum_g w_g acc_g / sum_g w_g for given group weights: on Waterbirds, whose test
    split is balanced, those of the training split.

    Raises:
        InvalidInputError: see `group_accuracy`; only one of `groups` and `weights`; weights that do not fit.
    """
    if (groups is None) != (weights is None):
        raise InvalidInputError("average_accuracy: groups and weights go together; pass both, or neither for micro")
    if groups is None or weights is None:
        return float(_equal(*vectors(predictions=predictions, labels=labels)).mean())
    return group_accuracy(predictions, labels, groups).weighted(weights)


@counted(_of_counts(accuracy_gap))
def gap(predictions: Values, labels: Values, groups: Values) -> float:
    """Average (micro) minus worst-group accuracy, >= 0. Raises: see `group_accuracy`."""
    return group_accuracy(predictions, labels, groups).gap


def worst_group_auc(scores: Values, positive: Values, groups: Values) -> float:
    """min_g AUC_g: how well a score tells positive rows from the others inside each group; ties count half.

    For groups that are values of the attribute, not of the label: in Waterbirds the two backgrounds. As Seth et al.
    and others report it, the group with the lowest area counts.

    Args:
        scores: (n,), finite; high for positive rows. positive: (n,) truth values. groups: (n,) labels.

    Raises:
        InvalidInputError: see `group_accuracy`; `positive` of other values than 0 and 1; a group that has rows of one
            kind alone.

    >>> worst_group_auc([0.9, 0.1, 0.4, 0.6], [1, 0, 1, 0], ["a", "a", "b", "b"])
    0.0
    """
    score, given, group = vectors(scores=scores, positive=positive, groups=groups)
    names, index = codes(group, None)
    right, areas = truth(given, "positive"), []
    for code, name in enumerate(names.tolist()):
        inside = index == code
        if len(set(right[inside].tolist())) == 1:
            raise InvalidInputError(f"groups: expected positive and other rows in every group, {name!r} has one kind")
        areas.append(float(placements(score[inside], right[inside])[0].mean()))
    return min(areas)


def placements(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """The share of the other rows below each positive row, and of the positive rows above each other one.

    The mean of either is the area under the curve, for scores (n,), high for the rows that are positive (n,); a tie
    counts half. What they vary by is what the area varies by (DeLong et al., 1988).
    """
    high, low = scores[positive], scores[~positive]
    return _share_below(high, low), 1 - _share_below(low, high)


def _share_below(rows: NDArray[np.floating], others: NDArray[np.floating]) -> Floats:
    ordered = np.sort(others)
    return (np.searchsorted(ordered, rows, "left") + np.searchsorted(ordered, rows, "right")) / (2 * len(ordered))
