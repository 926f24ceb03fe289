"""Test accuracy by group, AUROC, k-variance and annotator agreement against other libraries and
their definitions."""

import math
from dataclasses import replace
from functools import partial
from itertools import chain, permutations
from typing import Any, get_args

import krippendorff
import numpy as np
import pandas
import pytest
import torch
from fairlearn.metrics import MetricFrame
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.metrics import accuracy_score, roc_auc_score

from tests.refusals import refused
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.measure.classification import (
    IntervalRule,
    Reweighted,
    ReweightedGap,
    accuracy_gap,
    interval_of,
    lowest_accuracy,
    mean_accuracy,
    worst_areas,
)
from vldebias.measure.metric import computed, get_metric, register_metric
from vldebias.measure.resampling import resampled_counts, wilson_interval
from vldebias.metrics import (
    METRICS,
    Metric,
    agreement,
    auroc,
    bootstrap_interval,
    group_accuracy,
    k_variance,
    worst_group_accuracy,
)

NAN = float("nan")
UNEVEN = np.array([[[6, 0], [0, 24]], [[10, 0], [0, 2]]]), np.array([[[[6, 0], [0, 24]]] * 2] * 2)


def test_group_accuracy_matches_fairlearn_for_any_array() -> None:
    rng = np.random.default_rng(0)
    predictions = rng.integers(0, 2, 500)
    labels = rng.integers(0, 2, 500)
    groups = rng.choice(["a", "b", "c"], 500)
    # Combine the group with the class, so that no class within a group is hidden.
    groups = np.char.add(groups, labels.astype(str))
    frame = MetricFrame(
        metrics=accuracy_score, y_true=labels, y_pred=predictions, sensitive_features=groups
    )
    by_group = group_accuracy(predictions, labels, groups)
    assert by_group.accuracy == pytest.approx(frame.by_group.to_dict())
    assert by_group.n == {name: (groups == name).sum() for name in np.unique(groups)}
    assert (
        worst_group_accuracy(predictions, labels, groups)
        == by_group.worst
        == pytest.approx(frame.group_min())
    )
    assert by_group.average == pytest.approx(frame.overall)
    # pandas 2 stores strings with this type.
    column = pandas.Series(groups, index=np.arange(500)[::-1], dtype=object)
    assert group_accuracy(torch.tensor(predictions), labels.tolist(), column) == by_group


def test_constant_groups_have_wilson_intervals() -> None:
    # Numbers of wrong and correct answers per group, with and without a method.
    apart = [[[6, 4], [6, 4]], [[5, 15], [5, 75]]]
    low, _ = wilson_interval(1, 1)
    least, greatest = wilson_interval(60, 100)
    below = math.hypot(0.25 * (1 - low), 0.75 * (0.6 - least))
    above = 0.75 * (greatest - 0.6)
    for metric, rule, cells, value, before, ends in (
        (
            lowest_accuracy,
            "lowest",
            [[[0, 0], [9, 0]], [[0, 40], [0, 60]]],
            0,
            0.6,
            wilson_interval(0, 9),
        ),
        (
            lowest_accuracy,
            "lowest",
            [[[0, 0], [0, 0]], [[0, 40], [0, 60]]],
            1,
            0.6,
            wilson_interval(100, 100),
        ),
        (
            mean_accuracy,
            "mean",
            [[[0, 10], [0, 10]], [[0, 0], [0, 20]]],
            1,
            0.75,
            wilson_interval(40, 40),
        ),
        (
            Reweighted(np.array([0.2, 0.0])),
            "weighted mean",
            [[[0, 0], [0, 9]], [[3, 0], [0, 6]]],
            1,
            1,
            wilson_interval(9, 9),
        ),
        (
            Reweighted(np.array([1, 3])),
            "weighted mean",
            [[[0, 1], [0, 0]], [[40, 0], [0, 60]]],
            0.7,
            0.45,
            (0.7 - below, 0.7 + above),
        ),
        (accuracy_gap, "gap", apart, 98 / 120 - 0.4, 90 / 120 - 0.5, None),
        # A group is missing from some resamples.
        (
            Reweighted(np.array([1, 0])),
            "weighted mean",
            [[[0, 1], [1, 0]], [[90, 0], [0, 210]]],
            0.5,
            0.5,
            None,
        ),
    ):
        (drawn,) = resampled_counts(np.array(cells), 2000, 0)
        figure, interval, change = interval_of(metric, rule, np.array(cells), drawn)
        with np.errstate(invalid="ignore"):
            after, unmitigated = (
                metric(hits, drawn.sum((-1, -2)))
                for hits in (drawn[..., 1].sum(-1), drawn[:, :, 1].sum(-1))
            )
        moved, unpaired = np.nanquantile([after - unmitigated, after], [0.025, 0.975], axis=1).T
        assert (figure, *change) == pytest.approx((value, value - before, *moved))
        assert interval == pytest.approx(ends or tuple(unpaired))
    hits = np.array([[1, 0], [1, 0], [1, 0]])
    sizes = np.array([[2, 0], [2, 1], [1, 0]])
    assert lowest_accuracy(hits, sizes).tolist() == [0.5, 0, 1]
    assert Reweighted(np.array([1.0, 3.0]))(hits, sizes).tolist() == [0.5, 0.125, 1]


