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
from vldebias.measure.conclusion import Conclusion, conclusions
from vldebias.measure.page import (
    day_of,
    dots,
    front_groups,
    front_rows,
    grids,
    plain,
    render,
    title_of,
)
from vldebias.measure.result import COLUMNS, Result, TaskResult, laid_out
from vldebias.measure.rows import Strip
from vldebias.measure.strip import read_strip, write_strip
from vldebias.measure.table import moved, published, readable, verdict
from vldebias.measure.text import tab_rows, text, wrapped
from vldebias.metrics import bootstrap_interval
from vldebias.pictures import read_png, write_png
from vldebias.study import compare

DOWN = (-0.2, -0.3, -0.1)
UP = (0.2, 0.1, 0.3)
STILL = (0.01, -0.1, 0.1)


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
    for job, change_of_job in (("a nurse", UP), ("a doctor", STILL)):
        changes = {"none": None, "default": change_of_job}
        rows += [bias(m, 0.5, subset=job, change=c, n={"images": 7}) for m, c in changes.items()]
    return result(rows, protocol("search", title="Search"))


@pytest.mark.parametrize(
    ("change", "better", "expected"),
    [
        (UP, "higher", "better"),
        (UP, "lower", "worse"),
        (DOWN, "lower", "better"),
        (UP, "neither", "changed"),
        (STILL, "higher", "no clear change"),
        ((0.0, 0.0, 0.0), "lower", "equal"),
        ((8.5e-16, 8.5e-16, 8.5e-16), "lower", "equal"),
        ((0.1, 8.5e-16, 0.2), "higher", "no clear change"),
        ((0.1, 0.1, 0.1), "higher", "changed"),
        (None, "higher", ""),
    ],
)
def test_a_verdict_needs_an_interval_that_excludes_zero_beyond_float_noise(
    change: Any, better: str, expected: str
) -> None:
    assert verdict(change, better) == expected


@pytest.mark.parametrize(
    ("none", "width", "after", "expected"),
    [
        (0.05, 0.1, 0.15, "nothing to remove"),
        (0.2, 0.05, 0.15, "nothing to remove"),
        (0.2, 0.4, 0.15, "better"),  # within chance, but so wide that much may be there
        (0.5, 0.1, 0.15, "better"),
    ],
)
def test_nothing_to_remove_is_said_at_chance_where_the_interval_is_narrow(
    none: float, width: float, after: float, expected: str
) -> None:
    rows = [
        bias("none", none, interval=(none - width, none + width)),
        bias("default", after, change=DOWN),
        bias("random", 0.1),
    ]  # chance: .0 to .2
    measured = result(rows, protocol("search"))
    assert readable(measured).query("method == 'default'").verdict.tolist() == [expected]
    (conclusion,) = measured.conclusions()
    assert (conclusion.verdict, conclusion.chance) == (expected, 0.1)
    assert f"search: {expected}" in text(measured)


def test_harm_beyond_chance_is_worse_even_where_nothing_was_to_be_removed() -> None:
    rows = [bias("none", 0.1), bias("default", 0.3, change=UP), bias("random", 0.1)]
    within = [rows[0], bias("default", 0.15, change=UP), rows[2]]
    (harm,), (none,) = (result(r, protocol("search")).conclusions() for r in (rows, within))
    assert (harm.verdict, none.verdict) == ("worse", "nothing to remove")


def test_an_interval_as_wide_as_the_bias_says_too_few_and_how_many_would_do() -> None:
    def concluded(none: float, change: tuple[float, float, float]) -> Conclusion:
        rows = [bias("none", none), bias("default", none, change=change), bias("random", 0.1)]
        (conclusion,) = result(rows, protocol("search")).conclusions()
        return conclusion

    wide = concluded(0.5, (0.0, -0.3, 0.3))  # .6 wide, .4 to remove
    assert wide.verdict == "too few to tell"
    assert wide.enough == 900, "(2 * .6 / .4)^2 times 100 images"
    assert "too few to tell from 100 images, about 900 would do" in wide.sentence
    narrow = concluded(0.9, (0.0, -0.3, 0.3))
    assert (narrow.verdict, narrow.enough) == ("no clear change", None)


