"""Compute value shares, measure how unequal they are, and correct them with human labels.

`corrected_shares` combines a judge's answers about all images with human answers about some of
them, following Angelopoulos et al., "Prediction-Powered Inference" (2023), with the power tuning
from section 6 of "PPI++" (2023). If the predictions are indicators of the judge's answers, and the
powers are fitted by least squares, this is post-stratification,

    share_a = sum_j P(judge says j) P(people say a | judge says j),

with the first factor estimated from all images and the second from the labelled images. An
inaccurate judge makes the interval wide, but not wrong. Both factors are sampled from their
posterior under two priors, each with the weight of one label. One prior assumes that unseen errors
are uniform, the other that they are as frequent as elsewhere. The reported interval covers the
intervals under both priors, and is widened by Student's t if there are few labels.
`eval/results/coverage.json` shows the coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, need, warn_of_input
from vldebias.measure.resampling import LEVEL, Interval, Values, codes, vectors, wilson_interval
from vldebias.utils.arrays import Floats

NOT_LABELLED = -1
# Minimum number of labels, and the number below which a warning is issued.
LEAST = 10
FEW = 30
_WEIGHTS = 8  # Maximum number of strata by weight. More weights are binned.

Codes = NDArray[np.integer]
Counts = Codes | Floats


def discrepancy(labels: Values, n_groups: int, *, unknown: int | None = None) -> float:
    """Return sqrt(sum_a (f_a - 1/|A|)^2), the distance from equal shares (eq. 7.2).

    f_a is the share of value a. The maximum is sqrt(1 - 1/|A|), which is 0.707 for two values and
    0.894 for five. The estimate is biased upwards for few images: n fair draws have an expected
    discrepancy of about sqrt((1 - 1/|A|) / n).

    Args:
        labels: integers (n,) in 0 .. n_groups - 1.
        n_groups: number of values |A|, of which some may not occur.
        unknown: label that means "cannot tell", such as -1 or n_groups. Rows with this label are
            excluded, so report how many there are.

    Returns:
        The distance from equal shares.

    Raises:
        InvalidInputError: If labels are out of range, or if all are unknown.

    >>> discrepancy([0, 0, 0, 1], 2)
    0.3535533905932738
    """
    if n_groups < 2:
        raise InvalidInputError(f"n_groups: expected at least 2 attribute values, got {n_groups}")
    if unknown is not None and 0 <= unknown < n_groups:
        raise InvalidInputError(
            f"unknown: expected a label outside 0 .. {n_groups - 1}, got {unknown}"
        )
    (column,) = vectors(labels=labels)
    known = column if unknown is None else column[column != unknown]
    if len(known) == 0:
        raise InvalidInputError(
            f"labels: all {len(column)} are unknown ({unknown}); there is no share to report"
        )
    _, index = codes(known, n_groups, "labels")
    return float(discrepancies(np.bincount(index, minlength=n_groups)))


def _shares(counts: Counts) -> Floats:
    """Return shares (..., |A|), with all mass on one value if there are no counts."""
    n = counts.sum(axis=-1, keepdims=True)
    return np.where(n > 0, counts / np.where(n > 0, n, 1), np.eye(counts.shape[-1])[0])


def discrepancies(counts: Counts) -> Floats:
    """Return discrepancies (...) from counts (..., |A|), or the maximum if all counts are 0."""
    return np.linalg.norm(_shares(counts) - 1 / counts.shape[-1], axis=-1)


def squared_discrepancies(counts: Counts) -> Floats:
    """Return unbiased estimates (...) of the squared discrepancy from counts (..., |A|).

    The plain square for n images is too large by (1 - sum_a p_a^2) / n. An unbiased estimate of
    this bias, (1 - sum_a share_a^2) / (n - 1), is subtracted, so the result may be negative. For
    fewer than two images, it is the maximum, 1 - 1/|A|.
    """
    n = counts.sum(axis=-1)
    shares = _shares(counts)
    even = 1 / counts.shape[-1]
    spread = (1 - (shares**2).sum(axis=-1)) / np.maximum(n - 1, 1)
    return np.where(n > 1, ((shares - even) ** 2).sum(axis=-1) - spread, 1 - even)


def deviation_ratios(counts: Counts) -> Floats:
    """Return the largest deviations (...) from an equal share for counts (..., |A|).

    They are max_a |share_a - 1/|A|| / (1 - 1/|A|), which is 1 if all counts are 0, and biased
    upwards for few images. Source: Gandikota et al., "Unified Concept Editing in Diffusion Models"
    (2024).
    """
    even = 1 / counts.shape[-1]
    return np.abs(_shares(counts) - even).max(axis=-1) / (1 - even)


def kl_divergences(counts: Counts) -> Floats:
    """Return KL divergences (...) from equal shares, in nats, for counts (..., |A|).

    They are sum_a share_a log(share_a |A|), which is log |A| if all counts are 0, and biased
    upwards for few images. Source: Zhang et al., "ITI-GEN: Inclusive Text-to-Image Generation"
    (2023).
    """
    terms = need("scipy.special").rel_entr(_shares(counts), 1 / counts.shape[-1])
    return np.maximum(terms.sum(axis=-1), 0.0)  # negative only because of rounding


def shares_radius(counts: Counts, *, resamples: int = 2000, seed: int = 0) -> Floats:
    """Return L2 radii (p,) around the shares of counts (p, |A|) that contain the true shares.

    By the triangle inequality, the same radius applies to the discrepancy, whereas quantiles of
    resampled discrepancies would inherit its upward bias. One image of each value is added before
    resampling, because images that all show one value would otherwise have no variance. If all
    counts are 0, the radius is the maximum, sqrt(1 - 1/|A|).

    Args:
        counts: number of images that show each value (p, |A|).
        resamples: number of resamples.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    values = counts.shape[1]
    total = counts.sum(axis=1)
    # Effective counts may be fractions. Round 24.9999999 to 25, but 24.6 to 24.
    n = (total + 1e-9).astype(np.int64)
    centres = (counts * (n / np.maximum(total, 1))[:, None] + 1) / (n + values)[:, None]
    # If all counts are 0, use the largest possible distance from equal shares.
    radius = np.full(len(counts), np.sqrt(1 - 1 / values))
    for i in np.flatnonzero(n):
        # (resamples, |A|)
        resampled = rng.multinomial(n[i], centres[i], size=resamples) / n[i]
        radius[i] = np.quantile(np.linalg.norm(resampled - centres[i], axis=1), LEVEL)
    return radius