def test_the_worst_group_warns_if_a_class_within_a_group_is_worse() -> None:
    """A classifier that reads the background is right on each background but for one class."""
    labels = np.repeat(["land", "water"], 100)
    places = np.repeat(["forest", "lake", "forest"], [95, 95, 10])
    predictions = np.where(places == "forest", "land", "water")
    with pytest.warns(
        SuspectInputWarning, match=r"is 0.905, .* class water within group forest is 0 \(10 rows\)"
    ) as caught:
        assert worst_group_accuracy(predictions, labels, places) == 95 / 105
    assert "pass groups=[f'{label} {group}' for label, group in zip(labels, groups)]" in str(
        caught[0].message
    )
    groups = [f"{label} {group}" for label, group in zip(labels, places, strict=True)]
    assert worst_group_accuracy(predictions, labels, groups) == 0
    # No warning if every class is as good as its group, and only one for all resamples.
    assert worst_group_accuracy(labels, labels, places) == 1
    with pytest.warns(SuspectInputWarning) as caught:
        bootstrap_interval(
            predictions, labels, places, statistic=worst_group_accuracy, resamples=20
        )
    assert len(caught) == 1


def test_a_metric_has_the_interval_that_it_declares_however_its_function_is_wrapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(METRICS, "data", {**METRICS})
    again = {
        "worst_group": lambda hits, size: (hits / size).min(-1),
        "average": lambda hits, size: hits.sum(-1) / size.sum(-1),
        "gap": lambda hits, size: hits.sum(-1) / size.sum(-1) - (hits / size).min(-1),
    }
    for name, function in again.items():
        register_metric(replace(METRICS[name], name=f"my_{name}", compute=function))
    four_alike = np.array([[[6, 0], [0, 24]]] * 4)
    all_right = np.array([[[0, 0], [0, 24]]] * 4)
    for cells in (four_alike, all_right):
        (drawn,) = resampled_counts(cells, 2000, 0)
        found = {
            metric.name: interval_of(compute, metric.interval, cells, drawn)
            for metric, compute in computed("groups")
        }
        for name in again:
            assert found[f"my_{name}"] == found[name]


def test_the_lowest_of_similar_groups_has_a_corrected_upper_limit() -> None:
    # Each of the four groups may be the worst, so the limits share an error rate of 5%.
    cells = np.array([[[6, 0], [0, 24]]] * 4)
    (drawn,) = resampled_counts(cells, 2000, 0)
    value, (low, high), _ = interval_of(lowest_accuracy, "lowest", cells, drawn)
    assert (value, high) == (0.8, wilson_interval(24, 30, 1 - 0.05 / 4)[1])
    assert high > wilson_interval(24, 30)[1]
    assert low == interval_of(lowest_accuracy, "bootstrap", cells, drawn)[1][0]
    # If only one group may be the worst, nothing is corrected.
    cells[0] = [[29, 0], [0, 1]]
    (drawn,) = resampled_counts(cells, 2000, 0)
    _, alone, _ = interval_of(lowest_accuracy, "lowest", cells, drawn)
    assert alone == interval_of(lowest_accuracy, "bootstrap", cells, drawn)[1]


