"""Mix the values of an attribute inside one picture: three women and two men of five engineers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_MIXED_WORDS = {"female", "male"}


class Group(NamedTuple):
    """The people that a plural noun names.

    Attributes:
        end: offset after the noun, where the mixture is written.
        size: number of people, or None if the prompt does not count them.
        young: whether they are children, written as girls and boys.
        mixes: whether they can be mixed; a couple, a family or a crowd stays unchanged.
    """

    end: int
    size: int | None
    young: bool
    mixes: bool


class Mixture(dict[str, int | None]):
    """Value -> number of people in one picture, in the order of the text; None: not counted.

    The dict is hashable, like the values of single people.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def can_mix(words: Iterable[str]) -> bool:
    """Return whether plural nouns for people exist for the values of these words."""
    return {word.lower() for word in words} == _MIXED_WORDS


def mixtures(group: Group, shares: Mapping[str, float]) -> dict[str | Mixture, float]:
    """Return the mixtures of a group and the share of the images that each gets, for two values.

    Over these images, the people have the given shares: five engineers at .5 are three and two in
    one half of the images and two and three in the other. If all people have one value, the result
    contains that value instead of a mixture.

    Args:
        group: the group; an uncounted one gets a single mixture without numbers.
        shares: value -> share of the people, for two values; they sum to 1.
    """
    first, second = shares
    if group.size is None:
        return {Mixture({first: None, second: None}): 1.0}
    expected = shares[first] * group.size
    count = math.floor(expected + 1e-9)
    # 2.5 women of five are two in one half of the images and three in the other.
    rest = round(expected - count, 9)
    share_of_mixture: dict[str | Mixture, float] = {}
    for number, share in ((count, 1 - rest), (count + 1, rest)):
        if share <= 0:
            continue
        # The larger count is named first.
        counts = {first: number, second: group.size - number}
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        (value, larger), (_, smaller) = ranked
        orders: list[str | Mixture] = [Mixture(ranked)]
        if not smaller:
            orders = [value]
        elif larger == smaller:
            # "a woman and a man": each is named first in half of the images.
            orders.append(Mixture(reversed(ranked)))
        for order in orders:
            share_of_mixture[order] = share / len(orders)
    return share_of_mixture


def fits(group: Group, mixture: Mapping[str, int | None]) -> bool:
    """Return whether a mixture, perhaps made for another text, can be written after a group.

    Args:
        group: the group that a text names.
        mixture: value -> number of people, or None if they are not counted.
    """
    size = 0
    for count in mixture.values():
        if count is None:
            return group.mixes and group.size is None
        size += count
    return group.mixes and group.size == size
