"""Test the true shares in a report: which checks they are computed from, and the coverage of their
intervals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import vldebias
from eval.experiments.coverage import RERANKED, Reranked
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.reranking import Report
from vldebias.reranking.checks import _log_posterior, _mode

N = 400
TRUE = np.array(["f", "m"])[np.arange(N) % 2]
SCORES = np.random.default_rng(0).permutation(np.linspace(1, 0, N))


def labels(accuracy: float) -> list[str]:
    """Return labels that are correct with the given probability."""
    is_right = np.random.default_rng(1).random(N) < accuracy
    return np.where(is_right, TRUE, np.where(TRUE == "m", "f", "m")).tolist()


def checked(rows: object) -> dict[int, str]:
    return {int(row): str(TRUE[row]) for row in np.asarray(rows)}


def report(accuracy: float, rows: Mapping[int, str] | None) -> Report:
    return vldebias.rerank(SCORES, 40, labels=labels(accuracy), checked=rows).report


def width(report: Report, group: str = "m") -> float:
    assert report.expected is not None
    return report.expected[group].high - report.expected[group].low


def test_without_checks_no_interval_is_printed() -> None:
    unchecked = report(0.9, None)
    assert unchecked.expected is None
    assert unchecked.to_dict()["expected"] is None
    assert "true shares unknown" in str(unchecked)
    assert "to_check" in str(unchecked)
    assert "95% intervals" not in str(unchecked)


def test_fewer_than_twenty_checks_yield_no_interval() -> None:
    assert report(0.9, checked(range(19))).expected is None
    assert report(0.9, checked(range(20))).expected is not None
    assert "20 are needed, 19 were passed" in str(report(0.9, checked(range(19))))


def test_checking_all_results_yields_the_exact_shares() -> None:
    first = vldebias.rerank(SCORES, 10, labels=labels(0.7))
    again = vldebias.rerank(SCORES, 10, labels=labels(0.7), checked=checked(first))
    actual = float((TRUE[first] == "m").mean())
    assert again.report.expected is not None
    assert again.report.expected["m"] == (actual, actual, actual)


def test_shares_of_two_groups_mirror_each_other() -> None:
    expected = report(0.8, checked(range(100))).expected
    assert expected is not None
    assert expected["f"].value + expected["m"].value == pytest.approx(1)
    assert expected["f"].low == pytest.approx(1 - expected["m"].high)


def test_more_checks_narrow_the_interval() -> None:
    widths = [width(report(0.8, checked(range(count)))) for count in (20, 100, 400)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 1.3 * widths[1] > 2 * widths[2]


def test_checks_on_results_narrow_the_interval_more_than_checks_on_other_candidates() -> None:
    first = vldebias.rerank(SCORES, 40, labels=labels(0.8))
    others = np.setdiff1d(np.arange(N), first)[:30]
    of_results = report(0.8, checked(first.to_check(30, seed=0)))
    assert width(of_results) < 0.6 * width(report(0.8, checked(others)))


def test_better_labels_narrow_the_interval() -> None:
    widths = [width(report(accuracy, checked(range(200)))) for accuracy in (0.7, 0.85, 1.0)]
    assert widths == sorted(widths, reverse=True)


def test_a_query_that_prefers_a_group_makes_its_labels_less_reliable() -> None:
    """Among rows labelled "f", the scores rank members of "m" first."""
    rng = np.random.default_rng(0)
    true = np.arange(4000) % 2
    codes = np.where(rng.random(4000) < 0.85, true, 1 - true)
    scores = rng.normal(size=4000) + 2.0 * (true == 0)
    first = vldebias.rerank(scores, 400, labels=codes)
    actual = float((true[first] == 0).mean())
    assert actual > 0.55
    rows = rng.permutation(4000)[:300].tolist()
    sample = {row: int(true[row]) for row in rows}
    expected = vldebias.rerank(scores, 400, labels=codes, checked=sample).report.expected
    assert expected is not None
    assert 0.5 < expected["0"].low <= actual <= expected["0"].high


def test_label_errors_concentrated_in_the_results_are_detected() -> None:
    codes = TRUE.tolist()
    first = vldebias.rerank(SCORES, 40, labels=codes)
    true = TRUE.copy()
    true[first] = "m"  # every result labelled "f" is wrong, and no other candidate is
    rows = first.to_check(16, seed=0) + np.setdiff1d(np.arange(N), first)[:100].tolist()
    sample = {int(row): str(true[row]) for row in rows}
    expected = vldebias.rerank(SCORES, 40, labels=codes, checked=sample).report.expected
    assert expected is not None
    assert expected["m"].value > 0.9
    assert expected["m"].high > 0.99


def test_a_label_without_checks_is_assumed_to_err_like_the_other_labels() -> None:
    groups = np.arange(N) % 5
    rows = np.flatnonzero(groups != 4)[:150].tolist()
    sample = {row: int(groups[row]) for row in rows}  # all of them are correct
    expected = vldebias.rerank(SCORES, 40, labels=groups, checked=sample).report.expected
    assert expected is not None
    # A fifth of the results are labelled "4", and none of these were checked.
    assert expected["0"].high < 0.3
    assert sum(share.value for share in expected.values()) == pytest.approx(1)


def test_results_with_an_unknown_label_are_not_counted() -> None:
    partly = labels(0.8)
    partly[int(np.argmax(SCORES))] = ""
    first = vldebias.rerank(SCORES, 10, labels=partly)
    known = [row for row in first.tolist() if partly[row]]
    assert len(known) == 9
    expected = vldebias.rerank(SCORES, 10, labels=partly, checked=checked(known)).report.expected
    assert expected is not None
    assert expected["m"].value == pytest.approx(float((TRUE[known] == "m").mean()))


def test_equal_scores_and_separable_groups_are_fitted() -> None:
    codes = TRUE.tolist()
    for scores in (np.zeros(N), np.where(TRUE == "m", 1.0, 0.0)):
        expected = vldebias.rerank(scores, 40, labels=codes, checked=checked(range(60, 200))).report
        assert expected.expected is not None
        assert expected.expected["m"].low <= 0.5 <= expected.expected["m"].high


def test_to_check_is_a_sample_of_the_results_with_each_label() -> None:
    first = vldebias.rerank(SCORES, 40, labels=labels(0.8))
    rows = first.to_check(20)
    assert len(set(rows)) == 20
    assert set(rows) <= set(first.tolist())
    assert sorted(labels(0.8)[row] for row in rows) == ["f"] * 10 + ["m"] * 10
    again = vldebias.rerank(SCORES, 40, labels=labels(0.8), checked=checked(rows))
    assert set(again.to_check(100)) == set(first.tolist()) - set(rows)


def test_to_check_spreads_over_queries_and_returns_ids() -> None:
    ids = [f"photo {row}" for row in range(N)]
    by_id = dict(zip(ids, SCORES, strict=True))
    label_of_id = dict(zip(ids, labels(0.8), strict=True))
    first = vldebias.rerank(by_id, 40, labels=label_of_id)
    keys = first.to_check(30)
    true_of_key = {key: str(TRUE[ids.index(key)]) for key in keys}
    again = vldebias.rerank(by_id, 40, labels=label_of_id, checked=true_of_key)
    assert again.report.n_checked == 30
    two = vldebias.rerank(np.stack([SCORES, -SCORES]), 20, labels=labels(0.8))
    rows = two.to_check(30)
    assert all(len(set(rows) & set(one_list.tolist())) > 5 for one_list in two)


def test_checks_apply_to_the_queries_with_these_candidates() -> None:
    rows = np.stack([np.arange(0, 200), np.arange(200, 400)])
    first = vldebias.rerank(
        SCORES[rows], 20, ids=rows, labels=labels(0.8), checked=checked(range(50))
    )
    assert [query.n_checked for query in first.reports] == [50, 0]
    assert [query.expected is None for query in first.reports] == [False, True]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({0: "x"}, "expected one of \\['f', 'm'\\]"),
        ({0: None}, "got group None for 0"),
        ({"photo": "m"}, "rows or ids such as 0, got 'photo'"),
        (0.9, "expected a mapping"),
    ],
)
def test_mismatched_checks_are_rejected(rows: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"checked: .*{message}"):
        vldebias.rerank(SCORES, 10, labels=TRUE.tolist(), checked=rows)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("setting", RERANKED[1:5], ids=str)
def test_intervals_cover_the_true_shares(setting: Reranked) -> None:
    hits = []
    for seed in range(300):
        _, low, high = setting.draw(np.random.default_rng(seed))["true share"]
        hits.append(low <= 0 <= high)
    assert np.mean(hits) >= 0.92


def test_the_mode_is_found_where_a_full_newton_step_overshoots() -> None:
    rows = [[-3, -3, -127], [0, -5, 3], [405, 0, -41], [0, 358, 3], [4, 2, -7], [5, 9, 2]]
    inputs = np.array(rows, dtype=np.float64)
    is_group = np.ones(6, dtype=bool)
    mode, _ = _mode(inputs, is_group)
    height = _log_posterior(mode[None], inputs, is_group)[0]
    near = mode + 0.001 * np.random.default_rng(0).normal(size=(200, 3))
    assert _log_posterior(near, inputs, is_group).max() <= height + 1e-9


def test_to_check_draws_another_sample_unless_a_seed_is_given() -> None:
    first = vldebias.rerank(SCORES, 40, labels=labels(0.8))
    samples = {tuple(first.to_check(20)) for _ in range(5)}
    assert len(samples) > 1
    assert first.to_check(20, seed=1) == first.to_check(20, seed=1)


def test_checked_ids_that_are_no_candidates_are_counted() -> None:
    scores = {f"{n}.jpg": float(-n) for n in range(20)}
    groups = {name: "fm"[n % 2] for n, name in enumerate(scores)}
    seen = {**groups, "val/1.jpg": "f", "val/2.jpg": "m"}
    with pytest.warns(SuspectInputWarning, match=r"2 of 22 keys are no candidates .* 'val/1.jpg'"):
        vldebias.rerank(scores, 10, labels=groups, checked=seen)
