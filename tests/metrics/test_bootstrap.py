"""The bootstrap against scipy, exact enumeration and its own coverage."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.metrics import (
    average_accuracy,
    bootstrap,
    bootstrap_interval,
    gap,
    mcnemar,
    paired_difference_interval,
    worst_group_accuracy,
)
from vldebias.metrics.bootstrap import (
    percentile_interval,
    recentred_interval,
    resampled_counts,
    resampled_values,
    resampled_weights,
    wilson_interval,
)


def test_agrees_with_enumerating_all_resamples() -> None:
    values = np.array([0.0, 1.0, 3.0, 7.0])
    means = [np.mean(draw) for draw in itertools.product(values, repeat=4)]
    found = bootstrap_interval(values, resamples=40_000, level=0.8)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.1, 0.9])), abs=0.26)  # one step
    assert found.value == values.mean()


@pytest.mark.parametrize(("paired", "near"), [(True, 0.01), (False, 0.05)])
def test_agrees_with_scipy(paired: bool, near: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    y = x + rng.normal(size=200) if paired else rng.normal(1, 2, size=60)

    def statistic(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.corrcoef(a, b)[0, 1] if paired else a.mean() - b.mean())

    how = {"paired": paired, "vectorized": False, "method": "percentile", "n_resamples": 3000, "rng": rng}
    theirs = stats.bootstrap((x, y), statistic, **how).confidence_interval
    found = bootstrap_interval(x, y, statistic=statistic, paired=paired, resamples=3000)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=near)
    assert found.n == 200


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    hits = {0.5: 0, 0.95: 0}
    for trial in range(300):
        sample = rng.normal(1.0, size=120)
        for level in hits:
            found = bootstrap_interval(sample, level=level, resamples=400, seed=trial)
            hits[level] += found.low <= 1 <= found.high
    assert 0.43 < hits[0.5] / 300 < 0.57
    assert 0.92 < hits[0.95] / 300 < 0.975


def test_the_worst_group_is_picked_again_in_every_resample() -> None:
    # Two groups that are equally good: the worse of two noisy accuracies lies below either of them.
    rng = np.random.default_rng(3)
    groups = np.repeat([0, 1], 100)
    predictions = np.tile(np.repeat([1, 0], [80, 20]), 2)
    labels = np.ones(200, dtype=int)
    found = bootstrap_interval(predictions, labels, groups, statistic=worst_group_accuracy)
    fixed = bootstrap_interval(predictions[:100])
    assert found.value == fixed.value == 0.8
    assert found.high < fixed.high - 0.01
    naive = []
    for _ in range(2000):
        rows = rng.integers(200, size=200)
        naive.append(min(predictions[rows][groups[rows] == g].mean() for g in (0, 1)))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(naive, [0.025, 0.975])), abs=0.02)


def test_paired_difference_is_narrow_where_the_errors_are_shared() -> None:
    rng = np.random.default_rng(4)
    before = rng.normal(size=300)
    after = before + 0.1 + 0.05 * rng.normal(size=300)
    paired = paired_difference_interval(before, after)
    unpaired = bootstrap_interval(before, after, statistic=lambda a, b: b.mean() - a.mean(), paired=False)
    assert paired.value == pytest.approx(unpaired.value) == pytest.approx((after - before).mean())
    assert paired.low > 0 > unpaired.low
    direct = bootstrap_interval(after - before)
    assert (paired.low, paired.high) == pytest.approx((direct.low, direct.high))


def test_resampled_values_have_the_intervals_of_each_and_of_each_difference() -> None:
    rng = np.random.default_rng(12)
    labels, groups = rng.integers(0, 2, 80), rng.integers(0, 3, 80)
    values = {name: np.where(rng.random(80) < p, labels, 1 - labels) for name, p in (("none", 0.6), ("cali", 0.9))}
    options = {"statistic": worst_group_accuracy, "resamples": 300, "seed": 3}
    point, drawn = resampled_values(values, labels, groups, vectorized=False, **options)
    for name, right in values.items():
        alone = bootstrap_interval(right, labels, groups, **options)
        assert (point[name], *percentile_interval(drawn[name])) == (alone.value, alone.low, alone.high)
    change = paired_difference_interval(values["none"], values["cali"], labels, groups, **options)
    assert percentile_interval(drawn["cali"] - drawn["none"]) == (change.low, change.high)
    clusters = rng.integers(0, 9, 80)
    point, drawn = resampled_values(values, clusters=clusters)
    change = paired_difference_interval(values["cali"], values["none"], clusters=clusters)
    assert percentile_interval(drawn["none"] - drawn["cali"]) == (change.low, change.high)
    assert point["none"] - point["cali"] == change.value


def test_clusters_undo_repetition() -> None:
    # Counting every image five times narrows a naive interval by sqrt(5); resampling clusters does not.
    values = np.random.default_rng(5).normal(size=100)
    repeated, image = np.repeat(values, 5), np.repeat(np.arange(100), 5)
    once = bootstrap_interval(values)
    naive = bootstrap_interval(repeated)
    clustered = bootstrap_interval(repeated, clusters=image)
    width = {name: i.high - i.low for name, i in {"once": once, "naive": naive, "clustered": clustered}.items()}
    assert width["naive"] == pytest.approx(width["once"] / np.sqrt(5), rel=0.1)
    assert width["clustered"] == pytest.approx(width["once"], rel=0.1)


def test_clusters_of_unequal_size() -> None:
    label = np.repeat(["a", "b", "c"], [1, 10, 50])
    values = np.repeat([0.0, 1.0, 2.0], [1, 10, 50])
    seen = []

    def record(drawn: np.ndarray) -> float:
        seen.append(np.bincount(drawn.astype(int), minlength=3))
        return float(drawn.mean())

    bootstrap_interval(values, clusters=label, statistic=record, resamples=200)
    assert all((counts % [1, 10, 50] == 0).all() and (counts / [1, 10, 50]).sum() == 3 for counts in seen)


def test_vectorized_and_looped_statistics_agree() -> None:
    values = np.random.default_rng(7).normal(size=(50, 3))
    looped = bootstrap_interval(values, statistic=lambda v: v.mean())
    assert (looped.low, looped.high) == pytest.approx((bootstrap_interval(values).low, bootstrap_interval(values).high))
    stacked = bootstrap_interval(values[:, 0], statistic=lambda v: np.median(v, axis=1), vectorized=True)
    assert stacked == bootstrap_interval(values[:, 0], statistic=np.median)


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(8).normal(size=64)
    whole = bootstrap_interval(values)
    monkeypatch.setattr("vldebias.metrics.bootstrap._BLOCK", 1000)
    assert bootstrap_interval(values) == whole


def test_seed_level_and_resamples() -> None:
    values = np.random.default_rng(9).normal(size=50)
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(torch.tensor(values), seed=1)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)
    wide, narrow = bootstrap_interval(values, level=0.99), bootstrap_interval(values, level=0.5)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
    assert bootstrap_interval(values, resamples=7).resamples == 7


def test_a_constant_has_an_interval_of_width_zero() -> None:
    found = bootstrap_interval([0.25] * 10)
    assert found.to_dict() == {"value": 0.25, "low": 0.25, "high": 0.25, "level": 0.95, "n": 10, "resamples": 2000}
    assert str(found) == "0.250 [0.250, 0.250]"


def test_weights_and_counts_are_those_of_drawing_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    (weights,) = resampled_weights(40, 4000, seed=3)
    (counts,) = resampled_counts(np.ones((2, 20), int), 4000, seed=3)
    for drawn in (weights, counts.reshape(4000, 40)):
        assert (drawn.sum(1) == 40).all()
        assert drawn.mean(0) == pytest.approx(1, abs=0.1)
        assert drawn.var() == pytest.approx(1 - 1 / 40, abs=0.02)  # binomial with 40 draws at 1/40
    monkeypatch.setattr("vldebias.metrics.bootstrap._WEIGHTS", 40 * 7)
    monkeypatch.setattr("vldebias.metrics.bootstrap._BLOCK", 40 * 7)
    for blocks, whole in (
        (list(resampled_weights(40, 4000, seed=3)), weights),
        (list(resampled_counts(np.ones((2, 20), int), 4000, seed=3)), counts),
    ):
        assert len(blocks) == 572
        assert np.array_equal(np.concatenate(blocks), whole)  # memory does not change the numbers


def test_weights_of_some_rows_are_those_that_they_have_among_all() -> None:
    (whole,) = resampled_weights(60, 4000, seed=5)
    (some,) = resampled_weights(60, 4000, seed=6, among=9)
    assert some.shape == (4000, 9)
    for law in (np.sum, np.max, lambda weights, axis: weights[:, 0]):
        assert stats.ks_2samp(law(whole[:, :9], axis=1), law(some, axis=1)).pvalue > 1e-3
    assert np.array_equal(next(resampled_weights(60, 5, seed=5, among=60)), whole[:5])


@pytest.mark.parametrize("statistic", [None, np.mean, worst_group_accuracy, average_accuracy, gap])
def test_few_different_rows_are_counted_with_the_same_intervals(statistic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a statistic that is known by counts no array of all rows is drawn; its draws are those of all rows."""
    rng = np.random.default_rng(2)
    group, label = rng.integers(3, size=800), rng.choice(["no", "yes"], size=800)
    predicted = np.where(rng.random(800) < 0.7 + 0.1 * group, label, "no")
    arrays = [predicted == label] if statistic in (None, np.mean) else [predicted, label, group]
    arrays = arrays[:2] if statistic is average_accuracy else arrays
    after = [arrays[0] & (rng.random(800) < 0.9)] if len(arrays) == 1 else [np.where(group == 1, "yes", predicted)]
    drawing = bootstrap._indices
    calls: list[int] = []
    monkeypatch.setattr(bootstrap, "_indices", lambda *given: calls.append(1) or drawing(*given))

    def both() -> list[float]:
        options = {"statistic": statistic, "resamples": 2000}
        one = bootstrap_interval(*arrays, **options)
        change = paired_difference_interval(arrays[0], *after, *arrays[1:], **options)
        point, drawn = resampled_values({"a": arrays[0], "b": after[0]}, *arrays[1:], vectorized=False, **options)
        assert point["a"] == one.value
        spread = [float(drawn["b"].std()), float((drawn["b"] - drawn["a"]).std())]
        return [one.value, one.low, one.high, change.value, change.low, change.high, *spread]

    fast = both()
    assert not calls
    monkeypatch.setattr(bootstrap, "_kinds", lambda data: None)
    slow = both()
    assert len(calls) == 3
    assert fast == pytest.approx(slow, abs=0.006)
    assert (fast[0], fast[3]) == (slow[0], slow[3])


