"""Measure accuracy by group, areas under the curve, the spread of a class, and how far annotators
agree.

`group_accuracy` takes the rows of a test split; the functions of counts (..., g) take many
resamples at once. A group is a target class x spurious attribute, as in Sagawa et al.,
"Distributionally Robust Neural Networks" (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, need
from vldebias.measure.resampling import (
    Interval,
    Values,
    codes,
    percentile_interval,
    resampled_counts,
    vectors,
    wilson_interval,
)

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
Bounds = tuple[float, float]
Statistic = Callable[[Counts, Counts], Floats]  # of hits and sizes (..., g)


def lowest_accuracy(hits: Counts, size: Counts) -> Floats:
    """Return min_g acc_g from hits and sizes (..., g); a group without images has no accuracy and
    is left out."""
    return np.where(size > 0, hits / np.maximum(size, 1), np.inf).min(axis=-1)


def mean_accuracy(hits: Counts, size: Counts) -> Floats:
    """Return the accuracy over all images (micro average) from hits and sizes (..., g)."""
    return hits.sum(axis=-1) / size.sum(axis=-1)


def accuracy_gap(hits: Counts, size: Counts) -> Floats:
    """Return the micro average minus the worst group's accuracy, >= 0."""
    return mean_accuracy(hits, size) - lowest_accuracy(hits, size)


@dataclass(frozen=True, eq=False)
class Reweighted:
    """Compute sum_g w_g acc_g / sum_g w_g over groups with images, for weights (g,) such as
    training group sizes."""

    weights: Floats

    def __call__(self, hits: Counts, size: Counts) -> Floats:
        """Return values (...) from hits and sizes (..., g)."""
        present = self.weights * (size > 0)
        return (present * hits / np.maximum(size, 1)).sum(axis=-1) / present.sum(axis=-1)


def interval_of(
    of: Statistic, cells: Counts, drawn: Counts
) -> tuple[float, Bounds, tuple[float, float, float]]:
    """Return a statistic's value with the method, its interval, and its paired change from the
    value without.

    cells: counts (g, 2, 2) of group, right without, right with the method. drawn: resamples of them
    (b, g, 2, 2). Where all images that decide are right, or all wrong, no resample varies, and
    Wilson's interval is taken; that of a mean of groups is made of theirs: half-widths times
    weights, squared and added (Zou and Donner, 2008, "Construction of confidence limits about
    effect measures").
    """
    before, hits, size = cells[:, 1].sum(-1), cells[:, :, 1].sum(-1), cells.sum((-1, -2))
    value, sizes = float(of(hits, size)), drawn.sum((-1, -2))
    with np.errstate(invalid="ignore"):  # a resample without an image of the groups is not a number
        with_it, without = of(drawn[..., 1].sum(-1), sizes), of(drawn[:, :, 1].sum(-1), sizes)
    known = np.isfinite(with_it)
    change = (value - float(of(before, size)), *percentile_interval((with_it - without)[known]))
    if value in (0.0, 1.0) and of in (mean_accuracy, lowest_accuracy):
        alike = (
            size.sum() if of is mean_accuracy else size[(size > 0) & (hits == value * size)].min()
        )
        return value, wilson_interval(int(value * alike), int(alike)), change
    same = (size > 0) & ((hits == 0) | (hits == size))
    if not (isinstance(of, Reweighted) and same[of.weights > 0].any()):
        return value, percentile_interval(with_it[known]), change
    used = (of.weights > 0) & (size > 0)
    share, accuracy = of.weights[used] / of.weights[used].sum(), hits[used] / size[used]
    low, high = np.array(
        [wilson_interval(*one) for one in zip(hits[used], size[used], strict=True)]
    ).T
    below, above = (
        float(np.linalg.norm(share * width)) for width in (accuracy - low, high - accuracy)
    )
    mean = float(share @ accuracy)
    return value, (max(mean - below, 0.0), min(mean + above, 1.0)), change


class GroupAccuracy(NamedTuple):
    """Hold accuracy and number of rows of each group that occurs, by its label, the lowest and that
    of all rows."""

    accuracy: dict[Any, float]
    n: dict[Any, int]
    worst: float
    average: float