@pytest.mark.parametrize(
    ("uniform_change", "expected"), [(UP, "no verdict"), (STILL, "no verdict"), (DOWN, "better")]
)
def test_where_two_priors_of_an_uneven_gallery_disagree_there_is_no_verdict(
    uniform_change: tuple[float, float, float], expected: str
) -> None:
    """Both verdicts stand in the table, side by side."""
    rows = [bias("none", 0.9), bias("default", 0.4, change=DOWN)]
    rows += [
        figure("none", 0.9, metric="max_skew_dataset@10", better="lower", task="search"),
        figure(
            "default",
            0.9 + uniform_change[0],
            metric="max_skew_dataset@10",
            better="lower",
            task="search",
            change=uniform_change,
        ),
    ]
    made = result(rows, protocol("search"))
    (conclusion,) = made.conclusions()
    assert conclusion.verdict == expected
    assert conclusion.metric == "max_skew@10"
    assert "against the gallery's own shares" in conclusion.other_prior
    assert conclusion.other_prior in conclusion.sentence
    frame = readable(made).query("method == 'default'")
    against = {"better": DOWN, "worse": UP}
    wanted = [word for word, change in against.items() if change == uniform_change] or [
        "no clear change"
    ]
    assert frame.verdict.tolist() == ["better", *wanted]


def test_one_image_of_each_prompt_is_too_few_to_tell() -> None:
    rows = [
        figure(m, 0.707, metric="discrepancy", better="lower", interval=(0.707, 0.707), change=c)
        for m, c in (("none", None), ("default", (0.0, 0.0, 0.0)), ("random", None))
    ]
    (conclusion,) = result(rows, protocol()).conclusions()
    assert (conclusion.verdict, conclusion.enough) == ("too few to tell", None)


def test_a_conclusion_names_the_method_its_cost_chance_and_who_got_worse(made: Result) -> None:
    assert [caption for caption, *_ in grids(readable(made))] == [
        "By method",
        "MaxSkew@10 by part",
    ]
    (conclusion,) = made.conclusions()
    assert (conclusion.before, conclusion.after, conclusion.verdict, conclusion.method) == (
        0.5,
        0.3,
        "better",
        "default",
    )
    assert conclusion.cost == "recall@5 0.900 to 0.800 (-0.100 [-0.200, -0.050])"
    for word in ("a nurse", "default", "1 of 2", "+0.200"):
        assert word in conclusion.worse
    for word in ("MaxSkew@10", "search", "better", "0.500", "0.300", "chance 0.100", "-0.100"):
        assert word in conclusion.sentence
    assert made.to_dict()["conclusions"] == [conclusion.model_dump(mode="json")]


def test_without_the_default_it_is_about_what_gains_most_and_has_no_labels(made: Result) -> None:
    further = [
        bias("cali", 0.9, change=STILL, metric=name, better="higher")
        for name in ("average", "precision@5")
    ]
    rows = [row for row in made.rows if row.method != "default"] + further
    (conclusion,) = made.model_copy(update={"rows": rows}).conclusions()
    assert conclusion.method == "cali"
    assert conclusion.cost.startswith("none beyond its interval; recall@5 0.900 to 0.900")


def test_the_average_at_the_frequencies_of_training_goes_before_the_plain_one() -> None:
    average = [figure("x", 0.9, metric=m, change=DOWN) for m in ("average", "average_reweighted")]
    alone = [figure("x", 10.0, metric="pair_distance", better="lower", change=DOWN)]
    (plain_cost,), (both,) = (result(alone + rows).conclusions() for rows in (average[:1], average))
    assert plain_cost.before == pytest.approx(10.2), "without a row of none: value less change"
    assert plain_cost.cost.startswith("average accuracy 1.100")
    assert both.cost.startswith("average accuracy, reweighted to training groups")


