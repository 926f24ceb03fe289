"""Measure shares of values and their distance from even, correct them by people's labels, and compare annotators.

`corrected_shares` joins a judge's answers about all images and people's of some: Angelopoulos et al.,
"Prediction-Powered Inference" (2023), with the power tuning of Angelopoulos, Duchi and Zrnic, "PPI++" (2023), section
6. For indicators with powers by least squares that is post-stratification,

    share_a = sum_j P(judge says j) P(people say a | judge says j),

the first factor from all images, the second from the labelled ones. A judge that is wrong makes the interval wide and
not wrong; with an uninformative one people's labels alone decide. Both factors are sampled from their posterior, under
two priors that weigh as much as one label: errors not seen yet are taken as uniform, or as elsewhere. An interval
covers those of both priors, and is wider by Student's t for few labels. `eval/results/coverage_shares.json` has how
often such intervals contain the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.metrics.bootstrap import Interval, Values, codes, percentile_interval, resampled_counts, vector

NOT_LABELLED = -1
LEAST, FEW = 10, 30  # labels below which nothing is said, and below which a warning is
LEVEL = 0.95
_WEIGHTS = 8  # different weights that make strata of their own; more are put into so many bins

Floats = NDArray[np.float64]
Codes = NDArray[np.integer]
Counts = Codes | Floats


# ---- shares and their distance from even ---------------------------------------------------------------------


def discrepancy(labels: Values, n_groups: int, *, unknown: int | None = None) -> float:
    """Return sqrt(sum_a (f_a - 1/|A|)^2) with f_a the frequency of attribute a (eq. 7.2); 0 is uniform.

    Its maximum is sqrt(1 - 1/|A|): .707 for two values, .894 for five. Few images per prompt bias it upwards: n fair
    draws have about sqrt((1 - 1/|A|) / n). Unknown rows are left out; report their rate with it.

    Args:
        labels: (n,) integers 0 .. n_groups - 1, from a classifier or from people.
        n_groups: |A|, of which some may not occur.
        unknown: the label that means "cannot tell", for instance -1 or n_groups; None if there is no such label.

    Raises:
        InvalidInputError: labels outside the range, or none that is known.

    >>> discrepancy([0, 0, 0, 1], 2)
    0.3535533905932738
    """
    if n_groups < 2:
        raise InvalidInputError(f"n_groups: expected at least 2 attribute values, got {n_groups}")
    if unknown is not None and 0 <= unknown < n_groups:
        raise InvalidInputError(f"unknown: expected a label outside 0 .. {n_groups - 1}, got {unknown}")
    column = vector(labels, "labels")
    known = column if unknown is None else column[column != unknown]
    if len(known) == 0:
        raise InvalidInputError(f"labels: all {len(column)} are unknown ({unknown}); there is no share to report")
    _, index = codes(known, n_groups, "labels")
    return float(discrepancies(np.bincount(index, minlength=n_groups)))


def discrepancies(counts: Counts) -> Floats:
    """Return eq. 7.2 (...) from counts of the values (..., |A|); its maximum, sqrt(1 - 1/|A|), where n = 0."""
    return np.sqrt(_squares(counts))


def squared_discrepancies(counts: Counts) -> Floats:
    """Return unbiased estimates (...) of the squared discrepancy, from counts of the values (..., |A|).

    The plain square of n images is too large by (1 - sum_a p_a^2) / n on average, of which
    (1 - sum_a share_a^2) / (n - 1) is an unbiased estimate. It may be negative. With fewer than two images there is
    none, and the maximum 1 - 1/|A| stands for it.
    """
    n = counts.sum(axis=-1)
    shares = counts / np.maximum(n, 1)[..., None]
    spread = (1 - (shares**2).sum(axis=-1)) / np.maximum(n - 1, 1)
    return np.where(n > 1, _squares(counts) - spread, 1 - 1 / counts.shape[-1])


def shares_radius(counts: Counts, *, resamples: int = 2000, seed: int = 0) -> Floats:
    """Return L2 radii (p,) around the shares of each row of counts (p, |A|) that should contain the true shares.

    By the triangle inequality the discrepancy of a row is within it as well. Resampled discrepancies would not do: they
    inherit the upward bias, and their interval can miss the very value that was measured. It is a quantile over
    resamples of the images, to which one image of each value is added: without them images that all show one value
    would pass for certain. Where nothing was counted the radius is the maximum, sqrt(1 - 1/|A|).
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


