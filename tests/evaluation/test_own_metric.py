"""A metric of another package, in one file: measured beside the others, and told with its title and direction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from groups_parts import birds, measure
from made_figures import figure, protocol, result

from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.evaluation.report import grids, lines, render, told
from vldebias.evaluation.result import Result, TaskResult
from vldebias.evaluation.retrieval import Gallery
from vldebias.evaluation.shares import add_shares
from vldebias.metrics import METRICS, Metric, register_metric
from vldebias.metrics.metric import get_metric, metric_of

MINE = """
import numpy as np
from vldebias.metrics import Metric


def over_groups(hits, size):
    return (hits / np.maximum(size, 1)).sum(-1) / (size > 0).sum(-1)


def most_shown(counts):
    return (counts / counts.sum(-1, keepdims=True)).max(-1)


def first_group(groups, prior):
    return (groups[:, 0] == 0).astype(float)


MACRO = Metric("macro", "mean over the groups", "utility", "higher", (0, 1), "groups", over_groups)
SHOWN = Metric("most_shown", "share of the value that is shown most", "bias", "lower", (0, 1), "shares", most_shown)
FIRST = Metric("first_group", "first place goes to the first group", "bias", "lower", (0, 1), "rankings", first_group)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed beside this package as pip would."""
    about = tmp_path / "site" / "mine-1.0.dist-info"
    about.mkdir(parents=True)
    (about.parent / "mine_metrics.py").write_text(MINE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    points = "".join(f"{name.lower()} = mine_metrics:{name}\n" for name in ("MACRO", "SHOWN", "FIRST"))
    (about / "entry_points.txt").write_text(f"[vldebias.metrics]\n{points}")
    monkeypatch.syspath_prepend(about.parent)
    monkeypatch.setattr(METRICS, "_searched", False)


@pytest.fixture
def measured(mine: None) -> Result:
    return Result.of("birds", measure(birds(600, noise=1.0), methods=("orth",)), seconds=1.0)


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="kind: expected one of"):
        Metric("mine", "mine", kind="nonsense")


def test_it_is_measured_with_an_interval_and_a_paired_change(measured: Result) -> None:
    none, orth = (measured.row("birds", "macro", method) for method in ("none", "orth"))
    for row in (none, orth):
        groups = [r.value for r in measured.rows if (r.metric, r.method) == ("accuracy", row.method)]
        assert row.value == pytest.approx(np.mean(groups))
    assert none.change is None
    assert orth.change is not None
    assert orth.change[0] == pytest.approx(orth.value - none.value)
    for row in (none, orth):
        assert 0 <= row.interval[0] < row.value < row.interval[1] <= 1
    told = measured.to_pandas().set_index(["metric", "method"]).loc[("macro", "orth")]
    assert told.better == "higher"


def test_tables_page_and_conclusion_call_it_by_its_title(measured: Result, tmp_path: Path) -> None:
    frame = told(measured)
    heads = [one for _, heads, _, _ in grids(frame[~frame.task.str.contains("cosines")]) for one in heads]
    assert "mean over the groups (higher is better)" in heads
    page = render(measured, tmp_path / "page.html", beside=tmp_path).read_text()
    assert "mean over the groups" in page
    assert "macro" not in page
    rows = [figure("none", 0.5, metric="worst_group"), figure("none", 0.9, metric="macro")]
    rows += [figure("orth", 0.7, metric="worst_group", change=(0.2, 0.1, 0.3))]
    rows += [figure("orth", 0.7, metric="macro", change=(-0.2, -0.3, -0.1))]
    (line,) = lines(told(result(rows)))
    assert line.costs == "mean over the groups -0.200 [-0.300, -0.100]"


def test_one_of_shares_and_one_of_rankings_are_measured_too(mine: None) -> None:
    counts = {"none": np.array([[3, 1, 0], [2, 2, 0]])}
    drawn = TaskResult(protocol(task="generation gender"))
    add_shares(drawn, ("male", "female"), counts, ["nurse", "pilot"], subset="train professions", resamples=20)
    (row,) = [row for row in drawn.rows if row.metric == "most_shown"]
    assert row.value == (3 / 4 + 2 / 4) / 2
    gallery = Gallery(Labels(np.array([0, 0, 1, 1]), ("a", "b")), [2])
    values = gallery.measure(gallery.codes[[[0, 1, 2, 3], [2, 3, 0, 1], [1, 2, 3, 0]]], gallery.prior)
    assert values["first_group@2"].tolist() == [1, 0, 1]
    assert get_metric("first_group@2").title == "first place goes to the first group@2"


def test_a_name_means_one_metric_and_an_unknown_one_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"metric 'gap': .*taken"):
        register_metric(Metric("gap", "another gap"))
    with pytest.raises(InvalidInputError, match="'gap'"):
        register_metric("gap")  # type: ignore[arg-type]
    part = TaskResult(protocol())
    with pytest.raises(InvalidInputError, match=r"metric: expected one of worst_group, .*did you mean 'accuracy'"):
        part.add("acuracy", "none", 0.5, n={})
    assert metric_of("of_another_package@5") == Metric("of_another_package@5", "of another package@5", "bias")


def test_none_chance_and_facts_have_no_change_and_intervals_end_at_the_bounds() -> None:
    part = TaskResult(protocol())
    values = {"none": 0.1, "random": 0.2, "cali": 0.3}
    draws = dict.fromkeys(values, np.linspace(-1, 1, 9))
    part.add_draws("gap", values, draws, n={"images": 9})
    part.add_draws("share", values, draws, n={"images": 9})
    assert [row.change is None for row in part.rows] == [True, True, False, True, True, True]
    assert {row.interval[0] for row in part.rows} == {0.0}
