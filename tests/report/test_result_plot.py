"""Test the plot of a result: scales, bars and the chance band."""

from itertools import product

import pytest

from tests.study.made_figures import figure, protocol, result
from vldebias.report.plots import dots
from vldebias.report.table import readable


def test_a_measure_has_the_same_scale_in_all_tasks() -> None:
    rows = [
        figure(m, v, task=t, metric="worst_group")
        for (t, v), m in product((("b", 0.2), ("a", 0.9)), ("none", "cali"))
    ]
    axes = dots(readable(result(rows, protocol("b"), protocol("a")))).axes
    assert [drawn.get_title()[:3] for drawn in axes] == ["b: ", "a: "]
    assert axes[0].get_xlim() == axes[1].get_xlim()
    assert axes[0].get_xlim()[0] < 0 < 1 < axes[0].get_xlim()[1]
    assert [drawn.get_text() for drawn in axes[0].get_yticklabels()] == ["no method", "cali"]
    assert axes[0].get_ylim() == (1.5, -0.5), (
        "the first method is at the top, and no row is cut off"
    )
    four = result(
        [figure(task=t, metric="fid", value=v) for t, v in zip("abcd", (5, 7, 6, 5), strict=True)]
    )
    axes = four.plot().axes
    assert [drawn.get_visible() for drawn in axes] == [True] * 4 + [False] * 2, "three in a row"
    assert axes[0].get_xlim() == pytest.approx((-0.02 * 7.1, 1.02 * 7.1)), (
        "from 0 to the largest end of all"
    )
    # A metric without bounds also includes 0.
    for value, ends in (
        (0.5, (-0.02 * 0.6, 1.02 * 0.6)),
        (-0.5, (-1.02 * 0.6, 0.02 * 0.6)),
    ):
        assert result([figure(metric="cosine", value=value)]).plot().axes[
            0
        ].get_xlim() == pytest.approx(ends)
    rows = [
        figure("none", 0.5, metric="gap"),
        figure("random", 0.3, metric="gap"),
        figure("x", 0.4, metric="gap"),
    ]
    (axis,) = dots(
        readable(result([rows[0], rows[1], rows[2].model_copy(update={"interval": (0.1, 0.45)})]))
    ).axes
    (band,) = axis.patches
    assert band.get_extents().x0 == axis.transData.transform((0.2, 0))[0]
    assert axis.lines[0].get_xdata() == [0.5, 0.5]
    bars = [container.lines[2][0].get_segments()[0] for container in axis.containers]
    assert [bar[:, 0].tolist() for bar in bars] == [
        pytest.approx([0.4, 0.6]),
        pytest.approx([0.1, 0.45]),
    ]
