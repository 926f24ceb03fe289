"""Measure what an edit of queries costs without captions: of the first hits inside each value, how
many are still there?

An edit is meant to change how many of the first images show each value, and not which of them do.
So the images of each value are ranked by themselves, and the first k / groups before and after are
compared. A hit that is replaced by an equally good one counts as lost: 1 - the share is an upper
bound of the cost ("at most").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vldebias.measure.rankings import Rows, resampled_places
from vldebias.measure.resampling import resampled_weights

Floats = NDArray[np.float64]


def hits_of_value(k: int, groups: int) -> int:
    """Return how many of the first k results each of the groups has where all are even.

    >>> hits_of_value(50, 2)
    25
    """
    return max(1, k // groups)


def kept_share(before: Rows, after: Rows, first: int) -> float:
    """Return the share of the first rows of one ranking that are among the first of another.

    Args:
        before, after: (m,) rows of one value, best first. first: how many are compared, at most m.

    >>> kept_share(np.array([4, 2, 7]), np.array([2, 9, 4]), first=2)
    0.5
    """
    return len(np.intersect1d(before[:first], after[:first])) / first


def resampled_kept_shares(
    before: Rows, rankings: Mapping[str, Rows], first: int, n: int, resamples: int, seed: int
) -> dict[str, Floats]:
    """Return for each ranking the share of `kept_share` (resamples,) in resamples of the n rows.

    The same resamples serve every ranking. A row that is drawn twice counts twice. Rankings hold
    `reach(first, n)` rows.
    """
    # Only rows that some ranking reads can be among the first ones.
    read = np.unique(np.concatenate([before, *rankings.values()]))
    place_before = np.searchsorted(read, before)
    place_after = {name: np.searchsorted(read, ranking) for name, ranking in rankings.items()}
    parts: dict[str, list[Floats]] = {name: [] for name in rankings}
    for weights in resampled_weights(n, resamples, seed, len(read)):
        counts_before = _counts_of_first(place_before, weights, first)
        for name, places in place_after.items():
            counts = _counts_of_first(places, weights, first)
            # A row that a resample holds twice may be among the first once before and twice after:
            # one is kept.
            both = np.minimum(counts, counts_before).sum(axis=1)
            parts[name].append(both / first)
    return {name: np.concatenate(blocks) for name, blocks in parts.items()}


def _counts_of_first(ranking: Rows, weights: NDArray[np.int32], first: int) -> NDArray[np.int64]:
    """Return how often each read row is among the first of a ranking (b, rows), by resample."""
    rows = ranking[resampled_places(ranking, weights, first)]
    resamples, number = weights.shape
    cells = np.arange(resamples)[:, None] * number + rows
    counts = np.bincount(cells.ravel(), minlength=resamples * number)
    return counts.reshape(resamples, number)


def chance_kept(first: int, n: int, draws: int, seed: int) -> Floats:
    """Return the share that a random ranking of n rows keeps, in (draws,) random rankings."""
    rng = np.random.default_rng(seed)
    # Of `first` rows drawn from n, how many are among the `first` before: no ranking has to be
    # drawn.
    return rng.hypergeometric(first, n - first, first, size=draws) / first
