"""Assign outcomes to images in given shares, evenly over all calls."""

from __future__ import annotations

import hashlib
import math
import random
import secrets
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from operator import itemgetter
from typing import Any, Generic, TypeVar

Outcome = TypeVar("Outcome", bound=Hashable)

LONGEST_BLOCK = 100  # of `block_length`: shares of two digits are exact


def draw_seed() -> int:
    """Return a new seed from the random numbers of the operating system."""
    return secrets.randbits(32)


def seed_from(*parts: Any) -> int:
    """Return a seed that follows from the parts alone, the same on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def block_length(shares: Mapping[Any, float]) -> int:
    """Return the least number of images that the shares divide without a remainder.

    >>> block_length({"female": 0.5, "male": 0.5}), block_length({"female": 0.7, "male": 0.3})
    (2, 10)
    """
    for length in range(1, LONGEST_BLOCK):
        counts = [share * length for share in shares.values()]
        if all(math.isclose(count, round(count), abs_tol=1e-6) for count in counts):
            return length
    return LONGEST_BLOCK


class EvenSampler(Generic[Outcome]):
    """Assign outcomes to images and count, for each prompt, how often it received which.

    Attributes and people are independent: each pair of indices has its own counts.

    Args:
        seed: determines the order.
        capacity: number of prompts whose counts are kept; the least recently used is dropped first.
    """

    def __init__(self, seed: int, capacity: int) -> None:
        self.seed = seed
        self._capacity = capacity
        # (attribute, person) -> prompt -> its counts
        self._counts = defaultdict[tuple[int, int], dict[str, Counter[Outcome]]](dict)
        # The counts of all prompts: those that can have the same outcomes share a counter.
        self._totals = defaultdict[tuple[Any, ...], Counter[Outcome]](Counter)

    def images_of(self, prompt: str) -> int:
        """Return how many images of a prompt have received a value of the first attribute."""
        counts = self._counts[0, 0].get(prompt)
        return counts.total() if counts else 0

    def assign(
        self, attribute: int, person: int, prompt: str, n: int, shares: Mapping[Outcome, float]
    ) -> list[Outcome]:
        """Return n outcomes for images of one prompt, spread evenly over them.

        Each outcome receives its share of n, rounded down, or rounded up if this prompt, or all
        prompts together, have received too little of it so far.

        Args:
            attribute, person: indices of the attribute and the person.
            prompt: the prompt of the images.
            n: number of images.
            shares: outcome -> share; they sum to 1.
        """
        # Move the prompt to the most recent position.
        counts_of_prompt = self._counts[attribute, person]
        assigned = counts_of_prompt.pop(prompt, Counter[Outcome]())
        counts_of_prompt[prompt] = assigned
        if len(counts_of_prompt) > self._capacity:
            oldest = next(iter(counts_of_prompt))
            del counts_of_prompt[oldest]
        totals = self._totals[attribute, person, *shares]
        images = assigned.total() + n
        all_images = totals.total() + n
        # The number of images is part of the seed, so that each call draws a new order.
        seed = f"{self.seed}/{attribute}/{person}" if person else f"{self.seed}/{attribute}"
        rng = random.Random(f"{seed}/{images}/{prompt}")
        counts = {outcome: math.floor(share * n + 1e-9) for outcome, share in shares.items()}
        luck = {outcome: rng.random() for outcome in shares}
        # The remaining images go to the outcomes that were rounded down and lack most: by this
        # prompt, then by all prompts, then at random.
        lack_of_outcome: dict[Outcome, tuple[int, float, float]] = {}
        for outcome, share in shares.items():
            is_rounded = share * n - counts[outcome] > 1e-9
            if is_rounded:
                missing = round(share * images - assigned[outcome] - counts[outcome], 9)
                overall = round(share * all_images - totals[outcome] - counts[outcome], 9)
                urgency = (missing > 0) + (missing >= 1)
                lack_of_outcome[outcome] = (urgency, overall, luck[outcome])
        ranked = sorted(lack_of_outcome, key=lack_of_outcome.__getitem__, reverse=True)
        for outcome in ranked[: n - sum(counts.values())]:
            counts[outcome] += 1
        assigned.update(counts)
        totals.update(counts)
        # Place each outcome at even distances with a random offset: three of one among six others
        # follow every second of them.
        positions: list[tuple[float, Outcome]] = []
        for outcome, count in counts.items():
            positions += [((k + luck[outcome]) / count, outcome) for k in range(count)]
        positions.sort(key=itemgetter(0))
        return list(map(itemgetter(1), positions))
