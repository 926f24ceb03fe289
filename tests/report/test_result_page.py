"""Test the result page, including its strip plots and its sheets of pictures."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.study.made_figures import DOWN, STILL, UP, bias, figure, protocol, result
from vldebias.errors import InvalidInputError
from vldebias.measure.rows import Strip
from vldebias.report.compare import compare
from vldebias.report.conclusion import AT_A_COST, NO_VERDICT, Conclusion
from vldebias.report.page import (
    day_of,
    front_groups,
    front_rows,
    plain,
    render,
    task_title,
    title_of,
    unbroken,
)
from vldebias.report.result import Result
from vldebias.report.strip import read_strip, write_strip
from vldebias.report.table import readable
from vldebias.utils.pictures import read_png, write_png


def test_a_page_is_one_safe_file_that_starts_with_the_summary(made: Result, tmp_path: Path) -> None:
    odd = made.model_copy(
        update={"provenance": [protocol("search", description="<script>alert(1)</script>")]}
    )
    page = render(odd, tmp_path / "index.html", run_folder=tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page.replace("data:image", "")
    first = page.index("<details", page.index("<table"))
    assert "95% intervals" in page
    assert page.index("used labels of other images") < first, "below the table with the mark"
    for word in (
        "ViT-L-14/openai",
        "search: <b>better, at a cost</b>.",
        'class="better-at-a-cost"',
        '<div role="img" aria-label="default: ',
        "date not recorded",
        "download",
        "a nurse",
    ):
        assert page.index(word) < first
    assert (tmp_path / "index.csv").read_text().startswith("task,metric,method,subset,value")


def test_the_page_starts_with_strip_plots_whose_text_is_outside_the_picture(
    made: Result, tmp_path: Path
) -> None:
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
    page = render(made, tmp_path / "index.html", run_folder=tmp_path).read_text(encoding="utf-8")
    assert page.count('class="face"') == 6
    for word in ("as generated: 3 male</h3>", "debiased &lt;1&gt;</h3>", "<small>seed 2</small>"):
        assert page.index(word) < page.index("<details", page.index("<table"))
    write_strip(strip, tmp_path / "x-strip.png", {"run": "another", "task": "search"})
    assert 'class="face"' not in render(made, tmp_path / "p.html", run_folder=tmp_path).read_text()


def test_the_first_table_shows_every_method_at_its_own_setting_and_the_paper_s() -> None:
    """The rule is stated on the page and does not depend on the results of a method."""
    rows = []
    for task in ("task 0", "task 1", "task 2"):
        rows.append(bias("none", 0.5, task=task))
        for method in ("cali", "default"):
            rows.append(bias(method, 0.5, task=task, change=DOWN))
        # As in the tasks, the method's own lambda comes first, followed by a sweep.
        for lam, value in ((200.0, 0.4), (1000.0, 0.3), (2000.0, 0.01)):
            rows.append(bias("orth-cali", value, task=task, change=DOWN, lam=lam))
    made = result(rows, *(protocol(f"task {i}") for i in range(3)))
    front = front_rows(readable(made), made.conclusions())
    groups = front_groups(front)
    assert [group["task"] for group in groups] == ["task 0", "task 1", "task 2"]
    for group in groups:
        names = [row.name for row in group["rows"]]
        assert names == ["default", "cali", "orth-cali, λ = 200", "orth-cali, λ = 1000"]
        assert group["before"] == "0.50 [0.40, 0.60]"


def test_the_heading_states_task_model_and_date(made: Result) -> None:
    assert title_of(made) == "x, measured on ViT-L-14/openai"
    assert title_of(made.model_copy(update={"provenance": []})) == "x"
    for models, title in (
        (
            ("miniature", "miniature (StableDiffusionPipeline)"),
            "x, measured on the miniature CLIP and the miniature pipeline",
        ),
        (("StableDiffusionPipeline", "not said"), "x, measured on a StableDiffusionPipeline"),
        (("org/a", "none", "unnamed model"), "x, measured on org/a"),
    ):
        provenance = [protocol(f"task {model}", model=model) for model in models]
        assert title_of(made.model_copy(update={"provenance": provenance})) == title
    of_a_table = protocol("shares", title="Shares of a table", model="not said")
    assert title_of(made.model_copy(update={"provenance": [of_a_table]})) == "Shares of a table"
    repeated = protocol("birds", title="Birds: Zero-shot group robustness")
    assert task_title(repeated) == "Zero-shot group robustness"
    assert day_of("2026-11-24T15:02:56+01:00") == "24 November 2026, 14:02 UTC"
    assert day_of("last spring") == "last spring"


def test_sheets_of_the_run_are_shown_with_their_task(made: Result, tmp_path: Path) -> None:
    for stem, caption, run in (
        ("a", "shares", "x"),
        ("b-side-by-side", "images", "x"),
        ("c", "of another run", "y"),
    ):
        labels = {"run": run, "task": "search", "caption": caption}
        write_png(Image.new("RGB", (4, 4), "red"), tmp_path / f"{stem}.png", labels)
    page = render(made, tmp_path / "index.html", run_folder=tmp_path).read_text(encoding="utf-8")
    assert page.index("<details") < page.index('alt="images"') < page.index('alt="shares"')
    assert "of another run" not in page


@pytest.mark.filterwarnings("ignore:Glyph")  # the font draws a box for an unknown character
def test_names_may_contain_any_text(tmp_path: Path) -> None:
    odd = "$\\frac{a}$ <b>[red]人\x07%_"
    rows = [
        figure(m, 0.5, task=odd, metric=k, subset=s, change=None if m == "none" else UP)
        for m, k, s in product(("none", odd), ("gap", odd), ("", odd, "other"))
    ]
    odd_result = result(rows, protocol(odd), name=odd)
    assert "<b>[red]" not in render(odd_result, tmp_path / "p.html", run_folder=tmp_path).read_text(
        encoding="utf-8"
    )
    for shown in (
        str(odd_result),
        str(compare(odd_result, odd_result.model_copy(update={"rows": odd_result.rows[1:]}))),
    ):
        assert "[red]" in shown.replace("\\", "")


def test_settings_evidence_and_cartoons_are_mentioned(tmp_path: Path) -> None:
    assert plain({"a": [1, 2.5, True], "b": None}) == "a: 1, 2.5, yes; b"
    world = protocol("birds", is_miniature=True)
    real = protocol("birds")
    for provenance, cartoon in (
        ([world], True),
        ([world, real], False),
    ):
        page = render(
            result([figure()], *provenance), tmp_path / "p.html", run_folder=tmp_path
        ).read_text(encoding="utf-8")
        assert ("cartoon" in page) == cartoon
        assert page.count("not recorded") >= 2
        assert "images: 100" in page
    two = result([figure(task=task) for task in "ba"], *map(protocol, "ba"))
    page = render(two, tmp_path / "p.html", run_folder=tmp_path).read_text(encoding="utf-8")
    assert page.index("task-b") < page.index("task-a"), "in the order of the rows"


def test_every_sentence_of_advice_is_supported_by_a_row_of_the_first_table(tmp_path: Path) -> None:
    """Even with many methods and groups, the worst group and the wrong labels are not cut off."""
    methods = ("none", *(f"method {i}" for i in range(6)))
    metrics = ("linear_probe", "neighbour_probe", "class_probe")
    rows = [
        figure(method, 0.8, metric=metric, subset="gender")
        for metric, method in product(metrics, methods)
    ]
    for value, group in ((0.9, "yes/male"), (0.2, "no/female"), (0.6, "no/male")):
        rows.append(figure("none", value, metric="accuracy", subset=group))
    rows.append(figure("none", 0.1, metric="suspect_labels"))
    advised = protocol("search", settings={"advice": ["gender can be read"]})
    page = render(result(rows, advised), tmp_path / "p.html", run_folder=tmp_path).read_text()
    table = page[page.index('class="front') : page.index("</table>")]
    assert 4 <= table.count('data-label="value"') <= 8
    for word in ("linear probe", "nearest neighbour", "no/female", "labels that another class"):
        assert word in table
    assert "yes/male" not in table, "the worst group comes before the others"


def test_a_result_without_methods_states_what_was_measured(tmp_path: Path) -> None:
    rows = [
        figure("none", 0.17, task="shares", metric="discrepancy"),
        figure("random", 0.09, task="shares", metric="discrepancy"),
    ]
    page = render(result(rows, protocol("shares")), tmp_path / "p.html", run_folder=tmp_path)
    html = unbroken(page.read_text())
    sentence = unbroken("shares: the gap from even shares is 0.17 [0.07, 0.27]; chance alone")
    assert (
        html.index(sentence) < html.index("<table") < html.index("<details", html.index("<table"))
    )


def test_a_part_called_all_is_distinguished_from_the_overall_row(tmp_path: Path) -> None:
    rows = [
        figure("none", 0.8, metric="linear_probe"),
        figure("none", 0.7, metric="linear_probe", subset="all"),
    ]
    advised = protocol(settings={"advice": ["gender can be read"]})
    page = render(result(rows, advised), tmp_path / "p.html", run_folder=tmp_path).read_text()
    table = page[page.index('class="front') : page.index("</table>")]
    assert table.count('<td data-label="subset">all</td>') == 1
    assert table.count('<td data-label="subset"><i>entire task</i></td>') == 1


def test_no_interval_is_split_across_lines() -> None:
    assert unbroken("goes to 1 [0.1, 0.2] or [+1, +2]").count("\N{NO-BREAK SPACE}") == 2
    assert unbroken("a b, c [d") == "a b, c [d"


def test_a_result_without_rows_has_a_page_but_no_plot(tmp_path: Path) -> None:
    empty = result([], protocol())
    page = render(empty, tmp_path / "p.html", run_folder=tmp_path).read_text(encoding="utf-8")
    assert "All 0 values" in page
    with pytest.raises(InvalidInputError, match="no rows"):
        empty.plot()


def test_each_groups_accuracy_is_shown_before_and_after_with_the_worst_marked(
    tmp_path: Path,
) -> None:
    rows = []
    for lam in (10.0, 1000.0):
        for method, value in (("none", 0.2), ("cali", 0.5)):
            change = None if method == "none" else UP
            rows.append(figure(method, value, metric="worst_group", change=change, lam=lam))
    accuracies = {"land": (0.2, 0.9), "<water>": (0.99, 0.5)}
    for name, (before, after) in accuracies.items():
        part = {"metric": "accuracy", "subset": name}
        rows.append(figure("none", before, **part))
        change = (after - before, after - before - 0.1, after - before + 0.1)
        rows.append(figure("cali", after, change=change, lam=10.0, **part))
    made = result(rows, protocol("birds"))
    (conclusion,) = made.conclusions()
    # The accuracies were measured with one lambda, so their names do not contain it.
    assert conclusion.method == "cali, λ = 10"
    page = render(made, tmp_path / "index.html", run_folder=tmp_path).read_text(encoding="utf-8")
    assert (
        "land (n = 100) 0.20 to 0.90 [0.80, 1.00] (worst before); &lt;water&gt; (n = 100) 0.99 to"
        " 0.50 [0.40, 0.60] (worst after)"
    ) in page
    assert page.count('<svg class="bell">') == 2
    assert '<circle class="old" cx="20.0%"' in page


def test_a_worst_group_of_one_image_is_too_few_to_tell(tmp_path: Path) -> None:
    for smallest, expected in ((1, "too few to tell"), (1200, "better")):
        n = {"images": 3000, "smallest group": smallest}
        of_group = {"metric": "accuracy", "subset": "blond man", "n": {"images": smallest}}
        rows = [
            figure("none", 0.2, metric="worst_group", n=n),
            figure("default", 0.6, metric="worst_group", change=UP, n=n),
            figure("none", 0.2, **of_group),
            figure("default", 0.6, change=UP, **of_group),
        ]
        made = result(rows, protocol("birds"))
        (conclusion,) = made.conclusions()
        assert conclusion.verdict == expected
        assert conclusion.enough is None
        page = render(made, tmp_path / "index.html", run_folder=tmp_path).read_text("utf-8")
        assert ("smallest group: 1 image" in page) == (smallest == 1)
        assert f"blond man (n = {smallest:,})" in page


def test_the_legend_defines_every_verdict(tmp_path: Path) -> None:
    assert Conclusion.__doc__ is not None
    (described,) = re.findall(
        r"\n        verdict: (.*?)\n        sentence: ", Conclusion.__doc__, re.S
    )
    documented = {" ".join(word.split()) for word in re.findall(r'"([^"]+)"', described)}
    changes = (None, (0.0, 0.0, 0.0), DOWN, UP, STILL, (0.1, 0.1, 0.1))
    metrics = ("max_skew@10", "worst_group", "recall@5", "discrepancy", "average")
    occurring = {AT_A_COST, NO_VERDICT}  # conclusions add these two
    for metric, better, change in product(metrics, ("higher", "lower", "neither"), changes):
        for chance, smallest in product((0.0, 0.5), (1, 50)):
            fields: dict[str, Any] = {"metric": metric, "better": better}
            fields["n"] = {"images": 100, "smallest group": smallest}
            rows = [
                figure("none", 0.5, interval=(0.45, 0.55), **fields),
                figure("random", chance, **fields),
            ]
            rows.append(figure("default", 0.3, change=change, **fields))
            occurring |= set(readable(result(rows, protocol())).verdict)
    assert occurring - {""} == documented
    made = result([bias("none", 0.5), bias("default", 0.3, change=DOWN)], protocol("search"))
    page = render(made, tmp_path / "index.html", run_folder=tmp_path).read_text("utf-8")
    legend = page[page.index("How the values were measured") :]
    for word in documented:
        assert f"“{word}”" in page if word == AT_A_COST else f"“{word}”" in legend


def test_the_tables_of_all_figures_have_the_verdicts_of_the_first_table(tmp_path: Path) -> None:
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    even = {"metric": "ndkl", "change": DOWN}
    rows += [bias("none", 0.5, metric="ndkl"), bias("default", 0.3, **even)]
    recall = {"metric": "recall@5", "better": "higher", "task": "search"}
    rows += [figure("none", 0.9, **recall), figure("default", 0.7, change=DOWN, **recall)]
    made = result(rows, protocol("search"))
    page = render(made, tmp_path / "index.html", run_folder=tmp_path).read_text(encoding="utf-8")
    _, _, appendix = page.partition('<h2 class="appendix">')
    assert appendix.count("<b>better, at a cost</b>") == 2
    assert "<b>better</b>" not in appendix
    assert "<b>worse</b>" in appendix
