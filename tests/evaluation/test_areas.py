"""Areas by attribute value: the fast resamples against the plain metric, and what the number says."""

import numpy as np
import pytest
from groups_parts import PROMPTS, birds, measure, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.data import Labels
from vldebias.evaluation.accuracies import AreaRows
from vldebias.metrics import worst_group_auc
from vldebias.metrics.groups import Area


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), levels=st.sampled_from([3, 1000]))
def test_a_resample_is_the_area_of_the_rows_that_it_repeats(seed: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    scores, positive = rng.integers(levels, size=30).astype(float), np.arange(30) % 3 == 0
    weights = rng.integers(0, 4, size=(5, 30)).astype(np.int32)
    weights[:, :2] = 1
    areas = Area.of(scores, positive, np.ones(30, dtype=bool)).of_resamples(weights)
    for area, times in zip(areas, weights, strict=True):
        rows = np.repeat(np.arange(30), times)
        assert area == pytest.approx(worst_group_auc(scores[rows], positive[rows], np.zeros(len(rows))))


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
        sheets = [Area.of(given, positive, r) for r in (values.codes == 0, values.codes == 1)]
        return min(float(sheet.of_resamples(np.ones((1, 200), dtype=np.int32))[0]) for sheet in sheets)

    assert area(scores + 3.0 * values.codes) == pytest.approx(area(scores))
    assert area(scores + positive) > area(scores)


def test_a_value_that_shows_one_class_alone_has_no_area() -> None:
    positive, codes = np.array([True, True, False, True]), np.array([0, 0, 1, 1])
    rows = AreaRows(positive, Labels(codes, ("a", "b")))
    assert [r.tolist() for r in rows.compared] == [[False, False, True, True]]
