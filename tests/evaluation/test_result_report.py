"""Reports of made-up results: verdicts, what opens a page, tables, comparisons, and that names may hold anything."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_figures import figure, protocol, result
from PIL import Image
from rich.console import Console

from vldebias.errors import InvalidInputError
from vldebias.evaluation.pages import (
    charts,
    curves,
    dots,
    dumbbells,
    on_miniature,
    parts,
    render,
    write_comparison,
)  # fmt: skip
from vldebias.evaluation.report import (
    compare,
    evidence,
    grids,
    latex,
    lines,
    markdown,
    markdown_table,
    opening,
    plain,
    print_comparison,
    print_table,
    published,
    tab_rows,
    text,
    told,
    verdict_on,
)  # fmt: skip
from vldebias.evaluation.result import Result
from vldebias.pictures import save_png

DOWN, UP, STILL = (-0.2, -0.3, -0.1), (0.2, 0.1, 0.3), (0.01, -0.1, 0.1)


def bias(method: str, value: float, **fields: Any) -> Any:
    return figure(method, value, **{"metric": "max_skew@10", "better": "lower", "task": "search", **fields})


def kept(method: str, value: float, **fields: Any) -> Any:
    return figure(method, value, **{"metric": "recall@5", "better": "higher", "task": "search", **fields})


@pytest.fixture
def made() -> Result:
    nurses = (bias(m, 0.5, subset="a nurse", change=c, n={"images": 7}) for m, c in (("none", None), ("default", UP)))
    doctors = (
        bias(m, 0.5, subset="a doctor", change=c, n={"images": 7}) for m, c in (("none", None), ("default", STILL))
    )
    rows = [
        bias("none", 0.5),
        bias("default", 0.3, change=DOWN),
        bias("cali", 0.2, change=(-0.3, -0.4, -0.2)),
        bias("dfr-up", 0.1, change=(-0.4, -0.5, -0.3), uses_labels=True),
        bias("random", 0.1),
        kept("none", 0.9),
        kept("default", 0.8, change=(-0.1, -0.2, -0.05)),
        kept("cali", 0.9, change=STILL),
        *nurses,
        *doctors,
    ]
    return result(rows, protocol("search", title="Search"))


def printed(show: Any, shown: Any, width: int = 150) -> str:
    console = Console(record=True, width=width)
    show(shown, console)
    return console.export_text()


# ---- verdicts, and what opens a report -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "better", "said"),
    [(UP, "higher", "better"), (UP, "lower", "worse"), (DOWN, "lower", "better"), (UP, "neither", "changed"),
     (STILL, "higher", "unclear"), ((0.0, 0.0, 0.0), "lower", "same"), ((0.1, 0.0, 0.2), "higher", "unclear")],
)  # fmt: skip
def test_a_verdict_is_said_only_where_the_interval_excludes_zero(change: Any, better: str, said: str) -> None:
    assert verdict_on(change, better) == said


@pytest.mark.parametrize(("none", "nothing"), [(0.05, True), (0.19, True), (0.5, False)])
def test_no_verdict_where_none_is_no_more_biased_than_chance(none: float, nothing: bool) -> None:
    rows = [bias("none", none), bias("default", 0.3, change=UP), bias("random", 0.1)]  # chance: .0 to .2
    one = result(rows, protocol("search"))
    assert told(one).query("method == 'default'").verdict.tolist() == ["" if nothing else "worse"]
    (line,) = lines(told(one))
    assert (line.verdict, line.chance) == ("nothing to remove" if nothing else "worse", "0.100")
    assert ("Nothing to remove" in printed(print_table, one)) == nothing


def test_the_opening_names_the_method_that_moved_its_cost_chance_and_who_got_worse(made: Result) -> None:
    first, cost = opening(told(made))
    for word in ("MaxSkew@10", "search", "0.500", "0.300", "default", "chance 0.100"):
        assert word in first
    assert "-0.100" in cost
    (line,) = lines(told(made))
    assert (line.before, line.after, line.verdict, line.row.method) == ("0.500", "0.300", "better", "default")
    assert "recall@5" in line.costs
    for word in ("a nurse", "default", "1 of 2", "+0.200"):
        assert word in line.worse


def test_without_the_default_the_method_that_gains_most_speaks_and_none_with_labels(made: Result) -> None:
    (line,) = lines(told(made.model_copy(update={"rows": [r for r in made.rows if r.method != "default"]})))
    assert line.row.method == "cali"
    assert "unclear" in line.costs


def test_the_corrected_gap_leads_as_a_root_with_its_sign_beside_a_chance_of_zero() -> None:
    values = {"discrepancy": (0.373, 0.111), "discrepancy_squared": (0.167, -0.004)}
    rows = [figure(m, pair[m == "default"], metric=k, better="lower", change=c)
            for k, pair in values.items() for m, c in (("none", None), ("default", DOWN))]  # fmt: skip
    (line,) = lines(told(result(rows, protocol())))
    assert (line.before, line.after, line.chance) == (f"{0.167**0.5:.3f}", f"{-(0.004**0.5):.3f}", "0")


def test_a_cost_is_the_average_of_the_training_groups_where_it_is_known_and_no_cosine() -> None:
    rows = [figure("none", 0.5, metric="worst_group"), figure("cali", 0.7, metric="worst_group", change=UP)]
    rows += [figure("cali", 0.9, metric="average", change=UP)]
    rows += [figure("cali", 0.7, metric=k, change=DOWN) for k in ("average_reweighted", "query_cosine")]
    (line,) = lines(told(result(rows, protocol())))
    assert [one.metric for one in line.cost] == ["average_reweighted"]
    assert "reweighted" in line.costs


def test_texts_that_moved_are_no_task_won(made: Result) -> None:
    texts = [figure(m, v, task="x", metric="cosine_spread", better="lower", change=c)
             for m, v, c in (("none", 0.5, None), ("default", 0.1, DOWN))]  # fmt: skip
    both = result([*made.rows, *texts], protocol("search"), protocol("x"))
    assert "cosines" not in " ".join(opening(told(both)))
    assert "cosines" in opening(told(result(texts, protocol("x"))))[0]
    assert opening(told(result([figure()], protocol()))) == []


def test_parts_with_several_measures_are_the_whole_of_a_task_that_has_none() -> None:
    rows = [
        figure(m, 0.5, metric=metric, subset=part, better="lower", change=None if m == "none" else DOWN)
        for part in ("train professions", "unseen professions")
        for metric in ("discrepancy", "unknown")
        for m in ("none", "cali")
    ]
    t = told(result(rows, protocol()))
    assert t.whole.all()
    assert [line.row.subset for line in lines(t)] == ["unseen professions"]


# ---- tables ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["average", "gap", "max_skew@5", "ndkl@5", "accuracy", "recall@1"]),
            st.sampled_from(["none", "cali"]),
            st.sampled_from(["", *"abcdefgh"]),
            st.sampled_from([None, 1.0, 2.0]),
        ),
        min_size=1,
        max_size=30,
        unique=True,
    )
)
def test_every_figure_stands_in_exactly_one_cell(keys: list[tuple[str, str, str, float | None]]) -> None:
    rows = [figure(m, i / 100, metric=k, subset=s, lam=lam) for i, (k, m, s, lam) in enumerate(keys)]
    t = told(result(rows, protocol()))
    cells = [c.value for grid in grids(t) for _, row in grid.rows for c in row if c is not None]
    assert sorted(cells) == [i / 100 for i in range(len(keys))]


def test_names_and_numbers_of_rows(made: Result) -> None:
    """Lambda where a method has several, a dagger with labels, digits by size."""
    rows = [figure("cali", 0.5, lam=lam) for lam in (1.0, 10.0)] + [figure("orth", 123.456, lam=5.0)]
    t = told(result(rows, protocol()))
    assert t.name.tolist() == ["cali, λ = 1", "cali, λ = 10", "orth"]
    assert t.number.tolist()[1:] == ["0.500 [0.400, 0.600]", "123.5 [123.4, 123.6]"]
    assert "dfr-up†" in set(told(made).name)
    assert "labels of training images" in markdown(made)


def test_print_of_a_result_is_a_table_of_at_most_forty_lines_of_all_tasks() -> None:
    many = [figure(f"m{i}", 0.5, metric=k) for k in ("average", "gap", "worst_group") for i in range(30)]
    shown = str(result(many, protocol()))
    assert shown.count("\n") < 40
    assert "more rows: to_pandas()" in shown
    tasks = [figure(m, 0.5, task=t, metric=k) for t in "abc" for k in ("average", "gap", "ndkl@5") for m in "xyzuvw"]
    assert {line[0] for line in text(result(tasks, *map(protocol, "abc"))).splitlines()} >= set("abc")
    assert str(result([], protocol())).startswith("Result(")


def test_the_terminal_fits_eighty_columns_and_counts_the_rest(made: Result) -> None:
    shown = printed(print_table, made, width=80)
    assert max(map(len, shown.splitlines())) <= 80
    for value in ("0.500 [0.400, 0.600]", "better", "4 more figures"):
        assert value in shown
    head, rows = tab_rows(made, [("search", "max_skew@10")])
    second = dict(zip(head, rows[1], strict=True))
    assert (second["value"], second["verdict"]) == (0.3, "better")
    assert {row[3] for row in rows} == {"none", "default", "cali", "dfr-up", "chance"}


def test_markdown_and_latex_escape_what_would_break_them(made: Result) -> None:
    odd = result([figure("a_b|c%", 0.5, task="t & u")], protocol("t & u"))
    assert r"a_b\|c%" in markdown(odd)
    for escaped in (r"a\_b|c\%", r"t \& u", r"\toprule"):
        assert escaped in latex(odd)
    assert "0.300 [0.200, 0.400]*" in latex(made)
    table = markdown_table(made, [("search", "recall@5"), ("search", "max_skew@10", "a nurse")])
    assert len(table.splitlines()) == 2 + 3 + 2


# ---- pages -----------------------------------------------------------------------------------------------------


def test_a_page_is_one_safe_file_with_the_summary_before_everything_else(made: Result, tmp_path: Path) -> None:
    odd = made.model_copy(update={"provenance": [protocol("search", description="<script>alert(1)</script>")]})
    page = render(odd, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page.replace("data:image", "")
    first = page.index("<details")
    for word in ("ViT-L-14/openai", "Bias fell", "with it", "not recorded", "download", "Who got worse", "a nurse"):
        assert page.index(word) < first
    assert (tmp_path / "index.csv").read_text().startswith("task,metric,method,subset,value")


def test_pictures_of_the_run_stand_with_their_task_and_images_open_the_page(made: Result, tmp_path: Path) -> None:
    captions = {"a": "shares", "b-side-by-side": "images", "c": "of another run"}
    for stem, caption in captions.items():
        about = {"run": "y" if stem == "c" else "x", "task": "search", "caption": caption}
        save_png(Image.new("RGB", (4, 4), "red"), tmp_path / f"{stem}.png", about)
    page = render(made, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert page.index('alt="images"') < page.index("<details") < page.index('alt="shares"')
    assert "of another run" not in page


def test_names_may_hold_anything(tmp_path: Path) -> None:
    odd = "$\\frac{a}$ <b>[red]人\x07%_"
    rows = [figure(m, 0.5, task=odd, metric=k, subset=s, change=None if m == "none" else UP)
            for m in ("none", odd) for k in ("gap", odd) for s in ("", odd, "other")]  # fmt: skip
    one = result(rows, protocol(odd), name=odd)
    assert "<b>[red]" not in render(one, tmp_path / "p.html", beside=tmp_path).read_text(encoding="utf-8")
    for shown in (printed(print_table, one, 200), markdown(one), latex(one), str(one)):
        assert "[red]" in shown.replace("\\", "")


def test_settings_evidence_and_cartoons_are_said() -> None:
    assert plain({"a": [1, 2.5, True], "b": None}) == "a: 1, 2.5, yes; b"
    groups = protocol("birds", split="birds test", settings={"groups": {"m": 70, "f": 30}})
    told_of = dict(evidence(result([figure()], groups)))
    assert told_of["counted"] == "birds test: 100 images (m 70, f 30)"
    assert "not recorded" in told_of["command"]
    world = protocol("birds", split="birds test")
    assert on_miniature(result([figure()], world))
    assert on_miniature(result([figure()], protocol("g", model="miniature", split="generated, 8 images")))
    assert not on_miniature(result([figure()], world, protocol("real")))


# ---- charts ----------------------------------------------------------------------------------------------------


def labels(axis: Any) -> list[str]:
    return [one.get_text() for one in axis.get_yticklabels()]


def test_a_measure_has_one_scale_whatever_the_task() -> None:
    rows = [figure(m, v, task=t, metric="worst_group") for t, v in (("a", 0.2), ("b", 0.9)) for m in ("none", "cali")]
    axes = dots(told(result(rows, protocol("a"), protocol("b")))).axes
    assert axes[0].get_xlim() == axes[1].get_xlim()
    assert axes[0].get_xlim()[0] < 0 < 1 < axes[0].get_xlim()[1]
    assert labels(axes[0]) == ["none", "cali"]


def test_curves_pass_through_every_lambda_and_parts_are_ordered_by_none() -> None:
    rows = [figure("cali", 0.1 * i, lam=lam) for i, lam in enumerate((0.0, 1.0, 100.0))] + [figure("none", 0.4)]
    t = told(result(rows, protocol()))
    assert curves(t).axes[0].lines[0].get_xdata().tolist() == [0, 1, 100]
    assert len(charts(t)) == 2
    assert charts(t[t.method == "none"]) == []
    of_parts = [figure(m, v, subset=s) for s, v in (("x", 0.9), ("y", 0.1)) for m in ("none", "cali")]
    assert labels(parts(told(result([figure(), *of_parts], protocol())).iloc[1:]).axes[0]) == ["y", "x"]
    many = [figure("none", 0.5, subset=str(i)) for i in range(60)]
    assert charts(told(result([figure(), *many], protocol()))) == [], "more than a chart can show"
    (axis,) = dumbbells(["a", "b"], np.array([0.9, 0.1]), np.array([0.5, 0.4]), "t").axes
    assert labels(axis) == ["b", "a"]


# ---- two results -----------------------------------------------------------------------------------------------


def test_a_result_is_the_same_as_itself(made: Result) -> None:
    found = compare(made, made)
    assert found.same
    assert set(found.to_pandas().verdict) == {"equal"}
    assert "all 12 figures" in found.sentence
    assert found.warnings == ()


@settings(max_examples=15, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.tuples(*[st.floats(0.001, 0.3)] * 4))
def test_half_widths_are_added_in_squares_each_to_its_side(a: float, b: float, by: tuple[float, ...]) -> None:
    """And swapping the sides mirrors the interval."""
    one = result([figure("none", a, interval=(a - by[0], a + by[1]))], protocol())
    two = result([figure("none", b, interval=(b - by[2], b + by[3]))], protocol())
    row, back = (compare(*pair).to_pandas().iloc[0] for pair in ((one, two), (two, one)))
    assert row.low == pytest.approx(b - a - math.hypot(by[2], by[1]))
    assert row.high == pytest.approx(b - a + math.hypot(by[3], by[0]))
    assert (back.difference, back.low, back.high) == pytest.approx((-row.difference, -row.high, -row.low))


def test_figures_are_matched_by_all_their_names_and_another_lambda_is_said() -> None:
    one = result([figure("cali", 0.5, lam=1.0), figure("orth"), figure("a", subset="x")], protocol())
    two = result([figure("cali", 0.9, lam=2.0), figure("orth"), figure("b", subset="x")], protocol())
    found = compare(one, two, ("before", "after"))
    assert found.to_pandas().method.tolist() == ["cali", "orth"]
    assert any("lam of cali" in warning and "1.0" in warning and "2.0" in warning for warning in found.warnings)
    assert (found.only_a.method.tolist(), found.only_b.method.tolist()) == (["a"], ["b"])
    assert not found.same
    (cali, orth) = json.loads(json.dumps(found.to_dict()))["figures"]
    assert (cali["a"], cali["low_a"], cali["difference"]) == (0.5, 0.4, pytest.approx(0.4))
    assert orth["lam"] is None
    several = result([figure("cali", 0.5, lam=lam) for lam in (3.0, 4.0)] + [figure("orth")], protocol())
    assert compare(one, several).to_pandas().method.tolist() == ["orth"], "which of the two is not guessed"


def test_every_difference_of_protocols_is_said() -> None:
    a = protocol(model="A", settings={"k": 5}, n={"images": 5}, methods={"none": {}, "cali": {"lam": 1.0}})
    b = protocol(model="B", settings={"k": 6}, n={"images": 6}, methods={"none": {}, "cali": {"lam": 2.0}})
    said = compare(result([figure()], a), result([figure()], b, versions={"vldebias": "2"})).warnings
    for word in ("model", "setting k", "n differs", "method cali", "version of vldebias"):
        assert any(word in one for one in said)


def test_nothing_in_common_and_one_figure_twice_are_errors() -> None:
    with pytest.raises(InvalidInputError, match="birds"):
        compare(result([figure()], protocol()), result([figure(task="other")], protocol("other")))
    with pytest.raises(InvalidInputError, match="twice"):
        compare(result([figure(), figure()], protocol()), result([figure()], protocol()))


def test_terminal_page_and_notebook_say_what_moved_and_what_else_differs(made: Result, tmp_path: Path) -> None:
    moved = made.model_copy(update={"rows": [bias("none", 0.9), *made.rows[1:]], "commit": "other"})
    found = compare(made, moved, ("one", "two <b>"))
    page = write_comparison(found, tmp_path / "c.html").read_text(encoding="utf-8")
    for shown in (printed(print_comparison, found), page, found._repr_html_()):
        assert "1 worse" in shown
        assert "commit" in shown
    assert "<b>two" not in page
    assert "0.900 [0.800, 1.000]" in page


def test_published_figures_stand_beside_the_rows_that_repeat_them() -> None:
    row = figure("orth-cali", 0.7, task="waterbirds", metric="worst_group", lam=1000.0)
    one = result([row], protocol("waterbirds", model="RN50/openai"), name="waterbirds")
    assert told(one).published.tolist() == [0.740]
    assert "published 0.740" in markdown(one)
    for other in (result([row], protocol("waterbirds", model="ViT-H"), name="waterbirds"), result([row], protocol())):
        assert told(other).published.isna().all()
    assert published("fairface", ["ViT-B/32"])["fairface race", "max_skew@1000", "none"] == 0.743
    for model in ("RN50", "ViT-L/14"):
        of = published("celeba", [model])
        for method in {key[2] for key in of}:
            worst, average, gap = (of["celeba", metric, method] for metric in ("worst_group", "average", "gap"))
            assert average - worst == pytest.approx(gap, abs=0.0011)
