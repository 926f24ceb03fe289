"""Compute group accuracies, areas under the ROC curve, k-variance and annotator agreement.

`group_accuracy` takes the rows of a test split. Functions that take counts (..., g) accept many
resamples at once. A group is a combination of a target class and a spurious attribute, as in Sagawa
et al., "Distributionally Robust Neural Networks" (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, need, warn_of_input
from vldebias.measure.resampling import (
    Interval,
    Values,
    codes,
    computes_resamples,
    distinct,
    percentile_interval,
    resampled_counts,
    vectors,
    wilson_interval,
)
from vldebias.utils.arrays import Counts, Floats, Mask

Bounds = tuple[float, float]
# Function of the numbers of correct images and of all images in each group, both (..., g).
Statistic = Callable[[Counts, Counts], Floats]
# What a statistic of the groups computes, which determines its interval. "" for other statistics.
IntervalRule = Literal["", "bootstrap", "mean", "weighted mean", "lowest", "gap"]
ROUNDING = 1e-6
LARGEST_SUBSET = 1000  # default maximum of k in `k_variance`
MOST_ROWS = 20_000  # maximum number of rows that `k_variance` samples, unless k needs more


def lowest_accuracy(hits: Counts, size: Counts) -> Floats:
    """Return the lowest accuracy (...) over all groups that have images.

    Args:
        hits: number of correct images in each group (..., g).
        size: number of images in each group (..., g).
    """
    return np.where(size > 0, hits / np.maximum(size, 1), np.inf).min(axis=-1)


def mean_accuracy(hits: Counts, size: Counts) -> Floats:
    """Return the accuracy over all images (...), that is, the micro average.

    Args:
        hits: number of correct images in each group (..., g).
        size: number of images in each group (..., g).
    """
    return hits.sum(axis=-1) / size.sum(axis=-1)


def accuracy_gap(hits: Counts, size: Counts) -> Floats:
    """Return the micro average minus the worst group's accuracy (...), >= 0.

    Args:
        hits: number of correct images in each group (..., g).
        size: number of images in each group (..., g).
    """
    return mean_accuracy(hits, size) - lowest_accuracy(hits, size)


@dataclass(frozen=True, eq=False)
class Reweighted:
    """Average group accuracies with weights (g,), such as the group sizes in training."""

    weights: Floats

    def __call__(self, hits: Counts, size: Counts) -> Floats:
        """Return the weighted mean (...) for `hits` of `size` images per group (..., g)."""
        present = self.weights * (size > 0)
        return (present * hits / np.maximum(size, 1)).sum(axis=-1) / present.sum(axis=-1)


@dataclass(frozen=True, eq=False)
class ReweightedGap:
    """Subtract the worst group's accuracy from the `Reweighted` average."""

    weights: Floats

    def __call__(self, hits: Counts, size: Counts) -> Floats:
        """Return the gap (...) for `hits` of `size` images per group (..., g)."""
        return Reweighted(self.weights)(hits, size) - lowest_accuracy(hits, size)


