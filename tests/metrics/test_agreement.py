"""Krippendorff's alpha against its definition, pair by pair, and against the package krippendorff."""

from itertools import permutations

import krippendorff
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.metrics import agreement

laws = settings(max_examples=60, deadline=None, derandomize=True)
NAN = float("nan")

tables = st.tuples(st.integers(2, 5), st.integers(1, 9)).flatmap(
    lambda shape: st.lists(
        st.lists(st.sampled_from([NAN, 0.0, 1.0, 2.0, 5.0]), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


def pairable(labels: np.ndarray) -> list[list[float]]:
    units = [[x for x in unit if not np.isnan(x)] for unit in labels.T]
    return [unit for unit in units if len(unit) >= 2]


def naive_alpha(labels: np.ndarray) -> float:
    """1 - D_o / D_e over ordered pairs of answers: inside units, each weighted by 1 / (m_u - 1), and of all."""
    units = pairable(labels)
    answers = [x for unit in units for x in unit]
    n = len(answers)
    observed = sum(sum(c != k for c, k in permutations(unit, 2)) / (len(unit) - 1) for unit in units) / n
    expected = sum(c != k for c, k in permutations(answers, 2)) / (n * (n - 1))
    return 1 - observed / expected


def alpha(labels: object) -> float:
    return agreement(labels, resamples=2).alpha.value


def usable(table: list[list[float]]) -> np.ndarray:
    labels = np.array(table)
    assume(len({x for unit in pairable(labels) for x in unit}) > 1)
    return labels


@laws
@given(table=tables)
def test_agrees_with_the_definition_and_with_the_package_krippendorff(table: list) -> None:
    labels = usable(table)
    found, units = agreement(labels, resamples=2), pairable(labels)
    assert found.alpha.value == pytest.approx(naive_alpha(labels), abs=1e-12)
    assert found.alpha.value == pytest.approx(krippendorff.alpha(labels, level_of_measurement="nominal"), abs=1e-9)
    equal = [np.mean([c == k for c, k in permutations(unit, 2)]) for unit in units]
    assert (found.percent.value, found.answers) == (pytest.approx(np.mean(equal)), sum(map(len, units)))


def test_random_answers_have_alpha_around_zero_and_opposite_ones_below() -> None:
    rng = np.random.default_rng(0)
    assert abs(alpha(rng.integers(0, 3, (2, 4000)))) < 0.05
    side = rng.integers(0, 2, 100)
    assert alpha(np.stack([side, 1 - side])) < -0.9


def test_negative_codes_and_nan_are_no_answers() -> None:
    codes, with_nan = [[0, 1, -1, 1], [0, 1, 1, 0]], [[0, 1, NAN, 1], [0, 1, 1, 0]]
    assert alpha(codes) == alpha(torch.tensor(codes)) == alpha(with_nan) == alpha([[0, 1, 1], [0, 1, 0]])


def test_the_interval_is_that_of_drawing_units_one_by_one() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (3, 40)).astype(float)
    labels[2, rng.random(40) < 0.3] = NAN
    drawn = [naive_alpha(labels[:, rng.integers(0, 40, 40)]) for _ in range(1000)]
    found = agreement(labels).alpha
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.03)


def test_resamples_without_a_second_value_are_left_out() -> None:
    found = agreement(np.array([[0] * 9 + [1], [0] * 9 + [1]]))
    assert (found.alpha.low, found.alpha.high) == (1, 1)


@refused(
    *((labels, "labels: ") for labels in ([[0, 1, 1]], [["m", "f"]] * 2, [[0, NAN], [NAN, 1]], [[1, 1], [1, 1]])),
)
def test_errors(labels: list) -> None:
    agreement(labels)
