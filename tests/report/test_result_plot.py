"""Test the plot of a result: scales, bars and the chance band."""

import re
from itertools import pairwise, product

import pytest

from tests.study.made_figures import DOWN, bias, figure, protocol, result
from vldebias.report.conclusion import conclusions
from vldebias.report.page import front_rows
from vldebias.report.plots import dot_plots, dots, tradeoffs
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


def drawn_parts(svg: str) -> tuple[float, tuple[float, float], dict[str, float]]:
    """Return the height of an SVG, the top and bottom of its axes, and the lowest line of each
    text."""
    height = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', svg)[1])
    axes = svg[svg.index('id="axes_1"') :]
    corners = re.search(r' d="M ([^"]*)z', axes)[1].replace("L", " ").split()
    ys = sorted(map(float, corners[1::2]))
    texts = {}
    for attributes, text in re.findall(r"<text ([^>]*)>([^<]*)</text>", svg):
        y = re.search(r'(?: y="|translate\([\d.-]+ )([\d.]+)', attributes)[1]
        texts[text] = float(y)
    return height, (ys[0], ys[-1]), texts


@pytest.mark.parametrize("count", [1, 5, 25])
def test_axes_keep_their_size_and_the_legend_is_complete_for_any_number_of_methods(
    count: int,
) -> None:
    methods = [f"variant {i} of a projection with a name of two lines" for i in range(count)]
    recall = {"metric": "recall@5", "better": "higher", "task": "search"}
    rows = [bias("none", 0.5), figure("none", 0.9, **recall)]
    for method in methods:
        rows += [bias(method, 0.3, change=DOWN), figure(method, 0.7, change=DOWN, **recall)]
    made = result(rows, protocol("search"))
    frame = readable(made)
    front = front_rows(frame, conclusions(frame))
    (drawn,) = tradeoffs(front, frame, made.provenance)
    height, (top, bottom), texts = drawn_parts(drawn["svg"].decode())
    assert bottom - top == pytest.approx(2.05 * 72, abs=0.1)
    places = sorted(y for text, y in texts.items() if text.startswith("variant"))
    assert len(places) == count
    assert bottom < places[0]
    assert places[-1] < height - 9, "its second line is inside too"
    assert all(below - above > 9 for above, below in pairwise(places)), "no lines overlap"
    (values,) = dot_plots(front, made.provenance)
    height, (top, bottom), _ = drawn_parts(values["svg"].decode())
    assert 0 <= top < bottom <= height
    assert bottom - top > 14 * count