def test_many_different_rows_are_drawn_themselves() -> None:
    rng = np.random.default_rng(0)
    assert bootstrap._kinds([rng.normal(size=100)]) is None
    assert bootstrap._kinds([np.zeros((100, 2))]) is None
    assert bootstrap._kinds([np.arange(100) % 10, np.arange(100) % 9]) is None
    first, sizes = bootstrap._kinds([np.arange(100) % 10, np.arange(100) % 5])
    assert sorted(first.tolist()) == list(range(10))
    assert sizes.tolist() == [10] * 10


def test_counts_of_cells_are_those_of_the_weights_of_their_rows() -> None:
    cells = np.array([[30, 0], [5, 15]])
    (counts,) = resampled_counts(cells, 3000, seed=1)
    (weights,) = resampled_weights(50, 3000, seed=2)
    grouped = np.stack([weights[:, :30].sum(1), weights[:, 30:35].sum(1), weights[:, 35:].sum(1)], axis=1)
    assert (counts[:, 0, 1] == 0).all()
    for fast, slow in zip((counts[:, 0, 0], counts[:, 1, 0], counts[:, 1, 1]), grouped.T, strict=True):
        assert stats.ks_2samp(fast, slow).pvalue > 1e-3


def test_the_mean_of_fewer_rows_by_one_varies_as_that_of_a_sample() -> None:
    values = np.array([0.0, 1.0, 5.0])
    (counts,) = resampled_counts(np.ones(3, int), 20_000, seed=1, size=2)
    assert (counts.sum(1) == 2).all()
    assert (counts @ values / 2).var() == pytest.approx(values.var(ddof=1) / 3, rel=0.05)


