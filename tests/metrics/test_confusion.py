"""Shares from a judge and its confusion table."""

import numpy as np
import pytest

from vldebias.errors import InvalidInputError
from vldebias.metrics.confusion import unconfused_shares

RATES = np.array([[0.95, 0.05], [0.3, 0.7]])


def test_what_went_in_comes_out_and_intervals_hold_it() -> None:
    true, rng, held = np.array([0.5, 0.5]), np.random.default_rng(0), []
    exact = unconfused_shares(1e6 * true @ RATES, 1e6 * RATES)
    np.testing.assert_allclose(exact.shares, true, atol=1e-9)
    assert exact.discrepancy().value < 1e-6
    for i in range(200):
        table = np.stack([rng.multinomial(100, row) for row in RATES])
        interval = unconfused_shares(rng.multinomial(500, true @ RATES), table, resamples=400, seed=i).interval(0)
        held.append(interval.low <= 0.5 <= interval.high)
    assert 0.9 <= np.mean(held) <= 0.995


def test_three_values() -> None:
    rates, true = 0.7 * np.eye(3) + 0.1, np.array([0.6, 0.3, 0.1])
    np.testing.assert_allclose(unconfused_shares(1e5 * true @ rates, 1e5 * rates).shares, true, atol=1e-9)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([[50, 50], [50, 50]], "not invertible"),
        ([[6, 4], [5, 5]], "not invertible"),
        ([[5, 5, 0], [1, 9, 0]], "expected counts"),
        ([[5, 5], [0, 0]], "images in every row"),
    ],
)
def test_refused(table: list[list[int]], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        unconfused_shares(np.array([60.0, 40.0]), np.array(table))
