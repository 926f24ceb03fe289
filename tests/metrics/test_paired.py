"""McNemar's exact test: its size under every null, its symmetry, that of the binomial distribution."""

from itertools import product
from math import comb

import pytest
from scipy.stats import binomtest

from vldebias.errors import InvalidInputError
from vldebias.metrics import mcnemar


@pytest.mark.parametrize("differing", [*range(31), 200])
def test_it_is_the_binomial_test_and_keeps_its_size(differing: int) -> None:
    """Given that so many pairs differ, each way as likely: no level is exceeded by what falls at or below it."""
    ps = [mcnemar(lost, differing - lost) for lost in range(differing + 1)]
    chance = [comb(differing, lost) / 2**differing for lost in range(differing + 1)]
    assert ps == ps[::-1]
    for level in (0.001, 0.01, 0.05, 0.2):
        assert sum(weight for p, weight in zip(ps, chance, strict=True) if p <= level) <= level
    if differing:
        assert ps == pytest.approx([binomtest(lost, differing).pvalue for lost in range(differing + 1)])
    assert (min(ps) <= 0.05) == (differing >= 6)


def test_pairs_that_agree_say_nothing() -> None:
    assert mcnemar(0, 0) == 1.0


@pytest.mark.parametrize("given", [*product((-1, 1.0, True, "1", None), (0,)), (3, -1)])
def test_counts_alone_are_taken(given: tuple[object, int]) -> None:
    with pytest.raises(InvalidInputError, match="expected two counts of pairs"):
        mcnemar(*given)
