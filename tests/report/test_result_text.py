"""Test the terminal output of a result, and the rows for other programs."""

import re
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.study.made_figures import DOWN, bias, figure, protocol, result
from vldebias.report.result import Result
from vldebias.report.text import tab_rows, text, wrapped

RECALL = {"metric": "recall@5", "better": "higher", "task": "search"}


def test_printing_a_result_shows_the_findings_in_about_25_lines(made: Result) -> None:
    shown = text(made).splitlines()
    (conclusion,) = made.conclusions()
    assert " ".join(" ".join(shown).split()).startswith(conclusion.short)
    assert conclusion.short.startswith(
        "search: better, at a cost. Surplus of one group in searches (MaxSkew@10): 0.50 before,"
        " 0.30 [0.20, 0.40] with an edit from text (chance 0.10); cost: matches that are found"
        " (recall@5) 0.90 to 0.80"
    )
    # The rows have the same verdicts as on the page.
    assert any(re.search("^  edit from text .*  better, at a cost$", line) for line in shown)
    assert any(re.search("^  cali .* better$", line) for line in shown)
    # The cost of another method than the conclusion's is printed below it.
    orth = [bias("orth", 0.2, change=DOWN), figure("orth", 0.8, change=DOWN, **RECALL)]
    costly = text(made.model_copy(update={"rows": [*made.rows, *orth]})).splitlines()
    (place,) = [place for place, line in enumerate(costly) if line.endswith("better, at a cost")][
        1:
    ]
    assert costly[place].startswith("  orth ")
    assert costly[place + 1] == "    cost: recall@5 -0.20 [-0.30, -0.10]"
    assert max(map(len, shown)) <= 80
    for value in (
        "0.50 [0.40, 0.60]",
        "4 more values",
        "dfr-up†",
        "used labels of other images",
    ):
        assert value in text(made)
    many = [
        figure(f"m{i}", 0.5, metric=metric)
        for metric, i in product(("average", "gap", "worst_group"), range(30))
    ]
    assert len(str(result(many, protocol())).splitlines()) == 25
    assert "more values are on the page" in str(result(many, protocol()))
    assert "1 more values" in text(result([figure(), figure(subset="a part")]))
    assert str(result([], protocol())).startswith("Result(")
    assert "recall@5 (higher" not in text(made, [("search", "max_skew@10")])
    assert str(made).index("  edit from text ") < str(made).index("  cali "), (
        "the header states the subject"
    )


def test_many_conclusions_are_shortened_and_the_rest_is_counted() -> None:
    rows = [
        bias(m, 0.5, task=f"task {i}", change=c, n={"images": 100})
        for i, (m, c) in product(range(40), (("none", None), ("default", DOWN)))
    ]
    made = result(rows, *(protocol(f"task {i}") for i in range(40)))
    shown = str(made).splitlines()
    assert 20 < len(shown) <= 25
    start = "task 0: better. Surplus of one group in searches (MaxSkew@10): 0.50 before, 0.50"
    assert shown[0].startswith(start)
    assert any(line.endswith(" more: conclusions()") for line in shown)
    assert any(line.startswith("  no method") for line in shown), "and some rows"


def test_every_task_shows_its_first_measure_before_any_second_measure() -> None:
    tasks = [
        figure(m, 0.5, task=t, metric=k)
        for t, k, m in product("cab", ("average", "gap", "ndkl@5"), "xy")
    ]
    shown = str(result(tasks, *map(protocol, "cab"))).splitlines()
    heads = [line[0] for line in shown if line[1:2] == ":"]
    assert heads[:4] == [*"xcab"], "name and tasks, in the order of the rows"


@settings(max_examples=25, deadline=None)
@given(st.text("abc -é", max_size=300), st.integers(20, 120))
def test_words_are_never_broken(sentence: str, width: int) -> None:
    assert " ".join(wrapped(sentence, width)).split() == sentence.split()


def test_rows_for_programs_have_full_precision(made: Result) -> None:
    head, rows = tab_rows(made)
    names = (
        "task metric method subset lam value low high change change_low change_high better verdict"
    )
    assert (" ".join(head), {len(row) for row in rows}) == (names, {13})
