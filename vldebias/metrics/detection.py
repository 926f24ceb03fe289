"""How well a score finds wrong rows, where it is known which are: low scores are taken as suspicious.

Source: Hanley and McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC) curve"
(1982), for the area as the share of pairs that are in the right order.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.metrics.arrays import Values, truth, vectors
from vldebias.metrics.bootstrap import Interval, bootstrap_interval


def auroc(scores: Values, wrong: Values, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """P(score of a wrong row < score of a right row), ties count half; 0.5 is chance, 1 finds all.

    The interval is a percentile bootstrap that draws the wrong and the right rows apart, so that their numbers stay.
    O(n log n), and O(n) per resample.

    Args:
        scores: (n,), finite.
        wrong: (n,) truth values.

    Raises:
        InvalidInputError: shapes that do not fit, scores that are not finite, no wrong or no right row.
    """
    levels, is_wrong = _checked(scores, wrong)
    size = int(levels.max()) + 1

    def area(low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.float64]:
        """(b,) of levels (b, wrong rows) and (b, right rows)."""
        at = np.bincount((high + size * np.arange(len(high))[:, None]).ravel(), minlength=size * len(high))
        at = at.reshape(len(high), size)
        above = high.shape[1] - at.cumsum(axis=1) + at / 2
        credit: NDArray[np.float64] = np.take_along_axis(above, low, axis=1).mean(axis=1)
        return credit / high.shape[1]

    settings: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
    interval = bootstrap_interval(
        levels[is_wrong], levels[~is_wrong], statistic=area, paired=False, vectorized=True, **settings
    )
    return replace(interval, n=len(levels))


def precision_among_lowest(
    scores: Values, wrong: Values, share: float, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Share of wrong rows among the ceil(share n) with the lowest scores; compare it with the share among all rows.

    Of rows that tie at the threshold the expected number of wrong ones is counted, as if they were drawn at random.

    Raises:
        InvalidInputError: see `auroc`; a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise InvalidInputError(f"share: expected a share in (0, 1], got {share}")
    levels, is_wrong = _checked(scores, wrong)
    k = math.ceil(share * len(levels) - 1e-9)  # 0.07 * 100 is 7.000000000000001

    def precision(drawn: NDArray[Any], bad: NDArray[Any]) -> NDArray[np.float64]:
        last = np.partition(drawn, k - 1, axis=1)[:, k - 1 : k]
        below, tied = drawn < last, drawn == last
        places = k - below.sum(axis=1)
        of_tied = places * (tied & bad).sum(axis=1) / tied.sum(axis=1)
        share_wrong: NDArray[np.float64] = ((below & bad).sum(axis=1) + of_tied) / k
        return share_wrong

    return bootstrap_interval(
        levels, is_wrong, statistic=precision, level=level, resamples=resamples, seed=seed, vectorized=True
    )


def _checked(scores: Values, wrong: Values) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The rank (n,) of each score among the distinct ones, and which rows are wrong."""
    values, mask = vectors(scores=scores, wrong=wrong)
    if not np.isfinite(values).all():
        raise InvalidInputError(f"scores: {int((~np.isfinite(values)).sum())} of {len(values)} are not finite")
    is_wrong = truth(mask, "wrong")
    if is_wrong.all() or not is_wrong.any():
        raise InvalidInputError(
            f"wrong: {int(is_wrong.sum())} of {len(is_wrong)} rows are wrong; both kinds are needed to tell them apart"
        )
    return np.unique(values, return_inverse=True)[1].astype(np.int64), is_wrong
