"""Krippendorff's alpha against its definition, pair by pair, and against the package krippendorff."""

from itertools import permutations

import krippendorff
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.errors import SuspectInputWarning
from vldebias.metrics import agreement, krippendorff_alpha
from vldebias.metrics.agreement import LEVELS, _alphas, _Table

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


def distance(level: str, answers: list[float]):
    """delta squared as Krippendorff (2011) writes it for each level."""
    count = {value: answers.count(value) for value in answers}

    def ordinal(c: float, k: float) -> float:
        low, high = min(c, k), max(c, k)
        return (sum(n for g, n in count.items() if low <= g <= high) - (count[c] + count[k]) / 2) ** 2

    return {"nominal": lambda c, k: float(c != k), "ordinal": ordinal, "interval": lambda c, k: (c - k) ** 2}[level]


def naive_alpha(labels: np.ndarray, level: str) -> float:
    """1 - D_o / D_e over ordered pairs of answers: inside units, each weighted by 1 / (m_u - 1), and of all."""
    units = pairable(labels)
    answers = [x for unit in units for x in unit]
    delta, n = distance(level, answers), len(answers)
    observed = sum(sum(delta(*pair) for pair in permutations(unit, 2)) / (len(unit) - 1) for unit in units) / n
    expected = sum(delta(*pair) for pair in permutations(answers, 2)) / (n * (n - 1))
    return 1 - observed / expected


def usable(table: list[list[float]]) -> np.ndarray:
    labels = np.array(table)
    assume(len({x for unit in pairable(labels) for x in unit}) > 1)
    return labels


@pytest.mark.parametrize("level", LEVELS)
@laws
@given(table=tables)
def test_agrees_with_the_definition_and_with_the_package_krippendorff(level: str, table: list) -> None:
    labels = usable(table)
    found = krippendorff_alpha(labels, level)
    assert found == pytest.approx(naive_alpha(labels, level), abs=1e-12)
    assert found == pytest.approx(krippendorff.alpha(labels, level_of_measurement=level), abs=1e-9)


@pytest.mark.parametrize("level", LEVELS)
def test_perfect_agreement_is_one(level: str) -> None:
    truth = np.array([0, 1, 2, 1, 0, 2, NAN])
    found = agreement(np.stack([truth, truth, truth]), level, resamples=200)
    assert found.alpha.value == found.percent.value == 1
    assert (found.alpha.low, found.alpha.high) == (1, 1)


@pytest.mark.parametrize("level", LEVELS)
def test_random_answers_have_alpha_around_zero_and_opposite_ones_below(level: str) -> None:
    rng = np.random.default_rng(0)
    assert abs(krippendorff_alpha(rng.integers(0, 3, (2, 4000)), level)) < 0.05
    side = rng.integers(0, 2, 100)
    assert krippendorff_alpha(np.stack([side, 1 - side]), level) < -0.9


def test_levels_differ_where_they_should() -> None:
    """A miss by one step weighs less than a miss by two, except for names; a stretched scale only counts as numbers."""
    near, far = np.array([[0, 1, 2, 0], [0, 1, 2, 1]]), np.array([[0, 1, 2, 0], [0, 1, 2, 2]])
    for level in ("ordinal", "interval"):
        assert krippendorff_alpha(near, level) > krippendorff_alpha(far, level)
    stretched = np.where(near == 2, 50, near)
    assert krippendorff_alpha(stretched, "ordinal") == krippendorff_alpha(near, "ordinal")
    assert krippendorff_alpha(stretched, "interval") != pytest.approx(krippendorff_alpha(near, "interval"))


def test_numbers_far_from_zero_keep_their_digits() -> None:
    labels = np.random.default_rng(0).normal(size=(3, 50))
    assert krippendorff_alpha(labels + 1e7, "interval") == pytest.approx(krippendorff_alpha(labels, "interval"))


def test_missing_code_and_tensors() -> None:
    codes = [[0, 1, -1, 1], [0, 1, 1, 0]]
    with_nan = [[0, 1, NAN, 1], [0, 1, 1, 0]]
    assert krippendorff_alpha(codes, missing=-1) == krippendorff_alpha(with_nan)
    assert krippendorff_alpha(torch.tensor(codes), missing=-1) == krippendorff_alpha(with_nan)
    assert krippendorff_alpha(codes, missing=NAN) != krippendorff_alpha(with_nan)  # an answer, and said to be one
    with pytest.warns(SuspectInputWarning, match="-1 counts as an answer"):
        assert krippendorff_alpha(codes) == krippendorff_alpha(codes, missing=NAN)