def gaps(change: Any, squared: Any, deals: bool) -> Result:
    rows = [
        figure("none", 0.37, metric="discrepancy", better="lower"),
        figure("default", 0.03, metric="discrepancy", better="lower", change=change),
        figure("random", 0.11, metric="discrepancy", better="lower", interval=(0.08, 0.15)),
        figure("none", 0.16, metric="discrepancy_squared", better="lower"),
        figure("default", -0.02, metric="discrepancy_squared", better="lower", change=squared),
    ]
    if deals:
        rows.append(
            figure("dealt evenly", 0.01, metric="discrepancy", better="lower", interval=(0, 0.02))
        )
    methods = {"none": {}, "default": {"deals": True} if deals else {}}
    return result(rows, protocol(methods=methods))


def test_the_plain_gap_leads_and_dealt_shares_have_a_chance_of_their_own() -> None:
    (dealt,) = gaps(DOWN, DOWN, deals=True).conclusions()
    assert (dealt.measure, dealt.before, dealt.after) == ("gap from even shares", 0.37, 0.03)
    assert (dealt.chance, dealt.chance_after, dealt.verdict) == (0.11, 0.01, "better")
    assert "square" not in dealt.sentence, "of dealt shares it takes away noise that is not there"
    frame = readable(gaps(DOWN, DOWN, deals=True))
    squares = frame[(frame.metric == "discrepancy_squared") & (frame.method == "default")]
    assert squares.verdict.tolist() == [""]


def test_the_verdict_of_a_gap_of_drawn_images_is_that_of_its_unbiased_square() -> None:
    (drawn,) = gaps(STILL, DOWN, deals=False).conclusions()
    assert (drawn.verdict, drawn.after, drawn.change) == ("better", 0.03, STILL)
    assert "square without the noise of few images 0.160 to -0.020" in drawn.sentence
    (still,) = gaps(DOWN, STILL, deals=False).conclusions()
    assert still.verdict != "better"
    notes = {}
    for deals in (False, True):
        frame = readable(gaps(STILL, DOWN, deals=deals))
        (group,) = front_groups(frame, conclusions(frame))
        notes[deals] = group.verdict_notes
    assert notes[False] == [f"its square, without the noise of few images: {moved(DOWN)}"]
    assert notes[True] == [""], "the page names no square where the verdict rests on none"
    (dealt,) = gaps(STILL, DOWN, deals=True).conclusions()
    assert dealt.verdict != "better"


def test_the_best_that_needs_no_edit_stands_beside_a_conclusion() -> None:
    values = {"none": 0.5, "default": 0.6, "none@median": 0.77}
    rows = [
        figure(m, v, metric="worst_group", change=None if m == "none" else UP)
        for m, v in values.items()
    ]
    (conclusion,) = result(rows, protocol()).conclusions()
    assert conclusion.method == "default"
    assert conclusion.baseline == "no edit, threshold at the median: 0.770 [0.670, 0.870]"
    assert conclusion.baseline in conclusion.sentence


def test_texts_that_moved_are_no_task_won(made: Result) -> None:
    texts = [
        figure(m, v, task="a", metric="cosine_spread", better="lower", change=c)
        for m, v, c in (("none", 0.5, None), ("default", 0.1, DOWN))
    ]
    both = result([*made.rows, *texts], protocol("search"), protocol("a"))
    assert [conclusion.task for conclusion in both.conclusions()] == ["search"]
    assert "cosines" in result(texts, protocol("a")).conclusions()[0].sentence
    assert result([figure()], protocol()).conclusions() == []


