"""Measure shares of values and their distance from even, and correct them by people's labels.

`corrected_shares` joins a judge's answers about all images and people's of some: Angelopoulos et
al., "Prediction-Powered Inference" (2023), with the power tuning of "PPI++" (2023), section 6. For
indicators with powers by least squares that is post-stratification,

    share_a = sum_j P(judge says j) P(people say a | judge says j),

the first factor from all images, the second from the labelled ones. A judge that is wrong makes the
interval wide and not wrong. Both factors are sampled from their posterior, under two priors that
weigh as much as one label: errors not seen yet are uniform, or as elsewhere. An interval covers
those of both, and is wider by Student's t for few labels; `eval/results/coverage_shares.json` has
how often such intervals contain the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.measure.resampling import Interval, Values, codes, vectors, wilson_interval

NOT_LABELLED = -1
# labels below which nothing is said, and below which a warning is
LEAST = 10
FEW = 30
LEVEL = 0.95
_WEIGHTS = 8  # different weights that make strata of their own; more are put into so many bins

Floats = NDArray[np.float64]
Codes = NDArray[np.integer]
Counts = Codes | Floats


def discrepancy(labels: Values, n_groups: int, *, unknown: int | None = None) -> float:
    """Return sqrt(sum_a (f_a - 1/|A|)^2) with f_a the frequency of attribute a (eq. 7.2); 0 is
    uniform.

    Its maximum is sqrt(1 - 1/|A|): .707 for two values, .894 for five. Few images per prompt bias
    it upwards: n fair draws have about sqrt((1 - 1/|A|) / n).

    labels: (n,) integers 0 .. n_groups - 1. n_groups: |A|, of which some may not occur. unknown:
    the label that means
        "cannot tell", for instance -1 or n_groups; such rows are left out, report their rate.

    Raises:
        InvalidInputError: labels outside the range, or none that is known.

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
    """Return shares (..., |A|); where nothing was counted, all of one value, the furthest from
    even."""
    n = counts.sum(axis=-1, keepdims=True)
    return np.where(n > 0, counts / np.where(n > 0, n, 1), np.eye(counts.shape[-1])[0])


def discrepancies(counts: Counts) -> Floats:
    """Return eq. 7.2 (...) from counts of the values (..., |A|); its maximum, sqrt(1 - 1/|A|),
    where n = 0."""
    return np.linalg.norm(_shares(counts) - 1 / counts.shape[-1], axis=-1)


def squared_discrepancies(counts: Counts) -> Floats:
    """Return unbiased estimates (...) of the squared discrepancy, from counts of the values (...,
    |A|).

    The plain square of n images is too large by (1 - sum_a p_a^2) / n, of which (1 - sum_a
    share_a^2) / (n - 1) is an unbiased estimate. It may be negative. With fewer than two images it
    is the maximum, 1 - 1/|A|.
    """
    n = counts.sum(axis=-1)
    shares = _shares(counts)
    even = 1 / counts.shape[-1]
    spread = (1 - (shares**2).sum(axis=-1)) / np.maximum(n - 1, 1)
    return np.where(n > 1, ((shares - even) ** 2).sum(axis=-1) - spread, 1 - even)


def deviation_ratios(counts: Counts) -> Floats:
    """Return max_a |share_a - 1/|A|| / (1 - 1/|A|) (...) from counts (..., |A|); 1 where nothing
    was counted.

    Source: Gandikota et al., "Unified Concept Editing in Diffusion Models" (2024). Few images bias
    it upwards.
    """
    even = 1 / counts.shape[-1]
    return np.abs(_shares(counts) - even).max(axis=-1) / (1 - even)


def kl_divergences(counts: Counts) -> Floats:
    """Return sum_a share_a log(share_a |A|) in nats (...) from counts (..., |A|); log |A| where
    nothing was counted.

    Source: Zhang et al., "ITI-GEN: Inclusive Text-to-Image Generation" (2023). Few images bias it
    upwards.
    """
    terms = need("scipy.special").rel_entr(_shares(counts), 1 / counts.shape[-1])
    return np.maximum(terms.sum(axis=-1), 0.0)  # below 0 by rounding alone


