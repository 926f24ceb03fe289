"""Pictures show what they are given: order, colours of methods, one axis for one measure."""

import numpy as np
import pytest
from made_figures import figure, result

from vldebias import methods
from vldebias.evaluation.report.charts import (
    charts,
    colour,
    dumbbells,
    file_slug,
    group_bars,
    lambda_curves,
    points,
)
from vldebias.evaluation.result import Measurement

METHODS = ("none", "orth", "cali")


def sweep() -> list[Measurement]:
    fixed = [figure(m, v, metric="worst_group") for m, v in (("none", 0.1), ("orth", 0.2))]
    return fixed + [
        figure("cali", 0.3 + i / 10, metric="worst_group", lam=lam) for i, lam in enumerate((0.0, 1.0, 1e3))
    ]


def test_dumbbells_join_before_and_after_in_the_order_of_before() -> None:
    axis = dumbbells(["a", "b", "c"], np.array([0.9, 0.1, 0.5]), np.array([0.2, 0.6, 0.5]), "shares").axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["b", "c", "a"]
    before, after = (points.get_offsets()[:, 0].tolist() for points in axis.collections[-2:])
    assert (before, after) == ([0.1, 0.5, 0.9], [0.6, 0.5, 0.2])


def test_bars_have_the_values_and_intervals_of_their_group() -> None:
    figures = [
        figure(m, v + i / 10, metric="accuracy", subset=g, n={"images": 7 + i})
        for i, g in enumerate(("a", "b"))
        for m, v in zip(METHODS, (0.2, 0.4, 0.6), strict=True)
    ]
    axes = group_bars(figures, by="subset").axes
    assert [axis.get_title() for axis in axes] == ["a\nn = 7", "b\nn = 8"]
    assert [bar.get_width() for bar in axes[1].patches] == pytest.approx([0.3, 0.5, 0.7])
    assert [label.get_text() for label in axes[0].get_yticklabels()] == list(METHODS)
    assert axes[0].get_xlim() == axes[1].get_xlim()
    (segments,) = (c.get_segments() for c in axes[0].collections if len(c.get_segments()) == 3)
    assert segments[0][:, 0] == pytest.approx([0.1, 0.3])


def test_random_rankings_are_a_band_behind_the_bars() -> None:
    rows = [figure("none", 0.5, metric="max_skew@20"), figure("random", 0.15, metric="max_skew@20")]
    (chart,) = charts(result(rows)).values()
    bands = [one for one in chart.plot.axes[0].patches if one.get_zorder() == 0]
    assert [(one.get_x(), one.get_x() + one.get_width()) for one in bands] == [pytest.approx(rows[1].interval)]
    assert chart.caption.endswith("Band: 95 % of random rankings.")
    assert not [one for one in group_bars(rows[:1], by="metric").axes[0].patches if one.get_zorder() == 0]


def test_a_method_keeps_its_colour() -> None:
    from matplotlib.colors import to_hex

    names = [*methods.METHODS, "a variant of mine"]
    axis = group_bars([figure(m) for m in names], by="metric").axes[0]
    shown = [to_hex(bar.get_facecolor()) for bar in axis.patches]
    assert shown[:-1] == [to_hex(method.color) for method in methods.METHODS.values()]
    assert shown[-1] == colour("a variant of mine")
    labelled = group_bars([figure(m, uses_labels=True) for m in METHODS], by="metric").axes[0]
    assert len({bar.get_facecolor() for bar in labelled.patches}) == 1


def test_curves_pass_through_every_lambda_and_zero_is_on_the_axis() -> None:
    axis = lambda_curves(sweep()).axes[0]
    line = next(line for line in axis.lines if line.get_label() == "cali")
    assert line.get_xdata().tolist() == [0.0, 1.0, 1000.0]
    assert line.get_ydata() == pytest.approx([0.3, 0.4, 0.5])
    levels = {line.get_label(): line.get_ydata()[0] for line in axis.lines if line.get_label() in ("none", "orth")}
    assert levels == {"none": 0.1, "orth": 0.2}
    assert axis.get_xscale() == "symlog"
    ticks = [tick.get_text() for tick in axis.get_xticklabels()]
    assert ticks[0] == "0"
    assert ticks[-1] == "1000"
    low, high = axis.collections[0].get_datalim(axis.transData).intervaly
    assert (low, high) == pytest.approx((0.2, 0.6))


def test_points_are_ordered_by_the_model_as_it_is() -> None:
    values = {"q1": 0.3, "q2": 0.1, "q3": 0.2}
    figures = [figure(m, v + (m == "cali"), subset=q) for q, v in values.items() for m in ("none", "cali")]
    axis = points(figures).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["q2", "q3", "q1"]


def test_charts_follow_the_figures() -> None:
    groups = [figure(m, 0.4, metric="accuracy", subset=g, task="a") for g in ("x", "y") for m in METHODS]
    queries = [
        figure(m, 0.4, metric=metric, subset=f"q{i}", task="b")
        for metric in ("max_skew@5", "ndkl@5")
        for i in range(8)
        for m in METHODS
    ]
    swept = [f.model_copy(update={"task": "a: lambda"}) for f in sweep()]
    made = result([figure("none", task="a"), figure("orth", task="a"), *groups, *swept, *queries])
    found = charts(made)
    assert [chart.task for chart in found.values()] == ["a", "a", "a: lambda", "b"]
    assert all(stem == file_slug(stem) for stem in found)
    assert "λ" in found["a-lambda-by-method"].caption
    assert charts(result([figure()])) == {}
    assert file_slug("fairface gender x race: MaxSkew@100") == "fairface-gender-x-race-maxskew@100"
