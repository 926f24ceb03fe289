"""Test the bootstrap against scipy, exact enumeration and its own coverage."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.measure import resampling
from vldebias.measure.resampling import (
    distinct,
    percentile_interval,
    recentred_interval,
    resampled_values,
    widest_interval,
    wilson_interval,
)
from vldebias.metrics import bootstrap_interval, group_accuracy, worst_group_accuracy

counts_of = resampling.resampled_counts
weights_of = resampling.resampled_weights


def test_intervals_agree_with_scipy() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    y = x + rng.normal(size=200)

    def correlation(a: Any, b: Any) -> Any:
        return np.corrcoef(a, b)[0, 1]

    for level in (0.95, 0.5):
        how = {
            "paired": True,
            "vectorized": False,
            "method": "percentile",
            "n_resamples": 3000,
            "rng": rng,
        }
        theirs = stats.bootstrap(
            (x, y), correlation, confidence_level=level, **how
        ).confidence_interval
        interval = bootstrap_interval(x, y, statistic=correlation, level=level, resamples=3000)
        assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_the_worst_group_is_selected_again_in_every_resample() -> None:
    """The minimum of two equal but noisy accuracies is below both of them."""
    groups = np.repeat([0, 1], 100)
    predictions = np.tile(np.repeat([1, 0], [80, 20]), 2)
    interval = bootstrap_interval(
        predictions, np.ones(200, int), groups, statistic=worst_group_accuracy
    )
    fixed = bootstrap_interval(predictions[:100])
    assert interval.value == fixed.value == 0.8
    assert interval.high < fixed.high - 0.01
    rows = np.random.default_rng(3).integers(200, size=(2000, 200))
    naive = [min(predictions[row][groups[row] == g].mean() for g in (0, 1)) for row in rows]
    assert (interval.low, interval.high) == pytest.approx(
        tuple(np.quantile(naive, [0.025, 0.975])), abs=0.02
    )


def test_worst_group_from_counts_equals_worst_group_of_rows() -> None:
    """Some resamples lack the group of one image, which then is not the worst."""
    groups = np.array(["few"] + ["some"] * 9 + ["many"] * 30)
    predictions = np.array(["yes", *["yes"] * 7, *["no"] * 2, *["yes"] * 20, *["no"] * 10])
    labels = np.full(40, "yes")

    def statistic(*rows: Any) -> float:
        return worst_group_accuracy(*rows)

    arrays = predictions, labels, groups
    fast = bootstrap_interval(*arrays, statistic=worst_group_accuracy, resamples=4000, level=0.8)
    slow = bootstrap_interval(*arrays, statistic=statistic, resamples=4000, level=0.8)
    assert fast.value == slow.value == pytest.approx(2 / 3)
    assert (fast.low, fast.high) == pytest.approx((slow.low, slow.high), abs=0.02)
    again = bootstrap_interval(*arrays, statistic=worst_group_accuracy, resamples=4000, level=0.8)
    assert again == fast


def test_methods_share_their_resamples() -> None:
    """A difference between two methods is therefore paired, and its interval is narrow if they
    share their errors."""
    rng = np.random.default_rng(12)
    values = {name: rng.random(80) for name in ("none", "cali")}
    point, drawn = resampled_values(
        values, statistic=lambda drawn: drawn.max(-1), resamples=300, seed=3
    )
    for name, values_of_name in values.items():
        alone = bootstrap_interval(values_of_name, statistic=np.max, resamples=300, seed=3)
        assert (point[name], *percentile_interval(drawn[name])) == (
            alone.value,
            alone.low,
            alone.high,
        )
    before = rng.normal(size=300)
    after = before + 0.1 + 0.05 * rng.normal(size=300)
    _, drawn = resampled_values({"before": before, "after": after}, resamples=2000, seed=0)
    direct = bootstrap_interval(after - before)
    assert percentile_interval(drawn["after"] - drawn["before"]) == pytest.approx(
        (direct.low, direct.high)
    )
    # The resamples are unpaired if one of them is reversed.
    assert direct.low > 0 > percentile_interval(drawn["after"] - drawn["before"][::-1])[0]


def test_tensors_are_accepted_and_seeds_reproduce() -> None:
    values = np.random.default_rng(7).normal(size=(50, 3))
    interval = bootstrap_interval(values)
    assert interval == bootstrap_interval(values, level=0.95, resamples=2000, seed=0)
    assert (
        interval == bootstrap_interval(torch.tensor(values)) != bootstrap_interval(values, seed=2)
    )
    assert (
        bootstrap_interval(values, resamples=1).low == bootstrap_interval(values, resamples=1).high
    )


def test_strings_have_no_mean_and_a_statistic_must_be_a_number() -> None:
    labels = ["male", "female", "male"]
    interval = bootstrap_interval(labels, statistic=lambda values: (values == "male").mean())
    assert interval.value == pytest.approx(2 / 3)
    with pytest.raises(InvalidInputError, match=r"to average, got 1 with dtype <U6; pass stat"):
        bootstrap_interval(labels)
    with pytest.raises(InvalidInputError, match=r"one array .* got 2 with dtype int64, int64"):
        bootstrap_interval([1, 2, 3], [1, 2, 3])
    for statistic in (lambda values: values[0], lambda values: values == "male", lambda _: {}):
        with pytest.raises(InvalidInputError, match=r"statistic: expected a number, got"):
            bootstrap_interval(labels, statistic=statistic)


def test_weights_and_counts_equal_those_of_sampled_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    (weights,) = weights_of(40, 4000, 3, 40)
    (counts,) = counts_of(np.ones((2, 20), int), 4000, seed=3)
    for drawn in (weights, counts.reshape(4000, 40)):
        assert (drawn.sum(1) == 40).all()
        assert drawn.mean(0) == pytest.approx(1, abs=0.1)
        # This is binomial with 40 draws and probability 1/40.
        assert drawn.var() == pytest.approx(1 - 1 / 40, abs=0.02)
    # For some of the rows, these are their counts among all rows.
    (weights_of_some,) = weights_of(40, 4000, 6, 9)
    for law in (np.sum, np.max, lambda weights, axis: weights[:, 0]):
        assert (
            stats.ks_2samp(law(weights[:, :9], axis=1), law(weights_of_some, axis=1)).pvalue > 1e-3
        )
    # Its mean has the variance of a sample mean.
    (fewer,) = counts_of(np.array([2, 2]), 20_000, 0, size=3)
    assert (fewer[:, 0] / 3).var() == pytest.approx(
        np.array([1, 1, 0, 0]).var(ddof=1) / 4, rel=0.05
    )
    for limit, number in ((40 * 7, 572), (39, 4000)):
        for name in ("_WEIGHTS", "_BLOCK"):
            monkeypatch.setattr(resampling, name, limit)
        parts = [*weights_of(40, 4000, 3, 40)], [*counts_of(np.ones((2, 20), int), 4000, seed=3)]
        assert [*map(len, parts)] == [number] * 2
        for blocks, expected in zip(parts, (weights, counts), strict=True):
            # The memory limit does not change the numbers.
            assert np.array_equal(np.concatenate(blocks), expected)


def test_counting_distinct_rows_gives_the_same_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    figures = []
    before = rng.random(800) < 0.7
    after = before & (rng.random(800) < 0.9)
    for least in (resampling._REPEATED, 801):
        monkeypatch.setattr(resampling, "_REPEATED", least)
        point, drawn = resampled_values({"a": before, "b": after}, resamples=2000, seed=0)
        spread = [float(means.std()) for means in (drawn["b"], drawn["b"] - drawn["a"])]
        figures.append([*percentile_interval(drawn["a"]), *spread, point["b"]])
    assert figures[0] == pytest.approx(figures[1], abs=0.006)
    assert figures[0] != figures[1]


def test_a_recentred_interval_is_centred_on_its_value() -> None:
    drawn = np.linspace(10, 20, 101)
    assert recentred_interval(3.0, drawn) == pytest.approx((3 - 4.75, 3 + 4.75))
    assert recentred_interval(3.0, drawn, level=0.5) == pytest.approx((0.5, 5.5))
    # The interval contains the value.
    assert recentred_interval(3.0, np.array([0.0] * 99 + [100.0])) == pytest.approx((2.0, 3.0))


@given(st.integers(1, 400), st.data())
def test_wilson_intervals_agree_with_scipy(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    low, high = wilson_interval(hits, n)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= low <= hits / n <= high <= 1


@refused(*((level, "level: expected a coverage in") for level in (float("nan"), 1.5, 0, 1, -0.1)))
def test_a_wilson_interval_rejects_impossible_levels(level: float) -> None:
    wilson_interval(3, 10, level)


@refused(
    (([1.0], [1.0, 2.0]), {"statistic": max}, "same length"),
    ((), {}, "at least one array"),
    *((([1.0, 2.0],), {"level": level}, "level") for level in (0, 1, 95, float("nan"))),
    *((([1.0, 2.0],), {"resamples": count}, "resamples") for count in (0, 2.5)),
    (([1.0, 2.0],), {"statistic": lambda v: float("nan")}, "statistic: .* 2001 of 2001"),
    (([1.0, float("nan")],), {}, r"arrays\[0\]: 1 of 2"),
)
def test_invalid_bootstrap_arguments_are_rejected(arrays: tuple, options: dict) -> None:
    bootstrap_interval(*arrays, **options)


def test_means_have_the_same_draws_as_a_statistic_that_is_called_for_each_resample() -> None:
    rng = np.random.default_rng(0)
    for values in (rng.random(1000), rng.integers(0, 2, 37), rng.random(5).astype(np.float32)):
        plain = bootstrap_interval(values, statistic=lambda rows: rows.mean(), resamples=1100)
        assert bootstrap_interval(values, resamples=1100) == pytest.approx(plain, abs=1e-12)
    with pytest.raises(InvalidInputError, match=r"NaN or infinity in \d+ of 51 calls"):
        bootstrap_interval([1.0, np.inf], resamples=50)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, float, str])
def test_distinct_values_and_their_indices_equal_numpys(dtype: type) -> None:
    rng = np.random.default_rng(0)
    for low, high in ((0, 2), (3, 9), (0, 100), (-100, 100), (7, 8)):
        if low < 0 and dtype is np.uint8:
            continue
        values = rng.integers(low, high, 300).astype(dtype)
        names, index = distinct(values)
        expected_names, expected_index = np.unique(values, return_inverse=True)
        assert names.dtype == values.dtype
        assert (names == expected_names).all()
        assert (index == expected_index).all()


@pytest.mark.parametrize("images", [2, 20, 2000])
def test_the_widest_interval_is_that_of_a_share_of_one_half(images: int) -> None:
    low, high = wilson_interval(images // 2, images)
    assert widest_interval(images) == pytest.approx(high - low)


def test_masked_values_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="groups: got a masked array"):
        group_accuracy([1, 0], [1, 0], np.ma.array([0, 1], mask=[False, True]))
