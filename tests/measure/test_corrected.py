"""Test discrepancy (eq. 7.2) against its definition, and shares computed from a judge's labels for
all images and human labels for some of them."""

import contextlib
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.errors import SuspectInputWarning
from vldebias.measure import shares as module
from vldebias.measure.resampling import Interval, wilson_interval
from vldebias.measure.shares import (
    NOT_LABELLED,
    CorrectedShares,
    as_judged,
    shares_radius,
    squared_discrepancies,
)
from vldebias.metrics import corrected_shares, discrepancy

few = pytest.mark.filterwarnings("ignore:people:vldebias.errors.SuspectInputWarning")
MALE = 0
FEMALE = 1
TRUE = np.array([0.57, 0.4, 0.03])
JUDGES = {  # rows: the true value, columns: the judge's answer
    "calls women men": np.array([[0.97, 0.01, 0.02], [0.4, 0.57, 0.03], [0.3, 0.3, 0.4]]),
    "says the opposite": np.array([[0.1, 0.9, 0.0], [0.8, 0.2, 0.0], [0.5, 0.5, 0.0]]),
    "knows nothing": np.array([[0.5, 0.5, 0.0]] * 3),
    "always says man": np.array([[1.0, 0.0, 0.0]] * 3),
}


def world(rng, judge, n=1500):
    """Return the true values and the judge's answers."""
    truth = rng.choice(3, size=n, p=TRUE)
    judged = (rng.random(n)[:, None] > judge.cumsum(1)[truth]).sum(1)
    return truth, np.minimum(judged, 2)


