"""Areas under the curve by attribute value, with intervals: how well two classes are told apart whatever the threshold.

`vldebias.metrics.worst_group_auc` is the number; here it has a bootstrap over images, one for all methods, so that
changes are paired. Rows are sorted once for each method and value; a resample is a weight of each row, and its area a
cumulative sum. The worst value is picked again in every resample; values of which one class is missing in the data
have no area and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.data import Labels
from vldebias.evaluation.result import TaskResult
from vldebias.metrics.bootstrap import percentile_interval, resampled_weights

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AreaRows:
    """Areas of n images: positive (n,) says which of two classes they are of, values which attribute value they show.

    resamples, seed: of the bootstrap.
    """

    positive: NDArray[np.bool_]
    values: Labels
    resamples: int = 2000
    seed: int = 0

    @property
    def _compared(self) -> list[NDArray[np.bool_]]:
        """The rows (n,) of every value that has both classes."""
        inside = [self.values.codes == code for code in range(len(self.values.names))]
        return [rows for rows in inside if (kinds := self.positive[rows]).any() and not kinds.all()]

    def add(self, result: TaskResult, scores: Mapping[str, NDArray[np.floating]]) -> None:
        """`worst_group_auc` of methods, "none" first, from scores (n,), high for positive rows; no value, no row."""
        order = np.lexsort((scores["none"], self.positive, self.values.codes))  # whatever order the rows come in
        ordered = AreaRows(self.positive[order], self.values[order], self.resamples, self.seed)
        compared = ordered._compared
        if not compared:
            return
        sheets = {
            method: [_Sheet.of(one[order][inside], ordered.positive[inside], inside) for inside in compared]
            for method, one in scores.items()
        }
        ones = np.ones((1, len(self.positive)), dtype=np.int32)
        blocks = [ones, *resampled_weights(len(self.positive), self.resamples, self.seed)]
        areas = {m: np.concatenate([_worst(own, w) for w in blocks]) for m, own in sheets.items()}
        base, n = areas["none"], {"images": int(sum(rows.sum() for rows in compared)), "values": len(compared)}
        for method, drawn in areas.items():
            with np.errstate(invalid="ignore"):
                moved = drawn - base  # of a resample without one class neither is a number
            result.add(
                "worst_group_auc",
                method,
                float(drawn[0]),
                percentile_interval(drawn[1:][np.isfinite(drawn[1:])]),
                better="higher",
                n=n,
                change=None
                if method == "none"
                else (float(moved[0]), *percentile_interval(moved[1:][np.isfinite(moved[1:])])),
            )


@dataclass(frozen=True, eq=False)
class _Sheet:
    """One value under one method: rows of the other class by score, positive rows, how many of the former are below.

    low, high: indices of rows. below, upto: (len(high),) how many of `low` score less than, and at most as much as.
    """

    low: NDArray[np.intp]
    high: NDArray[np.intp]
    below: NDArray[np.intp]
    upto: NDArray[np.intp]

    @classmethod
    def of(cls, scores: NDArray[np.floating], positive: NDArray[np.bool_], inside: NDArray[np.bool_]) -> _Sheet:
        index = np.flatnonzero(inside)
        low = np.flatnonzero(~positive)[np.argsort(scores[~positive], kind="stable")]
        ordered, asked = scores[low], scores[positive]
        places = (np.searchsorted(ordered, asked, side) for side in ("left", "right"))
        return cls(index[low], index[positive], *places)

    def areas(self, weights: NDArray[np.int32]) -> Floats:
        """(b,) of rows that occur weights (b, n) times; infinite where a class is missing."""
        low, high = weights[:, self.low], weights[:, self.high]
        sums = np.zeros((len(weights), low.shape[1] + 1))
        np.cumsum(low, axis=1, out=sums[:, 1:])
        pairs = ((sums[:, self.below] + sums[:, self.upto]) * high).sum(1) / 2
        total = sums[:, -1] * high.sum(1)
        return np.divide(pairs, total, out=np.full(len(weights), np.inf), where=total > 0)


def _worst(sheets: list[_Sheet], weights: NDArray[np.int32]) -> Floats:
    worst: Floats = np.min([sheet.areas(weights) for sheet in sheets], axis=0)
    return worst
