"""Measure a method's cost by the hits that are still among the results.

No captions are needed. The images of each value are ranked separately by the unedited search, and
the first k / groups of them are this value's hits. A method should change how many of the results
show each value, but its results should be hits. The unedited search does not retain all of them,
because it favours some values. A hit that is replaced by an equally good one counts as lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vldebias.measure.rankings import resampled_places, resampled_quota
from vldebias.measure.representation import counts_of_groups
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


def shared(rows: Rows, results: Rows) -> float:
    """Return the share of some rows that are among other rows.

    Args:
        rows: different rows (m,), such as the hits of all values.
        results: different rows, such as the results of a method.

    >>> shared(np.array([4, 2, 7, 1]), np.array([2, 9, 4]))
    0.5
    """
    return len(np.intersect1d(rows, results)) / len(rows)


def resampled_shared(
    hits: Sequence[Rows],
    first: int,
    rankings: Mapping[str, Rows],
    k: int,
    n: int,
    resamples: int,
    seed: int,
    labels: Mapping[str, NDArray[np.integer] | None],
) -> dict[str, Floats]:
    """Return the shares of hits and of the first ranking's results that each ranking contains.

    A row that was drawn twice counts twice.

    Args:
        hits: the first `reach(first, n)` rows of each value, best first.
        first: number of hits per value.
        rankings: name -> the first `reach(k, n)` rows of a ranking, best first. The first ranking
            is the one without a method.
        k: number of results.
        n: number of rows.
        resamples: number of resamples.
        seed: random seed.
        labels: name -> labels (n,) of the rows, for rankings that reserve places for each label.
            None for others.

    Returns:
        The shares (2, resamples) of the hits, and of the first ranking's first k rows.
    """
    # Rows that are in none of the rankings cannot be among the first ones.
    read = np.unique(np.concatenate([*hits, *rankings.values()]))
    places_of_value = [np.searchsorted(read, rows) for rows in hits]
    parts: dict[str, list[Floats]] = {name: [] for name in rankings}
    for weights in resampled_weights(n, resamples, seed, len(read)):
        counts_of_hits = np.zeros((len(weights), len(read)), dtype=np.int64)
        for rows in places_of_value:
            # A resample may contain fewer rows of a rare value. All of them are then hits.
            drawn = np.minimum(weights[:, rows].cumsum(axis=1, dtype=np.int64), first)
            counts_of_hits[:, rows] += np.diff(drawn, axis=1, prepend=0)
        counts_of_name = {}
        for name, rows in rankings.items():
            places = np.searchsorted(read, rows)
            label_of_row = labels.get(name)
            if label_of_row is not None:
                top = resampled_quota(places, weights, k, label_of_row[rows])
            else:
                top = resampled_places(places, weights, k)
            counts_of_name[name] = counts_of_groups(places[top], len(read))
        unedited = next(iter(counts_of_name.values()))
        for name, counts in counts_of_name.items():
            # A row drawn twice may be a hit twice and a result once. It then counts once.
            retained = np.minimum(counts, counts_of_hits).sum(axis=1) / counts_of_hits.sum(axis=1)
            stay = np.minimum(counts, unedited).sum(axis=1) / k
            parts[name].append(np.stack([retained, stay]))
    return {name: np.concatenate(blocks, axis=1) for name, blocks in parts.items()}


def chance_shared(m: int, k: int, n: int, draws: int, seed: int) -> Floats:
    """Return the share of m rows that the first k of each of `draws` random rankings contain.

    Args:
        m: number of rows, such as the hits of all values.
        k: number of results.
        n: number of rows in a ranking.
        draws: number of random rankings.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    # The overlap of two sets of rows is hypergeometric, so rankings need not be drawn.
    return rng.hypergeometric(m, n - m, k, size=draws) / m