@refused(
    *(
        (
            lambda rule=rule: interval_of(lowest_accuracy, rule, *UNEVEN),
            f"the {rule} of the groups'",
        )
        for rule in ("mean", "weighted mean")
    ),
    (lambda: interval_of(mean_accuracy, "lowest", *UNEVEN), "declare interval='bootstrap'"),
    (lambda: replace(METRICS["gap"], interval=""), "with reads='groups': got ''; expected one of"),
    (lambda: replace(METRICS["ndkl"], interval="lowest"), r"'rankings': got 'lowest'; .*\(''"),
)
def test_an_interval_that_does_not_fit_its_metric_is_refused(mistake: Any) -> None:
    mistake()


def test_resampling_cells_equals_resampling_images() -> None:
    """The naive version samples indices. Both bootstraps and their paired changes have the same
    distribution."""
    rng = np.random.default_rng(1)
    n = 300
    group = rng.choice(3, n, p=np.arange(1, 4) / 6)
    before = rng.random(n) < np.linspace(0.5, 0.8, 3)[group]
    after = np.where(rng.random(n) < 0.5, before, rng.random(n) < np.linspace(0.9, 0.7, 3)[group])
    cells = np.zeros((3, 2, 2), dtype=np.int64)
    index = np.random.default_rng(7).integers(n, size=(900, n))
    np.add.at(cells, (group, before.astype(int), after.astype(int)), 1)
    (drawn,) = resampled_counts(cells, 4000, 0)
    shares = [
        np.array([[counts[i][group[i] == g].mean() for g in range(3)] for i in index])
        for counts in (before, after)
    ]
    means = [counts[index].mean(1) for counts in (before, after)]
    for metric, (old, new) in (
        (lowest_accuracy, [counts.min(1) for counts in shares]),
        (mean_accuracy, means),
        (accuracy_gap, [mean - counts.min(1) for mean, counts in zip(means, shares, strict=True)]),
        (
            Reweighted(np.array([5.0, 0.0, 1.0])),
            [(5 * counts[:, 0] + counts[:, 2]) / 6 for counts in shares],
        ),
        (
            ReweightedGap(np.array([5.0, 0.0, 1.0])),
            [(5 * c[:, 0] + c[:, 2]) / 6 - c.min(1) for c in shares],
        ),
    ):
        fast, unmitigated = (
            metric(hits, drawn.sum((-1, -2)))
            for hits in (drawn[..., 1].sum(-1), drawn[:, :, 1].sum(-1))
        )
        assert ks_2samp(fast, new).pvalue > 1e-3
        assert ks_2samp(fast - unmitigated, new - old).pvalue > 1e-3
        assert (
            metric is not mean_accuracy
            or ks_2samp(fast - np.roll(unmitigated, 1), new - old).pvalue < 1e-4
        )


def test_metrics_are_looked_up_by_name() -> None:
    assert get_metric("max_skew@10").title == "MaxSkew@10"
    assert get_metric(METRICS["gap"]) == get_metric("gap")
    assert get_metric("of_another@5", strict=False) == Metric(
        "of_another@5", "of another@5", "bias"
    )
    bounds = {"share": (0, 1), "fid": (0, math.inf), "lean_r": (-1, 1), "min_skew": (-math.inf, 0)}
    assert {name: METRICS[name].bounds for name in bounds} == bounds