def shares_radius(counts: Counts, *, resamples: int = 2000, seed: int = 0) -> Floats:
    """Return L2 radii (p,) around the shares of each row of counts (p, |A|) that should contain the
    true shares.

    The discrepancy of a row is within it as well, by the triangle inequality; quantiles of
    resampled discrepancies inherit the upward bias. Resampled are the images and one more of each
    value: without them images that all show one value would pass for certain. Where nothing was
    counted the radius is the maximum, sqrt(1 - 1/|A|).
    """
    rng = np.random.default_rng(seed)
    values = counts.shape[1]
    total = counts.sum(axis=1)
    # Effective counts are fractions: 24.9999999 images are 25, and 24.6 are 24.
    n = (total + 1e-9).astype(np.int64)
    centres = (counts * (n / np.maximum(total, 1))[:, None] + 1) / (n + values)[:, None]
    # The largest distance that shares can have from even: where nothing is known all of it.
    radius = np.full(len(counts), np.sqrt(1 - 1 / values))
    for i in np.flatnonzero(n):
        # (resamples, |A|)
        drawn = rng.multinomial(n[i], centres[i], size=resamples) / n[i]
        radius[i] = np.quantile(np.linalg.norm(drawn - centres[i], axis=1), LEVEL)
    return radius


@dataclass(frozen=True, eq=False)
class CorrectedShares:
    """Hold the shares (c,) of people's answers over all images that a judge answered about; they
    add up to 1.

    draws: (2, b, c) of their posterior, under each prior. labels, images: how many images people
    labelled, of how many.
    noise: the part of the draws' variance that comes from the images and that no label lowers.
    """

    shares: Floats
    draws: Floats
    labels: int
    images: int
    noise: float

    def figures(self, values: int) -> list[Interval]:
        """Return the share of each value, the first `values` answers, then discrepancy and MaxSkew
        of all images.

        Both are among the images whose value can be told. Their intervals have the radius of the
        drawn shares around the corrected ones, as in `shares_radius`. All are wider by Student's t
        over the normal quantile.

        Raises:
            InvalidInputError: people could tell the value of no labelled image.
        """
        known = self.shares[:values]  # of answers that name a value
        drawn = self.draws[..., :values]
        if not known.sum() > 0:
            raise InvalidInputError(
                "people: no labelled image has a value that can be told; label more"
            )
        # Student's t over the normal quantile: few labels know their own spread badly.
        stats = need("scipy.stats")
        upper = (1 + LEVEL) / 2
        wider = float(stats.t.ppf(upper, self.labels - 1) / stats.norm.ppf(upper))
        lows, highs = np.quantile(drawn, [1 - upper, upper], axis=1)  # of each prior
        # The lowest end of both priors, moved away from the share by the factor of few labels.
        low = known + wider * (np.minimum(lows.min(axis=0), known) - known)
        high = known + wider * (np.maximum(highs.max(axis=0), known) - known)
        ends = zip(known.tolist(), low.clip(0).tolist(), high.clip(max=1).tolist(), strict=True)
        intervals = [Interval(*value_low_high) for value_low_high in ends]

        shares = known / known.sum()
        deviations = drawn / drawn.sum(axis=-1, keepdims=True) - shares
        # A radius and not quantiles of the drawn gaps: near even shares all draws of a gap lie
        # above it.
        reach_of_gap = wider * _reach(np.linalg.norm(deviations, axis=-1))
        reach_of_skew = wider * _reach(np.abs(deviations).max(axis=-1))
        return [*intervals, _gap(shares, reach_of_gap), log_skew(shares, reach_of_skew)]

    def more_labels(self) -> int | None:
        """Return how many more such labels halve the intervals; None if that takes more images."""
        variance = float(self.draws.var(axis=1).sum(-1).mean())
        variance_of_labels = max(variance - self.noise, 0.0)
        allowed = variance / 4 - self.noise  # half of the width is a quarter of the variance
        if allowed <= 0:
            return None
        needed = self.labels * variance_of_labels / allowed
        if needed > self.images:
            return None
        return int(np.ceil(needed - self.labels))


def _reach(norms: Floats) -> float:
    """Return how far the drawn shares lie, from their norms (2, b), under the wider prior."""
    return float(np.quantile(norms, LEVEL, axis=1).max())


def _gap(shares: Floats, reach: float) -> Interval:
    """Return the discrepancy of shares (values,) that are known to within `reach`."""
    value = float(np.linalg.norm(shares - 1 / len(shares)))
    largest = (1 - 1 / len(shares)) ** 0.5
    return Interval(value, max(0.0, value - reach), min(largest, value + reach))


def log_skew(shares: Floats, reach: float) -> Interval:
    """Return MaxSkew of shares (values,), where the largest share is known to within `reach`."""
    largest = float(shares.max())
    # MaxSkew is log(|A| share of the largest value): its ends are those of that share, which is 1 /
    # |A| at least.
    ends = np.array([largest, largest - reach, min(1.0, largest + reach)]) * len(shares)
    return Interval(*np.log(np.maximum(ends, 1.0)).tolist())


