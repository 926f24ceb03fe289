"""Assign outcomes to images in given shares that hold across calls."""

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

# Largest block length. Shares with two decimal places are exact over 100 images.
LONGEST_BLOCK = 100


def draw_seed() -> int:
    """Return a new seed from the operating system's random number generator."""
    return secrets.randbits(32)


def seed_from(*parts: Any) -> int:
    """Derive a seed from the given parts, with the same result on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def block_length(shares: Mapping[Any, float]) -> int:
    """Return the smallest number of images for which every share is a whole number of images.

    >>> block_length({"female": 0.5, "male": 0.5}), block_length({"female": 0.7, "male": 0.3})
    (2, 10)
    """
    for length in range(1, LONGEST_BLOCK):
        counts = [share * length for share in shares.values()]
        if all(math.isclose(count, round(count), abs_tol=1e-6) for count in counts):
            return length
    return LONGEST_BLOCK


class EvenSampler(Generic[Outcome]):
    """Assign outcomes to images and count, for each prompt, how often each was assigned.

    Counts are kept separately for each pair of attribute and person.

    Args:
        seed: The seed that determines the order of the outcomes.
        capacity: The number of prompts whose counts are kept. The least recently used prompt is
            dropped first.
    """

    def __init__(self, seed: int, capacity: int) -> None:
        self.seed = seed
        self._capacity = capacity
        # (attribute, person) -> prompt -> number of images with each outcome
        self._counts = defaultdict[tuple[int, int], dict[str, Counter[Outcome]]](dict)
        # Counts over all prompts. Prompts with the same possible outcomes share a counter.
        self._totals = defaultdict[tuple[Any, ...], Counter[Outcome]](Counter)

    def images_of(self, prompt: str) -> int:
        """Return how many images of a prompt have received an outcome for the first attribute."""
        counts = self._counts[0, 0].get(prompt)
        return counts.total() if counts else 0

    def assign(
        self, attribute: int, person: int, prompt: str, n: int, shares: Mapping[Outcome, float]
    ) -> list[Outcome]:
        """Return n outcomes for images of one prompt, spread evenly over the images.

        Each outcome is assigned to its share of the n images, rounded down, or rounded up if it has
        been assigned too rarely so far, for this prompt or overall.

        Args:
            attribute, person: The indices of the attribute and the person.
            prompt: The prompt of all n images.
            n: The number of images.
            shares: A mapping from outcome to share. The shares sum to 1.
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
        # The seed contains the number of images, so that each call draws a different order.
        seed = f"{self.seed}/{attribute}/{person}" if person else f"{self.seed}/{attribute}"
        rng = random.Random(f"{seed}/{images}/{prompt}")
        counts = {outcome: math.floor(share * n + 1e-9) for outcome, share in shares.items()}
        luck = {outcome: rng.random() for outcome in shares}
        # The remaining images go to the rounded-down outcomes that are furthest below their share,
        # first for this prompt, then over all prompts. Ties are broken at random.
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
        # Place each outcome at regular intervals with a random offset. With three As and six Bs,
        # for example, an A follows every second B.
        positions: list[tuple[float, Outcome]] = []
        for outcome, count in counts.items():
            positions += [((k + luck[outcome]) / count, outcome) for k in range(count)]
        return [outcome for _, outcome in sorted(positions, key=itemgetter(0))]