def sampled(rng, truth, judged, n, *, stratified):
    """Return the labels and the weights of n randomly sampled images."""
    people = np.full(len(truth), NOT_LABELLED)
    weights = np.ones(len(truth))
    parts = (
        [np.flatnonzero(judged == code) for code in np.unique(judged)]
        if stratified
        else [np.arange(len(truth))]
    )
    for part in parts:
        chosen = rng.choice(part, min(len(part), n // len(parts)), replace=False)
        people[chosen] = truth[chosen]
        weights[chosen] = len(part) / len(chosen)
    return people, weights


@few
@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("name", JUDGES)
def test_corrected_shares_are_unbiased_and_covered_for_any_judge(name, stratified):
    rng = np.random.default_rng(3)
    estimates = []
    held = []
    for _ in range(120):
        truth, judged = world(rng, JUDGES[name])
        people, weights = sampled(rng, truth, judged, 120, stratified=stratified)
        estimate = corrected_shares(judged, people, 3, weights=weights)
        estimates.append(estimate.shares)
        interval = estimate.figures(2)[FEMALE]
        held.append(interval.low <= TRUE[FEMALE] <= interval.high)
    error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
    np.testing.assert_array_less(np.abs(np.mean(estimates, axis=0) - TRUE), 4 * error)
    assert np.mean(held) > 0.9
    # The judge alone is far off, so the test can fail.
    if name in (
        "calls women men",
        "says the opposite",
    ):
        assert abs((judged == FEMALE).mean() - TRUE[FEMALE]) > 0.1


@pytest.mark.parametrize(("labels", "warning"), [(10, True), (29, True), (30, False), (100, False)])
def test_few_labels_warn_and_every_interval_has_a_nonzero_width(labels, warning):
    """This includes the case in which the judge and people agree about every labelled image and all
    labels are the same."""
    judged = np.zeros(400, int)
    people = np.full(400, NOT_LABELLED)
    people[:labels] = 0
    with (
        pytest.warns(SuspectInputWarning, match="label more")
        if warning
        else contextlib.nullcontext()
    ):
        estimate = corrected_shares(judged, people, 2)
    for figure, largest in zip(estimate.figures(2), (1, 1, 0.5**0.5, math.log(2)), strict=True):
        assert 0 <= figure.low <= figure.value <= figure.high <= largest + 1e-12
        assert figure.high - figure.low > 0.01


def test_a_judge_answer_without_labels_warns_and_widens_the_interval():
    rng = np.random.default_rng(60)
    truth, judged = (codes % 2 for codes in world(rng, JUDGES["calls women men"], 400))
    people, _ = sampled(rng, truth, judged, 60, stratified=False)
    known = corrected_shares(judged, people, 2).figures(2)[0]
    people[judged == 1] = NOT_LABELLED
    with pytest.warns(SuspectInputWarning, match=r"\['1'\]"):
        blind = corrected_shares(judged, people, 2).figures(2)[0]
    assert blind.high - blind.low > 1.5 * (known.high - known.low)


@few
def test_labels_for_all_images_give_the_human_shares():
    rng = np.random.default_rng(0)
    truth, judged = world(rng, JUDGES["calls women men"], 3000)
    estimate = corrected_shares(judged, truth, 3)
    np.testing.assert_allclose(estimate.shares, np.bincount(truth) / 3000)
    seeded = corrected_shares(judged, truth, 3, seed=0)
    assert np.array_equal(estimate.draws, seeded.draws), "the default seed is 0"
    for name, judge in JUDGES.items():
        truth, judged = world(rng, judge, 20_000)
        people, _ = sampled(rng, truth, judged, 2000, stratified=False)
        interval = corrected_shares(judged, people, 3).figures(2)[MALE]
        # 1,140 of the 2,000 labelled people are men: 0.57, as in TRUE.
        alone = wilson_interval(1140, 2000)
        wide = (interval.high - interval.low) / (alone[1] - alone[0])
        assert wide < (0.9 if name in ("calls women men", "says the opposite") else 1.06), name


def test_weights_correct_unequal_sampling_within_an_answer():
    rng = np.random.default_rng(1)
    sure = rng.random(4000) < 0.8
    # The judge always answers "man", and only errs when it is unsure.
    truth = np.where(sure, MALE, FEMALE)
    chosen = np.concatenate(
        [
            rng.choice(np.flatnonzero(sure == is_sure), 50, replace=False)
            for is_sure in (True, False)
        ]
    )
    people = np.full(4000, NOT_LABELLED)
    weights = np.ones(4000)
    people[chosen] = truth[chosen]
    weights[sure] = sure.sum() / 50
    weights[~sure] = (~sure).sum() / 50
    judged = np.zeros(4000, int)
    estimate = corrected_shares(judged, people, 2, weights=weights)
    np.testing.assert_allclose(estimate.shares[0], sure.mean())
    assert abs(corrected_shares(judged, people, 2).shares[0] - 0.5) < 1e-9
    # Both kinds are known exactly, so only their mixture is estimated.
    assert np.ptp(estimate.figures(2)[MALE]) < 0.1


def test_a_constant_judge_leaves_the_human_shares_unchanged():
    people = np.array([0] * 20 + [1] * 12 + [2] * 8 + [NOT_LABELLED] * 3600)
    estimate = corrected_shares(np.zeros(3640, int), people, 3)
    assert np.array_equal(
        corrected_shares(["x"] * 3640, people, 3, resamples=2000, seed=0).draws, estimate.draws
    )
    np.testing.assert_allclose(estimate.shares, [0.5, 0.3, 0.2])
    share, _, gap, skew = estimate.figures(2)
    np.testing.assert_allclose((share.low, share.high), wilson_interval(20, 40), atol=0.02)
    # Of the 32 with known gender, 20 are of one group: 0.625, which is 1.25 times one half.
    assert (gap.value, skew.value) == pytest.approx((np.sqrt(2) * 0.125, np.log(1.25)))
    assert gap.low == skew.low == 0 < gap.value < gap.high


@pytest.mark.parametrize("share", [0.5, 0.56, 0.8])
def test_the_gap_has_its_nominal_coverage_even_near_zero(share):
    rng = np.random.default_rng(6)
    held = []
    drawn = []
    true = np.sqrt(2) * (share - 0.5)
    for hits in rng.binomial(120, share, size=200):
        people = np.array([0] * hits + [1] * (120 - hits) + [NOT_LABELLED] * 1000)
        estimate = corrected_shares(np.zeros(1120, int), people, 2, resamples=400)
        *_, gap, skew = estimate.figures(2)
        held.append(gap.low <= true <= gap.high)
        low, high = np.quantile(np.sqrt(2) * np.abs(estimate.draws[0, :, 0] - 0.5), [0.025, 0.975])
        drawn.append(low <= true <= high)  # these are quantiles of sampled gaps, which are positive
        np.testing.assert_allclose(
            [skew.low, skew.high], np.log1p(np.sqrt(2) * np.array([gap.low, gap.high]))
        )
    assert np.mean(held) >= 0.92
    if share == 0.5:
        assert np.mean(drawn) < 0.5


@few
@pytest.mark.parametrize("values", [2, 3])
def test_squares_are_unbiased_for_each_prompt(values):
    rng = np.random.default_rng(5)
    shares = np.array([[0.8, 0.15, 0.05], [0.4, 0.5, 0.1], [1 / 3] * 3])[:, : values + 1]
    true = squared_discrepancies(1e9 * shares[:, :values])
    confusion = np.array([[0.9, 0.05, 0.05], [0.5, 0.45, 0.05], [0.2, 0.2, 0.6]])
    estimates = []
    prompts = np.repeat(np.arange(3), 60)
    for _ in range(600):
        truth = np.concatenate([rng.choice(3, size=60, p=p) for p in shares])
        judged = np.minimum((rng.random(180)[:, None] > confusion.cumsum(1)[truth]).sum(1), 2)
        people = np.full(180, NOT_LABELLED)
        for p in range(3):
            chosen = rng.choice(60, 8, replace=False) + 60 * p
            people[chosen] = truth[chosen]
        estimates.append(
            module.corrected_squares(prompts, judged, people, values, weights=np.ones(180))
        )
    mean = np.mean(estimates, axis=0)
    error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
    if values == 3:  # nothing is unknown, so the estimate is exactly unbiased
        np.testing.assert_array_less(np.abs(mean - true), 4 * error)
    else:  # the estimate is divided by an estimated rate
        np.testing.assert_array_less(np.abs(mean - true), 4 * error + 0.02)


def test_the_number_of_labels_that_halves_the_interval_is_estimated_or_there_are_too_few_images():
    rng = np.random.default_rng(2)
    truth, judged = world(rng, JUDGES["knows nothing"], 50_000)
    people, _ = sampled(rng, truth, judged, 200, stratified=False)
    estimate = corrected_shares(judged, people, 3)
    again, _ = sampled(rng, truth, judged, 200 + estimate.more_labels(), stratified=False)
    narrow = corrected_shares(judged, again, 3).figures(2)[MALE]
    wide = estimate.figures(2)[MALE]
    assert (narrow.high - narrow.low) / (wide.high - wide.low) == pytest.approx(0.5, abs=0.05)
    assert corrected_shares(judged[:300], truth[:300], 3).more_labels() is None


def test_the_interval_of_a_difference_combines_both_intervals():
    after = Interval(0.5, 0.4, 0.9)
    before = Interval(0.2, 0.1, 0.2)
    # The lower end is 0.1 from `after` and 0 from `before`, whose ends swap. The upper end is 0.4
    # and 0.1.
    assert module.independent(after, before) == pytest.approx((0.3, 0.2, 0.3 + np.hypot(0.4, 0.1)))


cases = st.integers(2, 6).flatmap(
    lambda g: st.tuples(st.just(g), st.lists(st.integers(0, g - 1), min_size=1))
)


@given(cases, st.integers(0, 5))
def test_discrepancy_ratio_and_kl_match_their_definitions(
    case: tuple[int, list[int]], unknown: int
) -> None:
    n_groups, labels = case
    counts = np.bincount(labels, minlength=n_groups)
    shares = counts / len(labels)
    even = 1 / n_groups
    expected = math.sqrt(sum((shares - even) ** 2))
    assert (
        discrepancy(labels, n_groups)
        == discrepancy(torch.tensor(labels), n_groups)
        == pytest.approx(expected)
    )
    assert discrepancy([-1] * unknown + labels[::-1], n_groups, unknown=-1) == pytest.approx(
        expected
    )
    both = np.stack([counts, 0 * counts])  # the discrepancy is largest if nothing was counted
    assert module.discrepancies(both) == pytest.approx([expected, math.sqrt(1 - even)])
    assert module.deviation_ratios(both) == pytest.approx([max(abs(shares - even)) / (1 - even), 1])
    kl = sum(s * math.log(s * n_groups) for s in shares if s)
    assert module.kl_divergences(both) == pytest.approx([kl, math.log(n_groups)], abs=1e-12)
    blind, seen = (
        [figure.value for figure in as_judged(np.array(labels_of_run), n_groups)]
        for labels_of_run in ([n_groups] * 4, labels)
    )
    assert blind[-2:] == pytest.approx([math.sqrt(1 - even), math.log(n_groups)])
    assert seen[:-2] == pytest.approx(shares)


def test_the_squared_discrepancy_is_unbiased() -> None:
    p = np.array([0.6, 0.3, 0.1])
    rng = np.random.default_rng(1)
    for n in (2, 10):
        drawn = squared_discrepancies(rng.multinomial(n, p, size=200_000))
        assert drawn.mean() == pytest.approx(((p - 1 / 3) ** 2).sum(), abs=4e-3)
    assert squared_discrepancies(np.array([[1, 0, 0], [0, 0, 0]])) == pytest.approx(2 / 3)
    # One image of uncertain value has no spread either.
    assert squared_discrepancies(np.array([[0.5, 0.5], [0.2, 0.2]])) == pytest.approx(0.5)


def test_the_radius_has_its_nominal_coverage() -> None:
    p = np.array([0.7, 0.3])
    rng = np.random.default_rng(2)
    counts = rng.multinomial(25, p, size=400)
    inside = np.linalg.norm(counts / 25 - p, axis=1) <= shares_radius(counts, resamples=400)
    assert inside.mean() > 0.92
    # 25 identical labels do not give certainty.
    assert 0 < shares_radius(np.array([[25, 0]]))[0] < 0.2
    assert np.array_equal(shares_radius(counts), shares_radius(counts, resamples=2000, seed=0))
    assert shares_radius(np.array([[0, 0]]))[0] == pytest.approx(math.sqrt(0.5))
    # Effective counts are rounded down, because more images would make the radius too small.
    effective, fewer, more = (shares_radius(np.array([[n, n]]))[0] for n in (12.3, 12, 12.5))
    assert effective == pytest.approx(fewer)
    assert effective > more


@refused(
    *((discrepancy, (labels, 2), "labels: .* 0 .. 1") for labels in ([0, 2], [0.5, 1], ["f", "m"])),
    (partial(discrepancy, unknown=-1), ([-1, -1], 2), "labels: all 2"),
    *((partial(discrepancy, unknown=code), ([0, 1], 2), "unknown: ") for code in (0, 1)),
    (discrepancy, ([-1, 0], 2), "labels: .* 0 .. 1"),
    (discrepancy, ([], 2), "labels: expected a non-empty array"),
    (discrepancy, ([0, 0], 1), "n_groups: "),
    *(
        (corrected_shares, ([0] * 30, of * 10, 2), "people|length")
        for of in ([NOT_LABELLED] * 3, [0])
    ),
    (corrected_shares, ([0] * 30, [0, 1, 2] * 10, 2), r"people: expected codes -1 \.\. 1"),
    (lambda *of: corrected_shares(*of).figures(2), ([0] * 30, [2] * 30, 3), "known value"),
    (
        partial(corrected_shares, weights=[1, 0, 1] * 10),
        ([0] * 30, [0, 1, 1] * 10, 2),
        "positive numbers",
    ),
)
def test_invalid_inputs_for_corrected_shares_are_rejected(of, given_):
    of(*given_)


def test_a_prompt_without_known_images_counts_as_furthest_from_even() -> None:
    """The square of 1, 0, ..., 0 against even shares of v values is 1 - 1/v."""
    prompts = np.zeros(6, dtype=int)
    for values in (2, 3):
        nobody = np.full(6, values)
        squares = module.corrected_squares(prompts, nobody, nobody, values, weights=np.ones(6))
        assert squares == pytest.approx([1 - 1 / values])


def test_the_intervals_of_three_values_contain_the_draws_under_both_priors() -> None:
    rng = np.random.default_rng(0)
    draws = np.stack([rng.dirichlet(counts, 500) for counts in ([50, 30, 20], [45, 40, 15])])
    corrected = CorrectedShares(np.array([0.5, 0.3, 0.2]), draws, labels=100, images=900, noise=0.0)
    intervals = corrected.figures(3)[:3]
    lows, highs = np.quantile(draws, [0.025, 0.975], axis=1)
    for interval, low, high in zip(intervals, lows.min(0), highs.max(0), strict=True):
        assert interval.low <= low < high <= interval.high
