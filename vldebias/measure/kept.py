"""Measure a query edit's cost by the share of each value's top hits that it keeps.

No captions are needed. An edit should change how many of the top images show each value, but not
which ones. The images of each value are therefore ranked separately, and the first k / groups
before and after the edit are compared. A hit that is replaced by an equally good one counts as
lost, so `1 - share` is an upper bound on the cost.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vldebias.measure.rankings import resampled_places
from vldebias.measure.resampling import resampled_weights
from vldebias.utils.arrays import Floats, Rows


def hits_of_value(k: int, groups: int) -> int:
    """Return the number of results per group among the first k if all shares are equal.

    Args:
        k: number of results over all groups.
        groups: number of groups.

    >>> hits_of_value(50, 2)
    25
    """
    return max(1, k // groups)


def kept_share(before: Rows, after: Rows, first: int) -> float:
    """Return the share of a ranking's first rows that a second ranking also ranks first.

    Args:
        before: rows (m,) that show one value, best first.
        after: the same rows in a different ranking.
        first: number of rows to compare, at most m.

    >>> kept_share(np.array([4, 2, 7]), np.array([2, 9, 4]), first=2)
    0.5
    """
    return len(np.intersect1d(before[:first], after[:first])) / first


def resampled_kept_shares(
    before: Rows, rankings: Mapping[str, Rows], first: int, n: int, resamples: int, seed: int
) -> dict[str, Floats]:
    """Return each ranking's `kept_share` (resamples,) in shared resamples of n rows.

    A row that was drawn twice counts twice.

    Args:
        before: the first `reach(first, n)` rows of a ranking, best first.
        rankings: name -> the first `reach(first, n)` rows of a different ranking.
        first: number of rows to compare.
        n: number of rows.
        resamples: number of resamples.
        seed: random seed.
    """
    # Rows that are in none of the rankings cannot be among the first ones.
    ranked = np.unique(np.concatenate([before, *rankings.values()]))
    place_before = np.searchsorted(ranked, before)
    place_after = {name: np.searchsorted(ranked, ranking) for name, ranking in rankings.items()}
    parts: dict[str, list[Floats]] = {name: [] for name in rankings}
    for weights in resampled_weights(n, resamples, seed, len(ranked)):
        counts_before = _counts_of_first(place_before, weights, first)
        for name, places in place_after.items():
            counts = _counts_of_first(places, weights, first)
            # A row drawn twice may be among the first rows once before the edit and twice after it.
            # It then counts as kept once.
            both = np.minimum(counts, counts_before).sum(axis=1)
            parts[name].append(both / first)
    return {name: np.concatenate(blocks) for name, blocks in parts.items()}


def _counts_of_first(ranking: Rows, weights: NDArray[np.int32], first: int) -> NDArray[np.int64]:
    """Return how often each row is among a ranking's first rows in each resample (b, rows)."""
    rows = ranking[resampled_places(ranking, weights, first)]
    resamples, number = weights.shape
    cells = np.arange(resamples)[:, None] * number + rows
    counts = np.bincount(cells.ravel(), minlength=resamples * number)
    return counts.reshape(resamples, number)


def chance_kept(first: int, n: int, draws: int, seed: int) -> Floats:
    """Return the share of hits that each of `draws` random rankings would keep, (draws,).

    Args:
        first: number of rows to compare.
        n: number of rows.
        draws: number of random rankings.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    # The overlap of two sets of `first` rows is hypergeometric, so rankings need not be drawn.
    return rng.hypergeometric(first, n - first, first, size=draws) / first
