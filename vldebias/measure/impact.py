"""Compute impact ratios, which divide each group's selection rate by the highest rate.

The interval of an impact ratio must account for the fact that the highest rate is selected from the
same data. The ratio to the true highest rate is the minimum of the ratios to all groups. The lower
end of its interval is therefore the smallest of those ratios' lower ends, and its upper end is the
smallest of their upper ends at a Bonferroni-corrected level. The interval for the ratio of two
rates is computed from their Wilson intervals (Donner and Zou, "Closed-form confidence intervals for
functions of the normal mean and standard deviation", 2012).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import LEVEL, Interval, wilson_interval

SMALL = 0.02  # Categories with a smaller share of the rows are excluded.


@dataclass(frozen=True)
class Category:
    """Store a category's selection rate and impact ratio.

    Attributes:
        name: name of the category, such as "female".
        applicants: number of rows with a known outcome.
        selected: number of selected rows.
        rate: selected / applicants with its Wilson interval, or None if there are no applicants.
        ratio: the rate divided by the highest rate among the included categories. None if this
            category is excluded or if nobody was selected.
        is_small: whether the category is excluded from the ratios because its share of the rows is
            below `SMALL`.
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
    """Compute each category's selection rate and impact ratio.

    Args:
        names: names of the categories, such as "female".
        applicants: number of rows in each category.
        selected: number of selected rows in each category.

    Returns:
        The categories, in the order of `names`.

    Raises:
        InvalidInputError: If a count is negative or exceeds the number of rows.

    >>> women, men = impact_ratios(["female", "male"], [100, 100], [30, 60])
    >>> women.ratio.value, men.ratio.value
    (0.5, 1.0)
    """
    counts = list(zip(selected, applicants, strict=True))
    if any(hits < 0 or hits > n for hits, n in counts):
        raise InvalidInputError(
            f"selected: expected 0 .. n, for n = {list(applicants)} rows, got {list(selected)}"
        )
    total = sum(applicants)
    is_small = [n < SMALL * total for n in applicants]
    compared = [pair for pair, small in zip(counts, is_small, strict=True) if pair[1] and not small]
    categories = []
    for name, (hits, n), small in zip(names, counts, is_small, strict=True):
        rate = Interval(hits / n, *wilson_interval(hits, n)) if n else None
        has_ratio = n and not small and any(hits for hits, _ in compared)
        ratio = _ratio_to_highest((hits, n), compared) if has_ratio else None
        categories.append(Category(name, n, hits, rate, ratio, small))
    return categories


def _ratio_to_highest(counts: tuple[int, int], compared: Sequence[tuple[int, int]]) -> Interval:
    """Return the ratio between a category's rate and the highest rate, with its interval.

    Args:
        counts: numbers of selected rows and of all rows in the category.
        compared: the same two numbers for every category, including this one.
    """
    hits, n = counts
    rate = hits / n
    references = list(compared)
    references.remove(counts)
    value = rate / max(reference_hits / reference_n for reference_hits, reference_n in compared)
    low = high = 1.0
    # Only the upper ends need a corrected level. The smallest lower end is too high only if all
    # lower ends are, but the smallest upper end is too low as soon as one upper end is.
    corrected = 1 - (1 - LEVEL) / max(len(references), 1)
    for reference in references:
        low = min(low, ratio_interval(counts, reference, LEVEL)[0])
        high = min(high, ratio_interval(counts, reference, corrected)[1])
    return Interval(value, min(value, low), max(value, high))


def ratio_interval(
    counts: tuple[int, int], reference: tuple[int, int], level: float = LEVEL
) -> tuple[float, float]:
    """Return an interval for the ratio of two rates, using variance estimates recovery (MOVER).

    Args:
        counts: numbers of selected rows and of all rows for the numerator.
        reference: the same two numbers for the denominator.
        level: coverage in (0, 1).

    >>> [round(end, 2) for end in ratio_interval((30, 100), (60, 100))]
    [0.35, 0.7]
    """
    hits, n = counts
    rate = hits / n
    low, high = wilson_interval(hits, n, level)
    reference_hits, reference_n = reference
    reference_rate = reference_hits / reference_n
    reference_low, reference_high = wilson_interval(reference_hits, reference_n, level)
    product = rate * reference_rate
    denominator_below = reference_high * (2 * reference_rate - reference_high)
    denominator_above = reference_low * (2 * reference_rate - reference_low)
    below = product**2 - low * (2 * rate - low) * denominator_below
    above = product**2 - high * (2 * rate - high) * denominator_above
    # If the denominator's rate may be 0, the ratio has no upper bound.
    upper = math.inf
    if denominator_above > 0:
        upper = (product + math.sqrt(max(above, 0.0))) / denominator_above
    lower = 0.0
    if denominator_below > 0:
        lower = max(0.0, (product - math.sqrt(max(below, 0.0))) / denominator_below)
    elif hits:
        # The denominator's interval is too wide for the formula, so divide by its upper end.
        lower = low / reference_high
    return lower, upper
