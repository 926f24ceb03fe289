"""The simulation of corrected shares: what the committed one holds, and that it can fail."""

from eval.experiments.judged_shares import LABELS, SETTINGS, simulate
from eval.tables import read


def test_committed_intervals_cover_and_the_judge_alone_does_not():
    rows = {(r.task, r.method, r.subset): r.value for r in read("judged_shares").rows if r.metric == "coverage"}
    assert len(rows) == 4 * len(SETTINGS) * len(LABELS)
    for (task, method, labels), value in rows.items():
        if method == "share, judge alone":
            assert value < 0.05, task
        elif method.startswith("share"):
            assert 0.925 <= value <= 0.976, (task, method, labels)
        else:
            assert 0.93 <= value <= 0.99, (task, method, labels)


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