def interval_of(
    statistic: Statistic, rule: IntervalRule, cells: Counts, resampled: Counts
) -> tuple[float, Bounds, tuple[float, float, float]]:
    """Return a method's value of a statistic, its interval, and the paired change.

    Every rule starts from the percentiles of the resamples and corrects what they miss:

    - "bootstrap": no correction;
    - "mean": resamples do not vary if all images are right, or all are wrong, so Wilson's interval
      is used in these cases;
    - "weighted mean": if all images of a group with a weight are right, or all are wrong, the
      groups' Wilson intervals are combined;
    - "lowest": Wilson's interval is used if the lowest accuracy is 0 or 1. If several groups may be
      the worst, the observed minimum is biased downwards, and the minimum of a resample even more,
      so the upper end is raised to `_most_of_worst`;
    - "gap": the lower end is reduced by as much as "lowest" raises its upper end.

    Args:
        statistic: function of hits and sizes (..., g).
        rule: what the statistic computes, which determines its interval.
        cells: counts (g, 2, 2), indexed by the group, whether the image was right without the
            method, and whether it was right with the method.
        resampled: resampled cells (b, g, 2, 2).

    Returns:
        The value, its interval, and the change with its interval.

    Raises:
        InvalidInputError: If the statistic does not compute what the rule says.
    """
    # cells[g, 1, :] counts the images that were right without the method, and cells[g, :, 1] those
    # that were right with it.
    before = cells[:, 1].sum(-1)
    hits = cells[:, :, 1].sum(-1)
    size = cells.sum((-1, -2))
    value = float(statistic(hits, size))
    sizes = resampled.sum((-1, -2))
    with np.errstate(invalid="ignore"):  # NaN if a resample has no images from the groups
        draws_after = statistic(resampled[..., 1].sum(-1), sizes)
        draws_before = statistic(resampled[:, :, 1].sum(-1), sizes)
    # Compute both from the same resamples, so that the interval of the change is paired.
    known = np.isfinite(draws_after)
    low, high = percentile_interval((draws_after - draws_before)[known])
    change = (value - float(statistic(before, size)), low, high)
    low, high = percentile_interval(draws_after[known])
    if rule == "mean":
        _check_rule(rule, value, float(mean_accuracy(hits, size)))
        if value in (0.0, 1.0):
            low, high = wilson_interval(int(hits.sum()), int(size.sum()))
    elif rule == "weighted mean":
        # A weighted mean gives a group's weight if only this group's images are right.
        weights = statistic(np.diag(size), np.broadcast_to(size, (len(size), len(size))))
        _check_rule(rule, value, float(weights @ (hits / np.maximum(size, 1))))
        # The bootstrap has no variance for groups that are all right or all wrong.
        is_constant = (size > 0) & ((hits == 0) | (hits == size))
        if is_constant[weights > 0].any():
            low, high = _wilson_of_mean(weights, hits, size)
    elif rule == "lowest":
        _check_rule(rule, value, float(lowest_accuracy(hits, size)))
        if value in (0.0, 1.0):
            is_lowest = (size > 0) & (hits == value * size)
            # If several groups have an accuracy of 0 or 1, the smallest one is the least certain.
            n = int(size[is_lowest].min())
            low, high = wilson_interval(int(value * n), n)
        high = max(high, _most_of_worst(hits, size))
    elif rule == "gap":
        # If the worst group's true accuracy may be higher, the gap may be smaller. The average
        # changes less.
        rise = _most_of_worst(hits, size) - float(lowest_accuracy(hits, size))
        low = max(0.0, min(low, value - rise))
    return value, (low, high), change


def _check_rule(rule: IntervalRule, value: float, expected: float) -> None:
    """Raise an error if a statistic's value differs from what its interval's rule implies."""
    if not abs(value - expected) <= ROUNDING:
        raise InvalidInputError(
            f"interval: a group metric declares interval={rule!r} but returned {value:.4g}, and the"
            f" {rule} of the groups' accuracies is {expected:.4g}; declare interval='bootstrap'"
        )


def _most_of_worst(hits: Counts, size: Counts) -> float:
    """Return an upper bound for the lowest accuracy if several groups may be the worst.

    If only one group can be the worst, its accuracy is returned. Candidates are the groups whose
    Wilson intervals overlap with the lowest group's. These intervals have a Bonferroni-corrected
    level, because the worst group's accuracy can exceed the lowest upper limit only if at least one
    of the candidates exceeds its own upper limit.
    """
    has_images = np.flatnonzero(size)
    intervals = [wilson_interval(int(hits[g]), int(size[g])) for g in has_images]
    nearest_end = min(high for _, high in intervals)
    lows = np.array([low for low, _ in intervals])
    worst = has_images[lows <= nearest_end]
    if len(worst) == 1:
        return float(lowest_accuracy(hits, size))
    level = 1 - 0.05 / len(worst)
    return min(wilson_interval(int(hits[g]), int(size[g]), level)[1] for g in worst)


def _wilson_of_mean(weights: Floats, hits: Counts, size: Counts) -> Bounds:
    """Return the interval of a weighted mean accuracy from the groups' Wilson intervals.

    The weighted half-widths are added in quadrature (Zou and Donner, 2008, "Construction of
    confidence limits about effect measures").
    """
    used = (weights > 0) & (size > 0)
    share = weights[used] / weights[used].sum()
    accuracy = hits[used] / size[used]
    intervals = [wilson_interval(right, n) for right, n in zip(hits[used], size[used], strict=True)]
    low, high = np.array(intervals).T
    # Treat each side separately, because Wilson's intervals are asymmetric and a symmetric interval
    # could exceed 1.
    below = float(np.linalg.norm(share * (accuracy - low)))
    above = float(np.linalg.norm(share * (high - accuracy)))
    mean = float(share @ accuracy)
    return max(mean - below, 0.0), min(mean + above, 1.0)


