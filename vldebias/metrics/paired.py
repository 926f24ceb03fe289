"""An exact test for things that are seen twice: pictures of one noise, answers about one image."""

from __future__ import annotations

from math import comb
from numbers import Integral

from vldebias.errors import InvalidInputError


def mcnemar(lost: int, gained: int) -> float:
    """The two-sided p of McNemar's exact test: were it a coin, how often would it fall as far from even as this?

    Args:
        lost, gained: of the pairs that differ, those that have a property on the first side alone, and on the second
            alone. Pairs that agree say nothing. Where the two sides are exchangeable, `lost` is binomial with 1/2.

    Returns:
        Twice the smaller tail, at most 1; 1 where no pair differs. Fewer than six pairs that differ never have .05.

    Raises:
        InvalidInputError: a count that is none.

    Source: McNemar (1947), "Note on the sampling error of the difference between correlated proportions".

    >>> mcnemar(6, 0), mcnemar(5, 0), mcnemar(2, 0)
    (0.03125, 0.0625, 0.5)
    """
    if any(isinstance(count, bool) or not isinstance(count, Integral) or count < 0 for count in (lost, gained)):
        raise InvalidInputError(f"mcnemar: expected two counts of pairs, got {lost!r} and {gained!r}")
    lost, gained = int(lost), int(gained)
    differing = lost + gained
    tail = sum(comb(differing, i) for i in range(min(lost, gained) + 1))
    return min(1.0, 2 * tail / 2**differing)
