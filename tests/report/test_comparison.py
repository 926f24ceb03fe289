"""Test comparisons of two results: which figures correspond, what changed, and what else
differs."""

import math
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.study.made_figures import UP, bias, figure, protocol, result
from vldebias.errors import InvalidInputError
from vldebias.report.compare import compare
from vldebias.report.result import Result


@settings(max_examples=6, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.tuples(*[st.floats(0.001, 0.3)] * 4))
def test_half_widths_are_combined_in_quadrature_on_each_side(
    a: float, b: float, widths: tuple[float, ...]
) -> None:
    """Swapping the two results mirrors the interval."""
    first = result([figure("none", a, interval=(a - widths[0], a + widths[1]))], protocol())
    second = result([figure("none", b, interval=(b - widths[2], b + widths[3]))], protocol())
    row, back = (compare(*pair).to_pandas().iloc[0] for pair in ((first, second), (second, first)))
    assert row.low == pytest.approx(b - a - math.hypot(widths[2], widths[1]))
    assert row.high == pytest.approx(b - a + math.hypot(widths[3], widths[0]))
    assert (back.difference, back.low, back.high) == pytest.approx(
        (-row.difference, -row.high, -row.low)
    )


def test_figures_are_matched_by_names_and_by_lambda_if_a_method_has_several() -> None:
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
        "an ambiguous match is not guessed"
    )
    assert compare(several, several).to_pandas().lam.tolist()[:2] == [3.0, 4.0]


def test_unrelated_results_are_rejected() -> None:
    result_a = result([figure()], protocol())
    twice = result([figure()] * 2, protocol())
    for result_b, named in (
        (result([figure(task="other")], protocol("other")), "birds"),
        (twice, "twice"),
    ):
        with pytest.raises(InvalidInputError, match=named):
            compare(result_b, result_a)


def test_long_settings_that_differ_at_their_end_differ() -> None:
    queries = [f"a photo of person number {n}" for n in range(40)]
    a = protocol(settings={"queries": queries})
    b = protocol(settings={"queries": [*queries[:-1], "a red chair"]})
    (warning,) = compare(result([figure()], a), result([figure()], b)).warnings
    assert "settings, queries: ..." in warning
    assert "person number 39 in A" in warning
    assert "a red chair in B" in warning


def test_two_equal_runs_are_reported_as_equal_on_the_first_line(made: Result) -> None:
    comparison = compare(made, made)
    assert set(comparison.to_pandas().verdict) == {"equal"}
    assert comparison.warnings == ()
    (line,) = str(comparison).splitlines()
    assert line.startswith("equal: ")
    assert "12 values" in line
    noise = [row.model_copy(update={"value": row.value + 8.5e-16}) for row in made.rows]
    assert str(compare(made, made.model_copy(update={"rows": noise}))) == str(comparison)


def test_a_comparison_lists_changes_and_different_settings(made: Result) -> None:
    prints = [
        protocol("search", fingerprint={"structure": letter, "tensors": [[1.0, 2.0]]})
        for letter in "ab"
    ]
    before, after = (made.model_copy(update={"provenance": [print_]}) for print_ in prints)
    rows = [bias("none", 0.9), *made.rows[1:]]
    changed = after.model_copy(update={"rows": rows, "commit": "other"})
    comparison = compare(before, changed, ("first", "second"))
    lines = str(comparison).splitlines()
    text = " ".join(str(comparison).split())
    assert text.startswith("2 settings differ: search: fingerprint of the weights differs and com")
    assert " worse: MaxSkew@10 of search with no method changes from 0.50 in A" in text
    for word in ("1 worse", "commit", "A (first)", "B (second)", "A 0.50   B 0.90", "MOVER"):
        assert word in str(comparison)
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80