def test_parts_with_several_measures_are_the_whole_of_a_task_that_has_none() -> None:
    rows = [
        figure(
            m, 0.5, metric=metric, subset=part, better="lower", change=None if m == "none" else DOWN
        )
        for part in ("train professions", "unseen professions")
        for metric in ("discrepancy", "unknown")
        for m in ("none", "cali")
    ]
    t = readable(result(rows, protocol()))
    assert t.whole.all()
    (conclusion,) = result(rows, protocol()).conclusions()
    assert conclusion.subset == "unseen professions"
    many = [
        figure("cali", metric=m, subset=s, n={"jobs": 3})
        for m in ("discrepancy", "unknown")
        for s in "abcd"
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
    cells = [c.value for _, _, rows, _ in grids(t) for _, row in rows for c in row if c is not None]
    assert sorted(cells) == [i / 100 for i in range(len(keys))]


def test_print_of_a_result_is_what_was_found_and_at_most_25_lines(made: Result) -> None:
    shown = text(made).splitlines()
    assert shown[0].startswith("search: better. The MaxSkew@10 goes from 0.500 to 0.300 with")
    assert max(map(len, shown)) <= 80
    for value in (
        "0.500 [0.400, 0.600]",
        "4 more figures",
        "dfr-up†",
        "given labels of training images",
    ):
        assert value in text(made)
    many = [
        figure(f"m{i}", 0.5, metric=k) for k in ("average", "gap", "worst_group") for i in range(30)
    ]
    assert len(str(result(many, protocol())).splitlines()) == 25
    assert "more figures: to_pandas()" in str(result(many, protocol()))
    assert "1 more figures" in text(result([figure(), figure(subset="a part")]))
    assert str(result([], protocol())).startswith("Result(")
    assert "recall@5 (higher" not in text(made, [("search", "max_skew@10")])
    assert str(made).index("  default ") < str(made).index("  cali "), "what it is about"


def test_many_conclusions_are_short_and_the_rest_is_counted() -> None:
    rows = [
        bias(m, 0.5, task=f"task {i}", change=c, n={"images": 100})
        for i in range(40)
        for m, c in (("none", None), ("default", DOWN))
    ]
    made = result(rows, *(protocol(f"task {i}") for i in range(40)))
    shown = str(made).splitlines()
    assert len(shown) == 25
    assert shown[0] == "task 0: better, MaxSkew@10 0.500 to 0.500 with default"
    assert any(line.endswith(" more: conclusions()") for line in shown)
    assert any(line.startswith("  none") for line in shown), "and some rows"


def test_every_task_of_a_print_has_its_first_measure_before_the_second_of_any() -> None:
    tasks = [
        figure(m, 0.5, task=t, metric=k)
        for t in "cab"
        for k in ("average", "gap", "ndkl@5")
        for m in "xy"
    ]
    shown = str(result(tasks, *map(protocol, "cab"))).splitlines()
    heads = [line[0] for line in shown if line[1:2] == ":"]
    assert heads[:4] == [*"xcab"], "name and tasks, in the order of the rows"


@settings(max_examples=25, deadline=None)
@given(st.text("abc -é", max_size=300), st.integers(20, 120))
def test_no_word_is_broken(sentence: str, width: int) -> None:
    assert " ".join(wrapped(sentence, width)).split() == sentence.split()


def test_rows_for_programs_have_all_digits(made: Result) -> None:
    head, rows = tab_rows(made)
    names = (
        "task metric method subset lam value low high change change_low change_high better verdict"
    )
    assert (" ".join(head), {len(row) for row in rows}) == (names, {13})


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
        "search: <b>better</b>.",
        "date not recorded",
        "download",
        "a nurse",
    ):
        assert page.index(word) < first
    assert (tmp_path / "index.csv").read_text().startswith("task,metric,method,subset,value")


