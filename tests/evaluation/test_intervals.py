"""Figures: the value is the plain statistic, changes are paired, "none" and "random" have none."""

import numpy as np
import pytest

from vldebias.evaluation.intervals import Measured, figures, worst_group
from vldebias.metrics import worst_group_accuracy

RNG = np.random.default_rng(0)


def test_values_are_means_and_intervals_hold_them() -> None:
    values = {"none": RNG.random(50), "cali": RNG.random(50), "random": RNG.random(50)}
    found = {f.method: f for f in figures(Measured("t", "m", "lower", {"x": 50}, values))}
    for method, row in values.items():
        assert found[method].value == pytest.approx(row.mean())
        assert found[method].interval[0] < row.mean() < found[method].interval[1]
    assert found["none"].change is found["random"].change is None
    assert found["cali"].change is not None


def test_change_is_paired() -> None:
    """A constant shift of very noisy values is known exactly when the same units are drawn for both."""
    noisy = RNG.normal(0, 100, 30)
    _, shifted = figures(Measured("t", "m", "lower", {}, {"none": noisy, "cali": noisy - 1}))
    assert shifted.change == pytest.approx((-1, -1, -1))
    assert shifted.interval[1] - shifted.interval[0] > 10


@pytest.mark.parametrize("groups", [3, 5])
def test_vectorised_worst_group_is_its_naive_twin(groups: int) -> None:
    correct = RNG.integers(0, 2, (20, 40)).astype(float)
    group = RNG.integers(0, groups, (20, 40))
    naive = [worst_group_accuracy(c, np.ones(40), g) for c, g in zip(correct, group, strict=True)]
    np.testing.assert_allclose(worst_group(correct, group), naive)


def test_worst_group_leaves_out_a_group_that_a_resample_misses() -> None:
    correct = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    group = np.array([[0, 1, 1], [0, 0, 0]])
    np.testing.assert_allclose(worst_group(correct, group), [0.5, 1.0])
