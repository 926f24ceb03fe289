"""Implement re-ranking methods: this package's quota, and published baselines.

Every method takes `Candidates` and k, and returns the rows (k,) of the top candidates in their new
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.reranking.candidates import UNKNOWN, Candidates, Floats, Rows

# Tolerance for products that should be integers, such as 10 x 0.7.
TINY = 1e-9
Bounds = Callable[[Floats, int], tuple[Rows, Rows]]
"""Function that takes the shares of g groups and a length, and returns the minimum and the maximum
count of each group in every prefix up to this length, (length, g) each."""


def quota(candidates: Candidates, k: int) -> Rows:
    """Return the top k by score, with each prefix within one place of the requested shares.

    Let c_a(i) be the number of candidates from group a among the first i candidates whose group is
    known, and p_a the share of group a. Then |c_a(i) - i p_a| < 1, unless a group runs out of
    candidates. Each place goes to the best candidate that can take it without forcing a violation
    later. If a group has no candidates left, the other groups take its places in proportion to
    their shares. Candidates whose group is unknown keep their places.

    Args:
        candidates: the candidates for one query.
        k: number of results.

    Returns:
        Rows (k,) of the candidates in their new order.

    Source: this package. The bound is from proportionate scheduling (Baruah et al., 1996): the c-th
    candidate of a group has a place between floor((c - 1) / p_a) + 1 and ceil(c / p_a).

    >>> from vldebias import rerank
    >>> groups = ["m", "m", "m", "f", "f"]
    >>> rerank([0.9, 0.8, 0.7, 0.2, 0.1], 4, labels=groups, method="quota").tolist()
    [0, 3, 1, 4]
    """
    return _merge(candidates, k, _within_one)


def fair(candidates: Candidates, k: int, *, alpha: float = 0.1) -> Rows:
    """Return the top k by score, such that no group is rarer in any prefix than chance explains.

    Every prefix of i candidates whose group is known contains at least m_a(i) candidates from group
    a. m_a(i) is the alpha-quantile of a binomial distribution with i draws and probability p_a, the
    group's share. The remaining places are filled by score, so a list that is as balanced as random
    draws stays unchanged. This preserves more results than the quota, but also more imbalance.
    Candidates whose group is unknown keep their places.

    Args:
        candidates: the candidates for one query.
        k: number of results.
        alpha: significance level in (0, 0.5). Larger values give more balanced lists.

    Returns:
        Rows (k,) of the candidates in their new order.

    Raises:
        InvalidInputError: If alpha is outside (0, 0.5).

    Source: FA*IR (Zehlike et al., "FA*IR: A Fair Top-k Ranking Algorithm", CIKM 2017), Algorithm 2,
    with minima for every group instead of only a protected one. Alpha applies to each prefix,
    without the paper's correction for multiple tests, and m_a(i) is at most floor(i p_a), so that
    the minima of several groups are compatible.

    >>> from vldebias import rerank
    >>> groups = ["m", "m", "m", "m", "m", "f", "f"]
    >>> rerank([7, 6, 5, 4, 3, 2, 1], 5, labels=groups, method="fair").tolist()
    [0, 1, 2, 5, 3]
    """
    if not 0 < alpha < 0.5:
        raise InvalidInputError(f"alpha: expected a number in (0, 0.5), got {alpha}")

    def bounds(shares: Floats, length: int) -> tuple[Rows, Rows]:
        lowest, _ = _within_one(shares, length)
        # Groups with equal shares have the same quantiles, so compute them only once.
        different, place_of_group = np.unique(shares, return_inverse=True)
        quantiles = [binomial_quantiles(float(share), length, alpha) for share in different]
        minima = np.stack(quantiles, axis=1)[:, place_of_group]
        places = np.arange(1, length + 1)[:, None]
        return np.minimum(lowest, minima), np.broadcast_to(places, lowest.shape)

    return _merge(candidates, k, bounds)


def _within_one(shares: Floats, length: int) -> tuple[Rows, Rows]:
    """Return i * p_a rounded down and rounded up, where p_a is the share of group a.

    Both arrays have shape (length, g), with a row for each prefix length i up to `length`.
    """
    places = np.arange(1, length + 1)[:, None]
    lowest = np.floor(places * shares + TINY).astype(np.intp)
    highest = np.ceil(places * shares - TINY).astype(np.intp)
    return lowest, highest


def _merge(candidates: Candidates, k: int, bounds: Bounds) -> Rows:
    """Return the top k rows by score, with every prefix within its bounds.

    Candidates are numbered by rank, starting from 0. The groups are merged until one of them is
    empty. The remaining groups are then merged, and so on.
    """
    ranked = candidates.ranked
    codes = candidates.codes[ranked]
    shares = candidates.shares
    unknown = np.flatnonzero(codes == UNKNOWN)
    count = min(len(codes) - len(unknown), k - int(np.count_nonzero(unknown < k)))
    # The ranks of each group's remaining candidates, best first.
    remaining = [np.flatnonzero(codes == group) for group in range(len(shares))]
    parts = [np.empty(0, dtype=np.intp)]
    n_placed = 0
    while n_placed < count:
        sizes = np.array([len(ranks) for ranks in remaining])
        groups = np.flatnonzero((sizes > 0) & (shares > 0))
        if not len(groups):
            # Append the candidates of groups with share 0 by score.
            parts.append(np.sort(np.concatenate(remaining)))
            break
        part_shares = shares[groups] / shares[groups].sum()
        ranks_of_group = [remaining[group] for group in groups]
        length = min(count - n_placed, int(sizes[groups].sum()))
        are_even = bounds is _within_one and np.ptp(part_shares) < TINY
        if len(groups) == 1 or are_even:
            # Take the best candidate of each group, then the next best, and so on.
            rounds = int(sizes[groups].min())
            table = np.stack([ranks[:rounds] for ranks in ranks_of_group], axis=1)
            part = np.sort(table, axis=1).ravel()
        elif len(groups) == 2:
            # For two groups, this is faster than `_merge_by_windows` and gives the same result.
            part = _merge_two(ranks_of_group, part_shares, length, bounds)
        else:
            part = _merge_by_windows(ranks_of_group, part_shares, length, bounds)
        parts.append(part)
        n_placed += len(part)
        placed = np.bincount(codes[part], minlength=len(shares))
        remaining = [ranks[number:] for ranks, number in zip(remaining, placed, strict=True)]
    sequence = np.concatenate(parts)[:count]
    if len(unknown):
        sequence = _with_unknown(sequence, codes, k)
    return ranked[sequence]


def _with_unknown(sequence: Sequence[int] | Rows, codes: NDArray[np.integer], k: int) -> Rows:
    """Return k ranks, with candidates of unknown group in their original places.

    Args:
        sequence: ranks of candidates whose group is known, which fill the other places.
        codes: groups (n,) by rank. If `sequence` is too short, further candidates of unknown group
            fill the end.
        k: number of ranks.
    """
    unknown = np.flatnonzero(codes == UNKNOWN)
    kept = unknown[unknown < k]
    order = np.full(k, -1)
    order[kept] = kept
    free = np.flatnonzero(order < 0)
    order[free] = np.concatenate([sequence, unknown[len(kept) :]])[: len(free)]
    return order


def binomial_quantiles(p: float, length: int, alpha: float) -> Rows:
    """Return the alpha-quantiles (length,) of binomial distributions with 1 to `length` draws.

    The quantile is the smallest q with P(X <= q) >= alpha. Each additional draw reduces P(X <= q)
    by p P(X = q) and increases the quantile by at most one.

    Args:
        p: probability of success.
        length: maximum number of draws.
        alpha: level of the quantiles.
    """
    quantiles = []
    q = 0
    mass = 1.0  # P(X = q)
    below = 1.0  # P(X <= q)
    for i in range(1, length + 1):
        below -= p * mass
        mass *= (1 - p) * i / (i - q) if q < i else 0.0
        if below < alpha:
            q += 1
            mass = mass * (i - q + 1) / q * p / (1 - p) if p < 1 else 1.0
            below += mass
        quantiles.append(q)
    return np.array(quantiles, dtype=np.intp)


def _merge_two(ranks_of_group: Sequence[Rows], shares: Floats, length: int, bounds: Bounds) -> Rows:
    """Merge two groups until a group is due but has no candidates left.

    Both bounds increase by at most one per place, so the better candidate can be taken whenever the
    prefix stays within its bounds.
    """
    minima, maxima = bounds(shares, length)
    places = np.arange(1, length + 1)
    lowest = np.maximum(minima[:, 0], places - maxima[:, 1]).tolist()
    highest = np.minimum(maxima[:, 0], places - minima[:, 1]).tolist()
    # Each list ends with a sentinel rank worse than all others, so an empty group is only taken if
    # due.
    empty = max(int(ranks[-1]) for ranks in ranks_of_group) + 1
    first, second = ([*ranks.tolist(), empty] for ranks in ranks_of_group)
    sequence: list[int] = []
    count = 0  # number of candidates from the first group
    for place in range(length):
        second_count = place - count
        rank = min(first[count], second[second_count])
        if count < lowest[place]:
            rank = first[count]
        elif count == highest[place]:
            rank = second[second_count]
        if rank == empty:
            break
        count += rank == first[count]
        sequence.append(rank)
    return np.array(sequence, dtype=np.intp)


def _merge_by_windows(
    ranks_of_group: Sequence[Rows], shares: Floats, length: int, bounds: Bounds
) -> Rows:
    """Merge any number of groups until a group is due but has no candidates left.

    A group may take place t (counted from 0) if the prefix does not exceed the group's maximum. Up
    to a place D, group a still needs m_a(D) - c_a places, where m_a is its minimum. If the groups
    together need all places up to D, the next place must go to one of them.
    """
    horizon = int(np.ceil(len(shares) / shares.min())) + 1
    due, maxima = bounds(shares, length + horizon)
    places = np.arange(1, horizon + 1)
    counts = np.zeros(len(shares), dtype=np.intp)
    # Each list ends with a sentinel rank worse than all others, so an empty group is only taken if
    # due.
    empty = max(int(ranks[-1]) for ranks in ranks_of_group) + 1
    ranks = [[*listed.tolist(), empty] for listed in ranks_of_group]
    heads = np.array([listed[0] for listed in ranks])
    sequence: list[int] = []
    for t in range(length):
        is_allowed = counts < maxima[t]
        needed = np.maximum(due[t : t + horizon] - counts, 0).sum(axis=1)
        tight = np.flatnonzero(needed >= places)
        if len(tight):
            is_allowed &= due[t + tight[0]] > counts
        group = int(np.where(is_allowed, heads, empty + 1).argmin())
        if heads[group] == empty:
            break
        sequence.append(int(heads[group]))
        counts[group] += 1
        heads[group] = ranks[group][counts[group]]
    return np.array(sequence, dtype=np.intp)


def pbm(candidates: Candidates, k: int) -> Rows:
    """Return the top k according to post-hoc bias mitigation (PBM).

    Each round takes one candidate from every group, or the best neutral candidate if its score is
    at least the mean score of those candidates. Candidates whose group is unknown are neutral. If
    fewer places than groups are left in the last round, its best candidates are taken, whereas the
    paper samples them. The method only supports equal shares.

    Args:
        candidates: the candidates for one query.
        k: number of results.

    Returns:
        Rows (k,) of the candidates in their new order.

    Source: Kong et al., "Mitigating Test-Time Bias for Fair Image Retrieval" (NeurIPS 2023),
    section 3.

    Raises:
        InvalidInputError: If the shares are not equal.

    >>> from vldebias import rerank
    >>> groups = ["m", "m", "m", "f", "f"]
    >>> rerank([0.9, 0.8, 0.7, 0.2, 0.1], 4, labels=groups, method="pbm").tolist()
    [0, 3, 1, 4]
    """
    if np.ptp(candidates.shares) > TINY:
        raise InvalidInputError(
            f"method 'pbm' only supports even shares, got {candidates.shares.tolist()};"
            " use method='quota'"
        )
    ranked = candidates.ranked
    scores = candidates.scores[ranked].tolist()
    codes = candidates.codes[ranked]
    neutral = np.flatnonzero(codes == UNKNOWN).tolist()
    members = [np.flatnonzero(codes == group).tolist() for group in range(len(candidates.names))]
    counts = [0] * len(members)
    next_neutral = 0
    order: list[int] = []
    while len(order) < k:
        heads = []
        for group, ranks in enumerate(members):
            if counts[group] < len(ranks):
                heads.append((ranks[counts[group]], group))
        has_neutral = next_neutral < len(neutral)
        if not heads and not has_neutral:
            break
        if has_neutral:
            # Ignore empty groups. If all groups are empty, only neutral candidates are left.
            mean = sum(scores[rank] for rank, _ in heads) / max(len(heads), 1)
            if not heads or mean <= scores[neutral[next_neutral]]:
                order.append(neutral[next_neutral])
                next_neutral += 1
                continue
        for rank, group in sorted(heads):
            order.append(rank)
            counts[group] += 1
    return ranked[order[:k]]


def det_const_sort(candidates: Candidates, k: int) -> Rows:
    """Return the top k according to DetConstSort.

    Every prefix of i candidates contains at least floor(i p_a) candidates from group a. Apart from
    that, higher scores come first. A candidate that is due moves ahead of preceding candidates with
    lower scores, as long as each of them stays within the prefix in which it was due. Candidates
    whose group is unknown keep their places.

    Args:
        candidates: the candidates for one query.
        k: number of results.

    Returns:
        Rows (k,) of the candidates in their new order.

    Source: Geyik et al., "Fairness-Aware Ranking in Search & Recommendation Systems" (2019),
    Algorithm 3. The published algorithm can move an item one place further than the bound allows,
    because positions start at 0 but prefixes at 1. This implementation does not.

    >>> from vldebias import rerank
    >>> groups = ["m", "m", "m", "f", "f"]
    >>> rerank([0.9, 0.8, 0.7, 0.2, 0.1], 4, labels=groups, method="detconstsort").tolist()
    [0, 3, 1, 4]
    """
    ranked = candidates.ranked
    codes = candidates.codes[ranked]
    members = [np.flatnonzero(codes == group).tolist() for group in range(len(candidates.names))]
    has_share = candidates.shares > 0
    length = min(k, int(has_share[codes[codes != UNKNOWN]].sum()))
    placed: list[int] = []  # ranks
    due_of_placed: list[int] = []  # prefix in which each of them was due
    counts = [0] * len(members)
    shares = candidates.shares.tolist()
    prefix = 0
    while len(placed) < length:
        prefix += 1
        due = []
        for group, ranks in enumerate(members):
            if counts[group] < min(int(prefix * shares[group] + TINY), len(ranks)):
                due.append((ranks[counts[group]], group))
        for rank, group in sorted(due):
            place = len(placed)
            while place > 0 and due_of_placed[place - 1] > place and placed[place - 1] > rank:
                place -= 1
            placed.insert(place, rank)
            due_of_placed.insert(place, prefix)
            counts[group] += 1
    # Append the candidates of groups with share 0 by score.
    is_without_share = (codes != UNKNOWN) & ~has_share[codes]
    sequence = [*placed, *np.flatnonzero(is_without_share).tolist()]
    return ranked[_with_unknown(sequence, codes, k)]


def mmr(candidates: Candidates, k: int, *, weight: float = 0.5) -> Rows:
    """Return the top k according to maximal marginal relevance (MMR).

    Each selected candidate maximises
    weight x score - (1 - weight) x (largest cosine with the candidates selected before).
    MMR ignores groups. It is included because vector stores offer it for diverse results.

    Args:
        candidates: the candidates for one query, with features.
        k: number of results.
        weight: weight of the score, in [0, 1].

    Returns:
        Rows (k,) of the candidates in their new order.

    Raises:
        InvalidInputError: If there are no features, or the weight is outside [0, 1].

    Source: Carbonell and Goldstein, "The Use of MMR, Diversity-Based Reranking" (1998).

    >>> from vldebias import rerank
    >>> features = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]  # the first two are identical
    >>> groups = ["m", "m", "f"]
    >>> rerank([0.9, 0.8, 0.7], 2, labels=groups, features=features, method="mmr").tolist()
    [0, 2]
    """
    features = candidates.features
    if features is None:
        raise InvalidInputError(
            "method 'mmr' compares candidates with each other; pass features= (n, d)"
        )
    if not 0 <= weight <= 1:
        raise InvalidInputError(f"weight: expected a number in [0, 1], got {weight}")
    ranked = candidates.ranked
    rows = features[ranked]
    gains = weight * candidates.scores[ranked]
    largest = np.full(len(ranked), -np.inf)
    is_remaining = np.ones(len(ranked), dtype=bool)
    order = [0]
    is_remaining[0] = False
    while len(order) < k:
        largest = np.maximum(largest, rows @ rows[order[-1]])
        values = np.where(is_remaining, gains - (1 - weight) * largest, -np.inf)
        best = int(values.argmax())
        order.append(best)
        is_remaining[best] = False
    return ranked[order]
