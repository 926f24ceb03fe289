"""Naive versions of the re-ranking methods: loops over lists, as in their papers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, comb, floor

import numpy as np


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


def pbm(scores: Sequence[float], labels: Sequence[int], g: int, k: int) -> list[int]:
    """Follow the code by MOPR's authors (their `pbm.py`): labels are 1 .. g, 0 is neutral, and
    nothing is random."""
    ranked = best_first(scores)
    neutrals = [row for row in ranked if labels[row] == 0]
    classes = [[row for row in ranked if labels[row] == a] for a in range(1, g + 1)]
    chosen: list[int] = []
    while len(chosen) < k:
        best = [members[0] for members in classes if members]
        if not best and not neutrals:
            break
        takes_classes = not neutrals or (
            best and np.mean([scores[row] for row in best]) > scores[neutrals[0]]
        )
        if takes_classes:
            chosen += sorted(best, key=ranked.index)
            classes = [members[1:] for members in classes]
        else:
            chosen.append(neutrals.pop(0))
    return chosen[:k]


def mmr(scores: Sequence[float], features: np.ndarray, k: int, weight: float) -> list[int]:
    """Choose one candidate at a time, comparing it with every earlier one."""
    chosen = [best_first(scores)[0]]
    while len(chosen) < k:
        best, best_value = -1, -np.inf
        for row in best_first(scores):
            if row in chosen:
                continue
            nearest = max(float(features[row] @ features[other]) for other in chosen)
            value = weight * scores[row] - (1 - weight) * nearest
            if value > best_value + 1e-15:
                best, best_value = row, value
        chosen.append(best)
    return chosen


def det_const_sort(
    scores: Sequence[float], groups: Sequence[int], shares: Sequence[float], k: int
) -> list[int]:
    """Follow algorithm 3 of Geyik et al., with swaps. Positions start at 0, so that an item stays
    in its prefix."""
    members = [[row for row in best_first(scores) if groups[row] == a] for a in range(len(shares))]
    counts = [0] * len(shares)
    minima = [0] * len(shares)
    ranked: list[int] = []
    largest: list[int] = []
    prefix = 0
    while len(ranked) < k:
        prefix += 1
        wanted = [floor(prefix * share + 1e-9) for share in shares]
        changed = [a for a in range(len(shares)) if minima[a] < wanted[a]]
        changed = [a for a in changed if counts[a] < len(members[a])]
        changed.sort(key=lambda a: (-scores[members[a][counts[a]]], members[a][counts[a]]))
        for a in changed:
            ranked.append(members[a][counts[a]])
            largest.append(prefix)
            start = len(ranked) - 1
            while (
                start > 0
                and largest[start - 1] >= start + 1
                and scores[ranked[start - 1]] < scores[ranked[start]]
            ):
                ranked[start - 1], ranked[start] = ranked[start], ranked[start - 1]
                largest[start - 1], largest[start] = largest[start], largest[start - 1]
                start -= 1
            counts[a] += 1
        minima = wanted
    return ranked[:k]
