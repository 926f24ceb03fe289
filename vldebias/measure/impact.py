"""Compare selection rates of groups by impact ratios: the rate of a group over the highest rate.

The interval of an impact ratio has to allow for the highest rate being picked from the same data.
The ratio to the truly highest rate is the smallest of the ratios to all groups, so its lower end is
the smallest lower end of these ratios, and its upper end the smallest upper end, each at a level
that Bonferroni divides by their number. Each ratio has the interval of Donner and Zou, "Closed-form
confidence intervals for functions of the normal mean and standard deviation" (2012), from Wilson
intervals of its two rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import Interval, wilson_interval

LEVEL = 0.95
SMALL = 0.02  # share of the rows below which a category may be excluded


@dataclass(frozen=True)
class Category:
    """Hold what is known of one category.

    Attributes:
        name: such as "female".
        applicants: number of its rows with a known outcome.
        selected: how many of them were selected.
        rate: selected / applicants, with a Wilson interval; None without applicants.
        ratio: rate / highest rate among the categories that are not excluded; None if this one is
            excluded, or if nobody was selected.
        is_small: fewer than `SMALL` of the rows, so excluded from the ratios.
    """

    name: str
    applicants: int
    selected: int
    rate: Interval | None
    ratio: Interval | None
    is_small: bool


def impact_ratios(
    names: Sequence[str], applicants: Sequence[int], selected: Sequence[int]
) -> list[Category]:
    """Return selection rates and impact ratios of categories, in their order.

    Args:
        names: of the categories.
        applicants: rows of each category.
        selected: selected rows of each category.

    Raises:
        InvalidInputError: more selected than there are, or negative numbers.

    >>> women, men = impact_ratios(["female", "male"], [100, 100], [30, 60])
    >>> women.ratio.value, men.ratio.value
    (0.5, 1.0)
    """
    counts = list(zip(selected, applicants, strict=True))
    if any(hits < 0 or hits > n for hits, n in counts):
        raise InvalidInputError(
            f"selected: expected 0 .. {list(applicants)} rows, got {list(selected)}"
        )
    total = sum(applicants)
    is_small = [n < SMALL * total for n in applicants]
    compared = [pair for pair, small in zip(counts, is_small, strict=True) if pair[1] and not small]
    categories = []
    for name, (hits, n), small in zip(names, counts, is_small, strict=True):
        rate = Interval(hits / n, *wilson_interval(hits, n)) if n else None
        has_ratio = n and not small and any(other for other, _ in compared)
        ratio = _ratio_to_highest((hits, n), compared) if has_ratio else None
        categories.append(Category(name, n, hits, rate, ratio, small))
    return categories


def _ratio_to_highest(counts: tuple[int, int], compared: Sequence[tuple[int, int]]) -> Interval:
    """Return the ratio of a rate to the highest rate, itself among those compared.

    counts: selected and all rows of the category. compared: the same of every category.
    """
    hits, n = counts
    rate = hits / n
    references = list(compared)
    references.remove(counts)
    value = rate / max(other_hits / other_n for other_hits, other_n in compared)
    low = high = 1.0
    for other in references:
        # One lower end that is too high does no harm while another is lower; of the upper ends
        # each has to hold.
        low = min(low, ratio_interval(counts, other, LEVEL)[0])
        high = min(high, ratio_interval(counts, other, 1 - (1 - LEVEL) / len(references))[1])
    return Interval(value, min(value, low), max(value, high))


def ratio_interval(
    counts: tuple[int, int], other: tuple[int, int], level: float = LEVEL
) -> tuple[float, float]:
    """Return an interval of the ratio of two rates, by the method of variance estimates recovery.

    Args:
        counts: selected and all rows of the numerator.
        other: the same of the denominator.
        level: probability that the interval contains the ratio.

    >>> [round(end, 2) for end in ratio_interval((30, 100), (60, 100))]
    [0.35, 0.7]
    """
    (hits, n), (other_hits, other_n) = counts, other
    rate, other_rate = hits / n, other_hits / other_n
    low, high = wilson_interval(hits, n, level)
    other_low, other_high = wilson_interval(other_hits, other_n, level)
    product = rate * other_rate
    below = product**2 - low * (2 * rate - low) * other_high * (2 * other_rate - other_high)
    above = product**2 - high * (2 * rate - high) * other_low * (2 * other_rate - other_low)
    denominator_below = other_high * (2 * other_rate - other_high)
    denominator_above = other_low * (2 * other_rate - other_low)
    # A rate that may be 0 bounds no ratio.
    upper = math.inf
    if denominator_above > 0:
        upper = (product + math.sqrt(max(above, 0.0))) / denominator_above
    lower = 0.0
    if denominator_below > 0:
        lower = max(0.0, (product - math.sqrt(max(below, 0.0))) / denominator_below)
    elif hits:
        # The highest possible rate of the denominator, where its interval is very wide.
        lower = low / other_high
    return lower, upper
