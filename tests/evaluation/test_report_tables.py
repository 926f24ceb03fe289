"""Tables of a result: every figure stands in one cell, methods down, measures or parts across."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_figures import figure, protocol, result

from vldebias.evaluation.report.front import forest
from vldebias.evaluation.report.tables import Table, blocks
from vldebias.evaluation.report.words import change, label, number, verdict
from vldebias.evaluation.result import Measurement

METHODS = ("none", "orth", "orth-cali")


def tables(rows: list[Measurement]) -> tuple[Table, ...]:
    (block,) = blocks(result(rows))
    return block.tables


def worst(method: str, value: float, **fields: object) -> Measurement:
    return figure(method, value, metric="worst_group", **fields)


def test_methods_down_and_measures_across() -> None:
    figures = [make(method, 0.3) for make in (worst, figure) for method in METHODS]
    (table,) = tables(figures)
    assert [row.title for row in table.rows] == list(METHODS)
    assert [column.title for column in table.columns] == ["worst-group accuracy", "average accuracy"]
    assert table.columns[0].hint == "higher is better; 100 images"
    assert table.rows[1].cells == (figures[1], figures[4])
    assert not table.detail


def test_a_missing_figure_is_an_empty_cell() -> None:
    (table,) = tables([worst("none", 0.1), worst("orth", 0.2), figure("none", 0.5)])
    assert [cell is None for cell in table.rows[1].cells] == [False, True]


def test_lambda_and_strength_are_named_where_a_method_has_several() -> None:
    swept = [worst("cali", 0.2, lam=lam, strength=1.0) for lam in (0.0, 200.0)]
    (table,) = tables([worst("none", 0.1), worst("orth-cali", 0.4, lam=1000.0), *swept])
    assert [row.title for row in table.rows] == ["none", "orth-cali", "cali, λ = 0", "cali, λ = 200"]
    (table,) = tables([worst("cali", 0.2, lam=500.0, strength=s) for s in (0.5, 1.0)])
    assert [row.title for row in table.rows] == ["cali, strength 0.5", "cali, strength 1"]


def test_methods_with_labels_have_a_dagger_and_are_not_in_the_conclusion() -> None:
    moved = {"change": (0.2, 0.1, 0.3)}
    made = result([worst("none", 0.1), worst("orth", 0.3, **moved), worst("dfr-up", 0.8, uses_labels=True, **moved)])
    (block,) = blocks(made)
    (table,) = block.tables
    assert [row.title for row in table.rows] == ["none", "orth", "dfr-up†"]
    assert table.has_labelled
    assert [list(by_method) for by_method in block.moved("bias")] == [["orth"]]
    assert block.moved("utility") == []


def test_few_parts_stand_across_with_their_counts() -> None:
    groups = {"landbird/land": 2255, "waterbird/land": 642}
    parts = [worst(m, 0.4, subset=g, n={"images": n}) for g, n in groups.items() for m in METHODS]
    (table,) = tables(parts)
    assert [(c.title, c.hint) for c in table.columns] == [
        ("landbird/land", "2,255 images"),
        ("waterbird/land", "642 images"),
    ]
    assert table.detail


def test_many_parts_stand_down() -> None:
    parts = [worst(m, 0.4, subset=f"query {i}") for i in range(10) for m in METHODS]
    (table,) = tables(parts)
    assert [column.title for column in table.columns] == list(METHODS)
    assert [row.title for row in table.rows] == [f"query {i}" for i in range(10)]


def test_parts_with_several_measures_are_a_table_each() -> None:
    parts = [
        figure(m, 0.4, metric=metric, subset=f"{part} professions", n={"professions": 80, "images each": 8})
        for part in ("train", "unseen")
        for metric in ("discrepancy", "unknown")
        for m in ("none", "cali")
    ]
    single = [figure("none", 0.4, metric="discrepancy", subset=name, n={"images": 8}) for name in ("nurse", "pilot")]
    found = tables(parts + single)
    assert [table.caption for table in found[:2]] == ["train professions", "unseen professions"]
    assert found[0].columns[0].title == "parity gap (L2)"
    assert [column.title for column in found[2].columns] == ["nurse", "pilot"]
    (block,) = blocks(result(parts + single))
    assert [f.subset for f in block.headline] == [f.subset for f in parts]


def test_many_measures_are_split_into_bias_and_utility() -> None:
    metrics = ("max_skew@5", "min_skew@5", "ndkl@5", "recall@1", "recall@5", "query_cosine")
    found = tables([figure("none", 0.5, metric=metric) for metric in metrics])
    assert [table.caption for table in found] == ["By method: bias", "By method: utility"]
    assert [column.title for column in found[0].columns] == ["MaxSkew@5", "MinSkew@5", "NDKL@5"]


names = st.sampled_from(METHODS)
keys = st.tuples(
    st.sampled_from(["worst_group", "average", "max_skew@10", "odd_name"]),
    names,
    st.sampled_from(["", "a", "b", "c", "d", "e", "f", "g"]),
    st.sampled_from([None, 0.0, 500.0]),
)


@pytest.mark.slow
@given(st.lists(keys, min_size=1, max_size=40, unique=True))
def test_every_figure_stands_in_exactly_one_cell(given_keys: list[tuple[str, str, str, float | None]]) -> None:
    figures = [
        figure(method, i / 100, metric=metric, subset=subset, lam=lam)
        for i, (metric, method, subset, lam) in enumerate(given_keys)
    ]
    found = Counter(one.value for table in tables(figures) for one in table.cells)
    assert found == Counter(f.value for f in figures)


def test_verdicts_follow_the_interval_of_the_change() -> None:
    assert verdict(figure()) == ""
    for better, expected in (("higher", "better"), ("lower", "worse")):
        assert verdict(figure("cali", change=(0.2, 0.1, 0.3), better=better)) == expected
        assert verdict(figure("cali", change=(0.1, -0.1, 0.3), better=better)) == "unclear"
        assert verdict(figure("cali", change=(0.0, 0.0, 0.0), better=better)) == "same"
    assert verdict(figure("cali", change=(0.2, 0.1, 0.3), better="neither")) == "changed"


def test_numbers_have_the_digits_of_their_size() -> None:
    assert number(figure("none", 0.47431)) == "0.474 [0.374, 0.574]"
    assert number(figure("none", 123.456)) == "123.5 [123.4, 123.6]"
    assert change(figure("cali", 0.5, change=(0.1, -0.2, 0.3))) == "+0.100 [-0.200, +0.300]"
    assert change(figure()) == ""
    assert label(figure("cali", lam=500.0, strength=0.5)) == "cali, λ = 500, strength 0.5"


def test_a_task_without_a_title_is_called_by_its_name() -> None:
    made = result([figure(), figure(task="other")], protocol(title="Birds (Table 7.2)"))
    assert [block.title for block in blocks(made)] == ["Birds (Table 7.2)", "other"]


def test_what_moved_is_of_one_measure_and_the_worst_part_is_named() -> None:
    moved = {"change": (-0.3, -0.4, -0.2), "n": {"professions": 80}}
    rows = [worst(m, 0.5, subset=s, **({} if m == "none" else moved)) for s in ("train", "unseen") for m in METHODS]
    rows += [figure(m, 0.9, subset="unseen", change=None if m == "none" else (0.0, 0.0, 0.0)) for m in METHODS]
    rows += [worst("orth", 0.2, subset="pilot", n={"images": 8}, change=(-0.5, -0.9, -0.1))]
    rows += [worst("orth", 0.2, subset="clerk", n={"images": 8}, change=(-0.7, -1.5, 0.1))]  # not beyond its interval
    (block,) = blocks(result(rows))
    (gains,), (costs,) = block.moved("bias"), block.moved("utility")
    assert {(r.method, r.metric, r.subset) for r in gains.values()} == {
        (method, "worst_group", "unseen") for method in ("orth", "orth-cali")
    }
    assert {(r.metric, r.subset) for r in costs.values()} == {("average", "unseen")}
    assert block.worst_part == (
        "Worst-group accuracy got worse for 1 of 2 parts under orth, most pilot: -0.500 [-0.900, -0.100]."
    )


def test_a_sweep_is_told_by_its_last_point_and_many_methods_are_cut() -> None:
    swept = [worst("cali", lam / 10, lam=lam, change=(lam / 10, 0.0, 1.0)) for lam in (1.0, 2.0, 3.0)]
    (block,) = blocks(result([worst("none", 0.0), *swept]))
    assert [by_method["cali"].lam for by_method in block.moved("bias")] == [3.0]
    many = [worst(f"m{i}", 0.4, change=(0.1, 0.0, 0.2)) for i in range(9)]
    (block,) = blocks(result([worst("none", 0.3), *many]))
    drawn = forest(block)
    assert drawn is not None
    assert ([name for name, _ in drawn.lines], drawn.more) == ([f"m{i}" for i in range(6)], 3)