def test_strips_open_the_page_with_their_words_as_text(made: Result, tmp_path: Path) -> None:
    images = [Image.new("RGB", (800, 400), shade) for shade in ("red", "blue", "lime")]
    rows = [("as generated: 3 male", images), ("debiased <1>", images[::-1])]
    strip = Strip("The same seeds", [f"seed {i}" for i in range(3)], rows)
    file = write_strip(strip, tmp_path / "x-strip.png", {"run": "x", "task": "search"})
    again = read_strip(*read_png(file))
    assert (again.caption, again.columns) == (strip.caption, strip.columns)
    for (label, cells), (name, shown) in zip(again.rows, rows, strict=True):
        assert label == name
        assert [cell.size for cell in cells] == [(384, 192)] * 3
        colours = [
            (cell.getpixel((9, 9)), image.getpixel((9, 9)))
            for cell, image in zip(cells, shown, strict=True)
        ]
        assert all(cell == image for cell, image in colours)
    page = render(made, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert page.count('class="face"') == 6
    for word in ("as generated: 3 male</h3>", "debiased &lt;1&gt;</h3>", "<small>seed 2</small>"):
        assert page.index(word) < page.index("<details")
    write_strip(strip, tmp_path / "x-strip.png", {"run": "another", "task": "search"})
    assert 'class="face"' not in render(made, tmp_path / "p.html", beside=tmp_path).read_text()


def test_the_first_table_has_eight_methods_of_all_conclusions_and_what_they_are_held_against() -> (
    None
):
    rows = [
        bias(m, 0.5, task=f"task {i}", change=None if m == "none" else DOWN)
        for i in range(3)
        for m in ("none", "cali", "default", "orth")
    ]
    made = result(rows, *(protocol(f"task {i}") for i in range(3)))
    front = front_rows(readable(made), made.conclusions())
    assert (front.method != "none").sum() == 8
    for task, block in front.groupby("task"):
        assert {"none", "default", "cali"} <= set(block.method), task
    assert (front.method == "orth").sum() == 2, "one further row of each task before a second"
    groups = front_groups(readable(made), made.conclusions())
    assert [len(group.rows) for group in groups] == [3, 3, 2]
    assert {group.before for group in groups} == {"0.500 [0.400, 0.600]"}


def test_the_heading_says_what_was_measured_on_which_model_and_when(made: Result) -> None:
    assert title_of(made) == "x, measured on ViT-L-14/openai"
    assert title_of(made.model_copy(update={"provenance": []})) == "x"
    assert day_of("2026-11-24T15:02:56+01:00") == "24 November 2026, 14:02 UTC"
    assert day_of("last spring") == "last spring"


def test_sheets_of_the_run_stand_with_their_task(made: Result, tmp_path: Path) -> None:
    for stem, caption, run in (
        ("a", "shares", "x"),
        ("b-side-by-side", "images", "x"),
        ("c", "of another run", "y"),
    ):
        labels = {"run": run, "task": "search", "caption": caption}
        write_png(Image.new("RGB", (4, 4), "red"), tmp_path / f"{stem}.png", labels)
    page = render(made, tmp_path / "index.html", beside=tmp_path).read_text(encoding="utf-8")
    assert page.index("<details") < page.index('alt="images"') < page.index('alt="shares"')
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
    odd_result = result(rows, protocol(odd), name=odd)
    assert "<b>[red]" not in render(odd_result, tmp_path / "p.html", beside=tmp_path).read_text(
        encoding="utf-8"
    )
    for shown in (
        str(odd_result),
        str(compare(odd_result, odd_result.model_copy(update={"rows": odd_result.rows[1:]}))),
    ):
        assert "[red]" in shown.replace("\\", "")


def test_settings_evidence_and_cartoons_are_said(tmp_path: Path) -> None:
    assert plain({"a": [1, 2.5, True], "b": None}) == "a: 1, 2.5, yes; b"
    world = protocol("birds", is_miniature=True)
    real = protocol("birds")
    for provenance, cartoon in (
        ([world], True),
        ([world, real], False),
    ):
        page = render(
            result([figure()], *provenance), tmp_path / "p.html", beside=tmp_path
        ).read_text(encoding="utf-8")
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
    axes = dots(readable(result(rows, protocol("b"), protocol("a")))).axes
    assert [drawn.get_title()[:3] for drawn in axes] == ["b: ", "a: "]
    assert axes[0].get_xlim() == axes[1].get_xlim()
    assert axes[0].get_xlim()[0] < 0 < 1 < axes[0].get_xlim()[1]
    assert [drawn.get_text() for drawn in axes[0].get_yticklabels()] == ["none", "cali"]
    assert axes[0].get_ylim() == (1.5, -0.5), "the first method on top, and no row is cut off"
    four = result(
        [figure(task=t, metric="fid", value=v) for t, v in zip("abcd", (5, 7, 6, 5), strict=True)]
    )
    axes = four.plot().axes
    assert [drawn.get_visible() for drawn in axes] == [True] * 4 + [False] * 2, "three in a row"
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


@settings(max_examples=15, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.tuples(*[st.floats(0.001, 0.3)] * 4))
def test_half_widths_are_added_in_squares_each_to_its_side(
    a: float, b: float, widths: tuple[float, ...]
) -> None:
    """And swapping the sides mirrors the interval."""
    first = result([figure("none", a, interval=(a - widths[0], a + widths[1]))], protocol())
    second = result([figure("none", b, interval=(b - widths[2], b + widths[3]))], protocol())
    row, back = (compare(*pair).to_pandas().iloc[0] for pair in ((first, second), (second, first)))
    assert row.low == pytest.approx(b - a - math.hypot(widths[2], widths[1]))
    assert row.high == pytest.approx(b - a + math.hypot(widths[3], widths[0]))
    assert (back.difference, back.low, back.high) == pytest.approx(
        (-row.difference, -row.high, -row.low)
    )


def test_figures_are_matched_by_their_names_and_lambda_where_a_method_has_several() -> None:
    first = result(
        [figure("orth"), figure("cali", 0.5, lam=1.0), figure("a", subset="x")], protocol()
    )
    second = result(
        [figure("orth"), figure("cali", 0.9, lam=2.0), figure("b", subset="x")], protocol()
    )
    comparison = compare(first, second, ("before", "after"))
    assert comparison.to_pandas().method.tolist() == ["orth", "cali"]
    alone = {
        "A, before": ["birds: average accuracy, x, a"],
        "B, after": ["birds: average accuracy, x, b"],
    }
    assert comparison.only == alone
    orth, cali = comparison.to_pandas().itertuples()
    assert (cali.a, cali.low_a, cali.difference) == (0.5, 0.4, pytest.approx(0.4))
    assert math.isnan(orth.lam)
    several = result(
        [figure("cali", 0.5, lam=lam) for lam in (3.0, 4.0)] + [figure("orth")], protocol()
    )
    assert compare(first, several).to_pandas().method.tolist() == ["orth"], (
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
    warnings = compare(
        result([figure()], a), result([figure()], b, versions={"vldebias": "2"})
    ).warnings
    for word in ("model differs", "settings, k", "n, images", "cali, lam", "versions, vldebias"):
        assert any(word in warning for warning in warnings)
    result_a = result([figure()], protocol())
    twice = result([figure()] * 2, protocol())
    for result_b, named in (
        (result([figure(task="other")], protocol("other")), "birds"),
        (twice, "twice"),
    ):
        with pytest.raises(InvalidInputError, match=named):
            compare(result_b, result_a)


def test_two_equal_runs_are_equal_in_the_first_line(made: Result) -> None:
    comparison = compare(made, made)
    assert set(comparison.to_pandas().verdict) == {"equal"}
    assert comparison.warnings == ()
    assert str(comparison).splitlines() == ["equal: all 12 figures that both have"]
    noise = [row.model_copy(update={"value": row.value + 8.5e-16}) for row in made.rows]
    assert str(compare(made, made.model_copy(update={"rows": noise}))) == str(comparison)


def test_a_comparison_says_what_moved_and_what_else_differs(made: Result) -> None:
    prints = [
        protocol("search", fingerprint={"structure": letter, "tensors": [[1.0, 2.0]]})
        for letter in "ab"
    ]
    before, after = (made.model_copy(update={"provenance": [print_]}) for print_ in prints)
    rows = [bias("none", 0.9), *made.rows[1:]]
    changed = after.model_copy(update={"rows": rows, "commit": "other"})
    comparison = compare(before, changed, ("first", "second"))
    lines = str(comparison).splitlines()
    assert lines[0].startswith("worse: MaxSkew@10 of search, none, goes from 0.500 to 0.900")
    assert lines[2].startswith("measured otherwise: search: fingerprint")
    for word in ("1 worse", "commit", "A is first, B is second", "A 0.500    B 0.900", "MOVER"):
        assert word in str(comparison)
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80


def test_what_asks_another_question_is_named_before_hashes_versions_and_branches() -> None:
    before = protocol(
        model="A",
        prompts_hash="a",
        n={"images": 5},
        seeds=[0],
        settings={"k": 5, "train": {"split": "train", "images": 9}},
        methods={"none": {}, "cali": {"lam": 1.0}},
    )
    after = protocol(
        model="B",
        prompts_hash="b",
        n={"images": 6},
        seeds=[1],
        settings={"k": 6},
        methods={"none": {}, "orth": {"lam": 1.0}},
    )
    runs = (result([figure()], before), result([figure()], after, versions={"vldebias": "2"}))
    notes = compare(*runs).warnings
    order = ("model", "k", "images", "seeds", "train", "vldebias", "prompts_hash")
    places = [
        next(i for i, note in enumerate(notes) if f"{word} differs" in note) for word in order
    ]
    assert places == sorted(places)
    assert sum("train" in note for note in notes) == 1
    # A method that one run lacks is among its figures, not among the settings.
    assert not [note for note in notes if "cali" in note or "orth" in note]


def test_distances_between_texts_lead_only_where_nothing_else_moved(made: Result) -> None:
    names = {"task": "texts", "metric": "cosine_spread", "better": "lower"}
    spread = figure("none", 0.5, interval=(0.5, 0.5), **names)
    rows = [*made.rows, spread]
    moved_spread = spread.model_copy(update={"value": 0.9, "interval": (0.9, 0.9)})
    before = made.model_copy(update={"rows": rows})
    texts_alone = made.model_copy(update={"rows": [*made.rows, moved_spread]})
    assert "spread of cosines" in compare(before, texts_alone).sentence
    both = made.model_copy(update={"rows": [moved_spread, bias("none", 0.9), *made.rows[1:]]})
    comparison = compare(before, both)
    assert comparison.sentence.startswith("worse: MaxSkew@10 of search")
    assert comparison.frame.metric.tolist()[-1] == "cosine_spread"
    # A sum of float32 in another order is the same figure.
    noise = spread.model_copy(update={"value": 0.5 + 3e-8, "interval": (0.5 + 3e-8, 0.5 + 3e-8)})
    assert compare(before, made.model_copy(update={"rows": [*made.rows, noise]})).is_equal


def test_a_comparison_has_the_conclusions_of_both_runs(made: Result) -> None:
    rows = [
        bias("default", 0.6, change=UP)
        if r.method == "default" and not r.subset and r.metric == "max_skew@10"
        else r
        for r in made.rows
    ]
    (conclusion,) = compare(made, made.model_copy(update={"rows": rows})).conclusions
    assert (conclusion.task, conclusion.method, conclusion.before, conclusion.after) == (
        "search",
        "default",
        0.3,
        0.6,
    )
    assert conclusion.verdict == "worse"
    (again,) = compare(made, made).conclusions
    assert again.verdict == "equal"
    assert "0.300 in A and 0.300 in B" in again.sentence


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


def small() -> Result:
    part = TaskResult(protocol(methods={"cali": {"lam": 0.1 + 0.2, "strength": 1.0}}))
    part.add("gap", "none", 1 / 3, (0.1, 0.9), n={"images": 9, "smallest group": 2})
    part.add("gap", "cali", 2 / 7, (0.0, 0.9), n={"images": 9}, change=(1 / 3 - 2 / 7, -0.1, 0.2))
    part.add("cosine", "cali", 0.5, n={"prompts": 3}, subset="$a$ / <b>")
    return Result.from_tasks("small", [part], seconds=1.5)


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
    assert all(
        shown in small()._repr_html_() for shown in ("<h3>small</h3>", "0.333 [0.100, 0.900]")
    )
    assert Result.from_tasks("nothing", [], seconds=0).to_pandas().shape == (0, len(COLUMNS))


@pytest.mark.parametrize("compact", [False, True])
def test_what_is_written_is_read_to_the_last_digit(compact: bool, tmp_path: Path) -> None:
    result = small()
    path = result.write(tmp_path / "out" / "result.json", **({"compact": True} if compact else {}))
    assert Result.read(path) == result
    assert set(path.parent.iterdir()) == {
        path,
        *([path.with_suffix(".parquet")] if compact else []),
    }
    written = json.loads(path.read_text())
    keys = "conclusions name figures protocols versions commit seconds date command platform"
    assert set(keys.split()) == set(written)
    path.write_text(json.dumps({**written, "other": 1}))
    with pytest.raises(InvalidInputError, match="other"):
        Result.read(path)
    path.write_text(json.dumps(written))
    rows = path.with_suffix(".parquet")
    for spoil in (
        (lambda: rows.write_bytes(rows.read_bytes() + b"more"), rows.unlink) if compact else ()
    ):
        spoil()
        with pytest.raises(InvalidInputError, match=r"result\.parquet"):
            Result.read(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(max_size=9), inside),
    max_leaves=60,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=9), JSON, min_size=1))
