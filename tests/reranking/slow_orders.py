"""Naive versions of the re-ranking methods: loops over lists, as in their papers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor


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
