"""Order candidates: the quota of this package, and baselines of others.

Every function takes `Candidates` and k, and returns the rows (k,) of the candidates in their new
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.reranking.candidates import UNKNOWN, Candidates, Floats, Rows

# What a product such as 10 x 0.7 may miss of a whole number by rounding.
TINY = 1e-9
# (shares of g groups, length) -> how many of each group the prefixes of 1 to `length` hold at least
# and at most, (length, g) each.
Bounds = Callable[[Floats, int], tuple[Rows, Rows]]


def quota(candidates: Candidates, k: int) -> Rows:
    """Return the first k by scores, so that every prefix is within one of the shares.

    With c_a(i) the candidates of group a among the first i of known group, |c_a(i) - i p_a| < 1 as
    long as no group lacks a candidate: among the groups that may come next without breaking this
    later, the one with the best candidate comes. Where a group has no candidates left, the others
    share its places in proportion to their shares. Candidates of unknown group keep their places.

    Source: this package. The bound is that of proportionate scheduling (Baruah et al., 1996): the
    c-th candidate of a group stands between the places floor((c - 1) / p_a) + 1 and ceil(c / p_a).
    """
    return _merge(candidates, k, _within_one)


def fair(candidates: Candidates, k: int, *, alpha: float = 0.1) -> Rows:
    """Return the first k by scores, so that in no prefix a group is rarer than chance explains.

    Every prefix of i of known group holds at least m_a(i) of group a: the alpha-quantile of a
    binomial law of i draws with its share p_a. The other places are filled by score, so that a
    list which is as even as random draws with these shares stays unchanged. It keeps more results
    than the quota, and more of their imbalance: the larger alpha, the more even. Candidates of
    unknown group keep their places.

    Source: FA*IR (Zehlike et al., "FA*IR: A Fair Top-k Ranking Algorithm", CIKM 2017), Algorithm 2
    with its minima for every group, and not only a protected one. Alpha is that of one prefix (the
    paper also has one that is corrected for their number), and m_a(i) is at most floor(i p_a), so
    that the minima of several groups fit together.

    Raises:
        InvalidInputError: alpha outside (0, 0.5).
    """
    if not 0 < alpha < 0.5:
        raise InvalidInputError(f"alpha: expected a number in (0, 0.5), got {alpha}")

    def bounds(shares: Floats, length: int) -> tuple[Rows, Rows]:
        lowest, _ = _within_one(shares, length)
        # Equal shares have equal quantiles, which are computed once.
        different, place_of_group = np.unique(shares, return_inverse=True)
        quantiles = [binomial_quantiles(float(share), length, alpha) for share in different]
        minima = np.stack(quantiles, axis=1)[:, place_of_group]
        places = np.arange(1, length + 1)[:, None]
        return np.minimum(lowest, minima), np.broadcast_to(places, lowest.shape)

    return _merge(candidates, k, bounds)


def _within_one(shares: Floats, length: int) -> tuple[Rows, Rows]:
    """Return how many of each group (length, g) the prefixes of 1 to `length` hold at least and at
    most, within one of the shares: i p_a rounded down or up."""
    places = np.arange(1, length + 1)[:, None]
    lowest = np.floor(places * shares + TINY).astype(np.intp)
    highest = np.ceil(places * shares - TINY).astype(np.intp)
    return lowest, highest


def _merge(candidates: Candidates, k: int, bounds: Bounds) -> Rows:
    """Return the first k rows by scores, such that every prefix keeps its bounds.

    Candidates are numbered by rank: 0 is the best one. The groups are merged until one of them is
    empty; then the others share its places, and so on.

    bounds: (shares, length) -> how many of each group (length, g) the prefixes of 1 to `length`
    hold at least and at most.
    """
    ranked = candidates.ranked
    codes = candidates.codes[ranked]
    shares = candidates.shares
    unknown = np.flatnonzero(codes == UNKNOWN)
    count = min(len(codes) - len(unknown), k - int(np.count_nonzero(unknown < k)))
    # group -> ranks of its candidates that are not placed yet, best first
    remaining = [np.flatnonzero(codes == group) for group in range(len(shares))]
    parts = [np.empty(0, dtype=np.intp)]
    done = 0
    while done < count:
        sizes = np.array([len(ranks) for ranks in remaining])
        groups = np.flatnonzero((sizes > 0) & (shares > 0))
        if not len(groups):
            # Groups without a share: what remains of them follows by score.
            parts.append(np.sort(np.concatenate(remaining)))
            break
        part_shares = shares[groups] / shares[groups].sum()
        ranks_of_group = [remaining[group] for group in groups]
        length = min(count - done, int(sizes[groups].sum()))
        are_even = bounds is _within_one and np.ptp(part_shares) < TINY
        if len(groups) == 1 or are_even:
            # One candidate of each group, the best first, then the next one of each.
            rounds = int(sizes[groups].min())
            table = np.stack([ranks[:rounds] for ranks in ranks_of_group], axis=1)
            part = np.sort(table, axis=1).ravel()
        elif len(groups) == 2:
            # As by windows, and faster.
            part = _merge_two(ranks_of_group, part_shares, length, bounds)
        else:
            part = _merge_by_windows(ranks_of_group, part_shares, length, bounds)
        parts.append(part)
        done += len(part)
        placed = np.bincount(codes[part], minlength=len(shares))
        remaining = [ranks[number:] for ranks, number in zip(remaining, placed, strict=True)]
    sequence = np.concatenate(parts)[:count]
    if len(unknown):
        sequence = _with_unknown(sequence, codes, k)
    return ranked[sequence]


def _with_unknown(sequence: Sequence[int] | Rows, codes: NDArray[np.integer], k: int) -> Rows:
    """Return k ranks: those of unknown group at their own places, and the sequence around them.

    codes: (n,) of the groups, best first. Where the sequence is too short, more of unknown group
    follow at the end.
    """
    unknown = np.flatnonzero(codes == UNKNOWN)
    kept = unknown[unknown < k]
    order = np.full(k, -1)
    order[kept] = kept
    free = np.flatnonzero(order < 0)
    order[free] = np.concatenate([sequence, unknown[len(kept) :]])[: len(free)]
    return order


def binomial_quantiles(p: float, length: int, alpha: float) -> Rows:
    """Return the alpha-quantiles (length,) of binomial laws of 1 to `length` draws: the least q
    with P(X <= q) >= alpha.

    One more draw takes p P(X = q) from P(X <= q), and moves the quantile by one at most.
    """
    quantiles = []
    q = 0
    mass = 1.0  # P(X = q) and P(X <= q) of no draw
    below = 1.0
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
    """Return the order of two groups, until one that is due has no candidate left.

    What the first group may not take is the second one's. Both bounds of a prefix rise by one at
    most with the next place, so the better candidate may come wherever it keeps within them.
    """
    minima, maxima = bounds(shares, length)
    places = np.arange(1, length + 1)
    lowest = np.maximum(minima[:, 0], places - maxima[:, 1]).tolist()
    highest = np.minimum(maxima[:, 0], places - minima[:, 1]).tolist()
    # A rank after all others ends each list: an empty group comes only where it has to.
    empty = max(int(ranks[-1]) for ranks in ranks_of_group) + 1
    first, second = ([*ranks.tolist(), empty] for ranks in ranks_of_group)
    sequence: list[int] = []
    count = 0  # of the first group
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
    """Return the order of groups of any shares, until one that is due has no candidate left.

    A group may come at place t (from 0) where the prefix with it holds no more of it than its
    bound. The groups that fall due up to place D need least_a(D) - c_a places: where these are all
    that is left up to D, one of them has to come.
    """
    horizon = int(np.ceil(len(shares) / shares.min())) + 1
    due, maxima = bounds(shares, length + horizon)
    places = np.arange(1, horizon + 1)
    counts = np.zeros(len(shares), dtype=np.intp)
    # A rank after all others ends each list: an empty group comes only where it has to.
    empty = max(int(ranks[-1]) for ranks in ranks_of_group) + 1
    ranks = [[*listed.tolist(), empty] for listed in ranks_of_group]
    heads = np.array([listed[0] for listed in ranks])
    sequence: list[int] = []
    for t in range(length):
        may = counts < maxima[t]
        needed = np.maximum(due[t : t + horizon] - counts, 0).sum(axis=1)
        tight = np.flatnonzero(needed >= places)
        if len(tight):
            may &= due[t + tight[0]] > counts
        group = int(np.where(may, heads, empty + 1).argmin())
        if heads[group] == empty:
            break
        sequence.append(int(heads[group]))
        counts[group] += 1
        heads[group] = ranks[group][counts[group]]
    return np.array(sequence, dtype=np.intp)


def pbm(candidates: Candidates, k: int) -> Rows:
    """Return the first k by post-hoc bias mitigation: in each round one of every group, or the best
    neutral candidate if its score is at least their mean.

    Candidates of unknown group are the neutral ones. In the last round, where fewer places are left
    than groups, the best of the round come (the paper draws them at random). Shares are even.

    Source: Kong et al., "Mitigating Test-Time Bias for Fair Image Retrieval" (NeurIPS 2023),
    section 3.

    Raises:
        InvalidInputError: other shares than even ones.
    """
    if np.ptp(candidates.shares) > TINY:
        raise InvalidInputError(
            f"method 'pbm' takes one of each group in a round, so its shares are even; got"
            f" {candidates.shares.tolist()}. Use method='quota'"
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
            # A group that is used up has no say; without any the neutral ones come alone.
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
    """Return the first k by DetConstSort: every prefix of i has at least floor(i p_a) of group a,
    and within this higher scores come first.

    A candidate that falls due moves ahead of those before it with lower scores, as long as each of
    these stays inside the prefix by which it was due. Candidates of unknown group keep their
    places.

    Source: Geyik et al., "Fairness-Aware Ranking in Search & Recommendation Systems" (2019),
    Algorithm 3. There an item may move one place further than the bound allows (positions count
    from 0, prefixes from 1); here the bound holds.
    """
    ranked = candidates.ranked
    codes = candidates.codes[ranked]
    members = [np.flatnonzero(codes == group).tolist() for group in range(len(candidates.names))]
    has_share = candidates.shares > 0
    wanted = min(k, int(has_share[codes[codes != UNKNOWN]].sum()))
    placed: list[int] = []  # ranks
    latest: list[int] = []  # the prefix by which each of them was due
    counts = [0] * len(members)
    shares = candidates.shares.tolist()
    prefix = 0
    while len(placed) < wanted:
        prefix += 1
        due = []
        for group, ranks in enumerate(members):
            if counts[group] < min(int(prefix * shares[group] + TINY), len(ranks)):
                due.append((ranks[counts[group]], group))
        for rank, group in sorted(due):
            place = len(placed)
            while place > 0 and latest[place - 1] > place and placed[place - 1] > rank:
                place -= 1
            placed.insert(place, rank)
            latest.insert(place, prefix)
            counts[group] += 1
    # Groups without a share follow by score.
    is_rest = (codes != UNKNOWN) & ~has_share[codes]
    sequence = [*placed, *np.flatnonzero(is_rest).tolist()]
    return ranked[_with_unknown(sequence, codes, k)]


def mmr(candidates: Candidates, k: int, *, weight: float = 0.5) -> Rows:
    """Return the first k by maximal marginal relevance: each next one has the highest
    weight x score - (1 - weight) x (its largest cosine with those before it).

    It reads no groups; vector stores offer it for diverse results.

    Source: Carbonell and Goldstein, "The Use of MMR, Diversity-Based Reranking" (1998).

    Raises:
        InvalidInputError: no features, or a weight outside [0, 1].
    """
    features = candidates.features
    if features is None:
        raise InvalidInputError(
            "method 'mmr' compares candidates with each other: pass features= (n, d)"
        )
    if not 0 <= weight <= 1:
        raise InvalidInputError(f"weight: expected a number in [0, 1], got {weight}")
    ranked = candidates.ranked
    rows = features[ranked]
    gains = weight * candidates.scores[ranked]
    largest = np.full(len(ranked), -np.inf)
    is_open = np.ones(len(ranked), dtype=bool)
    order = [0]
    is_open[0] = False
    while len(order) < k:
        largest = np.maximum(largest, rows @ rows[order[-1]])
        values = np.where(is_open, gains - (1 - weight) * largest, -np.inf)
        best = int(values.argmax())
        order.append(best)
        is_open[best] = False
    return ranked[order]
