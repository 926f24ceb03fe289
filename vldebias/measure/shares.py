"""Value shares, their distance from equal shares, and their correction with human labels.

`corrected_shares` combines a judge's answers about all images with human answers about some:
Angelopoulos et al., "Prediction-Powered Inference" (2023), with the power tuning of "PPI++" (2023),
section 6. For indicators and least-squares powers, this is post-stratification,

    share_a = sum_j P(judge says j) P(people say a | judge says j),

with the first factor from all images and the second from the labelled ones. An inaccurate judge
makes the interval wide, but not wrong. Both factors are sampled from their posterior under two
priors with the weight of one label: unseen errors are uniform, or as frequent as elsewhere. The
interval covers the intervals of both, widened by Student's t for few labels.
`eval/results/coverage_shares.json` shows the coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.measure.resampling import Interval, Values, codes, vectors, wilson_interval

NOT_LABELLED = -1
# minimum number of labels, and the number below which there is a warning
LEAST = 10
FEW = 30
LEVEL = 0.95
_WEIGHTS = 8  # maximum number of strata by weight; beyond that, weights are binned

Floats = NDArray[np.float64]
Codes = NDArray[np.integer]
Counts = Codes | Floats


def discrepancy(labels: Values, n_groups: int, *, unknown: int | None = None) -> float:
    """Return sqrt(sum_a (f_a - 1/|A|)^2), with f_a the share of value a (eq. 7.2); 0 is equal.

    The maximum is sqrt(1 - 1/|A|): 0.707 for two values, 0.894 for five. It is biased upwards for
    few images: n fair draws have about sqrt((1 - 1/|A|) / n).

    Args:
        labels: integers (n,) 0 .. n_groups - 1.
        n_groups: number of values |A|; some may not occur.
        unknown: label for "cannot tell", such as -1 or n_groups. These rows are excluded; report
            their rate.

    Returns:
        The distance from equal shares.

    Raises:
        InvalidInputError: If labels are out of range, or all are unknown.

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
    """Return shares (..., |A|); without counts, the most unequal shares (all of one value)."""
    n = counts.sum(axis=-1, keepdims=True)
    return np.where(n > 0, counts / np.where(n > 0, n, 1), np.eye(counts.shape[-1])[0])


def discrepancies(counts: Counts) -> Floats:
    """Return eq. 7.2 (...) from counts (..., |A|); the maximum, sqrt(1 - 1/|A|), if n = 0."""
    return np.linalg.norm(_shares(counts) - 1 / counts.shape[-1], axis=-1)


def squared_discrepancies(counts: Counts) -> Floats:
    """Return unbiased estimates (...) of the squared discrepancy from counts (..., |A|).

    The plain square for n images is too large by (1 - sum_a p_a^2) / n, estimated without bias by
    (1 - sum_a share_a^2) / (n - 1). The result may be negative. For fewer than two images, it is
    the maximum, 1 - 1/|A|.
    """
    n = counts.sum(axis=-1)
    shares = _shares(counts)
    even = 1 / counts.shape[-1]
    spread = (1 - (shares**2).sum(axis=-1)) / np.maximum(n - 1, 1)
    return np.where(n > 1, ((shares - even) ** 2).sum(axis=-1) - spread, 1 - even)


def deviation_ratios(counts: Counts) -> Floats:
    """Return max_a |share_a - 1/|A|| / (1 - 1/|A|) (...) from counts (..., |A|); 1 without counts.

    Biased upwards for few images. Source: Gandikota et al., "Unified Concept Editing in Diffusion
    Models" (2024).
    """
    even = 1 / counts.shape[-1]
    return np.abs(_shares(counts) - even).max(axis=-1) / (1 - even)


