"""Two results side by side: what is matched, how sure the difference is, and every warning that is due."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_figures import figure, protocol, result
from rich.console import Console

from vldebias.errors import InvalidInputError
from vldebias.evaluation.report.comparison import compare, independent_difference, print_comparison, write_comparison
from vldebias.evaluation.result import Result

one = {"structure": "a", "norms": [1.0], "waves": [1.0]}
other = {"structure": "b", "norms": [1.0], "waves": [1.0]}


def test_a_result_is_the_same_as_itself() -> None:
    made = result([figure("none", 0.5), figure("cali", 0.6)], protocol(fingerprint=one))
    found = compare(made, made)
    assert found.warnings == ()
    assert (found.only_a, found.only_b) == ((), ())
    assert [pair.difference[0] for pair in found.pairs] == [0.0, 0.0]
    assert {pair.verdict for pair in found.pairs} == {"equal"}
    console = Console(record=True)
    print_comparison(found, console)
    assert console.export_text() == "same: all 2 figures are equal\n"
    assert found.to_dict()["same"]
    near = result([figure("none", 0.5), figure("cali", 0.6, interval=(0.5, 0.71))])
    assert [pair.verdict for pair in compare(made, near).pairs] == ["equal", "unclear"]
    assert not compare(made, near).same
    assert not compare(made, result([figure("none", 0.5)])).same


def test_half_widths_are_added_in_squares_each_to_its_side() -> None:
    a = figure(value=0.5, interval=(0.47, 0.54))
    b = figure(value=0.7, interval=(0.67, 0.78))
    value, low, high = independent_difference(a, b)
    assert value == pytest.approx(0.2)
    assert low == pytest.approx(0.2 - math.hypot(0.03, 0.04))
    assert high == pytest.approx(0.2 + math.hypot(0.08, 0.03))


@given(st.floats(-1, 1), st.floats(-1, 1), st.tuples(*[st.floats(0, 1)] * 4))
def test_swapping_the_sides_mirrors_the_interval(a: float, b: float, widths: tuple[float, ...]) -> None:
    first = figure(value=a, interval=(a - widths[0], a + widths[1]))
    second = figure(value=b, interval=(b - widths[2], b + widths[3]))
    value, low, high = independent_difference(first, second)
    assert independent_difference(second, first) == pytest.approx((-value, -high, -low))
    assert low <= value <= high


def test_figures_are_matched_by_all_their_names() -> None:
    keys = [
        {"task": task, "metric": metric, "subset": subset, "lam": lam}
        for task in ("x", "y")
        for metric in ("average", "gap")
        for subset in ("", "g")
        for lam in (1.0, 2.0)
    ]
    figures = [figure("cali", i / 100, **key) for i, key in enumerate(keys)]
    found = compare(result(figures), result(figures[::-1]))
    assert len(found.pairs) == len(keys)
    assert all(pair.a == pair.b for pair in found.pairs)
    assert found.warnings == ()


def test_another_lambda_is_compared_where_there_is_no_choice_and_said() -> None:
    a = result([figure("none"), figure("cali", lam=500.0)])
    b = result([figure("none"), figure("cali", lam=1000.0)])
    found = compare(a, b)
    assert len(found.pairs) == 2
    assert [str(w) for w in found.warnings] == ["birds: lam of cali differs: 500.0 in A, 1000.0 in B"]
    swept = result([figure("none"), *(figure("cali", lam=lam) for lam in (1.0, 2.0))])
    found = compare(a, swept)
    assert len(found.pairs) == 1
    assert [row.lam for row in found.only_a] == [500.0]
    assert [row.lam for row in found.only_b] == [1.0, 2.0]


def warnings_between(a: dict[str, object], b: dict[str, object]) -> list[str]:
    found = compare(result([figure()], protocol(**a)), result([figure()], protocol(**b)))
    return [str(warned) for warned in found.warnings]


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ({"model": "RN50"}, {"model": "ViT"}, "birds: model differs: RN50 in A, ViT in B"),
        ({"prompts": "p"}, {"prompts": "q"}, "birds: prompts differs: p in A, q in B"),
        ({"prompts_hash": "0"}, {"prompts_hash": "1"}, "birds: prompts hash differs: 0 in A, 1 in B"),
        ({"split": "test"}, {"split": "val"}, "birds: split differs: test in A, val in B"),
        ({"n": {"images": 1}}, {"n": {"images": 2}}, "birds: n differs: images 1 in A, images 2 in B"),
        ({"seeds": [0]}, {"seeds": [1]}, "birds: seeds differs: [0] in A, [1] in B"),
        ({"settings": {"k": 10}}, {"settings": {"k": 20}}, "birds: setting k differs: 10 in A, 20 in B"),
        ({"settings": {}}, {"settings": {"k": 20}}, "birds: setting k differs: None in A, 20 in B"),
        ({"methods": {}}, {"methods": {"cali": {"lam": 1}}}, "birds: method cali differs: None in A, lam 1 in B"),
        ({"fingerprint": one}, {"fingerprint": other}, "birds: fingerprint of the weights differs: a in A, b in B"),
    ],
)
def test_every_difference_of_protocols_is_said(a: dict[str, object], b: dict[str, object], text: str) -> None:
    assert warnings_between(a, b) == [text]


def test_a_cast_of_the_same_weights_is_no_difference() -> None:
    near = {"structure": "a", "norms": [1.001], "waves": [1.001]}
    assert warnings_between({"fingerprint": one}, {"fingerprint": near}) == []


def test_versions_and_directions_are_said() -> None:
    a = result([figure(better="higher")], versions={"torch": "2"}, commit="a")
    b = result([figure(better="lower")], versions={"torch": "3"}, commit="b")
    assert [str(w) for w in compare(a, b).warnings] == [
        "the run: version of torch differs: 2 in A, 3 in B",
        "the run: commit differs: a in A, b in B",
        "birds: which average accuracy is better differs: higher in A, lower in B",
    ]
    less, more = (result([figure(value=value, better="lower")]) for value in (0.1, 0.9))
    assert [compare(*both).pairs[0].verdict for both in ((less, more), (more, less))] == ["worse", "better"]


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match=r"no figure is in both 'x' and 'x': tasks are \['birds'\] and \['y'\]"):
        compare(result([figure()]), result([figure(task="y")]))


def test_one_figure_twice_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match=r"x: the figure \('birds', .* is there 2 times; expected one"):
        compare(result([figure(), figure()]), result([figure()]))


@pytest.fixture
def pair() -> tuple[Result, Result]:
    a = result([figure("none", 0.2), figure("orth", 0.4)], protocol(model="<i>A</i>"))
    return a, result([figure("none", 0.9), figure("cali", 0.4)], protocol(model="B"))


def test_terminal_and_page_say_everything(pair: tuple[Result, Result], tmp_path: Path) -> None:
    found = compare(*pair, ("first", "second"))
    console = Console(record=True, width=150)
    print_comparison(found, console)
    page = write_comparison(found, tmp_path / "deep" / "c.html").read_text()
    for text in (console.export_text(), page):
        for part in ("model differs", "+0.700", "better", "orth", "cali", "not paired", "first", "second"):
            assert part in text
    assert "<i>A</i>" not in page
    assert page.count("<caption>") == 1


def test_json_has_both_values_and_how_the_difference_was_made(pair: tuple[Result, Result]) -> None:
    told = compare(*pair).to_dict()
    assert told["figures"][0]["a"]["value"] == 0.2
    assert told["figures"][0]["verdict"] == "better"
    assert "independent" in told["method"]
    assert told["only_b"][0]["method"] == "cali"


def test_a_notebook_shows_the_differences(pair: tuple[Result, Result]) -> None:
    found = compare(*pair)
    frame = found.to_pandas()
    assert list(frame[["method", "a", "b", "verdict"]].iloc[0]) == ["none", 0.2, 0.9, "better"]
    assert frame.difference[0] == pytest.approx(0.7)
    assert "&lt;i&gt;A&lt;/i&gt;" in found._repr_html_()