def as_judged(judged: Codes, values: int) -> list[Interval]:
    """Return shares, discrepancy and MaxSkew of codes (n,), taken as correct; a code beyond the
    values is unknown."""
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
    """Return the shares of a judge's answers about all images, corrected by people's answers about
    some.

    Args:
        judged: (n,) answers of the judge, "unknown" among them; what they are called does not
            matter.
        people: (n,) codes 0 .. answers - 1, those that name no value among them, or NOT_LABELLED.
        weights: (n,) one over the probability with which an image was chosen for labelling; by
            default all alike. Images are to be chosen at random: what people label because it looks
            odd corrects nothing.

    Raises:
        InvalidInputError: unequal lengths, codes outside the range, fewer than 10 labelled images,
            weights that are not above 0.

    Warns:
        SuspectInputWarning: fewer than 30 labelled images, or an answer of the judge of which none
            is labelled.
    """
    if weights is None:
        weights = np.ones(len(judged))
    answers_of_judge, answered, worth = vectors(judged=judged, people=people, weights=weights)
    _check_labels(answered, worth, answers)
    labelled_rows = np.flatnonzero(answered != NOT_LABELLED)
    labels = len(labelled_rows)
    n = len(answered)
    lacking = np.setdiff1d(answers_of_judge, answers_of_judge[labelled_rows])
    reason = ""
    if labels < FEW:
        reason = f"{labels} labels are few"
    elif len(lacking):
        reason = f"no image is labelled of the judge's answers {lacking.astype(str).tolist()}"
    if reason:
        warn(f"people: {reason}; the intervals are wide, label more images", SuspectInputWarning)
    overall = _weighted_shares(answered, worth, labelled_rows, answers)
    sizes, theta, counts = _strata(answers_of_judge, answered, worth, overall)
    # Two priors of the weight of one label each. Uniform: any error that was not seen yet may come.
    # As elsewhere: errors are as frequent as over all answers.
    uniform = np.full(answers, 1 / answers)
    as_elsewhere = (overall * labels + 0.5) / (labels + 0.5 * answers)
    draws = _posterior(sizes * n, counts, (uniform, as_elsewhere), resamples, seed)
    shares = sizes @ theta
    # Between strata: how much the shares of n new images would vary if each stratum's were known.
    variance_of_images = float(((theta**2).T @ sizes - shares**2).sum())
    return CorrectedShares(shares, draws, labels, n, noise=variance_of_images / n)


def _check_labels(answered: np.ndarray, worth: np.ndarray, answers: int) -> None:
    """Refuse codes outside the range, too few labels and weights that are not above 0."""
    is_integer = answered.dtype.kind in "iu"
    if not is_integer or answered.min() < NOT_LABELLED or answered.max() >= answers:
        raise InvalidInputError(
            f"people: expected codes {NOT_LABELLED} .. {answers - 1}, got {np.unique(answered)[:8]}"
        )
    is_labelled = answered != NOT_LABELLED
    labels = int(is_labelled.sum())
    if labels < LEAST:
        raise InvalidInputError(
            f"people: expected labels of {LEAST} images or more, and of {FEW} for intervals without"
            f" a warning; {labels} of {len(answered)} are labelled"
        )
    weights = worth[is_labelled]
    if not np.isfinite(weights).all() or not (weights > 0).all():
        raise InvalidInputError(
            f"weights: expected {len(answered)} numbers above 0, got {worth[:5].tolist()} ..."
        )


def _weighted_shares(answered: np.ndarray, worth: np.ndarray, rows: Codes, answers: int) -> Floats:
    """Return the weighted shares (answers,) of people's answers about some rows."""
    weights = worth[rows]
    return np.bincount(answered[rows], weights, minlength=answers) / weights.sum()