def test_a_comparison_names_the_cost_and_writes_a_page(tmp_path: Path) -> None:
    utility = {"metric": "recall@5", "better": "higher", "task": "search"}
    part = {"method": "default", "subset": "a nurse"}

    def run(skew: float, recall: float) -> Result:
        rows = [bias("none", 0.5), bias("default", skew, change=UP), bias(value=skew, **part)]
        rows += [figure("none", 0.9, **utility), figure("default", recall, change=UP, **utility)]
        return result(rows, protocol("search"))

    comparison = compare(run(0.9, 0.9), run(0.3, 0.5), ("<first>", "second"))
    row = comparison.to_pandas().query("metric == 'max_skew@10' and subset == ''").iloc[1]
    assert (row.method, row.verdict) == ("default", "better, at a cost")
    assert row.cost == "recall@5 -0.40 [-0.54, -0.26]"
    (conclusion,) = comparison.conclusions
    assert conclusion.sentence.startswith(
        "search: better, at a cost. Surplus of one group in searches (MaxSkew@10) with an edit from"
        " text is 0.90 in A"
    )
    lines = str(comparison).splitlines()
    assert max(map(len, lines)) <= 80
    assert "    cost: recall@5 -0.40 [-0.54, -0.26]" in lines
    assert "1 better at a cost" in comparison.sentence
    page = comparison.write_page(tmp_path / "compare.html").read_text()
    assert "A: &lt;first&gt;<br>B: second" in page
    assert page.count('<tr class="better-at-a-cost">') == 1
    shown, _, folded = page.partition("<details><summary>Values that changed for parts")
    assert "a nurse" not in shown
    assert "MaxSkew@10, a nurse" in folded
    assert "2 equal values are not listed" in page
    # Without a loss of utility, there is nothing to trade off.
    free = compare(run(0.9, 0.9), run(0.3, 0.9)).to_pandas()
    assert free[["verdict", "cost"]].iloc[1].tolist() == ["better", "no clear loss"]


def test_different_questions_are_reported_before_hashes_versions_and_branches() -> None:
    before = protocol(
        model="A",
        attribute_hash="a",
        n={"images": 5},
        seeds=[0],
        settings={"k": 5, "train": {"split": "train", "images": 9}},
        methods={"none": {}, "cali": {"lam": 1.0}, "sage": {"lam": 1.0}},
    )
    after = protocol(
        model="B",
        attribute_hash="b",
        n={"images": 6},
        seeds=[1],
        settings={"k": 6},
        methods={"none": {}, "orth": {"lam": 1.0}, "sage": {"lam": 2.0}},
    )
    runs = (result([figure()], before), result([figure()], after, versions={"vldebias": "2"}))
    notes = compare(*runs).warnings
    words = ("model: A in A, B in B", "settings, k", "n, images", "sage, lam", "versions, vldebias")
    for word in words:
        assert any(word in note for note in notes)
    order = ("model", "k", "images", "seeds", "train", "vldebias", "attribute_hash")
    places = [next(i for i, note in enumerate(notes) if f"{word}: " in note) for word in order]
    assert places == sorted(places)
    assert sum("train" in note for note in notes) == 1
    # A method that is missing from one run is listed with the figures, not with the settings.
    assert not [note for note in notes if "cali" in note or "orth" in note]


def test_text_distances_only_come_first_if_nothing_else_changed(made: Result) -> None:
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
    # Summing float32 numbers in a different order gives the same figure.
    noise = spread.model_copy(update={"value": 0.5 + 3e-8, "interval": (0.5 + 3e-8, 0.5 + 3e-8)})
    assert compare(before, made.model_copy(update={"rows": [*made.rows, noise]})).is_equal


def test_a_comparison_contains_the_conclusions_of_both_runs(made: Result) -> None:
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
    assert "0.30 in A and 0.30 in B" in again.sentence


def test_a_comparison_in_a_notebook_starts_with_the_changes_and_folds_the_settings() -> None:
    def run(value: float, setting: str) -> Result:
        rows = [
            figure(m, value, task=f"task {i}", metric="average") for i, m in product(range(5), "xy")
        ]
        protocols = [protocol(f"task {i}", attribute_hash=f"<{setting}>") for i in range(5)]
        return result(rows, *protocols)

    shown = compare(run(0.3, "a"), run(0.9, "b"), ("<first>", "second"))._repr_html_()
    assert "&lt;first&gt;" in shown
    assert shown.startswith("<p><b>")
    assert "8 of 10 values that changed" in shown
    assert shown.count("<tr>") == 9
    assert shown.index("attribute_hash") > shown.index("<details>")
    assert "<a>" not in shown
    page = compare(run(0.3, "a"), run(0.3, "a"))._repr_html_()
    assert "equal" in page
    assert "<table" not in page


def test_results_can_be_given_as_files_or_folders(made: Result, tmp_path: Path) -> None:
    path = made.write(tmp_path / "result.json")
    assert compare(str(path), tmp_path).is_equal
    with pytest.raises(InvalidInputError, match="no such file"):
        compare(made, tmp_path / "missing.json")
    with pytest.raises(InvalidInputError, match="got dict; expected two results"):
        compare(made, made.to_dict())