@dataclass(frozen=True, eq=False)
class CorrectedShares:
    """Store corrected shares over all images for which a judge gave an answer.

    Attributes:
        shares: shares (c,) of human answers, which sum to 1.
        draws: posterior draws (2, b, c) under the two priors.
        labels: number of labelled images.
        images: number of images.
        noise: variance due to the number of images, which more labels cannot reduce.
    """

    shares: Floats
    draws: Floats
    labels: int
    images: int
    noise: float

    def figures(self, values: int) -> list[Interval]:
        """Return the share of each value, followed by discrepancy and MaxSkew.

        Discrepancy and MaxSkew only count images with a known value. Their intervals reach as far
        as 95% of the draws are from the corrected shares, as in `shares_radius`. All intervals are
        widened by the ratio between the quantiles of Student's t and the normal distribution.

        Args:
            values: number of answers that name a value. These answers come first.

        Raises:
            InvalidInputError: If no labelled image has a known value.
        """
        known = self.shares[:values]  # The remaining answers do not name a value.
        draws = self.draws[..., :values]
        if not known.sum() > 0:
            raise InvalidInputError("people: no labelled image has a known value; label others")
        # A variance estimated from few labels is uncertain, so widen intervals by Student's t over
        # the normal quantile.
        stats = need("scipy.stats")
        upper = (1 + LEVEL) / 2
        wider = float(stats.t.ppf(upper, self.labels - 1) / stats.norm.ppf(upper))
        lows, highs = np.quantile(draws, [1 - upper, upper], axis=1)  # under each prior
        # Take the outer ends under both priors, and widen them for few labels.
        low = known + wider * (np.minimum(lows.min(axis=0), known) - known)
        high = known + wider * (np.maximum(highs.max(axis=0), known) - known)
        ends = zip(known.tolist(), low.clip(0).tolist(), high.clip(max=1).tolist(), strict=True)
        intervals = [Interval(*value_low_high) for value_low_high in ends]

        shares = known / known.sum()
        deviations = draws / draws.sum(axis=-1, keepdims=True) - shares
        # Near equal shares, almost all drawn gaps exceed the gap itself, so use a radius instead of
        # their quantiles.
        reach_of_gap = wider * _reach(np.linalg.norm(deviations, axis=-1))
        reach_of_skew = wider * _reach(np.abs(deviations).max(axis=-1))
        return [*intervals, _gap(shares, reach_of_gap), log_skew(shares, reach_of_skew)]

    def more_labels(self) -> int | None:
        """Return how many more labels would halve the intervals, or None if labels cannot."""
        variance = float(self.draws.var(axis=1).sum(-1).mean())
        variance_of_labels = max(variance - self.noise, 0.0)
        # Halving the width requires a quarter of the variance.
        allowed = variance / 4 - self.noise
        if allowed <= 0:
            return None
        needed = self.labels * variance_of_labels / allowed
        if needed > self.images:
            return None
        return int(np.ceil(needed - self.labels))