def _strata(
    answers_of_judge: np.ndarray, answered: np.ndarray, worth: np.ndarray, overall: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return of each stratum its share of all images (s,), the shares (s, answers) of people's
    answers in it, and as many labels (s, answers) as these are worth.

    A stratum has images that the judge answered alike about and that had one chance of being
    labelled. An answer of the judge without a label has the overall shares.
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
        # What was chosen with another probability was another stratum of the sample.
        weights = worth[rows]
        edges = np.unique(weights)
        # Weights that are all different, as uncertainty sampling gives, would make strata of one
        # label.
        if len(edges) > _WEIGHTS:
            edges = np.quantile(weights, np.linspace(0, 1, _WEIGHTS + 1)[1:-1])
        bins = np.searchsorted(edges, weights)
        for number in np.unique(bins):
            members = rows[bins == number]
            w = worth[members]
            stratum_shares = _weighted_shares(answered, worth, members, len(overall))
            effective_labels = w.sum() ** 2 / (w**2).sum()  # Kish: unequal weights are worth fewer
            sizes.append(has_answer.mean() * (w.sum() / weights.sum()))
            shares.append(stratum_shares)
            counts.append(stratum_shares * effective_labels)
    return np.array(sizes), np.array(shares), np.array(counts)


def _posterior(
    images: Floats, counts: Floats, priors: Sequence[Floats], resamples: int, seed: int
) -> Floats:
    """Return draws (priors, resamples, answers) of the shares.

    images: (s,) of each stratum. counts: (s, answers), the labels in each. priors: (answers,) each.
    """
    rng = np.random.default_rng(seed)
    strata, answers = counts.shape
    # The share of each stratum is uncertain too: of 200 other images the judge might call 110 women
    # where it called 100.
    sizes = rng.dirichlet(images + 1 / strata, resamples)
    draws = np.zeros((len(priors), resamples, answers))
    for drawn, prior in zip(draws, priors, strict=True):
        for stratum, labels in enumerate(counts):
            drawn += sizes[:, [stratum]] * rng.dirichlet(labels + prior, resamples)
    return draws


def corrected_squares(
    prompts: Codes, judged: Codes, people: Codes, values: int, *, weights: Floats
) -> Floats:
    """Return the unbiased squared discrepancy (p,) of each prompt 0 .. p - 1, NaN with fewer than
    two labelled images.

    The share of each prompt is its mean of what the judge's answers are worth over all prompts,
    plus the mean error of that among its labelled images; the variance of this is taken off the
    square, which may then be negative. Their mean over prompts is what they are for. Arguments: see
    `corrected_shares`; the code `values` of people names no value.
    """
    is_labelled = people != NOT_LABELLED
    truth = np.eye(values + 2, values)[people]  # (n, values), all 0 where no value is named
    # What the judge's answer about each image is worth (n, values): the weighted mean of people's
    # answers where the judge gives it; of an answer without labels that of all.
    _, code = np.unique(judged, return_inverse=True)
    answers = np.eye(code.max() + 1)[code]  # (n, answers of the judge)
    weighted = (answers * (weights * is_labelled)[:, None]).T
    has_labels = weighted.sum(1) > 0
    means = weighted @ truth / np.maximum(weighted.sum(1), 1e-300)[:, None]
    share = answers.mean(0) * has_labels
    worth = np.where(has_labels[:, None], means, share @ means / share.sum())
    predicted = worth[code]

    # Both are 0 in the mean where shares are even.
    guess = predicted - predicted.sum(1, keepdims=True) / values
    error = truth - truth.sum(1, keepdims=True) / values - guess
    # NaN: one label has no variance, so that nothing could be taken off.
    squares = np.full(int(prompts.max()) + 1, np.nan)
    for prompt in range(len(squares)):
        rows = np.flatnonzero(prompts == prompt)
        labelled_rows = rows[is_labelled[rows]]
        if len(labelled_rows) < 2:
            continue
        square = _unbiased_square(
            guess[rows], guess[labelled_rows], error[labelled_rows], weights[labelled_rows]
        )
        rate = predicted[rows].sum(1).mean()  # share of images whose value can be told
        squares[prompt] = square / rate**2 if rate > 0 else 1 - 1 / values
    return squares


def _unbiased_square(
    guess: Floats, guess_of_labelled: Floats, error: Floats, weights: Floats
) -> float:
    """Return the squared length of the mean of guesses plus the mean error, less its variance.

    guess: (n, values) of all images. guess_of_labelled, error: (m, values), weights: (m,) of those
    that people labelled.
    """
    labels = len(error)
    w = weights / weights.sum()
    bessel = labels / (labels - 1)
    mean = guess.mean(0) + w @ error
    deviation = error - w @ error
    deviation_of_guess = guess_of_labelled - w @ guess_of_labelled
    # Variance of the mean error, of the mean guess, and twice their covariance: the labelled images
    # are among those that the guess is the mean of.
    noise = bessel * ((w**2) @ deviation**2).sum() + guess.var(0, ddof=1).sum() / len(guess)
    noise += 2 * bessel * (w @ (deviation * deviation_of_guess)).sum() / len(guess)
    return (mean**2).sum() - noise


def independent(after: Interval, before: Interval) -> tuple[float, float, float]:
    """Return after - before with its interval, for estimates from different labels.

    Source: Zou and Donner, "Construction of confidence limits about effect measures" (2008): the
    ends keep their sides.
    """
    change = after.value - before.value
    # The change is lowest where after is low and before is high: these two half-widths belong
    # together.
    down = np.hypot(after.value - after.low, before.high - before.value)
    up = np.hypot(after.high - after.value, before.value - before.low)
    return change, float(change - down), float(change + up)