class GroupAccuracy(NamedTuple):
    """Store each group's accuracy and size, and the lowest and average accuracy.

    Attributes:
        accuracy: group -> share of correct rows.
        n: group -> number of rows.
        worst: lowest accuracy of a group.
        average: share of correct rows among all rows.
    """

    accuracy: dict[str | float, float]
    n: dict[str | float, int]
    worst: float
    average: float


def group_accuracy(predictions: Values, labels: Values, groups: Values) -> GroupAccuracy:
    """Compute the accuracy of each group, over all its classes together.

    A group may be a demographic group, or one class within it. If a model relies on a spurious
    attribute, such as the background of birds, it fails for one class on each background, which
    only shows if the class is part of the group: `[f"{y} on {a}" for y, a in zip(labels, places)]`.

    Args:
        predictions: predicted classes (n,), strings or numbers.
        labels: true classes (n,), of the same type.
        groups: group labels (n,).

    Returns:
        The accuracy and size of each group, and the worst and average accuracy.

    Raises:
        InvalidInputError: If shapes differ from (n,), there are no rows, values are NaN, strings
            are mixed with numbers, or predictions are scores instead of classes.

    >>> accuracy = group_accuracy([0, 0, 1, 1], [0, 1, 1, 1], groups=[0, 0, 1, 1])
    >>> accuracy.worst, accuracy.average
    (0.5, 0.75)
    """
    return _group_accuracy(*vectors(predictions=predictions, labels=labels, groups=groups))[0]


def _group_accuracy(
    predicted: np.ndarray, true: np.ndarray, group: np.ndarray
) -> tuple[GroupAccuracy, np.ndarray, np.ndarray, np.ndarray]:
    """Return the accuracies, the sorted group names, each row's group, and which rows are right."""
    # The string "0" would never equal the number 0.
    if (predicted.dtype.kind in "SU") != (true.dtype.kind in "SU"):
        raise InvalidInputError(
            "predictions and labels: expected both to be strings or both to be numbers, got"
            f" {predicted.dtype} and {true.dtype}; convert one of them"
        )
    # 0.0 and 1.0 may be labels stored as floats, but 0.37 must be a probability or a score.
    is_fraction = predicted.dtype.kind == "f" and bool((predicted != np.round(predicted)).any())
    if is_fraction and not np.isin(predicted, true).all():
        raise InvalidInputError(
            f"predictions: expected classes, got {np.unique(predicted)[:3].tolist()}; pass the"
            " likeliest class instead of probabilities"
        )
    names, index = codes(group, None)
    size = np.bincount(index)
    right = np.asarray(predicted == true)
    accuracy = np.bincount(index, weights=right) / size
    accuracy_of_group = dict(zip(names.tolist(), accuracy.tolist(), strict=True))
    size_of_group = dict(zip(names.tolist(), size.tolist(), strict=True))
    found = GroupAccuracy(
        accuracy_of_group, size_of_group, float(accuracy.min()), float(right.mean())
    )
    return found, names, index, right


def _resampled_worst(
    predicted: np.ndarray, true: np.ndarray, group: np.ndarray, *, resamples: int, seed: int
) -> Floats:
    """Return `worst_group_accuracy` of each resample (resamples,), from the groups' counts."""
    found, _, index, right = _group_accuracy(predicted, true, group)
    counts = np.bincount(2 * index + right, minlength=2 * len(found.n)).reshape(-1, 2)
    blocks = resampled_counts(counts, resamples, seed)
    return np.concatenate([lowest_accuracy(block[..., 1], block.sum(-1)) for block in blocks])