def group_accuracy(predictions: Values, labels: Values, groups: Values) -> GroupAccuracy:
    """Return acc_g, the mean over rows of group g of 1[prediction = label], from (n,) each, of any
    kind that compares.

    Raises:
        InvalidInputError: shapes that are not (n,), no rows, NaN, texts beside numbers, scores for
            predictions.
    """
    predicted, true, group = vectors(predictions=predictions, labels=labels, groups=groups)
    if (predicted.dtype.kind in "SU") != (true.dtype.kind in "SU"):  # "0" is never 0
        came = f"got {predicted.dtype} and {true.dtype}; convert one of them"
        raise InvalidInputError(
            f"predictions and labels: expected both as texts or both as numbers, {came}"
        )
    if (
        predicted.dtype.kind == "f"
        and (predicted != np.round(predicted)).any()
        and not np.isin(predicted, true).all()
    ):
        some = np.unique(predicted)[:3].tolist()
        raise InvalidInputError(
            f"predictions: expected classes, got {some}; of probabilities take the likeliest class"
        )
    names, index = codes(group, None)
    size, right = np.bincount(index), np.asarray(predicted == true)
    accuracy = np.bincount(index, weights=right) / size
    by_name, n = (dict(zip(names.tolist(), of.tolist(), strict=True)) for of in (accuracy, size))
    return GroupAccuracy(by_name, n, float(accuracy.min()), float(right.mean()))


def worst_group_accuracy(predictions: Values, labels: Values, groups: Values) -> float:
    """Return min_g acc_g over the groups that occur. Raises: see `group_accuracy`."""
    return group_accuracy(predictions, labels, groups).worst


def share_below(scores: NDArray[Any], others: NDArray[Any]) -> Floats:
    """Return the share of the others that each score is above; a tie counts half. The mean is the
    area (AUC)."""
    ordered = np.sort(others)
    return (
        np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    ) / (2 * len(ordered))


def worst_areas(
    margins: Mapping[str, NDArray[np.floating]],
    positive: Mask,
    groups: Counts,
    *,
    resamples: int,
    seed: int,
) -> tuple[dict[str, float], dict[str, Floats], dict[str, int]]:
    """Return method -> its lowest area under the curve over groups, its draws (resamples,), and how
    much counts.

    Draws are normal with the covariance of all methods (DeLong et al., "Comparing the areas under
    two or more correlated receiver operating characteristic curves", 1988), each group by itself;
    the lowest is picked again in each. A group of one class has no area and does not count; without
    another nothing is returned.

    margins: method -> (n,), high for positive rows. positive: (n,) whether a row is of that class.
    groups: (n,) codes.
    """
    m, first, rng = len(margins), next(iter(margins.values())), np.random.default_rng(seed)
    areas, draws, images = list[Floats](), list[Floats](), 0
    for here in (np.flatnonzero(groups == code) for code in range(groups.max() + 1)):
        here = here[np.lexsort((first[here], positive[here]))]  # in any order of the rows
        own = positive[here]
        if own.all() or not own.any():
            continue
        scores = [one[here] for one in margins.values()]
        high = np.stack([share_below(one[own], one[~own]) for one in scores])
        low = np.stack([1 - share_below(one[~own], one[own]) for one in scores])
        areas.append(high.mean(axis=1))
        spread = [
            np.cov(part, ddof=0).reshape(m, m) / max(part.shape[1] - 1, 1) for part in (high, low)
        ]
        spectrum, vectors = np.linalg.eigh(sum(spread))
        root = (
            vectors * np.sqrt(spectrum.clip(0)) @ vectors.T
        )  # the one root that no choice of vectors changes
        same = [
            next(i for i, other in enumerate(scores) if np.array_equal(one, other))
            for one in scores
        ]
        # draws of methods that score alike are the same to the last bit
        draws.append((areas[-1] + rng.standard_normal((resamples, m)) @ root)[:, same])
        images += len(here)
    if not areas:
        return {}, {}, {}
    lowest, drawn = np.min(areas, axis=0).tolist(), np.min(draws, axis=0).T
    n = {"images": images, "values": len(areas)}
    return dict(zip(margins, lowest, strict=True)), dict(zip(margins, drawn, strict=True)), n


def auroc(scores: Values, wrong: Values, *, resamples: int = 2000) -> Interval:
    """Return P(score of a wrong row < score of a right row); ties count half, 0.5 is chance, 1
    finds all.

    scores: (n,); low scores are taken as suspicious. wrong: (n,) truth values, of both kinds. The
    interval is that of `worst_areas`. Source: Hanley and McNeil, "The meaning and use of the area
    under a ROC curve" (1982).
    """
    values, mask = vectors(scores=scores, wrong=wrong)
    if np.unique(mask).tolist() != [0, 1]:  # a text "0" would be true, and so would -1
        raise InvalidInputError(
            f"wrong: expected truth values of both kinds, got {np.unique(mask)[:8].tolist()}"
        )
    found, draws, _ = worst_areas(
        {"": values}, mask == 0, np.zeros(len(mask), np.int64), resamples=resamples, seed=0
    )
    return Interval(found[""], *percentile_interval(draws[""].clip(0, 1)))


