"""Counts of cells: values against plain loops, resamples against drawing indices, Wilson against scipy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from vldebias.errors import InvalidInputError
from vldebias.evaluation.accuracies import GroupCounts, Reweighted, weights_of
from vldebias.metrics import bootstrap_interval, group_accuracy
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.metrics.groups import accuracy_gap, lowest_accuracy, mean_accuracy

STATISTICS = {
    "worst": lowest_accuracy,
    "average": mean_accuracy,
    "gap": accuracy_gap,
    "reweighted": Reweighted(np.array([5.0, 0.0, 1.0])),
}


def images(n: int = 300, seed: int = 1, groups: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks of what is right before and after, which go together, and groups of unequal size and accuracy."""
    rng = np.random.default_rng(seed)
    group = rng.choice(groups, n, p=np.arange(1, groups + 1) / np.arange(1, groups + 1).sum())
    before = rng.random(n) < np.linspace(0.5, 0.8, groups)[group]
    after = np.where(rng.random(n) < 0.5, before, rng.random(n) < np.linspace(0.9, 0.7, groups)[group])
    return before, after, group


def naive(name: str, right: np.ndarray, group: np.ndarray) -> float:
    found = group_accuracy(right, np.ones(len(right), bool), group)
    if name == "reweighted":
        weights = {g: w for g, w in {0: 5.0, 1: 0.0, 2: 1.0}.items() if g in found.n}
        return found.weighted(weights)
    return {"worst": found.worst, "average": found.average, "gap": found.gap}[name]


@pytest.mark.parametrize("name", STATISTICS)
def test_values_are_those_of_a_plain_loop(name: str) -> None:
    before, after, group = images()
    counts = GroupCounts.of(before, after, group, 3, resamples=10)
    assert counts.value(STATISTICS[name]) == pytest.approx(naive(name, after, group), abs=1e-12)
    changed = naive(name, after, group) - naive(name, before, group)
    assert counts.change(STATISTICS[name])[0] == pytest.approx(changed, abs=1e-12)


@pytest.mark.parametrize("name", STATISTICS)
def test_a_resample_of_cells_is_a_resample_of_images(name: str) -> None:
    """The naive twin draws indices; values of the two bootstraps come from one distribution, and so do differences."""
    before, after, group = images()
    counts = GroupCounts.of(before, after, group, 3, resamples=4000)
    size = counts.drawn.sum((-1, -2))
    fast = STATISTICS[name](counts.drawn[..., 1].sum(-1), size)
    changes = fast - STATISTICS[name](counts.drawn[:, :, 1].sum(-1), size)
    index = np.random.default_rng(7).integers(len(group), size=(900, len(group)))
    slow = np.array([naive(name, after[i], group[i]) for i in index])
    slow_changes = slow - np.array([naive(name, before[i], group[i]) for i in index])
    assert ks_2samp(fast, slow).pvalue > 1e-3
    assert ks_2samp(changes, slow_changes).pvalue > 1e-3


def test_changes_are_paired() -> None:
    """What drawing the two methods apart would give is another distribution, and the comparison above sees it."""
    before, after, group = images()
    counts = GroupCounts.of(before, after, group, 3, resamples=4000)
    size = counts.drawn.sum((-1, -2))
    with_it, without = (
        mean_accuracy(counts.drawn[..., 1].sum(-1), size),
        mean_accuracy(counts.drawn[:, :, 1].sum(-1), size),
    )
    assert ks_2samp(with_it - without, with_it - np.roll(without, 1)).pvalue < 1e-6
    low, high = np.quantile(with_it - without, [0.025, 0.975])
    assert counts.change(mean_accuracy)[1:] == (low, high)


def test_intervals_are_those_of_the_plain_bootstrap() -> None:
    before, after, group = images(1000)
    counts = GroupCounts.of(before, after, group, 3, resamples=8000)
    other = bootstrap_interval(after, group, statistic=lambda r, g: naive("worst", r, g), resamples=1000, seed=3)
    assert counts.interval(lowest_accuracy) == pytest.approx((other.low, other.high), abs=0.015)
    low, high = counts.interval(lowest_accuracy)
    assert low < counts.value(lowest_accuracy) < high


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=40), st.randoms())
def test_laws(rows: list[tuple[bool, bool, int]], shuffle: "np.random.Generator") -> None:
    before, after, group = (np.array(column) for column in zip(*rows, strict=True))
    counts = GroupCounts.of(before, after, group, 4, resamples=50)
    order = list(range(len(rows)))
    shuffle.shuffle(order)
    permuted = GroupCounts.of(before[order], after[order], group[order], 4, resamples=50)
    for statistic in (lowest_accuracy, mean_accuracy, accuracy_gap):
        low, high = counts.interval(statistic)
        assert 0 <= low <= high <= 1
        assert permuted.interval(statistic) == (low, high)
        assert permuted.change(statistic) == counts.change(statistic)
        assert counts.value(statistic) == pytest.approx(
            GroupCounts.of(before, after, 3 - group, 4, resamples=1).value(statistic)
        )
    assert 0 <= counts.value(lowest_accuracy) <= counts.value(mean_accuracy) + 1e-12
    same = GroupCounts.of(after, after, group, 4, resamples=50)
    assert same.change(lowest_accuracy) == (0, 0, 0)