def test_json_is_laid_out_without_a_change(content: dict[str, Any]) -> None:
    repeated = {name: [value] * 40 for name, value in content.items()}
    assert json.loads(laid_out(repeated)) == repeated


def test_a_row_of_a_result_is_a_line(tmp_path: Path) -> None:
    lines = small().write(tmp_path / "r.json").read_text().splitlines()
    assert sum('"metric": "gap"' in line and '"value"' in line for line in lines) == 2


def test_no_name_in_the_csv_is_a_formula(tmp_path: Path) -> None:
    result = small()
    result.rows[0] = result.rows[0].model_copy(
        update={"subset": "=HYPERLINK(1)", "method": "@x", "value": -0.5}
    )
    table = pd.read_csv(result.to_csv(tmp_path / "r.csv"))
    assert table.value.tolist() == result.to_pandas().value.tolist()
    first = table.iloc[0]
    assert (first.subset, first.method, first.value) == ("'=HYPERLINK(1)", "'@x", -0.5)


def test_what_is_no_result_is_readable(tmp_path: Path) -> None:
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
    for words, kept in (
        installed,
        (["/home/me/work.py", "--n", "3"], "python work.py --n 3"),
        (["-c", "1"], None),
    ):
        monkeypatch.setattr("sys.argv", words)
        monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python", *words])
        assert Result.from_tasks("x", [], seconds=0).command == kept