def k_variance(features: Values, *, k: int | None = None, seed: int = 0) -> float:
    """Return the mean Wasserstein-1 distance between disjoint pairs of random k-row subsets of
    `features` (n, d).

    It is small where the features of the class are concentrated. The distance of two subsets is the
    cheapest one-to-one matching by Euclidean length, divided by k; cubic in k. As many disjoint
    pairs are sampled as fit (Lemma 8.5).
    Source: Solomon et al., "k-variance: a clustered notion of variance" (2022), unnormalised as in
    definition 8.1 of Chuang's thesis.

    k: size of each subset, at most n // 2; default: that, which is the thesis's choice. Its cost
    grows with k^2 in memory and k^3 in time: 5,000 take some 10 s and 200 MB.

    Raises:
        InvalidInputError: not (n, d) with finite values and n >= 2, or k outside 1 .. n // 2.
    """
    (points,) = vectors(2, features=features)
    half = len(points) // 2
    size = half if k is None else k
    if half < 1 or not np.isfinite(points).all():
        raise InvalidInputError(
            f"features: expected finite (n, d) with n >= 2, got shape {points.shape}"
        )
    if not 1 <= size <= half:
        raise InvalidInputError(
            f"k: {len(points)} rows have two disjoint subsets of 1 .. {half} rows, got {k}"
        )
    spatial, match = need("scipy.spatial"), need("scipy.optimize").linear_sum_assignment
    pairs, lengths = len(points) // (2 * size), []
    order = np.random.default_rng(seed).permutation(len(points))[: 2 * size * pairs]
    for both in order.reshape(pairs, 2, size):
        costs = spatial.distance.cdist(*points[both].astype(np.float64))
        lengths.append(costs[match(costs)].mean())
    return float(np.mean(lengths))


class Agreement(NamedTuple):
    """Hold how far annotators agree; units: those that two or more of them answered, answers: how
    many in these."""

    # Krippendorff's, bootstrapped over units: 1 perfect, 0 chance, negative below chance
    alpha: Interval
    percent: Interval  # share of pairs of answers to a unit that are equal, mean over units
    units: int
    answers: int


def agreement(labels: Values, *, resamples: int = 2000, seed: int = 0) -> Agreement:
    """Return Krippendorff's alpha and percent agreement of names, with percentile intervals over
    units.

    alpha = 1 - D_o / D_e over the units that two or more annotators answered: D_o is the share of
    unequal pairs of answers inside units, D_e that of all pairable answers (Krippendorff,
    "Computing Krippendorff's Alpha-Reliability", 2011). Units are resampled, as Zapf et al.,
    "Measuring inter-rater reliability for nominal data" (2016), recommend; draws in which one value
    is left have no alpha and do not count.

    labels: (annotators, units) codes of the answers, from 0; NaN and negative codes are no answers.

    Raises:
        InvalidInputError: other shapes, no unit with two answers, or a single value throughout:
            alpha is 0 / 0 then.

    >>> agreement([[0, 0, 1, 1], [0, 0, 1, 0]]).alpha.value
    0.5333333333333333
    """
    array = np.asarray(labels)
    if array.ndim != 2 or array.dtype.kind not in "iufb":
        came = (
            f"got shape {array.shape} of {array.dtype}; encode names as codes and missing answers"
            " as NaN"
        )
        raise InvalidInputError(f"labels: expected numbers (annotators, units), {came}")
    values = np.unique(array[array >= 0])
    counts = (array[..., None] == values).sum(axis=0).astype(np.float64)  # (units, values)
    counts = counts[counts.sum(1) >= 2]
    if (several := (counts.sum(0) > 0).sum()) < 2:
        came = f"got {len(counts)} such units with {several}"
        raise InvalidInputError(
            f"labels: expected two or more values in units with two or more answers, {came}"
        )
    units, sizes = len(counts), counts.sum(1)
    unequal = (sizes**2 - (counts**2).sum(1)) / (
        sizes * (sizes - 1)
    )  # share of ordered pairs of answers to a unit
    sums = np.column_stack([counts, sizes * unequal, (1 - unequal) / units])
    blocks = resampled_counts(np.ones(units, np.int64), resamples, seed)
    of_each = np.concatenate([sums.sum(0, keepdims=True), *(weights @ sums for weights in blocks)])
    totals, observed = of_each[:, :-2], of_each[:, -2]
    n = totals.sum(1)
    with np.errstate(invalid="ignore"):  # alpha is 0 / 0 where one value is left
        alphas = 1 - observed / n / ((n**2 - (totals**2).sum(1)) / (n * (n - 1)))
    alpha, percent = (
        Interval(float(of[0]), *percentile_interval(of[1:][np.isfinite(of[1:])]))
        for of in (alphas, of_each[:, -1])
    )
    return Agreement(alpha, percent, units, int(counts.sum()))