def test_units_with_one_answer_do_not_count() -> None:
    labels = np.array([[0, 1, 1, 0], [0, 1, 0, NAN]])
    assert krippendorff_alpha(labels) == krippendorff_alpha(labels[:, :3])
    found = agreement(labels, resamples=50)
    assert found.answers == 6
    assert np.isnan(found.units[3])
    np.testing.assert_allclose(found.units[:3], [0, 0, 1])
    assert found.percent.value == pytest.approx(2 / 3)
    assert found.alpha.n == 3


@pytest.mark.parametrize("level", LEVELS)
def test_weighted_alpha_is_the_alpha_of_the_drawn_units(level: str) -> None:
    """The fast resampling against drawing columns one by one."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, (4, 12)).astype(float)
    labels[rng.random(labels.shape) < 0.2] = NAN
    table = _Table.of(labels, level, None)
    kept = labels[:, table.pairable]
    weights = rng.multinomial(kept.shape[1], np.full(kept.shape[1], 1 / kept.shape[1]), size=8)
    naive = [naive_alpha(np.repeat(kept, row, axis=1), level) for row in weights]
    np.testing.assert_allclose(_alphas(table, weights.astype(float)), naive)


def test_interval_covers_the_value_of_the_population() -> None:
    """Two annotators who each see the truth 80 % of the time: the interval covers alpha about 95 times in 100."""
    rng = np.random.default_rng(0)

    def draw(units: int) -> np.ndarray:
        truth = rng.integers(0, 2, units)
        return np.where(rng.random((2, units)) < 0.8, truth, 1 - truth)

    population = krippendorff_alpha(draw(400_000))
    found = [agreement(draw(80), resamples=300, seed=i).alpha for i in range(150)]
    covered = np.mean([one.low <= population <= one.high for one in found])
    assert 0.90 <= covered <= 0.985


def test_resamples_without_a_second_value_are_left_out_and_counted() -> None:
    labels = np.array([[0] * 9 + [1], [0] * 9 + [1]])
    found = agreement(labels, resamples=2000, seed=0)
    assert found.undefined / 2000 == pytest.approx(0.9**10 + 0.1**10, abs=0.04)
    assert (found.alpha.low, found.alpha.high) == (1, 1)


def test_annotators_are_compared_two_by_two() -> None:
    labels = np.array([[0, 1, 1, NAN], [0, 0, 1, NAN], [NAN, NAN, NAN, 2], [0, 1, 1, 2]])
    expected = [[1, 2 / 3, NAN, 1], [2 / 3, 1, NAN, 2 / 3], [NAN, NAN, 1, 1], [1, 2 / 3, 1, 1]]
    np.testing.assert_allclose(agreement(labels, resamples=20).annotators, expected)


@refused(
    ([[0, 1, 1]], {}, "agreement needs two or more annotators, got 1"),
    ([0, 1, 1], {}, r"expected numbers \(annotators, units\), got shape \(3,\) of int64; encode names as codes"),
    ([["m", "f"], ["m", "m"]], {}, "encode names as codes and missing answers as NaN"),
    ([[], []], {}, r"got shape \(2, 0\)"),
    ([[0, NAN], [NAN, 1]], {}, "none of 2 units was answered by two annotators"),
    ([[1, 1], [1, 1]], {}, "all 4 pairable answers are 1; agreement beyond chance cannot be told"),
    ([[0, 0, NAN], [0, 0, 1]], {}, "all 4 pairable answers are 0"),
    ([[0, float("inf")], [0, 1]], {}, "expected finite numbers or NaN, got an infinite value"),
    ([[0, 1], [0, 1]], {"level": "ratio"}, "expected one of nominal, ordinal, interval, got 'ratio'"),
    ([[0, 1], [0, 1]], {"resamples": 0}, "expected resamples >= 1 and coverage in"),
    ([[0, 1], [0, 1]], {"coverage": 95}, "got 2000 and 95"),
)
def test_errors(labels: list, options: dict) -> None:
    agreement(labels, **options)
