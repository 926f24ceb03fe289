"""Made-up results: verdicts, pages, tables and comparisons; the frame and the file survive to the
last digit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.study.made_figures import figure, protocol, result
from vldebias.errors import InvalidInputError
from vldebias.measure import report
from vldebias.measure.report import (
    dots,
    grids,
    lines,
    opening,
    plain,
    published,
    render,
    text,
    told,
    verdict,
)
from vldebias.measure.result import COLUMNS, Result, TaskResult
from vldebias.metrics import bootstrap_interval
from vldebias.pictures import write_png
from vldebias.study import compare

DOWN, UP, STILL = (-0.2, -0.3, -0.1), (0.2, 0.1, 0.3), (0.01, -0.1, 0.1)


def bias(method: str, value: float, **fields: Any) -> Any:
    return figure(
        method, value, **{"metric": "max_skew@10", "better": "lower", "task": "search", **fields}
    )


@pytest.fixture
def made() -> Result:
    values = {
        "none": (0.5, None),
        "default": (0.3, DOWN),
        "cali": (0.2, (-0.3, -0.4, -0.2)),
        "random": (0.1, None),
    }
    recalls = {"none": (0.9, None), "default": (0.8, (-0.1, -0.2, -0.05)), "cali": (0.9, STILL)}
    rows = [bias(m, value, change=change) for m, (value, change) in values.items()]
    rows += [bias("dfr-up", 0.1, change=(-0.4, -0.5, -0.3), uses_labels=True)]
    rows += [
        bias(m, value, change=c, metric="recall@5", better="higher")
        for m, (value, c) in recalls.items()
    ]
    for job, moved in (("a nurse", UP), ("a doctor", STILL)):
        changes = {"none": None, "default": moved}
        rows += [bias(m, 0.5, subset=job, change=c, n={"images": 7}) for m, c in changes.items()]
    return result(rows, protocol("search", title="Search"))


@pytest.mark.parametrize(
    ("change", "better", "said"),
    [
        (UP, "higher", "better"),
        (UP, "lower", "worse"),
        (DOWN, "lower", "better"),
        (UP, "neither", "changed"),
        (STILL, "higher", "unclear"),
        ((0.0, 0.0, 0.0), "lower", "same"),
        ((0.1, 0.0, 0.2), "higher", "unclear"),
    ],
)
def test_a_verdict_is_said_only_where_the_interval_excludes_zero(
    change: Any, better: str, said: str
) -> None:
    assert verdict(change, better) == said


@pytest.mark.parametrize(("none", "nothing"), [(0.05, True), (0.2, True), (0.5, False)])
def test_no_verdict_where_none_is_no_more_biased_than_chance(none: float, nothing: bool) -> None:
    rows = [
        bias("none", none),
        bias("default", 0.3, change=UP),
        bias("random", 0.1),
    ]  # chance: .0 to .2
    one = result(rows, protocol("search"))
    assert told(one).query("method == 'default'").verdict.tolist() == ["" if nothing else "worse"]
    (line,) = lines(told(one))
    assert (line.verdict, line.chance) == ("nothing to remove" if nothing else "worse", "0.100")
    assert ("nothing to remove:" in text(one)) == nothing


def test_a_line_names_the_method_that_moved_its_cost_chance_and_who_got_worse(made: Result) -> None:
    assert [caption for caption, *_ in grids(told(made))] == ["By method", "MaxSkew@10 by part"]
    (line,) = lines(told(made))
    assert (line.before, line.after, line.verdict, line.row.method) == (
        "0.500",
        "0.300",
        "better",
        "default",
    )
    assert line.costs == "recall@5 -0.100 [-0.200, -0.050]"
    for word in ("a nurse", "default", "1 of 2", "+0.200"):
        assert word in line.worse
    (said,) = opening(told(made))
    for word in (
        "MaxSkew@10",
        "search",
        "better",
        "0.500",
        "0.300",
        "default",
        "chance 0.100",
        "-0.100",
    ):
        assert word in said
    more = [
        bias("cali", 0.9, change=STILL, metric=name, better="higher")
        for name in ("average", "precision@5")
    ]
    (line,) = lines(
        told(
            made.model_copy(update={"rows": [r for r in made.rows if r.method != "default"] + more})
        )
    )
    assert line.row.method == "cali", "what gains most, and none with labels"
    assert line.costs == "recall@5 +0.010 [-0.100, +0.100] unclear", "the first of the costs"
    average = [figure("x", 0.9, metric=m, change=DOWN) for m in ("average", "average_reweighted")]
    alone = [figure("x", 10.0, metric="pair_distance", better="lower", change=DOWN)]
    (plain,), (both,) = (lines(told(result(alone + of))) for of in (average[:1], average))
    shown = plain.before, plain.after, plain.row.number
    assert shown == ("10.2", "10.0", "10.0 [9.9, 10.1]"), (
        "without a row of none it is the value less the change"
    )
    assert [one.costs.startswith("average accuracy,") for one in (plain, both)] == [False, True], (
        "reweighted goes first"
    )


def test_the_corrected_gap_leads_as_a_root_with_its_sign_beside_a_chance_of_zero() -> None:
    values = {"discrepancy": (0.373, 0.111), "discrepancy_squared": (0.167, -0.004)}
    rows = [
        figure(m, pair[m == "default"], metric=k, better="lower", change=c)
        for k, pair in values.items()
        for m, c in (("none", None), ("default", DOWN))
    ]
    (line,) = lines(told(result(rows, protocol())))
    assert (line.before, line.after, line.chance) == (
        f"{0.167**0.5:.3f}",
        f"{-(0.004**0.5):.3f}",
        "0",
    )
    assert line.row.measure.startswith("signed root of the squared")
    (axis,) = dots(
        told(result([r for r in rows if r.metric == "discrepancy_squared"], protocol()))
    ).axes
    ((_, after),) = [[float(one.lines[0].get_xdata()[0]) for one in axis.containers]]
    assert after == pytest.approx(-(0.004**0.5)), "the plot shows what the table does"


def test_texts_that_moved_are_no_task_won(made: Result) -> None:
    texts = [
        figure(m, v, task="a", metric="cosine_spread", better="lower", change=c)
        for m, v, c in (("none", 0.5, None), ("default", 0.1, DOWN))
    ]
    both = result([*made.rows, *texts], protocol("search"), protocol("a"))
    assert "cosines" not in " ".join(opening(told(both)))
    assert [line.row.task for line in lines(told(both))] == ["search", "a"], (
        "in the order of the rows"
    )
    assert "cosines" in opening(told(result(texts, protocol("a"))))[0]
    assert opening(told(result([figure()], protocol()))) == []


def test_parts_with_several_measures_are_the_whole_of_a_task_that_has_none() -> None:
    rows = [
        figure(
            m, 0.5, metric=metric, subset=part, better="lower", change=None if m == "none" else DOWN
        )
        for part in ("train professions", "unseen professions")
        for metric in ("discrepancy", "unknown")
        for m in ("none", "cali")
    ]
    t = told(result(rows, protocol()))
    assert t.whole.all()
    assert [line.row.subset for line in lines(t)] == ["unseen professions"]
    many = [
        figure("cali", metric=m, subset=s, n={"jobs": 3})
        for m in ("discrepancy", "unknown")
        for s in "abcd"
    ]
    assert told(result(rows + many, protocol())).whole.tolist() == [True] * 8 + [False] * 8, (
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
    t = told(result(rows, protocol()))
    cells = [c.value for _, _, rows, _ in grids(t) for _, row in rows for c in row if c is not None]
    assert sorted(cells) == [i / 100 for i in range(len(keys))]


def test_print_of_a_result_is_a_table_of_at_most_forty_lines_of_all_tasks(made: Result) -> None:
    many = [
        figure(f"m{i}", 0.5, metric=k) for k in ("average", "gap", "worst_group") for i in range(30)
    ]
    shown = str(result(many, protocol()))
    assert shown.count("\n") == 39
    assert "more figures: to_pandas()" in shown
    tasks = [
        figure(m, 0.5, task=t, metric=k)
        for t in "cab"
        for k in ("average", "gap", "ndkl@5")
        for m in "xyzuvw"
    ]
    heads = [
        line[0]
        for line in str(result(tasks, *map(protocol, "cab"))).splitlines()
        if line[1:2] == ":"
    ]
    assert heads[:4] == [*"xcab"], "name and tasks, in the order of the rows"
    assert "1 more figures" in text(result([figure(), figure(subset="a part")]))
    head, rows = report.tab_rows(made)
    names = (
        "task metric method subset lam value low high change change_low change_high better verdict"
    )
    assert (" ".join(head), {len(row) for row in rows}) == (names, {13})
    assert str(result([], protocol())).startswith("Result(")
    assert max(map(len, text(made).splitlines())) <= 80
    for value in (
        "0.500 [0.400, 0.600]",
        "better",
        "4 more figures",
        "dfr-up†",
        "given labels of training images",
    ):
        assert value in text(made)
    assert "recall@5" not in text(made, [("search", "max_skew@10")])


def test_a_page_is_one_safe_file_with_the_summary_before_everything_else(
    made: Result, tmp_path: Path
) -> None:
    odd = made.model_copy(
        update={"provenance": [protocol("search", description="<script>alert(1)</script>")]}
    )
    page = render(odd, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page.replace("data:image", "")
    first = page.index("<details")
    assert "95 % intervals" in page
    assert page.index("given labels of training images") > first
    for word in (
        "ViT-L-14/openai",
        "with it",
        "not recorded",
        "download",
        "Who got worse",
        "a nurse",
    ):
        assert page.index(word) < first
    assert (tmp_path / "index.csv").read_text().startswith("task,metric,method,subset,value")


def test_pictures_of_the_run_stand_with_their_task_and_images_open_the_page(
    made: Result, tmp_path: Path
) -> None:
    for stem, caption, run in (
        ("a", "shares", "x"),
        ("b-side-by-side", "images", "x"),
        ("c", "of another run", "y"),
    ):
        about = {"run": run, "task": "search", "caption": caption}
        write_png(Image.new("RGB", (4, 4), "red"), tmp_path / f"{stem}.png", about)
    page = render(made, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert page.index('alt="images"') < page.index("<details") < page.index('alt="shares"')
    assert "of another run" not in page


@pytest.mark.filterwarnings("ignore:Glyph")  # the font draws a box
def test_names_may_hold_anything(tmp_path: Path) -> None:
    odd = "$\\frac{a}$ <b>[red]人\x07%_"
    rows = [
        figure(m, 0.5, task=odd, metric=k, subset=s, change=None if m == "none" else UP)
        for m in ("none", odd)
        for k in ("gap", odd)
        for s in ("", odd, "other")
    ]
    one = result(rows, protocol(odd), name=odd)
    assert "<b>[red]" not in render(one, tmp_path / "p.html", beside=tmp_path).read_text(
        encoding="utf-8"
    )
    for shown in (str(one), str(compare(one, one.model_copy(update={"rows": one.rows[1:]})))):
        assert "[red]" in shown.replace("\\", "")


def test_settings_evidence_and_cartoons_are_said(tmp_path: Path) -> None:
    assert plain({"a": [1, 2.5, True], "b": None}) == "a: 1, 2.5, yes; b"
    world, real = protocol("birds", split="birds test"), protocol("birds")
    for about, cartoon in (
        ([world], True),
        ([protocol("birds", model="miniature")], True),
        ([world, real], False),
    ):
        page = render(result([figure()], *about), tmp_path / "p.html", beside=tmp_path).read_text(
            encoding="utf-8"
        )
        assert ("cartoon" in page) == cartoon
        assert page.count("not recorded") >= 2
        assert "images: 100" in page
    two = result([figure(task=task) for task in "ba"], *map(protocol, "ba"))
    page = render(two, tmp_path / "p.html", beside=tmp_path).read_text(encoding="utf-8")
    assert page.index("task-b") < page.index("task-a"), "in the order of the rows"


def test_a_measure_has_one_scale_whatever_the_task() -> None:
    rows = [
        figure(m, v, task=t, metric="worst_group")
        for t, v in (("b", 0.2), ("a", 0.9))
        for m in ("none", "cali")
    ]
    axes = dots(told(result(rows, protocol("b"), protocol("a")))).axes
    assert [one.get_title()[:3] for one in axes] == ["b: ", "a: "]
    assert axes[0].get_xlim() == axes[1].get_xlim()
    assert axes[0].get_xlim()[0] < 0 < 1 < axes[0].get_xlim()[1]
    assert [one.get_text() for one in axes[0].get_yticklabels()] == ["none", "cali"]
    assert axes[0].get_ylim() == (1.5, -0.5), "the first method on top, and no row is cut off"
    four = result(
        [figure(task=t, metric="fid", value=v) for t, v in zip("abcd", (5, 7, 6, 5), strict=True)]
    )
    axes = four.plot().axes
    assert [one.get_visible() for one in axes] == [True] * 4 + [False] * 2, "three in a row"
    assert axes[0].get_xlim() == pytest.approx((-0.02 * 7.1, 1.02 * 7.1)), (
        "from 0 to the largest end of all"
    )
    for value, ends in (
        (0.5, (-0.02 * 0.6, 1.02 * 0.6)),
        (-0.5, (-1.02 * 0.6, 0.02 * 0.6)),
    ):  # of no bounds: and to 0
        assert result([figure(metric="cosine", value=value)]).plot().axes[
            0
        ].get_xlim() == pytest.approx(ends)
    rows = [
        figure("none", 0.5, metric="gap"),
        figure("random", 0.3, metric="gap"),
        figure("x", 0.4, metric="gap"),
    ]
    (axis,) = dots(
        told(result([rows[0], rows[1], rows[2].model_copy(update={"interval": (0.1, 0.45)})]))
    ).axes
    (band,), line, bars = (
        axis.patches,
        axis.lines[0],
        [one.lines[2][0].get_segments()[0] for one in axis.containers],
    )
    assert (band.get_extents().x0, line.get_xdata()) == (
        axis.transData.transform((0.2, 0))[0],
        [0.5, 0.5],
    )
    assert [bar[:, 0].tolist() for bar in bars] == [
        pytest.approx([0.4, 0.6]),
        pytest.approx([0.1, 0.45]),
    ]


@settings(max_examples=15, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.tuples(*[st.floats(0.001, 0.3)] * 4))
def test_half_widths_are_added_in_squares_each_to_its_side(
    a: float, b: float, by: tuple[float, ...]
) -> None:
    """And swapping the sides mirrors the interval."""
    one = result([figure("none", a, interval=(a - by[0], a + by[1]))], protocol())
    two = result([figure("none", b, interval=(b - by[2], b + by[3]))], protocol())
    row, back = (compare(*pair).to_pandas().iloc[0] for pair in ((one, two), (two, one)))
    assert row.low == pytest.approx(b - a - math.hypot(by[2], by[1]))
    assert row.high == pytest.approx(b - a + math.hypot(by[3], by[0]))
    assert (back.difference, back.low, back.high) == pytest.approx(
        (-row.difference, -row.high, -row.low)
    )


def test_figures_are_matched_by_their_names_and_lambda_where_a_method_has_several() -> None:
    one = result(
        [figure("orth"), figure("cali", 0.5, lam=1.0), figure("a", subset="x")], protocol()
    )
    two = result(
        [figure("orth"), figure("cali", 0.9, lam=2.0), figure("b", subset="x")], protocol()
    )
    found = compare(one, two, ("before", "after"))
    assert found.to_pandas().method.tolist() == ["orth", "cali"]
    alone = {
        "A, before": ["birds: average accuracy, x, a"],
        "B, after": ["birds: average accuracy, x, b"],
    }
    assert found.only == alone
    orth, cali = found.to_pandas().itertuples()
    assert (cali.a, cali.low_a, cali.difference) == (0.5, 0.4, pytest.approx(0.4))
    assert math.isnan(orth.lam)
    several = result(
        [figure("cali", 0.5, lam=lam) for lam in (3.0, 4.0)] + [figure("orth")], protocol()
    )
    assert compare(one, several).to_pandas().method.tolist() == ["orth"], (
        "which of the two is not guessed"
    )
    assert compare(several, several).to_pandas().lam.tolist()[:2] == [3.0, 4.0]


def test_every_difference_of_protocols_is_said_and_nothing_in_common_refused() -> None:
    a = protocol(
        model="A", settings={"k": 5}, n={"images": 5}, methods={"none": {}, "cali": {"lam": 1.0}}
    )
    b = protocol(
        model="B", settings={"k": 6}, n={"images": 6}, methods={"none": {}, "cali": {"lam": 2.0}}
    )
    said = compare(
        result([figure()], a), result([figure()], b, versions={"vldebias": "2"})
    ).warnings
    for word in ("model differs", "settings, k", "n, images", "cali, lam", "versions, vldebias"):
        assert any(word in one for one in said)
    one, twice = result([figure()], protocol()), result([figure()] * 2, protocol())
    for other, named in (
        (result([figure(task="other")], protocol("other")), "birds"),
        (twice, "twice"),
    ):
        with pytest.raises(InvalidInputError, match=named):
            compare(other, one)


def test_a_comparison_says_what_moved_and_what_else_differs(made: Result) -> None:
    same = compare(made, made)
    assert (set(same.to_pandas().verdict), "12 equal" in str(same), same.warnings) == (
        {"equal"},
        True,
        (),
    )
    assert "MOVER" not in str(same)
    prints = [
        protocol("search", fingerprint={"structure": one, "tensors": [[1.0, 2.0]]}) for one in "ab"
    ]
    one, other = (made.model_copy(update={"provenance": [own]}) for own in prints)
    moved = other.model_copy(
        update={"rows": [bias("none", 0.9), *made.rows[1:]], "commit": "other"}
    )
    shown = str(compare(one, moved, ("one", "two")))
    for word in (
        "1 worse",
        "commit",
        "(and 1 more)",
        "0.900 [0.800, 1.000]",
        "A is one, B is two",
        "MOVER",
    ):
        assert word in shown
    assert shown.count("The two differ") == 1


def test_published_figures_stand_beside_the_rows_that_repeat_them() -> None:
    row = figure("orth-cali", 0.7, task="waterbirds", metric="worst_group", lam=1000.0)
    one = result([row], protocol("waterbirds", model="RN50/openai"), name="waterbirds")
    assert told(one).published.tolist() == [0.740]
    assert "published: orth-cali 0.740" in text(one)
    for other in (
        result([row], protocol("waterbirds", model="ViT-H"), name="waterbirds"),
        result([row], protocol()),
    ):
        assert told(other).published.isna().all()
    assert published("fairface", "ViT-B/32")["fairface race", "max_skew@1000", "none", ""] == 0.743
    for model in ("RN50", "ViT-L/14"):
        of = published("celeba", model)
        for method in {key[2] for key in of}:
            worst, average, gap = (
                of["celeba", metric, method, ""] for metric in ("worst_group", "average", "gap")
            )
            assert average - worst == pytest.approx(gap, abs=0.0011)


def small() -> Result:
    part = TaskResult(protocol(methods={"cali": {"lam": 0.1 + 0.2, "strength": 1.0}}))
    part.add("gap", "none", 1 / 3, (0.1, 0.9), n={"images": 9, "smallest group": 2})
    part.add("gap", "cali", 2 / 7, (0.0, 0.9), n={"images": 9}, change=(1 / 3 - 2 / 7, -0.1, 0.2))
    part.add("cosine", "cali", 0.5, n={"prompts": 3}, subset="$a$ / <b>")
    return Result.of("small", [part], seconds=1.5)


def test_the_frame_has_the_columns_in_their_order() -> None:
    frame = small().to_pandas()
    assert (list(frame.columns), frame.n.tolist()) == (list(COLUMNS), [9, 9, 3])
    assert math.isnan(frame.change[0])
    assert (frame.change[1], frame.lam[1]) == (1 / 3 - 2 / 7, 0.1 + 0.2)
    assert (frame.low[2], frame.high[2], frame.lam[2]) == (0.5, 0.5, 0.1 + 0.2)
    ends = "value low high change change_low change_high"
    assert (
        " ".join(COLUMNS)
        == f"task metric method subset {ends} n better lam strength uses_labels counts"
    )
    assert all(one in small()._repr_html_() for one in ("<h3>small</h3>", "0.333 [0.100, 0.900]"))
    assert Result.of("nothing", [], seconds=0).to_pandas().shape == (0, len(COLUMNS))


@pytest.mark.parametrize("compact", [False, True])
def test_what_is_written_is_read_to_the_last_digit(compact: bool, tmp_path: Path) -> None:
    result = small()
    path = result.write(tmp_path / "out" / "result.json", **({"compact": True} if compact else {}))
    assert Result.read(path) == result
    assert set(path.parent.iterdir()) == {
        path,
        *([path.with_suffix(".parquet")] if compact else []),
    }
    told = json.loads(path.read_text())
    keys = "name figures protocols versions commit seconds date command platform"
    assert set(keys.split()) == set(told)
    path.write_text(json.dumps({**told, "other": 1}))
    with pytest.raises(InvalidInputError, match="other"):
        Result.read(path)
    path.write_text(json.dumps(told))
    rows = path.with_suffix(".parquet")
    for spoil in (
        (lambda: rows.write_bytes(rows.read_bytes() + b"more"), rows.unlink) if compact else ()
    ):
        spoil()
        with pytest.raises(InvalidInputError, match=r"result\.parquet"):
            Result.read(path)


def test_no_name_in_the_csv_is_a_formula(tmp_path: Path) -> None:
    result = small()
    result.rows[0] = result.rows[0].model_copy(
        update={"subset": "=HYPERLINK(1)", "method": "@x", "value": -0.5}
    )
    table = pd.read_csv(result.to_csv(tmp_path / "r.csv"))
    assert table.value.tolist() == result.to_pandas().value.tolist()
    first = table.iloc[0]
    assert (first.subset, first.method, first.value) == ("'=HYPERLINK(1)", "'@x", -0.5)


def test_what_is_no_result_is_told(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for content in (None, "", "[]", "{}", "[" * 100_000, '{"figures": {}}', '{"name": "x"}'):
        if content is not None:
            path.write_text(content)
        with pytest.raises(InvalidInputError, match=r"r\.json"):
            Result.read(path)


def test_a_row_is_found_by_name_and_a_miss_lists_the_closest() -> None:
    assert small().row("birds", "gap", "cali").value == 2 / 7
    with pytest.raises(KeyError, match="birds/gap/cali/all"):
        small().row("birds", "gap", "orth")


def test_a_command_is_kept_without_the_folders_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = (
        ["/home/me/bin/vldebias", "eval", "birds", "--out=/home/me/run"],
        "vldebias eval birds --out=run",
    )
    for words, said in (
        installed,
        (["/home/me/work.py", "--n", "3"], "python work.py --n 3"),
        (["-c", "1"], None),
    ):
        monkeypatch.setattr("sys.argv", words)
        monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python", *words])
        assert Result.of("x", [], seconds=0).command == said


def test_resampled_rows_are_those_of_the_public_bootstrap() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.random(30), rng.random(30)
    part = TaskResult(protocol())
    part.add_resampled("clip_score", {"none": before, "x": after}, n={"images": 30})
    own, paired = bootstrap_interval(after), bootstrap_interval(after - before)
    none, x = part.rows
    assert none.change is None
    assert (x.value, *x.interval) == pytest.approx((own.value, own.low, own.high))
    assert x.change == pytest.approx((paired.value, paired.low, paired.high))


def test_parts_are_the_arguments_of_a_metric_frame() -> None:
    """Those that fairlearn documents: metrics, y_true, y_pred, sensitive_features,
    sample_params."""
    part = TaskResult(protocol())
    part.add("accuracy", "none", 0.5, n={"images": 10}, subset="landbird/water")
    part.add("accuracy", "none", 0.9, n={"images": 30}, subset="landbird/land")
    result = Result.of("birds", [part], seconds=1.0)
    given = result.as_metric_frame("birds", "accuracy", "none")
    assert set(given) == {"metrics", "y_true", "y_pred", "sensitive_features", "sample_params"}
    assert given["sensitive_features"] == ["landbird/water", "landbird/land"]
    overall = given["metrics"]["accuracy"](
        given["y_true"], given["y_pred"], **given["sample_params"]["accuracy"]
    )
    assert overall == pytest.approx((10 * 0.5 + 30 * 0.9) / 40)
    with pytest.raises(InvalidInputError, match="gap"):
        result.as_metric_frame("birds", "gap", "none")