@computes_resamples(_resampled_worst)
def worst_group_accuracy(predictions: Values, labels: Values, groups: Values) -> float:
    """Return the lowest accuracy over groups, and warn if a class within a group is worse.

    Pass the class as part of the group to find the worst class within a group, as on Waterbirds.
    Pass the attribute alone to compare demographic groups as a whole.

    Args:
        predictions: predicted classes (n,), strings or numbers.
        labels: true classes (n,), of the same type.
        groups: group labels (n,).

    Raises:
        InvalidInputError: If `group_accuracy` rejects an argument.

    >>> labels = ["land", "land", "land", "water"]
    >>> places = ["forest", "forest", "lake", "lake"]
    >>> groups = [f"{label} on {place}" for label, place in zip(labels, places)]
    >>> worst_group_accuracy(["land", "land", "water", "water"], labels, groups)
    0.0
    """
    predicted, true, group = vectors(predictions=predictions, labels=labels, groups=groups)
    found, names, group_codes, right = _group_accuracy(predicted, true, group)
    classes, class_codes = distinct(true)
    cells, index = distinct(group_codes * len(classes) + class_codes)
    size = np.bincount(index)
    accuracy = np.bincount(index, weights=right) / size
    lowest = int(accuracy.argmin())
    worst = found.worst
    if accuracy[lowest] < worst:
        group_code, class_code = divmod(int(cells[lowest]), len(classes))
        warn_of_input(
            f"groups: the lowest accuracy of a group is {worst:.3g}, but a group contains several"
            f" classes, and the accuracy of class {classes[class_code]} within group"
            f" {names[group_code]} is {accuracy[lowest]:.3g} ({size[lowest]:,} rows). To include"
            " the class in the group, pass groups=[f'{label} {group}' for label, group in"
            " zip(labels, groups)]",
        )
    return worst


def share_below(scores: np.ndarray, compared: np.ndarray) -> Floats:
    """Return, for each score, the share (n,) of compared scores below it; the mean is the AUC.

    Args:
        scores: scores (n,).
        compared: scores (m,) to compare with. Ties count as half.
    """
    ordered = np.sort(compared)
    below = np.searchsorted(ordered, scores, "left")
    not_above = np.searchsorted(ordered, scores, "right")
    return (below + not_above) / (2 * len(ordered))


def worst_areas(
    margins: Mapping[str, NDArray[np.floating]],
    positive: Mask,
    groups: Counts,
    *,
    resamples: int,
    seed: int,
) -> tuple[dict[str, float], dict[str, Floats], dict[str, int]]:
    """Compute each method's lowest area under the ROC curve over all groups.

    Draws are normal, with the joint covariance of all methods (DeLong et al., "Comparing the areas
    under two or more correlated receiver operating characteristic curves", 1988), and independent
    between groups. The lowest area is selected again in each draw. Groups with only one class have
    no area and are excluded.

    Args:
        margins: method -> scores (n,), which should be high for positive rows.
        positive: whether each row is positive (n,).
        groups: group codes (n,).
        resamples: number of draws.
        seed: random seed.

    Returns:
        Method -> lowest area, method -> draws (resamples,), and the numbers of images and groups.
        All are empty if no group has both classes.
    """
    first_method = next(iter(margins.values()))
    rng = np.random.default_rng(seed)
    areas = list[Floats]()
    draws = list[Floats]()
    images = 0
    for code in range(groups.max() + 1):
        rows = np.flatnonzero(groups == code)
        # Sort the rows, so that their order does not affect the result.
        rows = rows[np.lexsort((first_method[rows], positive[rows]))]
        is_positive = positive[rows]
        # The area compares positive with negative rows, so a group needs rows of both kinds.
        if is_positive.all() or not is_positive.any():
            continue
        scores = [margin[rows] for margin in margins.values()]
        # The minimum over groups has no closed-form interval, so it is selected again in each draw.
        area, root = _areas_of_group(scores, is_positive)
        noise = rng.standard_normal((resamples, len(scores))) @ root
        # Give methods with equal scores bit-identical draws. np.unique would make a field per row.
        first = []
        for number, margin in enumerate(scores):
            equal = (k for k in range(number) if np.array_equal(scores[k], margin))
            first.append(next(equal, number))
        draws.append((area + noise)[:, first])
        areas.append(area)
        images += len(rows)
    if not areas:
        return {}, {}, {}
    lowest = np.min(areas, axis=0).tolist()
    lowest_draws = np.min(draws, axis=0).T
    n = {"images": images, "values": len(areas)}
    return dict(zip(margins, lowest, strict=True)), dict(zip(margins, lowest_draws, strict=True)), n