def _reach(norms: Floats) -> float:
    """Return the 95% quantile of the norms (2, b), using the prior with the larger quantile."""
    return float(np.quantile(norms, LEVEL, axis=1).max())


def _gap(shares: Floats, reach: float) -> Interval:
    """Return the discrepancy of shares (values,), and the interval that extends it by `reach`."""
    value = float(np.linalg.norm(shares - 1 / len(shares)))
    largest = (1 - 1 / len(shares)) ** 0.5
    return Interval(value, max(0.0, value - reach), min(largest, value + reach))


def log_skew(shares: Floats, reach: float) -> Interval:
    """Return the MaxSkew of shares relative to equal shares, with its interval.

    Args:
        shares: shares (values,) that sum to 1.
        reach: half-width of the interval of the largest share.
    """
    largest = float(shares.max())
    # MaxSkew is log(|A| largest share), and the largest share is at least 1 / |A|.
    ends = np.array([largest, largest - reach, min(1.0, largest + reach)]) * len(shares)
    return Interval(*np.log(np.maximum(ends, 1.0)).tolist())


def as_judged(judged: Codes, values: int) -> list[Interval]:
    """Return the shares, discrepancy and MaxSkew, assuming that the judge's answers are correct.

    Args:
        judged: codes (n,), of which codes >= `values` mean "unknown".
        values: number of values.
    """
    n = len(judged)
    counts = np.bincount(judged, minlength=values)[:values]
    shares = _shares(counts)
    reach = float(shares_radius(counts[None])[0])
    intervals = [Interval(count / n, *wilson_interval(count, n)) for count in counts.tolist()]
    return [*intervals, _gap(shares, reach), log_skew(shares, reach)]


