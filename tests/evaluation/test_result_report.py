"""Reports of made-up results: verdicts, what opens a page, tables, comparisons, and that names may hold anything."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_figures import figure, protocol, result
from PIL import Image

from vldebias.errors import InvalidInputError
from vldebias.evaluation import compare
from vldebias.evaluation.report import dots, grids, lines, opening, plain, published, render, text, told, verdict
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


# ---- verdicts, and what opens a report -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "better", "said"),
    [(UP, "higher", "better"), (UP, "lower", "worse"), (DOWN, "lower", "better"), (UP, "neither", "changed"),
     (STILL, "higher", "unclear"), ((0.0, 0.0, 0.0), "lower", "same"), ((0.1, 0.0, 0.2), "higher", "unclear")],
)  # fmt: skip
def test_a_verdict_is_said_only_where_the_interval_excludes_zero(change: Any, better: str, said: str) -> None:
    assert verdict(change, better) == said


@pytest.mark.parametrize(("none", "nothing"), [(0.05, True), (0.19, True), (0.5, False)])
def test_no_verdict_where_none_is_no_more_biased_than_chance(none: float, nothing: bool) -> None:
    rows = [bias("none", none), bias("default", 0.3, change=UP), bias("random", 0.1)]  # chance: .0 to .2
    one = result(rows, protocol("search"))
    assert told(one).query("method == 'default'").verdict.tolist() == ["" if nothing else "worse"]
    (line,) = lines(told(one))
    assert (line.verdict, line.chance) == ("nothing to remove" if nothing else "worse", "0.100")
    assert ("nothing to remove:" in text(one)) == nothing


def test_a_line_names_the_method_that_moved_its_cost_chance_and_who_got_worse(made: Result) -> None:
    (line,) = lines(told(made))
    assert (line.before, line.after, line.verdict, line.row.method) == ("0.500", "0.300", "better", "default")
    assert "recall@5 -0.100" in line.costs
    for word in ("a nurse", "default", "1 of 2", "+0.200"):
        assert word in line.worse
    (said,) = opening(told(made))
    for word in ("MaxSkew@10", "search", "better", "0.500", "0.300", "default", "chance 0.100", "-0.100"):
        assert word in said


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
    assert line.row.measure.startswith("signed root of the squared")
    (axis,) = dots(told(result([r for r in rows if r.metric == "discrepancy_squared"], protocol()))).axes
    ((_, after),) = [[float(one.lines[0].get_xdata()[0]) for one in axis.containers]]
    assert after == pytest.approx(-(0.004**0.5)), "the plot shows what the table does"


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
    cells = [c.value for _, _, rows, _ in grids(t) for _, row in rows for c in row if c is not None]
    assert sorted(cells) == [i / 100 for i in range(len(keys))]


def test_print_of_a_result_is_a_table_of_at_most_forty_lines_of_all_tasks(made: Result) -> None:
    many = [figure(f"m{i}", 0.5, metric=k) for k in ("average", "gap", "worst_group") for i in range(30)]
    shown = str(result(many, protocol()))
    assert shown.count("\n") < 40
    assert "more figures: to_pandas()" in shown
    tasks = [figure(m, 0.5, task=t, metric=k) for t in "abc" for k in ("average", "gap", "ndkl@5") for m in "xyzuvw"]
    starts = {line[:2] for line in str(result(tasks, *map(protocol, "abc"))).splitlines()}
    assert starts >= {"a:", "b:", "c:"}
    assert str(result([], protocol())).startswith("Result(")
    assert max(map(len, text(made).splitlines())) <= 80
    for value in ("0.500 [0.400, 0.600]", "better", "4 more figures", "dfr-up†"):
        assert value in text(made)
    assert "recall@5" not in text(made, [("search", "max_skew@10")])


# ---- pages -----------------------------------------------------------------------------------------------------


def test_a_page_is_one_safe_file_with_the_summary_before_everything_else(made: Result, tmp_path: Path) -> None:
    odd = made.model_copy(update={"provenance": [protocol("search", description="<script>alert(1)</script>")]})
    page = render(odd, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page.replace("data:image", "")
    first = page.index("<details")
    assert "95 % intervals" in page
    for word in ("ViT-L-14/openai", "with it", "not recorded", "download", "Who got worse", "a nurse"):
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


@pytest.mark.filterwarnings("ignore:Glyph")  # the font draws a box
def test_names_may_hold_anything(tmp_path: Path) -> None:
    odd = "$\\frac{a}$ <b>[red]人\x07%_"
    rows = [figure(m, 0.5, task=odd, metric=k, subset=s, change=None if m == "none" else UP)
            for m in ("none", odd) for k in ("gap", odd) for s in ("", odd, "other")]  # fmt: skip
    one = result(rows, protocol(odd), name=odd)
    assert "<b>[red]" not in render(one, tmp_path / "p.html", beside=tmp_path).read_text(encoding="utf-8")
    for shown in (str(one), str(compare(one, one.model_copy(update={"rows": one.rows[1:]})))):
        assert "[red]" in shown.replace("\\", "")


def test_settings_evidence_and_cartoons_are_said(tmp_path: Path) -> None:
    assert plain({"a": [1, 2.5, True], "b": None}) == "a: 1, 2.5, yes; b"
    world, real = protocol("birds", split="birds test"), protocol("birds")
    for about, cartoon in (([world], True), ([protocol("birds", model="miniature")], True), ([world, real], False)):
        page = render(result([figure()], *about), tmp_path / "p.html", beside=tmp_path).read_text(encoding="utf-8")
        assert ("cartoon" in page) == cartoon
        assert page.count("not recorded") >= 2
        assert "images: 100" in page


# ---- charts ----------------------------------------------------------------------------------------------------


def test_a_measure_has_one_scale_whatever_the_task() -> None:
    rows = [figure(m, v, task=t, metric="worst_group") for t, v in (("a", 0.2), ("b", 0.9)) for m in ("none", "cali")]
    axes = dots(told(result(rows, protocol("a"), protocol("b")))).axes
    assert axes[0].get_xlim() == axes[1].get_xlim()
    assert axes[0].get_xlim()[0] < 0 < 1 < axes[0].get_xlim()[1]
    assert [one.get_text() for one in axes[0].get_yticklabels()] == ["none", "cali"]


# ---- two results -----------------------------------------------------------------------------------------------


def test_a_result_is_the_same_as_itself(made: Result) -> None:
    found = compare(made, made)
    assert set(found.to_pandas().verdict) == {"equal"}
    assert "12 equal" in str(found)
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


def test_figures_are_matched_by_their_names_and_lambda_where_a_method_has_several() -> None:
    one = result([figure("cali", 0.5, lam=1.0), figure("orth"), figure("a", subset="x")], protocol())
    two = result([figure("cali", 0.9, lam=2.0), figure("orth"), figure("b", subset="x")], protocol())
    found = compare(one, two, ("before", "after"))
    assert found.to_pandas().method.tolist() == ["cali", "orth"]
    alone = {"A, before": ["birds: average accuracy, x, a"], "B, after": ["birds: average accuracy, x, b"]}
    assert found.only == alone
    cali, orth = found.to_pandas().itertuples()
    assert (cali.a, cali.low_a, cali.difference) == (0.5, 0.4, pytest.approx(0.4))
    assert math.isnan(orth.lam)
    several = result([figure("cali", 0.5, lam=lam) for lam in (3.0, 4.0)] + [figure("orth")], protocol())
    assert compare(one, several).to_pandas().method.tolist() == ["orth"], "which of the two is not guessed"
    assert compare(several, several).to_pandas().lam.tolist()[:2] == [3.0, 4.0]


def test_every_difference_of_protocols_is_said() -> None:
    a = protocol(model="A", settings={"k": 5}, n={"images": 5}, methods={"none": {}, "cali": {"lam": 1.0}})
    b = protocol(model="B", settings={"k": 6}, n={"images": 6}, methods={"none": {}, "cali": {"lam": 2.0}})
    said = compare(result([figure()], a), result([figure()], b, versions={"vldebias": "2"})).warnings
    for word in ("model differs", "settings, k", "n, images", "cali, lam", "versions, vldebias"):
        assert any(word in one for one in said)


def test_nothing_in_common_and_one_figure_twice_are_errors() -> None:
    with pytest.raises(InvalidInputError, match="birds"):
        compare(result([figure()], protocol()), result([figure(task="other")], protocol("other")))
    with pytest.raises(InvalidInputError, match="twice"):
        compare(result([figure(), figure()], protocol()), result([figure()], protocol()))


def test_a_comparison_says_what_moved_and_what_else_differs(made: Result) -> None:
    moved = made.model_copy(update={"rows": [bias("none", 0.9), *made.rows[1:]], "commit": "other"})
    shown = str(compare(made, moved, ("one", "two")))
    for word in ("1 worse", "commit", "0.900 [0.800, 1.000]", "A is one, B is two"):
        assert word in shown


def test_published_figures_stand_beside_the_rows_that_repeat_them() -> None:
    row = figure("orth-cali", 0.7, task="waterbirds", metric="worst_group", lam=1000.0)
    one = result([row], protocol("waterbirds", model="RN50/openai"), name="waterbirds")
    assert told(one).published.tolist() == [0.740]
    assert "published: orth-cali 0.740" in text(one)
    for other in (result([row], protocol("waterbirds", model="ViT-H"), name="waterbirds"), result([row], protocol())):
        assert told(other).published.isna().all()
    assert published("fairface", "ViT-B/32")["fairface race", "max_skew@1000", "none", ""] == 0.743
    for model in ("RN50", "ViT-L/14"):
        of = published("celeba", model)
        for method in {key[2] for key in of}:
            worst, average, gap = (of["celeba", metric, method, ""] for metric in ("worst_group", "average", "gap"))
            assert average - worst == pytest.approx(gap, abs=0.0011)