def _areas_of_group(scores: Sequence[np.ndarray], is_positive: Mask) -> tuple[Floats, Floats]:
    """Return the areas (m,) and a square root (m, m) of their covariance (DeLong et al., 1988)."""
    m = len(scores)
    of_positives = []
    of_negatives = []
    for method_scores in scores:
        positives = method_scores[is_positive]
        negatives = method_scores[~is_positive]
        of_positives.append(share_below(positives, negatives))
        of_negatives.append(1 - share_below(negatives, positives))
    covariance = np.zeros((m, m))
    for parts in (np.stack(of_positives), np.stack(of_negatives)):
        # DeLong's S10 / m + S01 / n adds the covariances of positive and negative rows. Dividing
        # the covariance with ddof=0 by n - 1 equals dividing the one with ddof=1 by n, but gives 0
        # instead of NaN for a single row.
        covariance = covariance + np.cov(parts, ddof=0).reshape(m, m) / max(parts.shape[1] - 1, 1)
    # If methods have equal scores, the covariance is singular and a Cholesky decomposition fails,
    # so use its eigenvalues.
    spectrum, vectors = np.linalg.eigh(covariance)
    # The symmetric root does not depend on the choice of eigenvectors.
    root = vectors * np.sqrt(spectrum.clip(0)) @ vectors.T
    return np.stack(of_positives).mean(axis=1), root


def auroc(scores: Values, wrong: Values, *, resamples: int = 2000) -> Interval:
    """Return the AUROC for detecting wrong rows by their low scores.

    This is the probability that a wrong row has a lower score than a right one. Ties count as half,
    and 0.5 is chance level. Source: Hanley and McNeil, "The meaning and use of the area
    under a ROC curve" (1982).

    Args:
        scores: scores (n,), expected to be low for wrong rows.
        wrong: whether each row is wrong (n,). Both values must occur.
        resamples: number of draws for the interval (DeLong et al., 1988).

    Returns:
        The area with its 95% interval.

    >>> auroc([0.9, 0.5, 0.7, 0.2], wrong=[False, False, True, True]).value
    0.75
    """
    values, mask = vectors(scores=scores, wrong=wrong)
    if values.dtype.kind not in "iufb":
        raise InvalidInputError(f"scores: expected numbers, got {values.dtype}")
    if np.unique(mask).tolist() != [0, 1]:  # The string "0" and -1 would count as true.
        raise InvalidInputError(
            f"wrong: expected both True and False, got {np.unique(mask)[:8].tolist()}"
        )
    areas, draws, _ = worst_areas(
        {"": values}, mask == 0, np.zeros(len(mask), np.int64), resamples=resamples, seed=0
    )
    return Interval(areas[""], *percentile_interval(draws[""].clip(0, 1)))


class KVariance(NamedTuple):
    """Store a k-variance. Only compare values with the same k.

    Attributes:
        value: mean Wasserstein-1 distance between two subsets.
        k: size of each subset.
        pairs: number of pairs of subsets, which use 2 * k * pairs rows.
    """

    value: float
    k: int
    pairs: int


def k_variance(features: Values, *, k: int | None = None, seed: int = 0) -> KVariance:
    """Compute the mean Wasserstein-1 distance between disjoint random k-row subsets of `features`.

    The result is small if the features are concentrated. The distance between two subsets is the
    cost of the cheapest one-to-one matching by Euclidean distance, divided by k. As many disjoint
    pairs of subsets as possible are sampled (Lemma 8.5), from at most 20,000 rows.

    Source: Solomon et al., "k-variance: a clustered notion of variance" (2022), unnormalised
    (c_p = 1, below definition 8.1 in Chuang's thesis).

    Args:
        features: features (n, d) with n >= 2.
        k: size of each subset, at most n // 2. Default: n // 2, as in the thesis, but at most
            1,000, because memory grows with k^2 and time with k^3. k = 5,000 takes about 10 s and
            200 MB.
        seed: random seed.

    Returns:
        The k-variance, the size k of the subsets, and the number of pairs.

    Raises:
        InvalidInputError: If features are not (n, d) with finite values and n >= 2, or k is outside
            1 .. n // 2.

    >>> import numpy as np
    >>> features = np.random.default_rng(0).normal(size=(100, 8))
    >>> round(k_variance(features).value, 3), round(k_variance(0.1 * features).value, 3)
    (2.38, 0.238)
    """
    (points,) = vectors(2, features=features)
    half = len(points) // 2
    size = min(half, LARGEST_SUBSET) if k is None else k
    if half < 1 or not np.isfinite(points).all():
        raise InvalidInputError(
            f"features: expected an array (n, d) of finite numbers with n >= 2; its shape is"
            f" {points.shape}"
        )
    if not isinstance(size, (int, np.integer)) or not 1 <= size <= half:
        raise InvalidInputError(
            f"k: expected 1 .. {half}, for two disjoint subsets of {len(points)} rows; got {k}"
        )
    spatial = need("scipy.spatial")
    match = need("scipy.optimize").linear_sum_assignment
    rows = min(len(points), max(MOST_ROWS, 2 * size))
    pairs = rows // (2 * size)
    lengths = []
    # Take disjoint subsets from one permutation, because pairs that share rows are dependent.
    order = np.random.default_rng(seed).permutation(len(points))[: 2 * size * pairs]
    for subsets in order.reshape(pairs, 2, size):
        costs = spatial.distance.cdist(*points[subsets].astype(np.float64))
        lengths.append(costs[match(costs)].mean())
    return KVariance(float(np.mean(lengths)), int(size), pairs)