def corrected_shares(
    judged: Values,
    people: Values,
    answers: int,
    *,
    weights: Values | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> CorrectedShares:
    """Correct the shares in a judge's answers using human labels for some images.

    Args:
        judged: the judge's answers (n,), including "unknown". Any names may be used.
        people: human answers (n,) as codes 0 .. answers - 1, including answers that do not name a
            value. NOT_LABELLED marks images without a label.
        answers: number of possible human answers.
        weights: reciprocals (n,) of the probabilities that images were selected for labelling.
            Default: equal. Select images at random, because labelling only images that look odd
            biases the correction.
        resamples: number of posterior draws.
        seed: random seed.

    Returns:
        The corrected shares with their posterior draws, which give the intervals.

    Raises:
        InvalidInputError: If lengths differ, codes are out of range, fewer than 10 images are
            labelled, or weights are not positive.

    Warns:
        SuspectInputWarning: If fewer than 30 images are labelled, or one of the judge's answers has
        no labelled image.

    >>> from vldebias.measure.shares import NOT_LABELLED
    >>> judged = [0] * 60 + [1] * 40
    >>> people = [0, 0, 0, 1] * 5 + [NOT_LABELLED] * 40 + [1] * 10 + [NOT_LABELLED] * 30
    >>> corrected = corrected_shares(judged, people, answers=2)
    >>> corrected.shares.round(2).tolist()  # a quarter of the judge's 0 answers were wrong
    [0.45, 0.55]
    """
    if weights is None:
        weights = np.ones(np.shape(judged))
    answers_of_judge, answered, worth = vectors(judged=judged, people=people, weights=weights)
    _check_labels(answered, worth, answers)
    labelled_rows = np.flatnonzero(answered != NOT_LABELLED)
    labels = len(labelled_rows)
    n = len(answered)
    lacking = np.setdiff1d(answers_of_judge, answers_of_judge[labelled_rows])
    reason = ""
    if labels < FEW:
        reason = f"there are only {labels} labels"
    elif len(lacking):
        reason = f"no image with the judge's answers {lacking.astype(str).tolist()} is labelled"
    if reason:
        warn_of_input(f"people: {reason}; the intervals are wide, so label more images")
    overall = _weighted_shares(answered, worth, labelled_rows, answers)
    sizes, theta, counts = _strata(answers_of_judge, answered, worth, overall)
    # Each prior has the weight of one label. In the first, unseen errors are equally likely. In the
    # second, they are as frequent as over all answers.
    uniform = np.full(answers, 1 / answers)
    as_elsewhere = (overall * labels + 0.5) / (labels + 0.5 * answers)
    draws = _posterior(sizes * n, counts, (uniform, as_elsewhere), resamples, seed)
    shares = sizes @ theta
    # This is the variance between strata, which would remain if the shares in each stratum were
    # known.
    variance_of_images = float(((theta**2).T @ sizes - shares**2).sum())
    return CorrectedShares(shares, draws, labels, n, noise=variance_of_images / n)


def _check_labels(answered: np.ndarray, worth: np.ndarray, answers: int) -> None:
    """Raise an error if codes are out of range, labels are too few, or weights are not positive."""
    is_integer = answered.dtype.kind in "iu"
    if not is_integer or answered.min() < NOT_LABELLED or answered.max() >= answers:
        raise InvalidInputError(
            f"people: expected codes {NOT_LABELLED} .. {answers - 1}, got {np.unique(answered)[:8]}"
        )
    is_labelled = answered != NOT_LABELLED
    labels = int(is_labelled.sum())
    if labels < LEAST:
        raise InvalidInputError(
            f"people: expected at least {LEAST} labelled images, and {FEW} to avoid a warning; got"
            f" {labels} of {len(answered)}"
        )
    weights = worth[is_labelled]
    if not np.isfinite(weights).all() or not (weights > 0).all():
        raise InvalidInputError(
            f"weights: expected {len(answered)} positive numbers, got {worth[:5].tolist()} ..."
        )


def _weighted_shares(answered: np.ndarray, worth: np.ndarray, rows: Codes, answers: int) -> Floats:
    """Return the weighted shares (answers,) of human answers for some rows."""
    weights = worth[rows]
    return np.bincount(answered[rows], weights, minlength=answers) / weights.sum()


def _strata(
    answers_of_judge: np.ndarray, answered: np.ndarray, worth: np.ndarray, overall: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the size, shares of human answers and effective label counts of each stratum.

    A stratum contains images with the same judge answer and the same probability of being labelled.
    A stratum without labelled images gets the overall shares.

    Returns:
        The share of all images (s,), the shares of human answers (s, answers), and the effective
        label counts (s, answers).
    """
    sizes = []
    shares = []
    counts = []
    for name in np.unique(answers_of_judge):
        has_answer = answers_of_judge == name
        rows = np.flatnonzero(has_answer & (answered != NOT_LABELLED))
        if not len(rows):
            sizes.append(has_answer.mean())
            shares.append(overall)
            counts.append(np.zeros(len(overall)))
            continue
        # Images with different sampling probabilities form different strata.
        weights = worth[rows]
        edges = np.unique(weights)
        # If all weights differ, as in uncertainty sampling, each stratum would only have one label,
        # so bin the weights.
        if len(edges) > _WEIGHTS:
            edges = np.quantile(weights, np.linspace(0, 1, _WEIGHTS + 1)[1:-1])
        bins = np.searchsorted(edges, weights)
        for number in np.unique(bins):
            members = rows[bins == number]
            w = worth[members]
            stratum_shares = _weighted_shares(answered, worth, members, len(overall))
            effective_labels = w.sum() ** 2 / (w**2).sum()  # Kish's formula.
            sizes.append(has_answer.mean() * (w.sum() / weights.sum()))
            shares.append(stratum_shares)
            counts.append(stratum_shares * effective_labels)
    return np.array(sizes), np.array(shares), np.array(counts)


def _posterior(
    images: Floats, counts: Floats, priors: Sequence[Floats], resamples: int, seed: int
) -> Floats:
    """Return posterior draws (priors, resamples, answers) of the shares.

    Args:
        images: number of images (s,) in each stratum.
        counts: label counts (s, answers) in each stratum.
        priors: pseudo-counts (answers,) of each prior.
        resamples: number of draws.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    strata, answers = counts.shape
    # Stratum sizes are uncertain too: in a different sample of 200 images, the judge might see
    # women in 110 images instead of 100.
    sizes = rng.dirichlet(images + 1 / strata, resamples)
    draws = np.zeros((len(priors), resamples, answers))
    for draws_of_prior, prior in zip(draws, priors, strict=True):
        for stratum, labels in enumerate(counts):
            draws_of_prior += sizes[:, [stratum]] * rng.dirichlet(labels + prior, resamples)
    return draws


def corrected_squares(
    prompts: Codes, judged: Codes, people: Codes, values: int, *, weights: Floats
) -> Floats:
    """Return the unbiased squared discrepancy (p,) of each prompt 0 .. p - 1.

    A prompt's shares are predicted from the judge's answers, using human labels from all prompts,
    and corrected by the mean prediction error on the prompt's labelled images. The variance is
    subtracted from the square, so individual values may be negative; use their mean over prompts.
    Prompts with fewer than two labelled images get NaN.

    Args:
        prompts: prompt (n,) of each image.
        judged: the judge's answers (n,).
        people: human answers (n,) as codes. The code `values` means that no value was named, and
            NOT_LABELLED marks images without a label.
        values: number of values.
        weights: reciprocals (n,) of the probabilities that images were selected for labelling.
    """
    is_labelled = people != NOT_LABELLED
    truth = np.eye(values + 2, values)[people]  # (n, values); all 0 if no value was named
    # Predict (n, values) from the judge's answer, using the weighted mean of human answers for
    # images with the same answer, or for all images if none of them is labelled.
    _, code = np.unique(judged, return_inverse=True)
    answers = np.eye(code.max() + 1)[code]  # (n, answers of the judge)
    weighted = (answers * (weights * is_labelled)[:, None]).T
    has_labels = weighted.sum(1) > 0
    means = weighted @ truth / np.maximum(weighted.sum(1), 1e-300)[:, None]
    share = answers.mean(0) * has_labels
    worth = np.where(has_labels[:, None], means, share @ means / share.sum())
    predicted = worth[code]

    # Centre predictions and human answers, so that they have mean 0 if all shares are equal.
    guess = predicted - predicted.sum(1, keepdims=True) / values
    error = truth - truth.sum(1, keepdims=True) / values - guess
    # Start with NaN, because no variance can be estimated from a single label.
    squares = np.full(int(prompts.max()) + 1, np.nan)
    for prompt in range(len(squares)):
        rows = np.flatnonzero(prompts == prompt)
        labelled_rows = rows[is_labelled[rows]]
        if len(labelled_rows) < 2:
            continue
        square = _unbiased_square(
            guess[rows], guess[labelled_rows], error[labelled_rows], weights[labelled_rows]
        )
        rate = predicted[rows].sum(1).mean()  # share of images with a known value
        squares[prompt] = square / rate**2 if rate > 0 else 1 - 1 / values
    return squares


def _unbiased_square(
    guess: Floats, guess_of_labelled: Floats, error: Floats, weights: Floats
) -> float:
    """Return an unbiased estimate of the squared norm of the mean guess plus the mean error.

    Args:
        guess: predictions (n, values) for all images.
        guess_of_labelled: predictions (m, values) for the labelled images.
        error: errors (m, values) of these predictions.
        weights: weights (m,) of the labelled images.
    """
    labels = len(error)
    w = weights / weights.sum()
    bessel = labels / (labels - 1)
    mean = guess.mean(0) + w @ error
    deviation = error - w @ error
    deviation_of_guess = guess_of_labelled - w @ guess_of_labelled
    # Subtract the variances of the mean error and the mean guess, and twice their covariance,
    # because the mean guess includes the labelled images.
    noise = bessel * ((w**2) @ deviation**2).sum() + guess.var(0, ddof=1).sum() / len(guess)
    noise += 2 * bessel * (w @ (deviation * deviation_of_guess)).sum() / len(guess)
    return (mean**2).sum() - noise


def independent(after: Interval, before: Interval) -> tuple[float, float, float]:
    """Return `after - before` and its interval, for estimates from independent labels.

    Source: Zou and Donner, "Construction of confidence limits about effect measures" (2008).

    Args:
        after: estimate with the method.
        before: estimate without the method.
    """
    change = after.value - before.value
    # The change is smallest if `after` is low and `before` is high, so combine these half-widths.
    down = np.hypot(after.value - after.low, before.high - before.value)
    up = np.hypot(after.high - after.value, before.value - before.low)
    return change, float(change - down), float(change + up)
