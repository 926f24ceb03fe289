"""Shares from a judge on all images and people on some, right whatever the judge does.

Source: Angelopoulos et al., "Prediction-Powered Inference" (2023), and the power tuning of Angelopoulos, Duchi and
Zrnic, "PPI++" (2023), section 6. The predictions are the answers of the judge, one indicator for each, with powers by
least squares. For indicators that is post-stratification,

    share_a = sum_j P(judge says j) P(people say a | judge says j),

the first factor from all images, the second from the labelled ones. A judge that is wrong makes it wide and not wrong,
one that knows nothing leaves the people alone, and with many labels it is never wider than those. Intervals are those
of Wilson for a sum over strata: the variance is that under the share in question, so a judge that was not yet seen to
err counts as one that may, and rare values are covered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.metrics.arrays import Values, vector
from vldebias.metrics.bootstrap import Interval

NOT_LABELLED = -1
_STEPS = 400  # of the grids on which an interval's ends are sought; between two of them it is straight
_FOLDED = 2000  # steps of the distances of a share from 1/2
_DRAWS = 2000  # of the noise of shares
_WEIGHTS = 8  # different weights that make strata of their own; more are put into so many bins

Floats = NDArray[np.float64]
Codes = NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class CorrectedShares:
    """What people say of images that a judge answered about, in strata of its answers.

    Attributes:
        strata: (j,) share of each stratum among all images.
        n: (j,) labelled images in each, above 0; with unequal weights as many as they are worth.
        answers: (j, c) share of each answer of people in each stratum.
        images: all images. labels: the labelled ones. level: of the intervals.
    """

    strata: Floats
    n: Floats
    answers: Floats
    images: float
    labels: int
    level: float = 0.95

    @cached_property
    def shares(self) -> Floats:
        """(c,) corrected shares of all answers; they add up to 1."""
        return self.strata @ self.answers

    def interval(self, answer: int, *, of_these_images: bool = False) -> Interval:
        """The share of an answer with its interval.

        of_these_images: about the images that were drawn, and not about what the pipeline draws; a bit narrower.
        """
        of, images = self.answers[:, answer], np.inf if of_these_images else self.images
        low, high = (self._end(of if side < 0 else 1 - of, images) for side in (-1, 1))
        return self._interval(float(self.shares[answer]), low, 1 - high)

    def _end(self, of: Floats, images: float) -> float:
        """The lower end: the least share with (estimate - share)^2 <= z^2 V(share).

        V is that of the shares within strata that are likeliest where they add up to it. With a multiplier m they are
        the roots of m t^2 - (n + m) t + x = 0, so one grid of m runs through all of them.
        """
        z = float(torch.special.ndtri(torch.tensor((1 + self.level) / 2, dtype=torch.float64)))
        x, value = of * self.n, float(self.strata @ of)
        multiplier = np.append(0.0, np.geomspace(1e-4, 1e5, _STEPS) * max(self.n.sum(), 1.0))
        m = multiplier[:, None] * self.strata
        total = self.n + m
        theta = 2 * x / (total + np.sqrt(np.maximum(total**2 - 4 * m * x, 0.0)))
        share = theta @ self.strata
        within = (theta * (1 - theta)) @ (self.strata**2 / self.n)
        between = np.maximum(theta**2 @ self.strata - share**2, 0.0) / images
        miss = (value - share) ** 2 - z**2 * (within + between)
        out = np.flatnonzero(miss > 1e-15)  # at the estimate itself it may be above 0 by rounding
        if not len(out):
            return 0.0
        i = out[0]  # the first that is refused; i - 1 is accepted
        part = miss[i - 1] / (miss[i - 1] - miss[i])
        return float(share[i - 1] + part * (share[i] - share[i - 1]))

    def covariance(self) -> Floats:
        """(c, c) of the shares; each stratum with one more label, spread as all of them are, lest one error be none."""
        seen = self.n[:, None]
        pooled = (self.shares * self.labels + 0.5) / (self.labels + len(self.shares) / 2)
        theta = (seen * self.answers + pooled) / (seen + 1)
        weights = self.strata**2 / self.n
        within = np.diag(weights @ theta) - _second(theta, weights)
        mean = self.strata @ theta
        return within + (_second(theta, self.strata) - np.outer(mean, mean)) / self.images

    def known(self, values: int) -> CorrectedShares:
        """The shares among images whose value can be told: the first `values` answers; the others are kinds of unknown.

        Raises:
            InvalidInputError: people could tell the value of no labelled image.
        """
        if not 2 <= values <= self.answers.shape[1]:
            raise InvalidInputError(f"values: expected 2 .. {self.answers.shape[1]}, got {values}")
        named = self.answers[:, :values].sum(1)
        if (named <= 0).all():
            raise InvalidInputError("people could tell the value of no labelled image; label more")
        some = named > 0
        part = self.strata[some] * named[some]
        answers = self.answers[some, :values] / named[some, None]
        among = replace(
            self,
            strata=part / part.sum(),
            n=self.n[some] * named[some],
            answers=answers,
            images=self.images * part.sum(),
        )
        if values == self.answers.shape[1] or np.allclose(named, 1):
            return among
        # A ratio: how many can be told of each stratum is an estimate too, which makes the labels worth less.
        slope = np.eye(values, self.answers.shape[1]) - np.outer(among.shares, np.arange(len(self.shares)) < values)
        true = np.trace(slope @ self.covariance() @ slope.T) / part.sum() ** 2
        worth = min(1.0, float(np.trace(among.covariance()) / true))
        return replace(among, n=among.n * worth, images=among.images * worth)

    def discrepancy(self, values: int) -> Interval:
        """Eq. 7.2 of all images together, among those whose value can be told; see `known`.

        It holds each distance t from which the one that was found is no further off than 95 % of the distances that
        noise gives: of two values the noise of the share, as wide as its interval says; of more that of all of them,
        for a t in the direction that was found.
        """
        among, even = self.known(values), 1 / values
        if values == 2:
            return self._interval(*(np.sqrt(2) * end for end in among._folded()))
        away = among.shares - even
        length, most = float(np.linalg.norm(away)), float(np.sqrt(1 - even))
        size, directions = np.linalg.eigh(among.covariance())
        noise = np.random.default_rng(0).standard_normal((_DRAWS, values)) * np.sqrt(np.maximum(size, 0.0))
        noise = noise @ directions.T
        ahead = noise @ (away / length) if length > 0 else noise[:, 0]
        t = np.linspace(0, most, _STEPS + 1)
        drawn = np.sqrt(np.maximum(t[:, None] ** 2 + 2 * t[:, None] * ahead + (noise**2).sum(1), 0.0))
        reach = np.quantile(np.abs(drawn - t[:, None]), self.level, axis=1)
        held = t[np.abs(length - t) <= reach]
        step = t[1]
        low, high = (held[0], held[-1]) if len(held) else (length, length)
        return self._interval(length, min(length, low - step / 2 if low > 0 else 0.0), max(length, high + step / 2))

    def _folded(self) -> tuple[float, float, float]:
        """Of two values how far the share is from 1/2, and the ends of that: those t with which |share - 1/2| goes."""
        one, normal = self.interval(0), torch.special.ndtr
        distance = abs(one.value - 0.5)
        low, high = (one.low, one.high) if one.value >= 0.5 else (1 - one.high, 1 - one.low)
        z = float(torch.special.ndtri(torch.tensor((1 + self.level) / 2, dtype=torch.float64)))
        t = np.linspace(0, 0.5, _FOLDED + 1)
        spread = np.array([0.5 + distance - low, high - 0.5 - distance]) / z  # under the shares of the ends
        sd = np.sqrt(np.interp(0.5 + t, [low, high], spread**2)) + 1e-12

        def below(at: Floats) -> Floats:
            chances: Floats = normal(torch.from_numpy((at - t) / sd)).numpy()
            return chances

        near, far = np.maximum(t - np.abs(distance - t), 0.0), t + np.abs(distance - t)
        nearer = (
            below(far) - below(near) + below(-near) - below(-far)
        )  # P(||share - 1/2| - t| less than what was found)
        held = np.flatnonzero(nearer <= self.level)
        if not len(held):
            return distance, distance, distance
        return distance, float(t[max(held[0] - 1, 0)]), float(t[min(held[-1] + 1, _FOLDED)])

    def max_skew(self, values: int) -> Interval:
        """max_a log(share_a |A|) of all images together, among those whose value can be told.

        Of two values it is that of the discrepancy; of more the ends are the largest of those of the shares, the lower
        one with all of them at once.
        """
        among = self.known(values)
        if values == 2:
            return self._interval(*(float(np.log1p(2 * end)) for end in among._folded()))
        strict = 1 - 2 * (1 - (1 - (1 - self.level) / 2) ** (1 / values))
        careful = replace(among, level=strict)
        low = max(careful.interval(a).low for a in range(values))
        high = max(among.interval(a).high for a in range(values))
        most = float(among.shares.max())
        ends = np.log(np.maximum(np.array([most, min(low, most), high]) * values, 1.0))
        return self._interval(*ends.tolist())

    def more_labels(self) -> int | None:
        """How many more labels, drawn likewise, halve the intervals; None where that takes more images."""
        pooled = self.shares
        images = np.trace(_second(self.answers, self.strata) - np.outer(pooled, pooled)) / self.images
        labels = max(np.trace(self.covariance()) - images, 0.0)
        left = (labels + images) / 4 - images
        needed = np.inf if left <= 0 else self.labels * labels / left
        return None if needed > self.images else int(np.ceil(needed - self.labels))

    def _interval(self, value: float, low: float, high: float) -> Interval:
        return Interval(value, min(value, low), max(value, high), self.level, self.labels, 0)


def _second(theta: Floats, weights: Floats) -> Floats:
    """sum_j weights_j theta_j theta_j^T, (c, c)."""
    return (theta * weights[:, None]).T @ theta


def corrected_shares(
    judged: Values, people: Values, answers: int, *, weights: Values | None = None, level: float = 0.95
) -> CorrectedShares:
    """Shares of the answers of people over all images, from those of a judge on all and of people on some.

    Args:
        judged: (n,) codes of the judge's answers, "unknown" among them; what they are called does not matter.
        people: (n,) codes 0 .. answers - 1, or NOT_LABELLED. Or (n, answers): the share of raters that gave each
            answer, rows of zeros where nobody was asked.
        answers: how many answers people may give, those that name no value among them.
        weights: (n,) one over the probability with which an image was chosen for labelling; by default all alike.
            Images are to be chosen by lot: what people label because it looks odd corrects nothing.

    Raises:
        InvalidInputError: unequal lengths, codes outside the range, no labelled image, weights that are not above 0.

    >>> found = corrected_shares([0, 0, 0, 0, 1, 1, 1, 1], [0, 0, -1, -1, 0, 1, -1, -1], 2)
    >>> found.shares.tolist()
    [0.75, 0.25]
    """
    said = vector(judged, "judged")
    told = rated(people, answers)
    if len(told) != len(said):
        raise InvalidInputError(f"expected as many answers of people as of the judge, {len(said)}, got {len(told)}")
    asked = told.sum(1) > 0
    if not asked.any():
        raise InvalidInputError(f"people: none of {len(said)} images is labelled")
    worth = np.ones(len(said)) if weights is None else vector(weights, "weights").astype(np.float64)
    if len(worth) != len(said) or not (np.isfinite(worth[asked]).all() and (worth[asked] > 0).all()):
        raise InvalidInputError(f"weights: expected {len(said)} numbers above 0, got {worth[:5].tolist()} ...")
    names, code = np.unique(said, return_inverse=True)
    share = np.bincount(code) / len(code)
    labelled = np.bincount(code[asked], minlength=len(names)) > 0
    code = np.where(labelled[code], code, len(names))  # answers of which nothing is labelled: as all others are
    rows: list[tuple[float, float, Floats]] = []
    for one in np.flatnonzero(labelled):
        here = np.flatnonzero(asked & (code == one))
        for part in _alike(here, worth):
            w = worth[part]
            of = share[one] * w.sum() / worth[here].sum()
            rows.append((of, w.sum() ** 2 / (w**2).sum(), w @ told[part] / w.sum()))
    strata = np.array([row[0] for row in rows])
    return CorrectedShares(
        strata / strata.sum(),
        np.array([row[1] for row in rows]),
        np.stack([row[2] for row in rows]),
        float(len(said)),
        int(asked.sum()),
        level,
    )


def rated(people: Values, answers: int) -> Floats:
    """(n, answers) shares of raters from codes (n,), of which NOT_LABELLED gives zeros, or from themselves."""
    array = np.asarray(people)
    if array.ndim == 2 and array.shape[1] == answers:
        total = array.sum(1, keepdims=True)
        if not np.isfinite(array).all() or (array < 0).any():
            raise InvalidInputError("people: expected numbers of answers from 0 on")
        return np.divide(array, total, out=np.zeros(array.shape, np.float64), where=total > 0)
    codes = vector(people, "people")
    if codes.dtype.kind not in "iu" or codes.min() < NOT_LABELLED or codes.max() >= answers:
        raise InvalidInputError(f"people: expected codes {NOT_LABELLED} .. {answers - 1}, got {np.unique(codes)[:8]}")
    return (codes[:, None] == np.arange(answers)).astype(np.float64)


def _alike(rows: NDArray[np.intp], weights: Floats) -> list[NDArray[np.intp]]:
    """Rows by their weights: what was chosen with another probability was another stratum of the sample."""
    different = np.unique(weights[rows])
    if len(different) > _WEIGHTS:
        bins = np.quantile(weights[rows], np.linspace(0, 1, _WEIGHTS + 1)[1:-1])
        place = np.searchsorted(bins, weights[rows])
    else:
        place = np.searchsorted(different, weights[rows])
    return [rows[place == one] for one in np.unique(place)]


def corrected_squares(
    prompts: Codes, judged: Codes, people: Values, answers: int, values: int, *, weights: Values | None = None
) -> Floats:
    """Unbiased squared discrepancy (p,) of each prompt 0 .. p - 1, NaN where fewer than two images are labelled.

    The share of each prompt is its mean of what the judge's answers are worth over all prompts, plus the mean error of
    that among its labelled images; the square is too large by the variance of this, which is taken off. As with
    `squared_discrepancies` one may be negative, and a mean over prompts is what it is for. The rate of images that can
    be told, by which it is divided, is that of the judge's answers. Arguments and Raises: see `corrected_shares`; the
    first `values` of the answers name values.
    """
    overall, told = corrected_shares(judged, people, answers, weights=weights), rated(people, answers)
    asked = told.sum(1) > 0
    worth = np.ones(len(told)) if weights is None else np.asarray(weights, dtype=np.float64)
    rates = {
        code: (worth[rows] @ told[rows]) / worth[rows].sum() if len(rows := np.flatnonzero(asked & (judged == code)))
        else overall.shares
        for code in np.unique(judged)
    }  # fmt: skip
    known = np.arange(answers) < values

    def centred(of: Floats) -> Floats:
        """(n, values): 0 in the mean where the values are even; unknown is 0."""
        return of[:, :values] - of[:, known].sum(1, keepdims=True) / values

    predicted = np.stack([rates[code] for code in judged])
    guess, error = centred(predicted), centred(told) - centred(predicted)
    squares = np.full(int(prompts.max()) + 1, np.nan)
    for p in range(len(squares)):
        every = np.flatnonzero(prompts == p)
        some = every[asked[every]]
        if len(some) < 2:
            continue
        w = worth[some] / worth[some].sum()
        rate = predicted[every][:, known].sum(1).mean()
        mean = guess[every].mean(0) + w @ error[some]
        off, lean = error[some] - w @ error[some], guess[some] - w @ guess[some]
        grown = len(some) / (len(some) - 1)
        noise = grown * ((w**2) @ off**2).sum() + guess[every].var(0, ddof=1).sum() / len(every)
        noise += 2 * grown * (w @ (off * lean)).sum() / len(every)
        squares[p] = ((mean**2).sum() - noise) / rate**2 if rate > 0 else 1 - 1 / values
    return squares


def independent(after: Interval, before: Interval) -> tuple[float, float, float]:
    """after - before with its interval, of estimates from different labels.

    Source: Zou and Donner, "Construction of confidence limits about effect measures" (2008): the ends keep their sides.
    """
    moved = after.value - before.value
    down = np.hypot(after.value - after.low, before.high - before.value)
    up = np.hypot(after.high - after.value, before.value - before.low)
    return moved, float(moved - down), float(moved + up)
