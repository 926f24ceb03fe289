"""Mix attribute values in one picture, as in "five engineers, three women and two men"."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_MIXED_WORDS = {"female", "male"}


class Group(NamedTuple):
    """A group of people mentioned by a plural noun.

    Attributes:
        end: The offset after the noun, where the mixture is inserted.
        size: The number of people, or None if the prompt does not give a number.
        young: Whether they are children, who are called girls and boys.
        mixes: Whether their values can be mixed. A couple, a family or a crowd stays unchanged.
    """

    end: int
    size: int | None
    young: bool
    mixes: bool


class Mixture(dict[str, int | None]):
    """A mapping from value to number of people in one picture, in text order.

    The number is None if the prompt does not give one. Unlike other dicts, a mixture is hashable,
    because it is used like the values of individual people.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def can_mix(words: Iterable[str]) -> bool:
    """Return whether there are plural nouns, such as "women", for people with these values."""
    return {word.lower() for word in words} == _MIXED_WORDS


def mixtures(group: Group, shares: Mapping[str, float]) -> dict[str | Mixture, float]:
    """Return the mixtures for a group and the share of images that gets each mixture.

    Over all images, the people are divided among the values in the given shares. With shares of
    0.5, five engineers split three to two in half of the images and two to three in the other half.
    If a mixture would consist of one value only, the result contains that value instead.

    Args:
        group: The group. If its size is unknown, there is only one mixture, without numbers.
        shares: A mapping from two values to their shares of the people, which sum to 1.
    """
    first, second = shares
    if group.size is None:
        return {Mixture({first: None, second: None}): 1.0}
    expected = shares[first] * group.size
    count = math.floor(expected + 1e-9)
    # An expected 2.5 women means two in half of the images and three in the other half.
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
            # In "a woman and a man", each value is named first in half of the images.
            orders.append(Mixture(reversed(ranked)))
        for order in orders:
            share_of_mixture[order] = share / len(orders)
    return share_of_mixture
