"""Schedules: where they start, where they end, and what lies between."""

from __future__ import annotations

import itertools

import pytest

from vldebias.errors import InvalidInputError
from vldebias.losses import beta_annealing, q_warmup


def test_q_warms_up_linearly_from_its_start_to_its_end() -> None:
    """Section 5.3.3: q starts at .01 and increases linearly to .4 until the last epoch."""
    values = [q_warmup(step, 40) for step in range(40)]
    steps = [b - a for a, b in itertools.pairwise(values)]
    assert (values[0], values[-1]) == pytest.approx((0.01, 0.4))
    assert steps == pytest.approx([steps[0]] * 39)
    assert q_warmup(0, 1) == 0.01


def test_beta_goes_down_in_equal_stairs() -> None:
    """Appendix A.2.2: switch from beta_i to beta_i - beta / l in epoch i e / l."""
    epochs, beta, changes = 400, 1.5, 5
    values = [beta_annealing(epoch, epochs, beta=beta, changes=changes) for epoch in range(epochs)]
    for i in range(changes):
        switch = i * epochs // changes
        assert values[switch : switch + epochs // changes] == pytest.approx([beta - i * beta / changes] * 80)


def test_up_is_down_backwards() -> None:
    down = [beta_annealing(epoch, 12, beta=2, changes=4) for epoch in range(12)]
    up = [beta_annealing(epoch, 12, beta=2, changes=4, direction="up") for epoch in range(12)]
    assert up == down[::-1]
    assert up[0] < up[-1] == 2


def test_steps_that_are_not_in_the_training() -> None:
    with pytest.raises(InvalidInputError, match=r"step: expected a number in \[0, 10\), got 10"):
        q_warmup(10, 10)
    with pytest.raises(InvalidInputError, match=r"epoch: expected a number in \[0, 10\), got -1"):
        beta_annealing(-1, 10, beta=1, changes=2)
    with pytest.raises(InvalidInputError, match=r"changes: expected a number in \[1, inf\), got 0"):
        beta_annealing(0, 10, beta=1, changes=0)
    with pytest.raises(InvalidInputError, match=r"start: expected a number in \(0, 1\], got 0"):
        q_warmup(0, 10, start=0)
    with pytest.raises(InvalidInputError, match="direction: expected one of 'down', 'up', got 'left'"):
        beta_annealing(0, 10, beta=1, changes=2, direction="left")  # type: ignore[arg-type]
