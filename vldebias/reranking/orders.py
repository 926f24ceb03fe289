"""Implement the order of re-ranking, a quota."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vldebias.reranking.candidates import UNKNOWN, Candidates, Floats, Rows

# Tolerance for products that should be integers, such as 10 x 0.7.
TINY = 1e-9
# Number of places to look ahead. A group with a share of s is due every 1 / s places, but looking
# this far would take 1 / s times as long, and the groups that are due sooner leave room for it.
_HORIZON = 1000
_MOST_CACHED = 2000  # longest list whose windows are kept for the next query
Counts = NDArray[np.integer]


def quota(candidates: Candidates, k: int) -> Rows:
    """Return the top k by score, with each prefix within one place of the requested shares.

    Let c_a(i) be the number of candidates from group a among the first i candidates whose group is
    known, and p_a the share of group a. Then |c_a(i) - i p_a| < 1, unless a group runs out of
    candidates. Each place goes to the best candidate that can take it without forcing a violation
    later. If a group has no candidates left, the other groups take its places in proportion to
    their shares. Candidates whose group is unknown keep their places.

    A query that favours a group also favours images of other groups that are mistaken for this
    group, and these lie near the border. Therefore, if the groups are uncertain, the places of each
    group are dealt to its candidates near the border and to its others, by a quota as above with
    `candidates.near_shares`.

    Args:
        candidates: the candidates for one query.
        k: number of results.

    Returns:
        Rows (k,) of the candidates in their new order.

    Source: this package. The bound is from proportionate scheduling (Baruah et al., 1996): the c-th
    candidate of a group has a place between floor((c - 1) / p_a) + 1 and ceil(c / p_a).

    >>> from vldebias import rerank
    >>> groups = ["m", "m", "m", "f", "f"]
    >>> rerank([0.9, 0.8, 0.7, 0.2, 0.1], 4, labels=groups, shares="even").tolist()
    [0, 3, 1, 4]
    """
    ranked = candidates.ranked
    codes = candidates.codes.take(ranked)
    ranks = _merge(codes, candidates.shares, k)
    if candidates.is_near is not None and candidates.near_shares is not None:
        is_near = candidates.is_near.take(ranked)
        for group, near_share in enumerate(candidates.near_shares):
            places = np.flatnonzero(codes[ranks] == group)
            members = np.flatnonzero(codes == group)
            if 0 < near_share < 1:
                parts = is_near[members].astype(np.intp)
                shares = np.array([1 - near_share, near_share])
                ranks[places] = members[_merge(parts, shares, len(places))]
    return ranked.take(ranks)


def _within_one(shares: Floats, length: int) -> tuple[Counts, Counts]:
    """Return i * p_a rounded down and rounded up, where p_a is the share of group a.

    Both arrays have shape (length, g), with a row for each prefix length i up to `length`.
    """
    # The counts of each group are contiguous in memory, because merging reads them group by group.
    # Rounding to 32 bits is several times as fast as to 64.
    exact = shares[:, None] * np.arange(1, length + 1)
    lowest = (exact + TINY).astype(np.int32)
    highest = lowest + (exact - lowest > TINY)
    return lowest.T, highest.T


def _merge(codes: NDArray[np.integer], shares: Floats, k: int) -> Rows:
    """Return the top k ranks by score, with every prefix within its bounds.

    The groups are merged until one of them is empty. The remaining groups are then merged, and so
    on.

    Args:
        codes: groups (n,) by rank, counted from 0.
        shares: requested shares (g,).
        k: number of ranks.
    """
    count = int(np.count_nonzero(codes[:k] != UNKNOWN))
    # The ranks of each group's remaining candidates, best first.
    remaining = [(codes == group).nonzero()[0] for group in range(len(shares))]
    parts = [np.empty(0, dtype=np.intp)]
    n_placed = 0
    # In each round, at least one group runs out of candidates.
    for _ in range(len(shares) + 1):
        if n_placed >= count:
            break
        groups = [group for group, ranks in enumerate(remaining) if len(ranks) and shares[group]]
        if not groups:
            # Append the candidates of groups with share 0 in order of score.
            parts.append(np.sort(np.concatenate(remaining)))
            break
        ranks_of_group = [remaining[group] for group in groups]
        if len(groups) == 1:
            part = ranks_of_group[0]
        else:
            part_shares = shares[groups] / shares[groups].sum()
            length = min(count - n_placed, sum(map(len, ranks_of_group)))
            merge = _merge_two if len(groups) == 2 else _merge_several
            part = merge(ranks_of_group, part_shares, length)
        parts.append(part)
        n_placed += len(part)
        if n_placed < count:
            placed = np.bincount(codes[part], minlength=len(shares))
            remaining = [ranks[number:] for ranks, number in zip(remaining, placed, strict=True)]
    return _with_unknown(np.concatenate(parts)[:count], codes, k)


def _merge_two(ranks_of_group: Sequence[Rows], shares: Floats, length: int) -> Rows:
    """Merge two groups until a group is due but has no candidates left.

    The bounds give the j-th candidate of the first group a window: its place is at least the first
    one where j candidates are allowed, and at most the first one where j are required. Both bounds
    increase by at most one per place, so each candidate takes its place by score, moved into its
    window and behind its predecessor. The second group fills the other places.
    """
    first, second = ranks_of_group
    windows = _cached_windows if length <= _MOST_CACHED else _windows
    earliest, latest, end = windows((*shares.tolist(),), length, len(first))
    j = np.arange(1, len(first) + 1)
    by_score = j + np.searchsorted(second, first)
    taken = np.maximum.accumulate(np.minimum(np.maximum(by_score, earliest), latest) - j) + j
    places_of_first = taken[taken <= length] - 1
    is_second = np.ones(length, dtype=bool)
    is_second[places_of_first] = False
    places_of_second = is_second.nonzero()[0]
    sequence = np.empty(length, dtype=np.intp)
    sequence[places_of_first] = first[: len(places_of_first)]
    sequence[places_of_second[: len(second)]] = second[: len(places_of_second)]
    # Stop where either group is due but has no candidates left.
    if len(places_of_second) > len(second):
        end = min(end, int(places_of_second[len(second)]))
    return sequence[:end]


def _windows(shares: tuple[float, ...], length: int, n: int) -> tuple[Rows, Rows, int]:
    """Return the first and the last place (n,) that candidates of the first of two groups may take.

    They only depend on the shares and numbers, so they are the same for all queries of a search.

    Args:
        shares: shares of the two groups.
        length: number of places.
        n: number of candidates of the first group.

    Returns:
        The first places, the last places, and the place at which the group needs more candidates.
    """
    minima, maxima = _within_one(np.array(shares), length)
    places = np.arange(1, length + 1, dtype=minima.dtype)
    lowest = np.maximum(minima[:, 0], places - maxima[:, 1])
    highest = np.minimum(maxima[:, 0], places - minima[:, 1])
    end = int(np.count_nonzero(lowest <= n))
    return _first_places(highest, n), _first_places(lowest, n), end


_cached_windows = lru_cache(maxsize=64)(_windows)


def _first_places(counts: Counts, n: int) -> Rows:
    """Return the first place (n,), counted from 1, where each of the counts 1 to n is reached.

    Args:
        counts: counts (length,) by place, which start at 0 or 1 and rise by at most one per place.
        n: largest count. If a count is never reached, its place is length + 1.
    """
    places = np.full(n, len(counts) + 1)
    reached = (counts[1:] > counts[:-1]).nonzero()[0] + 2
    if counts[0]:
        reached = np.concatenate([[1], reached])
    places[: len(reached)] = reached[:n]
    return places


def _merge_several(ranks_of_group: Sequence[Rows], shares: Floats, length: int) -> Rows:
    """Merge any number of groups until a group is due but has no candidates left.

    A group may take place t (counted from 0) if the prefix does not exceed the group's maximum. Up
    to a place D, group a still needs m_a(D) - c_a places, where m_a is its minimum. If the groups
    together need all places up to D, the next place must go to one of them.
    """
    horizon = min(int(np.ceil(len(shares) / shares.min())) + 1, _HORIZON)
    minima, maxima = _within_one(shares, length + horizon)
    places = np.arange(1, horizon + 1)
    counts = np.zeros(len(shares), dtype=np.intp)
    # Each list ends with a sentinel rank worse than all others, so an empty group is only taken if
    # due.
    empty = max(int(ranks[-1]) for ranks in ranks_of_group) + 1
    queues = [[*ranks[:length].tolist(), empty] for ranks in ranks_of_group]
    heads = np.array([queue[0] for queue in queues])
    sequence: list[int] = []
    for t in range(length):
        is_allowed = counts < maxima[t]
        needed = np.maximum(minima[t : t + horizon] - counts, 0)
        tight = np.flatnonzero(needed.sum(axis=1) >= places)
        if len(tight):
            is_allowed &= needed[tight[0]] > 0
        group = int(np.where(is_allowed, heads, empty + 1).argmin())
        if heads[group] == empty:
            break
        sequence.append(int(heads[group]))
        counts[group] += 1
        heads[group] = queues[group][counts[group]]
    return np.array(sequence, dtype=np.intp)


def _with_unknown(sequence: Rows, codes: NDArray[np.integer], k: int) -> Rows:
    """Return k ranks, with candidates whose group is unknown in their original places.

    Args:
        sequence: ranks of candidates whose group is known, which fill the other places.
        codes: groups (n,) by rank. If `sequence` is too short, further candidates whose group is
            unknown fill the end.
        k: number of ranks.
    """
    unknown = (codes == UNKNOWN).nonzero()[0]
    if not len(unknown):
        return sequence
    kept = unknown[unknown < k]
    order = np.full(k, -1)
    order[kept] = kept
    free = np.flatnonzero(order < 0)
    order[free] = np.concatenate([sequence, unknown[len(kept) :]])[: len(free)]
    return order