@pytest.mark.parametrize("decimals", [0, 9])
def test_auroc_agrees_with_scikit_learn_and_its_interval_with_resampled_images(
    decimals: int,
) -> None:
    rng = np.random.default_rng(3)
    wrong = rng.random(200) < 0.4
    scores = (rng.normal(size=200) - wrong).round(decimals)  # with and without ties
    measured_area = auroc(scores, wrong)
    area = pytest.approx(roc_auc_score(wrong, -scores), abs=1e-12)
    assert (measured_area, measured_area.value) == (auroc(scores, wrong, resamples=2000), area)
    kinds = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    rows = [np.concatenate([rng.choice(kind, len(kind)) for kind in kinds]) for _ in range(500)]
    expected = np.quantile(
        [roc_auc_score(wrong[row], -scores[row]) for row in rows], [0.025, 0.975]
    )
    assert (measured_area.low, measured_area.high) == pytest.approx(tuple(expected), abs=0.015)
    assert auroc(np.arange(9), [1, 1, 0, 1, 0, 0, 0, 0, 0]).high == 1, "an area is at most 1"


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_k_variance_is_the_cost_of_the_optimal_matching(k: int) -> None:
    points = np.random.default_rng(0).normal(size=(13, 3))
    orders = [*map(list, permutations(range(k)))]
    # These are shuffled once and divided into samples.
    shuffled = points[np.random.default_rng(5).permutation(13)]
    pairs = [
        (shuffled[i : i + k], shuffled[i + k : i + 2 * k])
        for i in range(0, 2 * k * (13 // (2 * k)), 2 * k)
    ]
    expected = np.mean(
        [min(np.linalg.norm(a - b[order], axis=1).mean() for order in orders) for a, b in pairs]
    )
    assert k_variance(points, k=k, seed=5).value == pytest.approx(expected, rel=1e-12)
    # The points are far from the origin.
    assert k_variance(points + 2.0**20, k=k, seed=5).value == pytest.approx(expected, rel=1e-8)
    assert k_variance(points) == k_variance(points, k=6, seed=0)
    many = np.random.default_rng(1).normal(size=(204, 2))
    assert k_variance(many) == k_variance(many, k=len(many) // 2)
    assert k_variance([[0, 0], [3, 4]]) == (5, 1, 1)


def test_k_variance_of_many_rows_samples_subsets_and_returns_their_size_and_number() -> None:
    points = np.random.default_rng(1).normal(size=(20_001, 1))
    value, k, pairs = k_variance(points)
    assert (k, pairs) == (1_000, 10)
    assert k_variance(points, k=1_000) == (value, k, pairs)
    # In one dimension, the cheapest matching is between sorted rows.
    order = np.random.default_rng(0).permutation(len(points))[:20_000].reshape(10, 2, 1_000)
    first, second = np.moveaxis(np.sort(points[order, 0], axis=-1), 1, 0)
    assert value == pytest.approx(np.abs(first - second).mean())
    assert k_variance(points, k=2).pairs == 5_000


alpha_of = partial(krippendorff.alpha, level_of_measurement="nominal")


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 9))
def test_alpha_and_percent_agreement_match_their_definitions(
    seed: int, annotators: int, n: int
) -> None:
    labels = np.random.default_rng(seed).choice([NAN, 0.0, 1.0, 2.0, 5.0], (annotators, n))
    units = [unit[~np.isnan(unit)] for unit in labels.T if (~np.isnan(unit)).sum() >= 2]
    assume(len(set(chain(*units))) > 1)
    agreed = agreement(labels, resamples=100)
    assert agreed.alpha.value == pytest.approx(alpha_of(labels), abs=1e-9)
    equal = [np.mean([c == k for c, k in permutations(unit, 2)]) for unit in units]
    assert agreed.percent.value == pytest.approx(np.mean(equal))
    assert agreed.answers == sum(map(len, units))


def test_the_interval_of_alpha_equals_a_bootstrap_over_units() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (3, 40)).astype(float)
    labels[2, rng.random(40) < 0.3] = NAN
    drawn = [alpha_of(labels[:, rng.integers(0, 40, 40)]) for _ in range(1000)]
    alpha = agreement(labels, resamples=2000, seed=0).alpha
    # A negative code means no answer.
    assert agreement(torch.tensor(np.nan_to_num(labels, nan=-1)).long()).alpha == alpha
    assert (alpha.low, alpha.high) == pytest.approx(
        tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.03
    )
    # Resamples without a second value are excluded.
    rare = agreement(np.array([[0] * 9 + [1], [0] * 9 + [1]])).alpha
    assert (rare.low, rare.high) == (1, 1)


