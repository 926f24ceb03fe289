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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.measure.resampling import Interval, Values, codes, vectors, wilson_interval

NOT_LABELLED = -1
LEAST, FEW = 10, 30  # labels below which nothing is said, and below which a warning is
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
    n, shares, even = counts.sum(axis=-1), _shares(counts), 1 / counts.shape[-1]
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
    values, total = counts.shape[1], counts.sum(axis=1)
    n = (total + 1e-9).astype(np.int64)
    centres = (counts * (n / np.maximum(total, 1))[:, None] + 1) / (n + values)[:, None]
    radius = np.full(len(counts), np.sqrt(1 - 1 / values))
    for i in np.flatnonzero(n):
        drawn = rng.multinomial(n[i], centres[i], size=resamples) / n[i]
        radius[i] = np.quantile(np.linalg.norm(drawn - centres[i], axis=1), LEVEL)
    return radius


@dataclass(frozen=True, eq=False)
class CorrectedShares:
    """Hold the shares (c,) of people's answers over all images that a judge answered about; they
    add up to 1.

    draws: (2, b, c) of their posterior, under each prior. labels, images: how many images people
    labelled, of how many.
    noise: the part of the draws' variance that is of the images and that no label lowers.
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
        told, drawn = self.shares[:values], self.draws[..., :values]
        if not told.sum() > 0:
            raise InvalidInputError(
                "people: no labelled image has a value that can be told; label more"
            )
        stats, at = need("scipy.stats"), (1 + LEVEL) / 2
        wider = float(stats.t.ppf(at, self.labels - 1) / stats.norm.ppf(at))
        least, most = np.quantile(drawn, [1 - at, at], axis=1)
        low = told + wider * (np.minimum(least.min(axis=0), told) - told)
        high = told + wider * (np.maximum(most.max(axis=0), told) - told)
        each = np.stack([told, low.clip(0), high.clip(max=1)], axis=1).tolist()
        shares = told / told.sum()
        off = drawn / drawn.sum(axis=-1, keepdims=True) - shares
        norms = (np.linalg.norm(off, ord=p, axis=-1) for p in (2, np.inf))
        of_gap, of_skew = (wider * float(np.quantile(norm, LEVEL, axis=1).max()) for norm in norms)
        return [*(Interval(*one) for one in each), _gap(shares, of_gap), log_skew(shares, of_skew)]

    def more_labels(self) -> int | None:
        """Return how many more such labels halve the intervals; None if that takes more images."""
        whole = float(self.draws.var(axis=1).sum(-1).mean())
        labels, left = max(whole - self.noise, 0.0), whole / 4 - self.noise
        needed = np.inf if left <= 0 else self.labels * labels / left
        return None if needed > self.images else int(np.ceil(needed - self.labels))


def _gap(shares: Floats, reach: float) -> Interval:
    value, most = float(np.linalg.norm(shares - 1 / len(shares))), (1 - 1 / len(shares)) ** 0.5
    return Interval(value, max(0.0, value - reach), min(most, value + reach))


def log_skew(shares: Floats, reach: float) -> Interval:
    """Return MaxSkew of shares (values,) of which the largest is known to within `reach`."""
    most = float(shares.max())
    ends = np.array([most, most - reach, min(1.0, most + reach)]) * len(shares)
    return Interval(*np.log(np.maximum(ends, 1.0)).tolist())


def as_judged(judged: Codes, values: int) -> list[Interval]:
    """Return shares, discrepancy and MaxSkew of codes (n,), taken as correct; a code beyond the
    values is unknown."""
    n, counts = len(judged), np.bincount(judged, minlength=values)[:values]
    shares, reach = _shares(counts), float(shares_radius(counts[None])[0])
    each = [Interval(count / n, *wilson_interval(count, n)) for count in counts.tolist()]
    return [*each, _gap(shares, reach), log_skew(shares, reach)]


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

    judged: (n,) answers of the judge, "unknown" among them; what they are called does not matter.
    people: (n,) codes
        0 .. answers - 1, those that name no value among them, or NOT_LABELLED.
    weights: (n,) one over the probability with which an image was chosen for labelling; by default
    all alike. Images
        are to be chosen at random: what people label because it looks odd corrects nothing.

    Raises:
        InvalidInputError: unequal lengths, codes outside the range, fewer than 10 labelled images,
            weights that are not above 0.

    Warns:
        SuspectInputWarning: fewer than 30 labelled images, or an answer of the judge of which none
            is labelled.
    """
    given = np.ones(len(judged)) if weights is None else weights
    said, answered, worth = vectors(judged=judged, people=people, weights=given)
    if (
        answered.dtype.kind not in "iu"
        or answered.min() < NOT_LABELLED
        or answered.max() >= answers
    ):
        came = np.unique(answered)[:8]
        raise InvalidInputError(
            f"people: expected codes {NOT_LABELLED} .. {answers - 1}, got {came}"
        )
    asked = answered != NOT_LABELLED
    labels = int(asked.sum())
    if labels < LEAST:
        wanted = (
            f"expected labels of {LEAST} images or more, and of {FEW} for intervals without a"
            " warning"
        )
        raise InvalidInputError(f"people: {wanted}; {labels} of {len(said)} are labelled")
    if not (np.isfinite(worth[asked]).all() and (worth[asked] > 0).all()):
        raise InvalidInputError(
            f"weights: expected {len(said)} numbers above 0, got {worth[:5].tolist()} ..."
        )
    names, code = np.unique(said, return_inverse=True)
    lacking = np.setdiff1d(names, said[asked]).astype(str).tolist()
    if labels < FEW or lacking:
        why = (
            f"{labels} labels are few"
            if labels < FEW
            else f"no image is labelled of the judge's answers {lacking}"
        )
        warn(f"people: {why}; the intervals are wide, label more images", SuspectInputWarning)

    def shares_of(part: Codes) -> Floats:
        return np.bincount(answered[part], worth[part], minlength=answers) / worth[part].sum()

    overall = shares_of(np.flatnonzero(asked))
    strata: list[
        tuple[float, Floats, Floats]
    ] = []  # size, shares, and as many labels as they are worth
    for i in range(len(names)):
        size, here = (code == i).mean(), np.flatnonzero(asked & (code == i))
        if not len(here):
            strata.append((size, overall, np.zeros(answers)))
        edges = np.unique(
            worth[here]
        )  # what was chosen with another probability was another stratum of the sample
        if len(edges) > _WEIGHTS:
            edges = np.quantile(worth[here], np.linspace(0, 1, _WEIGHTS + 1)[1:-1])
        place = np.searchsorted(edges, worth[here])
        for part in (here[place == one] for one in np.unique(place)):
            w, shares = worth[part], shares_of(part)
            strata.append(
                (
                    size * (w.sum() / worth[here].sum()),
                    shares,
                    shares * (w.sum() ** 2 / (w**2).sum()),
                )
            )
    of, theta, counts = (np.array(column) for column in zip(*strata, strict=True))
    rng = np.random.default_rng(seed)
    sizes = rng.dirichlet(of * len(said) + 1 / len(of), resamples)
    pooled = (overall * labels + 0.5) / (labels + 0.5 * answers)
    draws = np.zeros((2, resamples, answers))
    for drawn, prior in zip(draws, (np.full(answers, 1 / answers), pooled), strict=True):
        for j, seen in enumerate(counts):
            drawn += sizes[:, [j]] * rng.dirichlet(seen + prior, resamples)
    shares = of @ theta
    noise = float(((theta**2).T @ of - shares**2).sum()) / len(said)
    return CorrectedShares(shares, draws, labels, len(said), noise)


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
    told, asked = np.eye(values + 2, values)[people], people != NOT_LABELLED
    _, code = np.unique(judged, return_inverse=True)
    said = np.eye(code.max() + 1)[code]
    of = (said * (weights * asked)[:, None]).T
    seen = of.sum(1) > 0
    means, share = of @ told / np.maximum(of.sum(1), 1e-300)[:, None], said.mean(0) * seen
    predicted = np.where(seen[:, None], means, share @ means / share.sum())[code]
    guess, truth = (
        of - of.sum(1, keepdims=True) / values for of in (predicted, told)
    )  # 0 in the mean where even
    error = truth - guess
    squares = np.full(int(prompts.max()) + 1, np.nan)
    for p in range(len(squares)):
        every = np.flatnonzero(prompts == p)
        some = every[asked[every]]
        if len(some) < 2:
            continue
        w, grown = weights[some] / weights[some].sum(), len(some) / (len(some) - 1)
        rate = predicted[every].sum(1).mean()
        mean = guess[every].mean(0) + w @ error[some]
        off, lean = error[some] - w @ error[some], guess[some] - w @ guess[some]
        noise = grown * ((w**2) @ off**2).sum() + guess[every].var(0, ddof=1).sum() / len(every)
        noise += 2 * grown * (w @ (off * lean)).sum() / len(every)
        squares[p] = ((mean**2).sum() - noise) / rate**2 if rate > 0 else 1 - 1 / values
    return squares


def independent(after: Interval, before: Interval) -> tuple[float, float, float]:
    """Return after - before with its interval, for estimates from different labels.

    Source: Zou and Donner, "Construction of confidence limits about effect measures" (2008): the
    ends keep their sides.
    """
    moved = after.value - before.value
    down = np.hypot(after.value - after.low, before.high - before.value)
    up = np.hypot(after.high - after.value, before.value - before.low)
    return moved, float(moved - down), float(moved + up)