def deviation_ratios(counts: Counts) -> Floats:
    """Return max_a |share_a - 1/|A|| / (1 - 1/|A|) (...) from counts (..., |A|); 1 where nothing was counted.

    Source: Gandikota et al., "Unified Concept Editing in Diffusion Models" (2024). Few images bias it upwards.
    """
    shares, known = _shares(counts)
    even = 1 / counts.shape[-1]
    return np.where(known, np.abs(shares - even).max(axis=-1) / (1 - even), 1.0)


def kl_divergences(counts: Counts) -> Floats:
    """Return sum_a share_a log(share_a |A|) in nats (...) from counts (..., |A|); log |A| where nothing was counted.

    Source: Zhang et al., "ITI-GEN: Inclusive Text-to-Image Generation" (2023). Few images bias it upwards.
    """
    (shares, known), values = _shares(counts), counts.shape[-1]
    terms = shares * np.log(np.where(shares > 0, shares * values, 1.0))
    return np.where(known, np.maximum(terms.sum(axis=-1), 0.0), np.log(values))


def _squares(counts: Counts) -> Floats:
    (shares, known), even = _shares(counts), 1 / counts.shape[-1]
    return np.where(known, ((shares - even) ** 2).sum(axis=-1), 1 - even)


def _shares(counts: Counts) -> tuple[Floats, NDArray[np.bool_]]:
    """Shares (..., |A|), and where anything was counted (...)."""
    n = counts.sum(axis=-1)
    return counts / np.where(n > 0, n, 1)[..., None], n > 0


# ---- corrected by people -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CorrectedShares:
    """Hold the shares of people's answers over all images that a judge answered about.

    Attributes:
        shares: (c,) of all answers; they add up to 1.
        draws: (2, b, c) of their posterior, under each prior.
        labels: how many images people labelled. images: how many there are.
        noise: how much of the variance is of the images and not of the labels.
    """

    shares: Floats
    draws: Floats
    labels: int
    images: int
    noise: float

    def interval(self, answer: int) -> Interval:
        """Return the share of an answer with its interval."""
        value, outside = float(self.shares[answer]), (1 - LEVEL) / 2
        low, high = np.quantile(self.draws[..., answer], [outside, 1 - outside], axis=1)
        down = value + self._wider * (min(low.min(), value) - value)
        up = value + self._wider * (max(high.max(), value) - value)
        return self._interval(value, max(0.0, down), min(1.0, up))

    def known(self, values: int) -> CorrectedShares:
        """Return the shares among images whose value can be told: the first `values` answers.

        Raises:
            InvalidInputError: people could tell the value of no labelled image.
        """
        named = float(self.shares[:values].sum())
        if named <= 0:
            raise InvalidInputError("people could tell the value of no labelled image; label more")
        draws = self.draws[..., :values] / self.draws[..., :values].sum(-1, keepdims=True)
        return replace(self, shares=self.shares[:values] / named, draws=draws)

    def discrepancy(self, values: int) -> Interval:
        """Return eq. 7.2 of all images together, among those whose value can be told.

        Its interval is the radius of the drawn shares around the corrected ones, by the triangle inequality: drawn
        gaps would not do, since a gap is never below 0 and those of even shares all lie above it.
        """
        among = self.known(values)
        value = float(np.linalg.norm(among.shares - 1 / values))
        reach = among._radius(np.linalg.norm(among.draws - among.shares, axis=-1))
        return self._interval(value, max(0.0, value - reach), min(float(np.sqrt(1 - 1 / values)), value + reach))

    def max_skew(self, values: int) -> Interval:
        """Return max_a log(share_a |A|) of all images together, among those whose value can be told."""
        among = self.known(values)
        most = float(among.shares.max())
        reach = among._radius(np.abs(among.draws - among.shares).max(-1))
        return self._interval(*log_skew(most, reach, values))

    def more_labels(self) -> int | None:
        """Return how many more such labels halve the intervals; None if that takes more images."""
        whole = float(self.draws.var(axis=1).sum(-1).mean())
        labels, left = max(whole - self.noise, 0.0), whole / 4 - self.noise
        needed = np.inf if left <= 0 else self.labels * labels / left
        return None if needed > self.images else int(np.ceil(needed - self.labels))

    def _interval(self, value: float, low: float, high: float) -> Interval:
        return Interval(value, low, high, LEVEL, self.labels, self.draws.shape[1])

    def _radius(self, distances: Floats) -> float:
        return self._wider * float(np.quantile(distances, LEVEL, axis=1).max())

    @property
    def _wider(self) -> float:
        """Student's t over the normal quantile."""
        stats, at = need("scipy.stats"), (1 + LEVEL) / 2
        return float(stats.t.ppf(at, self.labels - 1) / stats.norm.ppf(at))