def test_a_recentred_interval_has_its_mean_at_the_value_and_stays_in_its_bounds() -> None:
    drawn = np.random.default_rng(11).normal(0.4, 0.1, size=5000)
    low, high = percentile_interval(drawn)
    assert (low, high) == pytest.approx((0.4 - 0.196, 0.4 + 0.196), abs=0.01)
    assert recentred_interval(0.2, drawn) == pytest.approx((low - 0.2, high - 0.2), abs=0.01)
    assert recentred_interval(0.1, drawn, (0.0, 0.2)) == (0.0, 0.2)
    assert recentred_interval(-0.1, drawn, (0.0, np.inf))[0] == -0.1  # the value itself is never cut off


@given(st.integers(1, 400), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
@settings(max_examples=50, deadline=None)
def test_wilson_is_scipys(n: int, data: st.DataObject, level: float) -> None:
    hits = data.draw(st.integers(0, n))
    expected = stats.binomtest(hits, n).proportion_ci(level, method="wilson")
    low, high = wilson_interval(hits, n, level)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= low <= hits / n <= high <= 1
    for bad in ((1, 0, 0.95), (-1, 3, 0.95), (n + 1, n, 0.95), (1, 3, 1.0)):
        with pytest.raises(InvalidInputError, match="0 <= hits <= n"):
            wilson_interval(*bad)


@refused(
    ((), {}, r"arrays: expected one or more arrays of one length, got lengths \[\]"),
    (([1.0], [1.0, 2.0]), {"statistic": max}, r"one length, got lengths \[1, 2\]"),
    (([1.0, 2.0],), {"level": 95}, r"level: expected a coverage in \(0, 1\), got 95"),
    (([1.0, 2.0],), {"resamples": 0}, r"resamples: expected at least 1, got 0"),
    (([1.0, 2.0],), {"clusters": [0]}, r"clusters: expected one label per row \(2\), got 1"),
    (([1.0, 2.0],), {"statistic": lambda v: float("nan")}, r"statistic: 2000 of 2000 resamples are not finite"),
    (([1.0, float("nan")],), {}, r"arrays\[0\]: 1 of 2 values are NaN"),
    (([],), {}, r"arrays\[0\]: expected a non-empty array"),
)
def test_errors(arrays: tuple, options: dict) -> None:
    bootstrap_interval(*arrays, **options)


# --- McNemar: its size under every null, its symmetry, that of the binomial distribution


@pytest.mark.parametrize("differing", [*range(12), 30, 200])
def test_it_is_the_binomial_test_and_keeps_its_size(differing: int) -> None:
    """Given that so many pairs differ, each way as likely: no level is exceeded by what falls at or below it."""
    ps = [mcnemar(lost, differing - lost) for lost in range(differing + 1)]
    chance = [math.comb(differing, lost) / 2**differing for lost in range(differing + 1)]
    assert ps == ps[::-1]
    for level in (0.001, 0.01, 0.05, 0.2):
        assert sum(weight for p, weight in zip(ps, chance, strict=True) if p <= level) <= level
    if differing:
        assert ps == pytest.approx([stats.binomtest(lost, differing).pvalue for lost in range(differing + 1)])
    assert (min(ps) <= 0.05) == (differing >= 6)


def test_pairs_that_agree_say_nothing() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(np.int64(6), np.int64(0)) == mcnemar(6, 0)


@pytest.mark.parametrize("given", [*itertools.product((-1, 1.0, True, "1", None), (0,)), (3, -1)])
def test_counts_alone_are_taken(given: tuple[object, int]) -> None:
    with pytest.raises(InvalidInputError, match="expected two counts of pairs"):
        mcnemar(*given)
