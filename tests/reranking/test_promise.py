"""What the report promises of true shares, and how often it holds."""

from __future__ import annotations

import numpy as np
import pytest

import vldebias
from eval.experiments.rerank_coverage import SETTINGS, Setting
from vldebias.errors import InvalidInputError
from vldebias.reranking import expected_shares

SCORES = np.linspace(1, 0, 40)
LABELS = np.array(["m", "f"])[np.arange(40) % 2]


def test_labels_that_are_right_promise_their_own_shares() -> None:
    report = vldebias.rerank(SCORES, 10, labels=LABELS, accuracy=1.0).report
    assert report.expected is not None
    share = report.expected["m"]
    assert share.value == 0.5
    assert 0.45 <= share.low < 0.5 < share.high <= 0.55  # half a candidate to either side


def test_labels_by_chance_promise_nothing() -> None:
    report = vldebias.rerank(SCORES, 10, labels=LABELS, accuracy=0.5).report
    assert report.expected is not None
    low, high = report.expected["m"][1:]
    assert high - low > 0.7


def test_better_labels_promise_more() -> None:
    widths = []
    for accuracy in (0.7, 0.85, 0.95):
        expected = vldebias.rerank(SCORES, 10, labels=LABELS, accuracy=accuracy).report.expected
        assert expected is not None
        widths.append(expected["m"].high - expected["m"].low)
    assert widths == sorted(widths, reverse=True)


def test_first_results_are_not_like_all() -> None:
    """Where the scores prefer one group, labels of the other are wrong more often at the top."""
    rng = np.random.default_rng(0)
    true = np.arange(4000) % 2
    codes = np.where(rng.random(4000) < 0.85, true, 1 - true)
    scores = rng.normal(size=4000) + 2.0 * (true == 0)
    first = vldebias.rerank(scores, 400, labels=codes)
    actual = float((true[first] == 0).mean())
    expected = expected_shares(scores, codes, np.asarray(first), ["a", "b"], 0.85)
    assert actual > 0.55  # and not the half that its labels say
    assert expected["a"].low <= actual <= expected["a"].high
    assert expected["a"].low > 0.5


@pytest.mark.parametrize(
    "accuracy",
    [0.9, {"m": 0.95, "f": 0.85}, [[0.9, 0.1], [0.2, 0.8]], np.array([[45, 5], [8, 42]])],
)
def test_accuracy_in_every_form(accuracy: object) -> None:
    report = vldebias.rerank(SCORES, 10, labels=LABELS, accuracy=accuracy).report
    expected = report.expected
    assert expected is not None
    assert sum(share.value for share in expected.values()) == pytest.approx(1)
    assert "true shares" in str(report)
    assert report.to_dict()["expected"]["m"] == list(expected["m"])


def test_a_small_labelled_sample_promises_less() -> None:
    widths = []
    for size in (10, 1000):
        table = np.array([[0.9, 0.1], [0.1, 0.9]]) * size
        expected = vldebias.rerank(SCORES, 10, labels=LABELS, accuracy=table).report.expected
        assert expected is not None
        widths.append(expected["m"].high - expected["m"].low)
    assert widths[0] > widths[1]


@pytest.mark.parametrize(
    "accuracy",
    [1.2, np.nan, "high", {"m": 0.9}, {"m": "x", "f": 1}, np.ones((3, 3)), np.zeros((2, 2))],
)
def test_accuracy_that_does_not_fit_is_refused(accuracy: object) -> None:
    positions = vldebias.rerank(SCORES, 10, labels=LABELS, accuracy=accuracy)
    with pytest.raises(InvalidInputError, match="accuracy"):
        _ = positions.report.expected


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS[:3], ids=str)
def test_intervals_cover_what_they_promise(setting: Setting) -> None:
    hits = [setting.covered(seed) for seed in range(300)]
    assert 0.915 <= np.mean(hits) <= 0.985
