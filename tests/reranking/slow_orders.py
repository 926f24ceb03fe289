"""Naive versions of the re-ranking methods: loops over lists, as in their papers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, comb, floor


def best_first(scores: Sequence[float]) -> list[int]:
    """Return rows by score. Ties go to the earlier row."""
    return sorted(range(len(scores)), key=lambda row: (-scores[row], row))


def can_be_completed(counts: Sequence[int], shares: Sequence[Fraction], place: int) -> bool:
    """Return whether each place can get a candidate inside its window, with earliest deadline
    first."""
    held = list(counts)
    end = place + 2 * max(ceil(1 / share) for share in shares) + 2
    for step in range(place, end):
        ready = [a for a, share in enumerate(shares) if Fraction(held[a]) < (step + 1) * share]
        if not ready:
            return False
        first = min(ready, key=lambda a: ceil((held[a] + 1) / shares[a]))
        if ceil((held[first] + 1) / shares[first]) < step + 1:
            return False
        held[first] += 1
        late = [a for a, share in enumerate(shares) if floor((step + 1) * share) > held[a]]
        if late:
            return False
    return True


def quota(
    scores: Sequence[float], groups: Sequence[int], shares: Sequence[Fraction], k: int
) -> list[int]:
    """Choose at each place the best candidate among all groups for which the bound can still be
    met."""
    members = [[row for row in best_first(scores) if groups[row] == a] for a in range(len(shares))]
    counts = [0] * len(shares)
    order: list[int] = []
    for place in range(k):
        heads = [
            (members[a][counts[a]], a) for a in range(len(shares)) if counts[a] < len(members[a])
        ]
        for row, a in sorted(heads, key=lambda head: (-scores[head[0]], head[0])):
            after = [count + (b == a) for b, count in enumerate(counts)]
            is_within = all(abs(after[b] - (place + 1) * shares[b]) < 1 for b in range(len(shares)))
            if is_within and can_be_completed(after, shares, place + 1):
                order.append(row)
                counts = after
                break
    return order


def binomial_quantile(draws: int, share: Fraction, alpha: float) -> int:
    """Return the smallest q with a cumulative probability of at least alpha, by exact sums."""
    total = Fraction(0)
    for q in range(draws + 1):
        total += comb(draws, q) * share**q * (1 - share) ** (draws - q)
        if total >= Fraction(alpha):
            return q
    return draws


def fair(
    scores: Sequence[float],
    groups: Sequence[int],
    shares: Sequence[Fraction],
    k: int,
    alpha: float,
) -> list[int]:
    """Choose at each place the best candidate, unless too few places would remain for the minima of
    later prefixes. In that case, choose the best candidate from the groups that these minima
    require."""
    members = [[row for row in best_first(scores) if groups[row] == a] for a in range(len(shares))]
    end = 2 * k
    minima = []
    for place in range(1, end + 1):
        minima.append([min(binomial_quantile(place, p, alpha), floor(place * p)) for p in shares])
    counts = [0] * len(shares)
    order: list[int] = []
    for place in range(k):
        ready = list(range(len(shares)))
        for later in range(place, end):
            waiting = [a for a in ready if minima[later][a] > counts[a]]
            if sum(minima[later][a] - counts[a] for a in waiting) >= later - place + 1:
                ready = waiting
                break
        best = min(ready, key=lambda a: (-scores[members[a][counts[a]]], members[a][counts[a]]))
        order.append(members[best][counts[best]])
        counts[best] += 1
    return order