def test_a_group_that_a_resample_misses_is_left_out_of_it() -> None:
    assert lowest_accuracy(np.array([[1, 0], [1, 0]]), np.array([[2, 0], [2, 1]])).tolist() == [0.5, 0]
    assert Reweighted(np.array([1.0, 3.0]))(np.array([1, 0]), np.array([2, 0])) == 0.5
    with pytest.raises(InvalidInputError, match="no image of any group with a weight"):
        Reweighted(np.array([0.0, 3.0]))(np.array([1, 0]), np.array([2, 0]))


def test_the_change_of_a_group_is_over_the_resamples_that_hold_it() -> None:
    """One image, wrong before and right after: a third of the resamples are without it and say nothing of it."""
    counts = GroupCounts.of(np.array([False] + [True] * 80), np.ones(81, bool), np.array([1] + [0] * 80), 2)
    assert 0.3 < (counts.drawn[:, 1].sum((-1, -2)) == 0).mean() < 0.45
    assert counts.group_change(1) == (1.0, 1.0, 1.0)


def test_the_change_of_one_group_is_paired() -> None:
    before, after, group = images(2000)
    counts = GroupCounts.of(before, after, group, 3)
    value, low, high = counts.group_change(2)
    inside = group == 2
    assert value == pytest.approx(after[inside].mean() - before[inside].mean())
    difference = after[inside].astype(float) - before[inside]
    assert (high - low) / 3.92 == pytest.approx(difference.std() / inside.sum() ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([[[0, 0], [9, 0]], [[0, 40], [0, 60]]], wilson_interval(0, 9)),
        ([[[0, 0], [9, 0]], [[30, 0], [0, 0]], [[0, 5], [0, 5]]], wilson_interval(0, 9)),
        ([[[0, 9], [0, 0]], [[0, 40], [0, 60]]], wilson_interval(9, 9)),
        ([[[0, 0], [0, 0]], [[0, 40], [0, 60]]], wilson_interval(100, 100)),
    ],
)
def test_where_nothing_varies_the_interval_is_wilsons(cells: list, expected: tuple[float, float]) -> None:
    counts = GroupCounts(np.array(cells))
    assert counts.interval(lowest_accuracy) == expected
    low, high = counts.percentile(lowest_accuracy)
    assert low == high == counts.value(lowest_accuracy)
    assert expected[1] - expected[0] > 0.01


def test_the_average_of_images_that_are_all_right_has_a_width_too() -> None:
    counts = GroupCounts(np.array([[[0, 10], [0, 10]], [[0, 0], [0, 20]]]))
    assert counts.interval(mean_accuracy) == wilson_interval(40, 40)
    none = GroupCounts(np.array([[[10, 0], [10, 0]]]))
    assert none.interval(mean_accuracy) == wilson_interval(0, 20)
    # Near the boundary, but not at it, the percentile interval stays.
    near = GroupCounts(np.array([[[0, 10], [1, 10]]]))
    assert near.interval(mean_accuracy) == near.percentile(mean_accuracy)


def test_a_reweighted_average_of_groups_without_variation_has_a_width() -> None:
    weights = Reweighted(np.array([9.0, 1.0]))
    counts = GroupCounts(np.array([[[0, 0], [0, 100]], [[5, 0], [0, 5]]]))
    assert counts.interval(weights) == weights.closed_form(counts.hits, counts.size)
    (low, _), (below, above) = wilson_interval(100, 100), wilson_interval(5, 10)
    expected = (0.95 - np.hypot(0.9 * (1 - low), 0.1 * (0.5 - below)), 0.95 + 0.1 * (above - 0.5))
    assert counts.interval(weights) == pytest.approx(expected)
    varied = GroupCounts(np.array([[[0, 1], [1, 98]], [[5, 0], [0, 5]]]))
    assert varied.interval(weights) == varied.percentile(weights)


def test_one_group_reweighted_in_closed_form_is_wilsons() -> None:
    found = Reweighted(np.array([2.0, 0.0, 3.0])).closed_form(np.array([7, 3, 0]), np.array([9, 9, 0]))
    assert found == pytest.approx(wilson_interval(7, 9))


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ({"a": 1.0}, r"one for each of \['a', 'b'\]"),
        ({"a": 1.0, "b": -1.0}, "finite values >= 0"),
        ({"a": 0.0, "b": 0.0}, "not all 0"),
        ({"a": 1.0, "b": float("nan")}, "finite"),
        ({"a": 1.0, "b": 1.0}, r"\['b'\] have a weight but no images"),
    ],
)
def test_weights_refuse(weights: dict[str, float], match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        weights_of(weights, ("a", "b"), np.array([4, 0]))


def test_weights_come_in_the_order_of_the_groups() -> None:
    assert weights_of({"b": 0.0, "a": 3.0}, ("a", "b"), np.array([4, 0])).tolist() == [3, 0]
