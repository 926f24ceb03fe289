"""The learning rate: up, then half a cosine down to its end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.training.schedules import cosine_rate


@given(steps=st.integers(1, 400), warmup=st.floats(0, 0.9), end=st.floats(0, 1))
def test_it_rises_then_falls_to_the_end(steps: int, warmup: float, end: float) -> None:
    rates = [cosine_rate(step, steps, peak=1.0, warmup=warmup, end=end) for step in range(steps)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert all(a >= b - 1e-12 for a, b in zip(rates[top:], rates[top + 1 :], strict=False))
    assert all(0 <= rate <= 1 + 1e-12 for rate in rates)
    assert rates[-1] > end * (1 - 1e-12)
    assert rates[0] > 0


def test_half_way_down_it_is_the_mean_of_peak_and_end() -> None:
    assert cosine_rate(5, 10, peak=2.0, end=1.0) == pytest.approx(1.5)
    assert cosine_rate(0, 1, peak=2.0) == 2.0
    assert cosine_rate(0, 10, peak=2.0, warmup=0.5) == pytest.approx(2 / 5)
    assert math.isclose(cosine_rate(4, 10, peak=2.0, warmup=0.5), 2.0)


@pytest.mark.parametrize("step", [-1, 10])
def test_steps_outside_are_refused(step: int) -> None:
    with pytest.raises(InvalidInputError, match=r"step: expected 0 \.\. 9"):
        cosine_rate(step, 10, peak=1.0)