def log_skew(most: float, reach: float, values: int) -> tuple[float, float, float]:
    """Return MaxSkew and its interval from the largest share, which is known to within `reach`."""
    ends = np.array([most, most - reach, min(1.0, most + reach)]) * values
    value, low, high = np.log(np.maximum(ends, 1.0)).tolist()
    return value, low, high


def corrected_shares(
    judged: Values,
    people: Values,
    answers: int,
    *,
    weights: Values | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> CorrectedShares:
    """Return the shares of a judge's answers about all images, corrected by people's answers about some.

    Args:
        judged: (n,) codes of the judge's answers, "unknown" among them; what they are called does not matter.
        people: (n,) codes 0 .. answers - 1, or NOT_LABELLED. Or (n, answers): the share of raters that gave each
            answer, rows of zeros where nobody was asked.
        answers: how many answers people may give, those that name no value among them.
        weights: (n,) one over the probability with which an image was chosen for labelling; by default all alike.
            Images are to be chosen at random: what people label because it looks odd corrects nothing.

    Raises:
        InvalidInputError: unequal lengths, codes outside the range, fewer than 10 labelled images, weights that are not
            above 0.

    Warns:
        SuspectInputWarning: fewer than 30 labelled images, or an answer of the judge of which none is labelled.
    """
    said, told = vector(judged, "judged"), rated(people, answers)
    if len(told) != len(said):
        raise InvalidInputError(f"expected as many answers of people as of the judge, {len(said)}, got {len(told)}")
    asked = told.sum(1) > 0
    labels = int(asked.sum())
    if labels < LEAST:
        raise InvalidInputError(
            f"people: expected labels of {LEAST} images or more, {labels} of {len(said)} are labelled; label more, "
            f"{FEW} give intervals without a warning"
        )
    worth = np.ones(len(said)) if weights is None else vector(weights, "weights").astype(np.float64)
    if len(worth) != len(said) or not (np.isfinite(worth[asked]).all() and (worth[asked] > 0).all()):
        raise InvalidInputError(f"weights: expected {len(said)} numbers above 0, got {worth[:5].tolist()} ...")
    names, code = np.unique(said, return_inverse=True)
    lacking = [str(name) for i, name in enumerate(names) if not asked[code == i].any()]
    if labels < FEW or lacking:
        why = f"{labels} labels are few" if labels < FEW else f"no image is labelled of the judge's answers {lacking}"
        warn(f"people: {why}; the intervals are wide, label more images", SuspectInputWarning)
    overall = (worth[asked] @ told[asked]) / worth[asked].sum()
    strata, counts, shares = [], [], []
    for i in range(len(names)):
        here = np.flatnonzero(asked & (code == i))
        for part in _alike(here, worth) if len(here) else [here]:
            w = worth[part]
            strata.append((code == i).mean() * (w.sum() / worth[here].sum() if len(part) else 1.0))
            shares.append(w @ told[part] / w.sum() if len(part) else overall)
            counts.append(shares[-1] * (w.sum() ** 2 / (w**2).sum()) if len(part) else np.zeros(answers))
    of, theta = np.array(strata), np.stack(shares)
    rng = np.random.default_rng(seed)
    sizes = rng.dirichlet(of * len(said) + 1 / len(of), resamples)
    pooled = (overall * labels + 0.5) / (labels + 0.5 * answers)
    draws = np.zeros((2, resamples, answers))
    for drawn, prior in zip(draws, (np.full(answers, 1 / answers), pooled), strict=True):
        for j, seen in enumerate(counts):
            drawn += sizes[:, [j]] * rng.dirichlet(seen + prior, resamples)
    value = of @ theta
    noise = float(((theta**2).T @ of - value**2).sum()) / len(said)
    return CorrectedShares(value, draws, labels, len(said), noise)


def rated(people: Values, answers: int) -> Floats:
    """Return shares (n, answers) of raters from codes (n,), zeros for NOT_LABELLED; shares are returned as given."""
    array = np.asarray(people)
    if array.ndim == 2 and array.shape[1] == answers:
        total = array.sum(1, keepdims=True)
        return np.divide(array, total, out=np.zeros(array.shape, np.float64), where=total > 0)
    column = vector(people, "people")
    if column.dtype.kind not in "iu" or column.min() < NOT_LABELLED or column.max() >= answers:
        raise InvalidInputError(f"people: expected codes {NOT_LABELLED} .. {answers - 1}, got {np.unique(column)[:8]}")
    return (column[:, None] == np.arange(answers)).astype(np.float64)


def _alike(rows: NDArray[np.intp], weights: Floats) -> list[NDArray[np.intp]]:
    """Return rows by their weights: what was chosen with another probability was another stratum of the sample."""
    edges = np.unique(weights[rows])
    if len(edges) > _WEIGHTS:
        edges = np.quantile(weights[rows], np.linspace(0, 1, _WEIGHTS + 1)[1:-1])
    place = np.searchsorted(edges, weights[rows])
    return [rows[place == one] for one in np.unique(place)]


def corrected_squares(
    prompts: Codes, judged: Codes, people: Values, answers: int, values: int, *, weights: Values | None = None
) -> Floats:
    """Return the unbiased squared discrepancy (p,) of each prompt 0 .. p - 1, NaN with fewer than two labelled images.

    The share of each prompt is its mean of what the judge's answers are worth over all prompts, plus the mean error of
    that among its labelled images; the square is too large by the variance of this, which is taken off. As with
    `squared_discrepancies` one may be negative, and a mean over prompts is what it is for. The rate of images that can
    be told, by which it is divided, is that of the judge's answers. Arguments: see `corrected_shares`; the first
    `values` of the answers name values.
    """
    told = rated(people, answers)
    asked = told.sum(1) > 0
    worth = np.ones(len(told)) if weights is None else np.asarray(weights, dtype=np.float64)
    of_code = {code: np.flatnonzero(asked & (judged == code)) for code in np.unique(judged)}
    labelled = {code: worth[rows] @ told[rows] / worth[rows].sum() for code, rows in of_code.items() if len(rows)}
    share = {code: float((judged == code).mean()) for code in labelled}
    overall = sum(share[code] * labelled[code] for code in labelled) / sum(share.values())

    def centred(of: Floats) -> Floats:
        """(n, values): 0 in the mean where the values are even; unknown is 0."""
        return of[:, :values] - of[:, :values].sum(1, keepdims=True) / values

    predicted = np.stack([labelled.get(code, overall) for code in judged])
    guess, error = centred(predicted), centred(told) - centred(predicted)
    squares = np.full(int(prompts.max()) + 1, np.nan)
    for p in range(len(squares)):
        every = np.flatnonzero(prompts == p)
        some = every[asked[every]]
        if len(some) < 2:
            continue
        w = worth[some] / worth[some].sum()
        rate = predicted[every, :values].sum(1).mean()
        mean = guess[every].mean(0) + w @ error[some]
        off, lean = error[some] - w @ error[some], guess[some] - w @ guess[some]
        grown = len(some) / (len(some) - 1)
        noise = grown * ((w**2) @ off**2).sum() + guess[every].var(0, ddof=1).sum() / len(every)
        noise += 2 * grown * (w @ (off * lean)).sum() / len(every)
        squares[p] = ((mean**2).sum() - noise) / rate**2 if rate > 0 else 1 - 1 / values
    return squares


def independent(after: Interval, before: Interval) -> tuple[float, float, float]:
    """Return after - before with its interval, for estimates from different labels.

    Source: Zou and Donner, "Construction of confidence limits about effect measures" (2008): the ends keep their sides.
    """
    moved = after.value - before.value
    down = np.hypot(after.value - after.low, before.high - before.value)
    up = np.hypot(after.high - after.value, before.value - before.low)
    return moved, float(moved - down), float(moved + up)


# ---- agreement of annotators ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Agreement:
    """Hold how far annotators agree.

    Attributes:
        alpha: Krippendorff's alpha, bootstrapped over units: 1 perfect, 0 chance, negative below chance.
        percent: share of pairs of answers to the same unit that are equal, mean over units; not corrected for chance.
        answers: answers in units that two or more answered.
    """

    alpha: Interval
    percent: Interval
    answers: int


def krippendorff_alpha(labels: Values, *, missing: float = np.nan) -> float:
    """Return alpha = 1 - D_o / D_e of names over all units that two or more annotators answered.

    D_o is the share of unequal pairs of answers inside units, D_e that of all pairable answers.
    Source: Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011).

    Args:
        labels: (annotators, units) codes of the answers; NaN is no answer.
        missing: another number that means no answer, such as -1 in integer codes.

    Raises:
        InvalidInputError: not (annotators, units) numbers, no unit with two answers, or a single value throughout:
            chance alone would agree then, and alpha is 0 / 0.

    >>> krippendorff_alpha([[0, 0, 1, 1], [0, 0, 1, 0]])
    0.5333333333333333
    """
    counts = _pairable(labels, missing)
    return float(_alphas(counts, np.ones((1, len(counts))))[0])


def agreement(labels: Values, *, missing: float = np.nan, resamples: int = 2000, seed: int = 0) -> Agreement:
    """Return alpha and percent agreement with percentile intervals over units.

    Units are resampled, as Zapf et al., "Measuring inter-rater reliability for nominal data" (2016), recommend; draws
    in which one value is left have no alpha and do not count. Arguments and Raises: see `krippendorff_alpha`.
    """
    counts = _pairable(labels, missing)
    units, equal = len(counts), 1 - _unequal(counts)
    blocks = [one.astype(np.float64) for one in resampled_counts(np.ones(units, np.int64), resamples, seed)]
    alphas = np.concatenate([_alphas(counts, weights) for weights in blocks])
    shares = np.concatenate([weights @ equal / units for weights in blocks])
    value, drawn = float(_alphas(counts, np.ones((1, units)))[0]), percentile_interval(alphas[np.isfinite(alphas)])
    return Agreement(
        Interval(value, *drawn, 0.95, units, resamples),
        Interval(float(equal.mean()), *percentile_interval(shares), 0.95, units, resamples),
        int(counts.sum()),
    )


def _pairable(labels: Values, missing: float) -> Floats:
    """Counts (units, values) of the units that two or more annotators answered."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 2 or array.dtype.kind not in "iufb":
        raise InvalidInputError(
            f"labels: expected numbers (annotators, units), got shape {array.shape} of {array.dtype}; "
            "encode names as codes and missing answers as NaN"
        )
    if np.isinf(array.astype(np.float64)).any():
        raise InvalidInputError("labels: expected finite numbers or NaN, got an infinite value")
    if array.dtype.kind == "i" and np.isnan(missing) and (array == -1).any():
        warn("labels: -1 counts as an answer; say missing=-1 where it means that there is none", SuspectInputWarning)
    answers = np.where(array == missing, np.nan, array.astype(np.float64))
    answers = answers[:, np.isfinite(answers).sum(0) >= 2]
    annotator, unit = np.nonzero(np.isfinite(answers))
    values, code = np.unique(answers[annotator, unit], return_inverse=True)
    if len(values) < 2:
        raise InvalidInputError(
            f"labels: expected units with answers of two annotators that are not all alike, got {array.shape[1]} units "
            f"with {len(code)} such answers of {len(values)} values"
        )
    counts = np.zeros((answers.shape[1], len(values)))
    np.add.at(counts, (unit, code), 1.0)
    return counts


def _unequal(counts: Floats) -> Floats:
    """Share (p,) of unequal pairs among the ordered pairs of answers to each unit."""
    sizes = counts.sum(1)
    return (sizes**2 - (counts**2).sum(1)) / (sizes * (sizes - 1))


def _alphas(counts: Floats, weights: Floats) -> Floats:
    """alpha (b,) where unit u counts weights[b, u] times; NaN where one value is left."""
    sizes, totals = counts.sum(1), weights @ counts
    n = totals.sum(1)
    observed = (weights * sizes * _unequal(counts)).sum(1) / n
    expected = (n**2 - (totals**2).sum(1)) / (n * (n - 1))
    one_value = (totals > 0).sum(1) == 1
    return np.where(one_value, np.nan, 1 - observed / np.where(one_value, 1.0, expected))