def test_resampled_rows_are_those_of_the_public_bootstrap() -> None:
    rng = np.random.default_rng(0)
    before = rng.random(30)
    after = rng.random(30)
    part = TaskResult(protocol())
    part.add_resampled("clip_score", {"none": before, "x": after}, n={"images": 30})
    unpaired = bootstrap_interval(after)
    paired = bootstrap_interval(after - before)
    none, x = part.rows
    assert none.change is None
    assert (x.value, *x.interval) == pytest.approx((unpaired.value, unpaired.low, unpaired.high))
    assert x.change == pytest.approx((paired.value, paired.low, paired.high))


def test_parts_are_the_arguments_of_a_metric_frame() -> None:
    """Those that fairlearn documents: metrics, y_true, y_pred, sensitive_features,
    sample_params."""
    part = TaskResult(protocol())
    part.add("accuracy", "none", 0.5, n={"images": 10}, subset="landbird/water")
    part.add("accuracy", "none", 0.9, n={"images": 30}, subset="landbird/land")
    result = Result.from_tasks("birds", [part], seconds=1.0)
    arguments = result.as_metric_frame("birds", "accuracy", "none")
    assert set(arguments) == {"metrics", "y_true", "y_pred", "sensitive_features", "sample_params"}
    assert arguments["sensitive_features"] == ["landbird/water", "landbird/land"]
    overall = arguments["metrics"]["accuracy"](
        arguments["y_true"], arguments["y_pred"], **arguments["sample_params"]["accuracy"]
    )
    assert overall == pytest.approx((10 * 0.5 + 30 * 0.9) / 40)
    with pytest.raises(InvalidInputError, match="gap"):
        result.as_metric_frame("birds", "gap", "none")


def test_a_comparison_in_a_notebook_opens_with_what_moved_and_folds_the_settings() -> None:
    def run(value: float, setting: str) -> Result:
        rows = [
            figure(m, value, task=f"task {i}", metric="average") for i in range(5) for m in "xy"
        ]
        protocols = [protocol(f"task {i}", prompts_hash=f"<{setting}>") for i in range(5)]
        return result(rows, *protocols)

    shown = compare(run(0.3, "a"), run(0.9, "b"))._repr_html_()
    assert shown.startswith("<p><b>")
    assert "8 of 10 figures that moved" in shown
    assert shown.count("<tr>") == 9
    assert shown.index("prompts_hash") > shown.index("<details>")
    assert "<a>" not in shown
    page = compare(run(0.3, "a"), run(0.3, "a"))._repr_html_()
    assert "equal" in page
    assert "<table" not in page
