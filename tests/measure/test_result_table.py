"""The table of a result: which cell a figure stands in, and what was published beside it."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.study.made_figures import DOWN, figure, protocol, result
from vldebias.measure.page import grids
from vldebias.measure.table import published, readable
from vldebias.measure.text import text


def test_parts_with_several_measures_are_the_whole_of_a_task_that_has_none() -> None:
    rows = []
    for part, metric in product(
        ("train professions", "unseen professions"), ("discrepancy", "unknown")
    ):
        names = {"metric": metric, "subset": part, "better": "lower"}
        rows.append(figure("none", 0.5, **names))
        rows.append(figure("cali", 0.5, change=DOWN, **names))
    t = readable(result(rows, protocol()))
    assert t.whole.all()
    (conclusion,) = result(rows, protocol()).conclusions()
    assert conclusion.subset == "unseen professions"
    many = [
        figure("cali", metric=m, subset=s, n={"jobs": 3})
        for m, s in product(("discrepancy", "unknown"), "abcd")
    ]
    assert readable(result(rows + many, protocol())).whole.tolist() == [True] * 8 + [False] * 8, (
        "four are many"
    )


PARTS = (
    ["average", "gap", "max_skew@5", "ndkl@5", "recall@1"],
    ["none", "cali"],
    ["", *"abcdef"],
    [None, 1.0, 2.0],
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*map(st.sampled_from, PARTS)), min_size=1, max_size=30, unique=True))
def test_every_figure_stands_in_exactly_one_cell(
    keys: list[tuple[str, str, str, float | None]],
) -> None:
    rows = [
        figure(m, i / 100, metric=k, subset=s, lam=lam) for i, (k, m, s, lam) in enumerate(keys)
    ]
    t = readable(result(rows, protocol()))
    cells = []
    for _, _, rows_of_grid, _ in grids(t):
        for _, row in rows_of_grid:
            cells += [c.value for c in row if c is not None]
    assert sorted(cells) == [i / 100 for i in range(len(keys))]


def test_published_figures_stand_beside_the_rows_that_repeat_them() -> None:
    row = figure("orth-cali", 0.7, task="waterbirds", metric="worst_group", lam=1000.0)
    repeated = result([row], protocol("waterbirds", model="RN50/openai"), name="waterbirds")
    assert readable(repeated).published.tolist() == [0.740]
    assert "published: orth-cali 0.740" in text(repeated)
    for unrelated in (
        result([row], protocol("waterbirds", model="ViT-H"), name="waterbirds"),
        result([row], protocol()),
    ):
        assert readable(unrelated).published.isna().all()
    assert published("fairface", "ViT-B/32")["fairface race", "max_skew@1000", "none", ""] == 0.743
    for model in ("RN50", "ViT-L/14"):
        figures = published("celeba", model)
        for method in {key[2] for key in figures}:
            worst, average, gap = (
                figures["celeba", metric, method, ""]
                for metric in ("worst_group", "average", "gap")
            )
            assert average - worst == pytest.approx(gap, abs=0.0011)