def kl_divergences(counts: Counts) -> Floats:
    """Return sum_a share_a log(share_a |A|) in nats (...) from counts (..., |A|).

    Biased upwards for few images; log |A| without counts. Source: Zhang et al., "ITI-GEN: Inclusive
    Text-to-Image Generation" (2023).
    """
    terms = need("scipy.special").rel_entr(_shares(counts), 1 / counts.shape[-1])
    return np.maximum(terms.sum(axis=-1), 0.0)  # negative only by rounding


def shares_radius(counts: Counts, *, resamples: int = 2000, seed: int = 0) -> Floats:
    """Return L2 radii (p,) around the shares of counts (p, |A|) that contain the true shares.

    By the triangle inequality, the same radius applies to the discrepancy; quantiles of resampled
    discrepancies would inherit its upward bias. One image of each value is added before resampling,
    because images that all show one value would otherwise have no variance. Without counts, the
    radius is the maximum, sqrt(1 - 1/|A|).

    Args:
        counts: number of images that show each value (p, |A|).
        resamples: number of resamples.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    values = counts.shape[1]
    total = counts.sum(axis=1)
    # Effective counts are fractions: round 24.9999999 to 25, but 24.6 to 24.
    n = (total + 1e-9).astype(np.int64)
    centres = (counts * (n / np.maximum(total, 1))[:, None] + 1) / (n + values)[:, None]
    # Without counts, use the largest possible distance from equal shares.
    radius = np.full(len(counts), np.sqrt(1 - 1 / values))
    for i in np.flatnonzero(n):
        # (resamples, |A|)
        resampled = rng.multinomial(n[i], centres[i], size=resamples) / n[i]
        radius[i] = np.quantile(np.linalg.norm(resampled - centres[i], axis=1), LEVEL)
    return radius


@dataclass(frozen=True, eq=False)
class CorrectedShares:
    """Store corrected shares over all images that a judge answered about.

    Attributes:
        shares: shares (c,) of human answers; they sum to 1.
        draws: posterior draws (2, b, c) under each prior.
        labels: number of labelled images.
        images: number of images.
        noise: variance of the draws that is due to the images, and does not decrease with labels.
    """

    shares: Floats
    draws: Floats
    labels: int
    images: int
    noise: float

    def figures(self, values: int) -> list[Interval]:
        """Return the share of each value, followed by discrepancy and MaxSkew.

        Discrepancy and MaxSkew only count images with a known value; their intervals have the
        radius of the draws around the corrected shares, as in `shares_radius`. All intervals are
        widened by the ratio of Student's t to the normal quantile.

        Args:
            values: number of answers that name a value; they come first.

        Raises:
            InvalidInputError: If no labelled image has a known value.
        """
        known = self.shares[:values]  # answers that name a value
        draws = self.draws[..., :values]
        if not known.sum() > 0:
            raise InvalidInputError(
                "people: no labelled image has a known value; label more images"
            )
        # Use Student's t over the normal quantile, since a variance from few labels is uncertain.
        stats = need("scipy.stats")
        upper = (1 + LEVEL) / 2
        wider = float(stats.t.ppf(upper, self.labels - 1) / stats.norm.ppf(upper))
        lows, highs = np.quantile(draws, [1 - upper, upper], axis=1)  # under each prior
        # The outer ends of both priors, widened for few labels.
        low = known + wider * (np.minimum(lows.min(axis=0), known) - known)
        high = known + wider * (np.maximum(highs.max(axis=0), known) - known)
        ends = zip(known.tolist(), low.clip(0).tolist(), high.clip(max=1).tolist(), strict=True)
        intervals = [Interval(*value_low_high) for value_low_high in ends]

        shares = known / known.sum()
        deviations = draws / draws.sum(axis=-1, keepdims=True) - shares
        # Use a radius instead of quantiles of the drawn gaps: near even shares, all drawn gaps are
        # larger than the gap.
        reach_of_gap = wider * _reach(np.linalg.norm(deviations, axis=-1))
        reach_of_skew = wider * _reach(np.abs(deviations).max(axis=-1))
        return [*intervals, _gap(shares, reach_of_gap), log_skew(shares, reach_of_skew)]

    def more_labels(self) -> int | None:
        """Return how many more labels would halve the intervals, or None if labels alone cannot."""
        variance = float(self.draws.var(axis=1).sum(-1).mean())
        variance_of_labels = max(variance - self.noise, 0.0)
        # Half the width corresponds to a quarter of the variance.
        allowed = variance / 4 - self.noise
        if allowed <= 0:
            return None
        needed = self.labels * variance_of_labels / allowed
        if needed > self.images:
            return None
        return int(np.ceil(needed - self.labels))


def _reach(norms: Floats) -> float:
    """Return the 95% radius of the draws from their norms (2, b), under the wider prior."""
    return float(np.quantile(norms, LEVEL, axis=1).max())


def _gap(shares: Floats, reach: float) -> Interval:
    """Return the discrepancy of shares (values,) with an uncertainty of `reach`."""
    value = float(np.linalg.norm(shares - 1 / len(shares)))
    largest = (1 - 1 / len(shares)) ** 0.5
    return Interval(value, max(0.0, value - reach), min(largest, value + reach))


def log_skew(shares: Floats, reach: float) -> Interval:
    """Return MaxSkew with its interval.

    Args:
        shares: shares (values,).
        reach: uncertainty of the largest share.
    """
    largest = float(shares.max())
    # MaxSkew is log(|A| largest share), and the largest share is at least 1 / |A|.
    ends = np.array([largest, largest - reach, min(1.0, largest + reach)]) * len(shares)
    return Interval(*np.log(np.maximum(ends, 1.0)).tolist())


def as_judged(judged: Codes, values: int) -> list[Interval]:
    """Return the shares, discrepancy and MaxSkew of a judge's answers, taken as correct.

    Args:
        judged: codes (n,); codes >= `values` are unknown.
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
    """Correct the shares in a judge's answers with human labels for some images.

    Args:
        judged: the judge's answers (n,), including "unknown"; their names do not matter.
        people: human answers (n,) as codes 0 .. answers - 1, including answers that do not name a
            value; NOT_LABELLED if an image was not labelled.
        answers: number of possible human answers.
        weights: the reciprocal of the probability (n,) that an image was selected for labelling;
            default: equal. Select images at random: labels of images that look odd bias the
            correction.
        resamples: number of posterior draws.
        seed: random seed.

    Returns:
        The corrected shares with their draws.

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
    >>> corrected.shares.round(2).tolist()  # a quarter of the judge's first answers were wrong
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
        warn(f"people: {reason}; the intervals are wide, so label more images", SuspectInputWarning)
    overall = _weighted_shares(answered, worth, labelled_rows, answers)
    sizes, theta, counts = _strata(answers_of_judge, answered, worth, overall)
    # Two priors with the weight of one label each. Uniform: unseen errors are equally likely.
    # As elsewhere: errors are as frequent as over all answers.
    uniform = np.full(answers, 1 / answers)
    as_elsewhere = (overall * labels + 0.5) / (labels + 0.5 * answers)
    draws = _posterior(sizes * n, counts, (uniform, as_elsewhere), resamples, seed)
    shares = sizes @ theta
    # Between strata: the variance for n new images if each stratum's shares were known.
    variance_of_images = float(((theta**2).T @ sizes - shares**2).sum())
    return CorrectedShares(shares, draws, labels, n, noise=variance_of_images / n)


def _check_labels(answered: np.ndarray, worth: np.ndarray, answers: int) -> None:
    """Check that codes are in range, labels are enough, and weights are positive."""
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
    """Return each stratum's size, shares of human answers, and effective label counts.

    A stratum contains images with the same judge answer and the same probability of being labelled.
    Judge answers without any label get the overall shares.

    Returns:
        Share of all images (s,), shares of human answers (s, answers), effective numbers of labels
        (s, answers).
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
        # Images with a different sampling probability form a different stratum.
        weights = worth[rows]
        edges = np.unique(weights)
        # If all weights differ, as in uncertainty sampling, every stratum would have one label.
        if len(edges) > _WEIGHTS:
            edges = np.quantile(weights, np.linspace(0, 1, _WEIGHTS + 1)[1:-1])
        bins = np.searchsorted(edges, weights)
        for number in np.unique(bins):
            members = rows[bins == number]
            w = worth[members]
            stratum_shares = _weighted_shares(answered, worth, members, len(overall))
            effective_labels = w.sum() ** 2 / (w**2).sum()  # Kish's effective sample size
            sizes.append(has_answer.mean() * (w.sum() / weights.sum()))
            shares.append(stratum_shares)
            counts.append(stratum_shares * effective_labels)
    return np.array(sizes), np.array(shares), np.array(counts)


