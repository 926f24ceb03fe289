"""Agreement of annotators beyond chance: Krippendorff's alpha with an interval over the units that they labelled.

Source: Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011). alpha = 1 - D_o / D_e, the disagreement
inside units over the disagreement of all pairable answers. Every difference function here is a squared distance, so
both are variances and the cost is linear in the number of answers: nominal answers are corners of a simplex, ordinal
ones their mid-ranks, interval ones themselves. Units are resampled for the interval, as Zapf et al., "Measuring
inter-rater reliability for nominal data" (2016), recommend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.metrics.arrays import Values
from vldebias.metrics.bootstrap import Interval, percentile_interval, resampled_counts

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LEVELS = ("nominal", "ordinal", "interval")

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Agreement:
    """How far annotators agree.

    Attributes:
        alpha: Krippendorff's alpha, bootstrapped over units: 1 perfect, 0 chance, negative below chance.
        percent: share of pairs of answers to the same unit that are equal, mean over units; not corrected for chance.
        annotators: (a, a) share of equal answers of two annotators among the units both answered, NaN where none.
        units: (u,) disagreement inside each unit in the terms of the level, NaN where fewer than two answered.
        answers: answers in units that two or more answered.
        undefined: resamples left out because all their answers are one value.
    """

    alpha: Interval
    percent: Interval
    annotators: Floats
    units: Floats
    answers: int
    undefined: int


def krippendorff_alpha(labels: Values, level: str = "nominal", *, missing: float | None = None) -> float:
    """alpha = 1 - D_o / D_e over all units that two or more annotators answered; the others do not count.

    Args:
        labels: (annotators, units) numbers; NaN is no answer. Encode names as codes first.
        level: "nominal" (equal or not), "ordinal" (codes in their order, distance in ranks) or "interval" (numbers).
        missing: another number that means no answer, such as -1 in integer codes; without it -1 is an answer, and a
            warning says so.

    Raises:
        InvalidInputError: not (annotators, units) numbers, one annotator, an unknown level, no unit with two answers,
            or a single value throughout: chance alone would agree then, and alpha is 0 / 0.

    >>> krippendorff_alpha([[0, 0, 1, 1], [0, 0, 1, 0]])
    0.5333333333333333
    """
    table = _Table.of(labels, level, missing)
    return float(_alphas(table, np.ones((1, len(table.sizes))))[0])


def agreement(
    labels: Values,
    level: str = "nominal",
    *,
    missing: float | None = None,
    resamples: int = 2000,
    seed: int = 0,
    coverage: float = 0.95,
) -> Agreement:
    """Alpha and percent agreement with percentile intervals over units, and where the disagreement sits.

    Resamples in which one value is left have no alpha: they are left out and counted. Arguments and Raises: see
    `krippendorff_alpha`; also InvalidInputError where no resample has an alpha.
    """
    if resamples < 1 or not 0 < coverage < 1:
        raise InvalidInputError(f"expected resamples >= 1 and coverage in (0, 1), got {resamples} and {coverage}")
    table = _Table.of(labels, level, missing)
    units = len(table.sizes)
    value = float(_alphas(table, np.ones((1, units)))[0])
    equal = 1 - _nominal_disagreement(table.counts, table.sizes)
    alphas, shares = [], []
    for counts in resampled_counts(np.ones(units, np.int64), resamples, seed):
        weights = counts.astype(np.float64)
        alphas.append(_alphas(table, weights))
        shares.append(weights @ equal / units)
    drawn = np.concatenate(alphas)
    defined = drawn[np.isfinite(drawn)]
    if len(defined) == 0:
        raise InvalidInputError(f"labels: none of {resamples} resamples of {units} units has two values; label more")

    def interval(point: float, values: Floats) -> Interval:
        return Interval(point, *percentile_interval(values, coverage), coverage, units, resamples)

    inside = np.full(len(table.pairable), np.nan)
    inside[table.pairable] = _disagreement(table, np.ones((1, units)))[0]
    return Agreement(
        alpha=interval(value, defined),
        percent=interval(float(equal.mean()), np.concatenate(shares)),
        annotators=_between_annotators(table.labels),
        units=inside,
        answers=int(table.sizes.sum()),
        undefined=resamples - len(defined),
    )


@dataclass(frozen=True, eq=False)
class _Table:
    """Answers as counts: `counts` (p, v) of the p pairable units, `sizes` (p,), `values` (v,), mask `pairable` (u,)."""

    labels: Floats
    level: str
    values: Floats
    counts: csr_array
    sizes: Floats
    pairable: NDArray[np.bool_]

    @classmethod
    def of(cls, labels: Values, level: str, missing: float | None) -> _Table:
        csr_array = need("scipy.sparse").csr_array

        array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
        if array.ndim != 2 or array.dtype.kind not in "iufb" or array.shape[1] == 0:
            raise InvalidInputError(
                f"labels: expected numbers (annotators, units), got shape {array.shape} of {array.dtype}; "
                "encode names as codes and missing answers as NaN"
            )
        if len(array) < 2:
            raise InvalidInputError(f"labels: agreement needs two or more annotators, got {len(array)}")
        answers = array.astype(np.float64)
        if np.isinf(answers).any():
            raise InvalidInputError("labels: expected finite numbers or NaN, got an infinite value")
        if missing is not None:
            answers = np.where(answers == missing, np.nan, answers)
        elif array.dtype.kind == "i" and (array == -1).any() and (array >= -1).all():
            warn(
                "labels: -1 counts as an answer like the others; say missing=-1 where it means that there is none, or "
                "missing=float('nan') where it is one",
                SuspectInputWarning,
            )
        if level not in LEVELS:
            raise InvalidInputError(f"level: expected one of {', '.join(LEVELS)}, got {level!r}")
        answered = np.isfinite(answers)
        pairable = answered.sum(0) >= 2
        if not pairable.any():
            raise InvalidInputError(
                f"labels: none of {answers.shape[1]} units was answered by two annotators; agreement needs some overlap"
            )
        annotator, unit = np.nonzero(answered[:, pairable])
        values, code = np.unique(answers[:, pairable][annotator, unit], return_inverse=True)
        if len(values) == 1:
            raise InvalidInputError(
                f"labels: all {len(code)} pairable answers are {values[0]:g}; agreement beyond chance cannot be told "
                "from one value: report the percent agreement and the number of answers"
            )
        shape = (int(pairable.sum()), len(values))
        counts = csr_array((np.ones(len(code)), (unit, code)), shape=shape)
        counts.sum_duplicates()
        return cls(answers, level, values, counts, answered.sum(0)[pairable].astype(np.float64), pairable)


def _alphas(table: _Table, weights: Floats) -> Floats:
    """alpha (b,) where unit u counts weights[b, u] times; NaN where one value is left."""
    n = weights @ table.sizes
    totals = weights @ table.counts
    observed = (weights * table.sizes * _disagreement(table, weights)).sum(1) / n
    pairs = n * (n - 1)
    if table.level == "nominal":
        expected = (n**2 - (totals**2).sum(1)) / pairs
    else:
        places = _places(table, totals)
        places = places - (totals * places).sum(1, keepdims=True) / n[:, None]  # centred: the squares do not cancel
        expected = 2 * n * (totals * places**2).sum(1) / pairs
    one_value = (totals > 0).sum(1) == 1
    return np.where(one_value, np.nan, 1 - observed / np.where(one_value, 1.0, expected))


def _disagreement(table: _Table, weights: Floats) -> Floats:
    """Mean squared distance (b or 1, p) between two different answers to the same unit."""
    if table.level == "nominal":
        return _nominal_disagreement(table.counts, table.sizes)[None]
    places = _places(table, weights @ table.counts)
    m = table.sizes
    places = places - places.mean(1, keepdims=True)
    first, second = (table.counts @ places.T).T, (table.counts @ (places**2).T).T
    return 2 * (m * second - first**2) / (m * (m - 1))


def _nominal_disagreement(counts: csr_array, sizes: Floats) -> Floats:
    """Share (p,) of unequal pairs among the ordered pairs of answers to each unit."""
    return (sizes**2 - np.asarray((counts**2).sum(1)).ravel()) / (sizes * (sizes - 1))


def _places(table: _Table, totals: Floats) -> Floats:
    """Where each value lies on the line, (b or 1, v): at itself, or at its mid-rank among the pairable answers.

    The ordinal distance of c and k is the number of answers from c to k less half of those at both ends, which is the
    difference of their mid-ranks.
    """
    if table.level == "interval":
        return table.values[None]
    return totals.cumsum(1) - totals / 2


def _between_annotators(labels: Floats) -> Floats:
    """Share (a, a) of equal answers of two annotators among the units that both answered."""
    csr_array = need("scipy.sparse").csr_array

    annotator, unit = np.nonzero(np.isfinite(labels))
    values, code = np.unique(labels[annotator, unit], return_inverse=True)
    ones, rows = np.ones(len(unit)), len(labels)
    answered = csr_array((ones, (annotator, unit)), shape=labels.shape)
    agreed = csr_array((ones, (annotator, unit * len(values) + code)), shape=(rows, labels.shape[1] * len(values)))
    both, same = (answered @ answered.T).toarray(), (agreed @ agreed.T).toarray()
    return np.divide(same, both, out=np.full_like(both, np.nan), where=both > 0)