@refused(
    *(
        (partial(Metric, "mine", "mine", **{name: setting}), (), name)
        for name, setting in (("kind", "x"), ("bounds", (1, 1)), ("bounds", None))
    ),
    (partial(Metric, "mine", "mine", reads="texts", compute=max), (), "compute"),
    (register_metric, (Metric("gap", "another"),), "taken"),
    (get_metric, ("acuracy",), "'accuracy'"),
    (group_accuracy, ([0, 1], [0], [0, 1]), "'labels': 1"),
    (group_accuracy, ([NAN], [0], [0]), "predictions"),
    (group_accuracy, (["0"], [0], [0]), "predictions and labels"),
    (group_accuracy, ([0.2, 0.9], [0, 1], [0, 0]), "predictions"),
    *(
        (auroc, given, "wrong|scores")
        for given in (
            ([0.1, 0.2], [0, 0]),
            ([0.1, NAN], [0, 1]),
            ([0.1, 0.2], [0, 2]),
            (["a", "b"], [0, 1]),
        )
    ),
    *(
        (k_variance, (features,), "features")
        for features in (np.ones(4), np.ones((1, 4)), np.full((4, 2), np.inf))
    ),
    *((partial(k_variance, k=k), (np.ones((5, 2)),), f"k: .* got {k}") for k in (3, 1.5)),
    *(
        (agreement, (labels,), "labels: ")
        for labels in ([[0, 1]], [["m", "f"]] * 2, [[0, NAN], [NAN, 1]], [[1, 1]] * 2)
    ),
)
def test_invalid_classification_inputs_are_rejected(call, arguments) -> None:
    call(*arguments)


def test_fractional_classes_and_unseen_predictions_are_accepted() -> None:
    accuracy = group_accuracy([0.5, 1.5, 0.5], [0.5, 1.5, 1.5], ["a", "a", "b"])
    assert accuracy.average == pytest.approx(2 / 3)
    assert group_accuracy([0.0, 2.0], [0, 1], ["a", "b"]).average == 0.5
    with pytest.raises(InvalidInputError, match="expected classes"):
        group_accuracy([0.37, 0.8], [0, 1], ["a", "b"])


def without_resampling(cells: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return cells (g, 2, 2) of groups with some right and wrong images, and resamples of them."""
    counts = np.array([[[wrong, 0], [0, right]] for right, wrong in cells])
    return counts, np.array([counts] * 10)


def test_the_upper_end_of_several_groups_without_a_right_image_is_corrected() -> None:
    _, (low, high), _ = interval_of(
        lowest_accuracy, "lowest", *without_resampling([(0, 20), (0, 20), (0, 20)])
    )
    assert low == 0
    assert high == wilson_interval(0, 20, 1 - 0.05 / 3)[1] > wilson_interval(0, 20)[1]


def test_a_constant_group_of_weight_zero_does_not_change_the_interval_of_a_mean() -> None:
    cells = np.array([[[10, 0], [0, 20]], [[15, 0], [0, 15]], [[0, 0], [0, 30]]])
    (drawn,) = resampled_counts(cells, 2000, 0)
    mean = Reweighted(np.array([0.5, 0.5, 0.0]))
    _, bounds, _ = interval_of(mean, "weighted mean", cells, drawn)
    assert bounds == interval_of(mean, "bootstrap", cells, drawn)[1]
    mean = Reweighted(np.array([0.4, 0.4, 0.2]))
    _, bounds, _ = interval_of(mean, "weighted mean", cells, drawn)
    assert bounds != interval_of(mean, "bootstrap", cells, drawn)[1]


def test_the_lower_end_of_a_gap_falls_by_as_much_as_the_worst_accuracy_may_rise() -> None:
    cells = without_resampling([(50, 50), (50, 50), (100, 0)])
    value, (low, high), _ = interval_of(accuracy_gap, "gap", *cells)
    assert value == high == pytest.approx(2 / 3 - 1 / 2)
    rise = wilson_interval(50, 100, 1 - 0.05 / 2)[1] - 0.5
    assert low == pytest.approx(value - rise)
    # Not below 0.
    assert interval_of(accuracy_gap, "gap", *without_resampling([(5, 5), (6, 4)]))[1][0] == 0


def test_the_lowest_area_counts_the_images_of_groups_with_both_classes() -> None:
    margins = {"none": np.array([0.9, 0.1, 0.8, 0.3, 0.85, 0.5])}
    positive = np.array([True, False, True, False, False, True])
    groups = np.array([0, 0, 1, 1, 1, 2])
    lowest, _, numbers = worst_areas(margins, positive, groups, resamples=10, seed=0)
    assert lowest == {"none": 0.5}
    assert numbers == {"images": 5, "values": 2}


@pytest.mark.parametrize("rule", get_args(IntervalRule)[1:])
def test_a_metric_of_groups_accepts_every_interval_rule(rule: str) -> None:
    assert replace(METRICS["gap"], interval=rule).interval == rule