def _posterior(
    images: Floats, counts: Floats, priors: Sequence[Floats], resamples: int, seed: int
) -> Floats:
    """Return posterior draws (priors, resamples, answers) of the shares.

    Args:
        images: number of images (s,) of each stratum.
        counts: labels (s, answers) in each stratum.
        priors: pseudo-counts (answers,), one array per prior.
        resamples: number of draws.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    strata, answers = counts.shape
    # Stratum sizes are uncertain too: among 200 different images, the judge might call 110 women
    # instead of 100.
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

    The share of a prompt is predicted from the judge's answers over all prompts, plus the mean
    error of this prediction among its labelled images. The variance is subtracted from the square,
    so individual values may be negative; use their mean over prompts. NaN for prompts with fewer
    than two labelled images.

    Args:
        prompts: prompt (n,) of each image.
        judged: the judge's answers (n,).
        people: human answers (n,) as codes; the code `values` does not name a value, and
            NOT_LABELLED marks unlabelled images.
        values: number of values.
        weights: the reciprocal of the probability (n,) that an image was selected for labelling.
    """
    is_labelled = people != NOT_LABELLED
    truth = np.eye(values + 2, values)[people]  # (n, values), all 0 if no value is named
    # Prediction (n, values) from the judge's answer: the weighted mean of human answers to images
    # with this answer, or to all images if none is labelled.
    _, code = np.unique(judged, return_inverse=True)
    answers = np.eye(code.max() + 1)[code]  # (n, answers of the judge)
    weighted = (answers * (weights * is_labelled)[:, None]).T
    has_labels = weighted.sum(1) > 0
    means = weighted @ truth / np.maximum(weighted.sum(1), 1e-300)[:, None]
    share = answers.mean(0) * has_labels
    worth = np.where(has_labels[:, None], means, share @ means / share.sum())
    predicted = worth[code]

    # Centre them, so that both have mean 0 for equal shares.
    guess = predicted - predicted.sum(1, keepdims=True) / values
    error = truth - truth.sum(1, keepdims=True) / values - guess
    # NaN, because one label has no variance to subtract.
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
    """Return the squared norm of the mean guess plus the mean error, minus its variance.

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
    # Variances of the mean error and the mean guess, and twice their covariance, since the labelled
    # images are included in the mean guess.
    noise = bessel * ((w**2) @ deviation**2).sum() + guess.var(0, ddof=1).sum() / len(guess)
    noise += 2 * bessel * (w @ (deviation * deviation_of_guess)).sum() / len(guess)
    return (mean**2).sum() - noise


def independent(after: Interval, before: Interval) -> tuple[float, float, float]:
    """Return after - before with its interval, for estimates from independent labels.

    Source: Zou and Donner, "Construction of confidence limits about effect measures" (2008).

    Args:
        after: estimate with the method.
        before: estimate without the method.
    """
    change = after.value - before.value
    # The change is lowest if after is low and before is high, so these half-widths are combined.
    down = np.hypot(after.value - after.low, before.high - before.value)
    up = np.hypot(after.high - after.value, before.value - before.low)
    return change, float(change - down), float(change + up)
