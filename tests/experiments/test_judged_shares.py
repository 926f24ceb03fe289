"""The simulation of corrected shares: what the committed one holds, and that it can fail."""

from collections import defaultdict

from eval.experiments.judged_shares import LABELS, SETTINGS, UNSURE, simulate
from eval.tables import read

SETS = 400
WIDTH = (UNSURE.name, "width")


def test_committed_intervals_cover_and_the_judge_alone_does_not():
    rows = {(r.task, r.method, r.subset): r.value for r in read("judged_shares").rows if r.metric == "coverage"}
    assert len(rows) == (4 * len(SETTINGS) + 2) * len(LABELS)
    noise = 3.3 * (0.95 * 0.05 / SETS) ** 0.5
    cells = defaultdict(list)
    for (task, method, labels), value in rows.items():
        if method == "share, judge alone":
            assert value < 0.05, task
        elif method.endswith("confidence"):  # few labels of each of many strata: it holds more
            assert value >= 0.95 - noise, labels
        else:
            assert abs(value - 0.95) <= noise, (task, method, labels)
            cells[method, labels].append(value)
    for what, values in cells.items():  # over all judges, so that less of it is noise
        assert 0.93 <= sum(values) / len(values) <= 0.97, what


def test_drawn_by_the_judges_confidence_they_are_narrower():
    width = {(r.method, r.subset): r.value for r in read("judged_shares").rows if (r.task, r.metric) == WIDTH}
    for labels in LABELS[1:]:  # of 50 some strata get more than their share
        alike, drawn = (
            width[f"share, corrected{how}", f"{labels} labels"] for how in ("", ", drawn by its confidence")
        )
        assert drawn < 0.9 * alike, labels


def test_the_example_is_wrong_by_the_judge_and_right_by_people():
    rows = {(r.metric, r.subset): r for r in read("judged_shares").rows if r.task == "example corrected"}
    assert rows["discrepancy", ""].interval[0] > 0.2
    assert rows["corrected_discrepancy", ""].interval[0] == 0
    low, high = rows["corrected_share", "male"].interval
    assert low <= 0.485 <= high


def test_a_quick_look():
    found = simulate(SETTINGS[0], labels=100, sets=60, seed=1)
    assert found["share, corrected"]["coverage"] >= 0.88
    assert found["share, judge alone"]["coverage"] == 0
    assert found["share, corrected"]["width"] < found["share, people alone"]["width"]
