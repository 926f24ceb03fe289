"""Areas by attribute value: the fast resamples against the plain metric, and what the number says."""

import numpy as np
import pytest
from groups_parts import PROMPTS, birds, measure, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.data import Labels
from vldebias.evaluation.accuracies import AreaRows
from vldebias.metrics import worst_group_auc
from vldebias.metrics.groups import placements


def naive(scores: np.ndarray, positive: np.ndarray) -> float:
    """Of all pairs of a positive row and another the share that is in order; a tie counts half."""
    pairs = np.sign(scores[positive][:, None] - scores[~positive])
    return float((pairs + 1).mean() / 2)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), levels=st.sampled_from([3, 1000]))
def test_the_mean_placement_of_either_class_is_the_share_of_ordered_pairs(seed: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    scores, positive = rng.integers(levels, size=30).astype(np.float32), np.arange(30) % 3 == 0
    for kind in placements(scores, positive):
        assert kind.mean() == pytest.approx(naive(scores, positive))
    assert worst_group_auc(scores, positive, np.zeros(30)) == pytest.approx(naive(scores, positive))


class Rows:
    """Takes the rows of a result: method -> (value, interval of the value, interval of the change)."""

    def __init__(self) -> None:
        self.by_method: dict[str, tuple[float, np.ndarray, np.ndarray]] = {}

    def add_draws(self, metric: str, values: dict, draws: dict, *, n: dict) -> None:
        self.by_method = {
            method: (value, np.quantile(draws[method], ENDS), np.quantile(draws[method] - draws["none"], ENDS))
            for method, value in values.items()
        }


ENDS = (0.025, 0.975)


def test_draws_by_covariance_are_those_of_resampled_rows() -> None:
    """The bootstrap that they take the place of: rows drawn with replacement, the worst value picked in each."""
    rng, n = np.random.default_rng(3), 500
    positive, codes, shared = rng.random(n) < 0.4, rng.integers(2, size=n), rng.normal(size=n)
    scores = {
        method: positive * (1 + gain) + 0.3 * codes * positive + shared + 0.5 * rng.normal(size=n)
        for method, gain in (("none", 0.0), ("better", 0.4))
    }
    drawn = Rows()
    AreaRows(positive, Labels(codes, ("a", "b")), 4000).add(drawn, scores)  # type: ignore[arg-type]
    resampled = {method: np.empty(1500) for method in scores}
    for b in range(1500):
        rows = rng.integers(n, size=n)
        for method, own in scores.items():
            parts = [rows[codes[rows] == value] for value in (0, 1)]
            resampled[method][b] = min(naive(own[part], positive[part]) for part in parts)
    for method, (_, interval, change) in drawn.by_method.items():
        assert interval == pytest.approx(np.quantile(resampled[method], ENDS), abs=0.01)
        assert change == pytest.approx(np.quantile(resampled[method] - resampled["none"], ENDS), abs=0.01)
    assert np.ptp(drawn.by_method["none"][1]) > 0.05, "the tolerance is far below the widths"
    assert np.ptp(drawn.by_method["none"][2]) == 0


def test_a_class_of_one_row_varies_by_the_other_class_alone() -> None:
    positive, scores = np.array([True, False, False, False, False]), np.array([2.0, 0.0, 1.0, 3.0, 4.0])
    rows = Rows()
    AreaRows(positive, Labels(np.zeros(5, dtype=int), ("a",)), 500).add(rows, {"none": scores})  # type: ignore[arg-type]
    value, (low, high), _ = rows.by_method["none"]
    assert value == 0.5
    assert low < 0.5 < high


def test_the_evaluator_gives_the_plain_metric_with_an_interval() -> None:
    data = birds(600, noise=1.0)
    part = measure(data, methods=("orth", "cali"), resamples=300)[0]
    rows = {row.method: row for row in part.rows if row.metric == "worst_group_auc"}
    scores = data.normalised() @ texts().embed(PROMPTS.classes).float().T
    label, place = data.column("label").codes, data.column("place").codes
    expected = worst_group_auc((scores[:, 1] - scores[:, 0]).numpy(), label == 1, place)
    assert list(rows) == ["none", "orth", "cali"]
    assert rows["none"].value == pytest.approx(expected)
    for method, row in rows.items():
        low, high = row.interval
        assert low <= row.value <= high
        assert high - low > 0
        assert (row.change is None) == (method == "none")


def test_a_shift_of_all_scores_of_a_value_changes_nothing() -> None:
    """The area sees the order inside a value alone: what moves the boundary of all its images is not seen."""
    rng = np.random.default_rng(0)
    positive, values = rng.random(200) < 0.5, Labels(rng.integers(0, 2, 200), ("a", "b"))
    scores = rng.normal(size=200) + positive

    def area(given: np.ndarray) -> float:
        return worst_group_auc(given, positive, values.codes)

    assert area(scores + 3.0 * values.codes) == pytest.approx(area(scores))
    assert area(scores + positive) > area(scores)


def test_a_value_that_shows_one_class_alone_has_no_area() -> None:
    positive, codes = np.array([True, True, False, True]), np.array([0, 0, 1, 1])
    rows = AreaRows(positive, Labels(codes, ("a", "b")))
    assert [r.tolist() for r in rows.compared] == [[False, False, True, True]]