class Agreement(NamedTuple):
    """Store annotator agreement on units with at least two answers.

    Attributes:
        alpha: Krippendorff's alpha, bootstrapped over units. 1 is perfect agreement, and 0 is
            chance level.
        percent: proportion of answer pairs that agree, averaged over units.
        units: number of units with at least two answers.
        answers: number of answers for these units.
    """

    alpha: Interval
    percent: Interval
    units: int
    answers: int


def agreement(labels: Values, *, resamples: int = 2000, seed: int = 0) -> Agreement:
    """Compute Krippendorff's alpha and the percent agreement for nominal labels.

    alpha = 1 - D_o / D_e over units with at least two answers. D_o is the proportion of unequal
    answer pairs within units, and D_e the proportion among all pairable answers (Krippendorff,
    "Computing Krippendorff's Alpha-Reliability", 2011). Units are resampled, as recommended by Zapf
    et al., "Measuring inter-rater reliability for nominal data" (2016). Resamples with only one
    value have no alpha and are excluded.

    Args:
        labels: answers (annotators, units) as codes from 0. NaN and negative codes mark missing
            answers.
        resamples: number of resamples.
        seed: random seed.

    Returns:
        The intervals of alpha and of the percent agreement, and the numbers of units and answers.

    Raises:
        InvalidInputError: If the shape is wrong, no unit has two answers, or all answers are equal,
            so that alpha would be 0 / 0.

    >>> agreement([[0, 0, 1, 1], [0, 0, 1, 0]]).alpha.value
    0.5333333333333333
    """
    array = np.asarray(labels)
    if array.ndim != 2 or array.dtype.kind not in "iufb":
        raise InvalidInputError(
            f"labels: expected numbers (annotators, units), got shape {array.shape} with dtype"
            f" {array.dtype}; encode names as codes and missing answers as NaN"
        )
    values = np.unique(array[array >= 0])
    counts = (array[..., None] == values).sum(axis=0).astype(np.float64)  # (units, values)
    # Units with fewer than two answers have no pairs.
    counts = counts[counts.sum(1) >= 2]
    occurring = (counts.sum(0) > 0).sum()
    if occurring < 2:
        raise InvalidInputError(
            "labels: expected two or more values in units with two or more answers, got"
            f" {occurring} values in {len(counts)} such units"
        )
    units = len(counts)
    sizes = counts.sum(1)
    # The proportion of unequal pairs among each unit's ordered answer pairs.
    unequal = (sizes**2 - (counts**2).sum(1)) / (sizes * (sizes - 1))

    # The counts, D_o and percent agreement are sums over units, so one matrix product with the
    # weights computes them for the sample and all resamples.
    terms = np.column_stack([counts, sizes * unequal, (1 - unequal) / units])
    blocks = resampled_counts(np.ones(units, np.int64), resamples, seed)
    sums = np.concatenate([terms.sum(0, keepdims=True), *(weights @ terms for weights in blocks)])
    totals = sums[:, :-2]
    observed = sums[:, -2]
    n = totals.sum(1)
    with np.errstate(invalid="ignore"):  # Alpha is 0 / 0 if a resample has only one value.
        expected = (n**2 - (totals**2).sum(1)) / (n * (n - 1))
        alphas = 1 - observed / n / expected
    return Agreement(
        _interval_of_draws(alphas), _interval_of_draws(sums[:, -1]), units, int(counts.sum())
    )


def _interval_of_draws(sample_and_draws: Floats) -> Interval:
    """Return the first value, with the percentile interval of the finite draws that follow it."""
    draws = sample_and_draws[1:]
    return Interval(float(sample_and_draws[0]), *percentile_interval(draws[np.isfinite(draws)]))
