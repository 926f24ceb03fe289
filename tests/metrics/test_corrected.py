"""Shares from a judge on all images and people on some: what holds whatever the judge does."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.evaluation import Result
from vldebias.metrics import corrected_shares
from vldebias.metrics.bootstrap import Interval, wilson_interval
from vldebias.metrics.shares import NOT_LABELLED, corrected_squares, independent, squared_discrepancies

MALE, FEMALE, UNKNOWN = 0, 1, 2
TRUE = np.array([0.57, 0.4, 0.03])
JUDGES = {  # rows: what is true, columns: what the judge says
    "calls women men": np.array([[0.97, 0.01, 0.02], [0.4, 0.57, 0.03], [0.3, 0.3, 0.4]]),
    "says the opposite": np.array([[0.1, 0.9, 0.0], [0.8, 0.2, 0.0], [0.5, 0.5, 0.0]]),
    "knows nothing": np.array([[0.5, 0.5, 0.0]] * 3),
    "always says man": np.array([[1.0, 0.0, 0.0]] * 3),
}


def world(rng, judge, n=1500):
    """What is true, and what the judge says."""
    truth = rng.choice(3, size=n, p=TRUE)
    said = (rng.random(n)[:, None] > judge.cumsum(1)[truth]).sum(1)
    return truth, np.minimum(said, 2)


def sampled(rng, truth, said, n, *, stratified):
    """Labels of n images by lot, and their weights."""
    people, weights = np.full(len(truth), NOT_LABELLED), np.ones(len(truth))
    parts = [np.flatnonzero(said == code) for code in np.unique(said)] if stratified else [np.arange(len(truth))]
    for part in parts:
        chosen = rng.choice(part, min(len(part), n // len(parts)), replace=False)
        people[chosen], weights[chosen] = truth[chosen], len(part) / len(chosen)
    return people, weights


few = pytest.mark.filterwarnings("ignore:people:vldebias.errors.SuspectInputWarning")


@few
@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("name", JUDGES)
def test_right_whatever_the_judge_does_and_covered(name, stratified):
    rng, found, held = np.random.default_rng(3), [], []
    for _ in range(250):
        truth, said = world(rng, JUDGES[name])
        people, weights = sampled(rng, truth, said, 120, stratified=stratified)
        one = corrected_shares(said, people, 3, weights=weights)
        found.append(one.shares)
        interval = one.interval(FEMALE)
        held.append(interval.low <= TRUE[FEMALE] <= interval.high)
    error = np.std(found, axis=0) / np.sqrt(len(found))
    np.testing.assert_array_less(np.abs(np.mean(found, axis=0) - TRUE), 4 * error)
    assert np.mean(held) > 0.9
    if name in ("calls women men", "says the opposite"):  # the judge alone is far off, so the test can fail
        assert abs((said == FEMALE).mean() - TRUE[FEMALE]) > 0.1


def test_a_judge_that_says_one_thing_leaves_the_people_alone():
    people = np.array([0, 0, 1, 0, 1, 0, 0, 1] * 25 + [NOT_LABELLED] * 3000)
    found = corrected_shares(np.zeros(3200, int), people, 2)
    np.testing.assert_allclose(found.shares, [5 / 8, 3 / 8])
    here = found.interval(0)
    np.testing.assert_allclose((here.low, here.high), wilson_interval(125, 200), atol=0.01)


def labelled(n, true, n_images=400):
    """A judge that is right but for one in ten, and labels of n of its images."""
    rng = np.random.default_rng(n)
    truth = rng.choice(2, size=n_images, p=[true, 1 - true])
    said = np.where(rng.random(n_images) < 0.1, 1 - truth, truth)
    people = np.full(n_images, NOT_LABELLED)
    chosen = rng.choice(n_images, n, replace=False)
    people[chosen] = truth[chosen]
    return said, people, truth


@pytest.mark.parametrize(("labels", "told"), [(10, True), (29, True), (30, False), (100, False)])
def test_few_labels_warn_and_no_interval_has_no_width(labels, told):
    """Also where judge and people agree about every image that was labelled, and all labels are one value."""
    said, people, truth = labelled(labels, 1.0)
    said = truth.copy()  # a judge that was not seen to err
    said[people == NOT_LABELLED][:40] = 1
    context = pytest.warns(SuspectInputWarning, match="label more") if told else contextlib.nullcontext()
    with context:
        found = corrected_shares(said, people, 2)
    for one in (found.interval(0), found.interval(1), found.discrepancy(2), found.max_skew(2)):
        assert one.low <= one.value <= one.high
        assert one.high - one.low > 0.01


def test_an_answer_of_the_judge_without_a_label_warns_and_widens():
    said, people, _ = labelled(60, 0.6)
    known = corrected_shares(said, people, 2).interval(0)
    people[said == 1] = NOT_LABELLED
    with pytest.warns(SuspectInputWarning, match=r"\['1'\]"):
        blind = corrected_shares(said, people, 2).interval(0)
    assert blind.high - blind.low > 2 * (known.high - known.low)


@few
def test_all_labelled_is_what_people_say_and_no_wider_than_people_alone():
    rng = np.random.default_rng(0)
    truth, said = world(rng, JUDGES["calls women men"], 3000)
    found = corrected_shares(said, truth, 3)
    np.testing.assert_allclose(found.shares, np.bincount(truth) / 3000)
    for name, judge in JUDGES.items():
        truth, said = world(rng, judge, 20_000)
        people, _ = sampled(rng, truth, said, 2000, stratified=False)
        interval, alone = corrected_shares(said, people, 3).interval(MALE), wilson_interval(1140, 2000)
        wide = (interval.high - interval.low) / (alone[1] - alone[0])
        assert wide < (0.9 if name in ("calls women men", "says the opposite") else 1.06), name


def test_weights_undo_a_sample_of_unequal_chances_within_an_answer():
    rng = np.random.default_rng(1)
    sure = rng.random(4000) < 0.8
    truth = np.where(sure, MALE, FEMALE)  # the judge says man throughout; only where it is unsure it errs
    chosen = np.concatenate([rng.choice(np.flatnonzero(sure == one), 50, replace=False) for one in (True, False)])
    people, weights = np.full(4000, NOT_LABELLED), np.ones(4000)
    people[chosen] = truth[chosen]
    weights[sure], weights[~sure] = sure.sum() / 50, (~sure).sum() / 50
    said = np.zeros(4000, int)
    np.testing.assert_allclose(corrected_shares(said, people, 2, weights=weights).shares[0], sure.mean())
    assert abs(corrected_shares(said, people, 2).shares[0] - 0.5) < 1e-9
    interval = corrected_shares(said, people, 2, weights=weights).interval(MALE)
    assert interval.high - interval.low < 0.1  # both kinds are known for certain: only their mixture is estimated


def test_discrepancy_and_skew_are_those_of_known_images():
    people = np.array([0] * 20 + [1] * 12 + [2] * 8 + [NOT_LABELLED] * 360)
    found = corrected_shares(np.zeros(400, int), people, 3)
    np.testing.assert_allclose(found.shares, [0.5, 0.3, 0.2])
    gap, skew = found.discrepancy(2), found.max_skew(2)
    assert gap.value == pytest.approx(np.sqrt(2) * 0.125)
    assert skew.value == pytest.approx(np.log(1.25))
    assert gap.low == skew.low == 0 < gap.value < gap.high


@pytest.mark.parametrize("share", [0.5, 0.56, 0.8])
def test_the_gap_is_covered_also_where_it_is_near_0(share):
    rng, held, drawn = np.random.default_rng(6), [], []
    true = np.sqrt(2) * (share - 0.5)
    for hits in rng.binomial(120, share, size=200):
        people = np.array([0] * hits + [1] * (120 - hits) + [NOT_LABELLED] * 1000)
        found = corrected_shares(np.zeros(1120, int), people, 2, resamples=400)
        gap, skew = found.discrepancy(2), found.max_skew(2)
        held.append(gap.low <= true <= gap.high)
        low, high = np.quantile(np.sqrt(2) * np.abs(found.draws[0, :, 0] - 0.5), [0.025, 0.975])
        drawn.append(low <= true <= high)  # quantiles of drawn gaps, which lie above 0
        np.testing.assert_allclose([skew.low, skew.high], np.log1p(np.sqrt(2) * np.array([gap.low, gap.high])))
    assert np.mean(held) >= 0.92
    if share == 0.5:
        assert np.mean(drawn) < 0.5


@few
@pytest.mark.parametrize("values", [2, 3])
def test_squares_are_unbiased_for_each_prompt(values):
    rng = np.random.default_rng(5)
    shares = np.array([[0.8, 0.15, 0.05], [0.4, 0.5, 0.1], [1 / 3] * 3])[:, : values + 1]
    true = squared_discrepancies(1e9 * shares[:, :values])
    confusion, found = np.array([[0.9, 0.05, 0.05], [0.5, 0.45, 0.05], [0.2, 0.2, 0.6]]), []
    prompts = np.repeat(np.arange(3), 60)
    for _ in range(600):
        truth = np.concatenate([rng.choice(3, size=60, p=p) for p in shares])
        said = np.minimum((rng.random(180)[:, None] > confusion.cumsum(1)[truth]).sum(1), 2)
        people = np.full(180, NOT_LABELLED)
        for p in range(3):
            chosen = rng.choice(60, 8, replace=False) + 60 * p
            people[chosen] = truth[chosen]
        found.append(corrected_squares(prompts, said, people, values, weights=np.ones(180)))
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))
    if values == 3:  # nothing is unknown: exactly unbiased
        np.testing.assert_array_less(np.abs(mean - true), 4 * error)
    else:  # divided by an estimated rate
        np.testing.assert_array_less(np.abs(mean - true), 4 * error + 0.02)


def test_more_labels_halve_the_interval_or_there_are_too_few_images():
    rng = np.random.default_rng(2)
    truth, said = world(rng, JUDGES["knows nothing"], 50_000)
    people, _ = sampled(rng, truth, said, 200, stratified=False)
    found = corrected_shares(said, people, 3)
    again, _ = sampled(rng, truth, said, 200 + found.more_labels(), stratified=False)
    narrow, wide = corrected_shares(said, again, 3).interval(MALE), found.interval(MALE)
    assert (narrow.high - narrow.low) / (wide.high - wide.low) == pytest.approx(0.5, abs=0.05)
    assert corrected_shares(said[:300], truth[:300], 3).more_labels() is None


def test_the_difference_of_two_keeps_the_sides_of_their_intervals():
    after, before = Interval(0.5, 0.4, 0.9, 0.95, 1, 0), Interval(0.2, 0.1, 0.2, 0.95, 1, 0)
    assert independent(after, before) == pytest.approx((0.3, 0.2, 0.3 + np.hypot(0.4, 0.1)))


@pytest.mark.parametrize(
    ("people", "weights", "said"),
    [
        ([NOT_LABELLED] * 3, None, "0 of 30"),
        ([0, 1, 5], None, "expected codes -1 .. 1"),
        ([0], None, "one length"),
        ([0, 1, 1], [1, 0, 1], "numbers above 0"),
    ],
)
def test_refused(people, weights, said):
    weights = None if weights is None else weights * 10
    with pytest.raises(InvalidInputError, match=said):
        corrected_shares([0, 1, 1] * 10, people * 10, 2, weights=weights)


def test_committed_intervals_cover():
    """All but MaxSkew of a gallery of 100 of which five are of the rarer group, where resamples repeat those five."""
    result = Result.read(Path(__file__).parents[2] / "eval" / "results" / "coverage_shares.json")
    rows = {(row.task, row.method, row.subset): row.value for row in result.rows if row.metric == "coverage"}
    assert len(rows) == 4 * (3 * (2 + 3) + 2)  # truths; 30, 100, 300 labels: share, gap, corrected MaxSkew; galleries
    assert rows.pop(("2 values, skewed", "gallery of 100", "MaxSkew")) > 0.85
    assert min(rows.values()) >= 0.92
