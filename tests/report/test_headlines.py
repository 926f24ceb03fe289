"""Test that the headlines of all committed results follow the rules, and that violations are
detected."""

from pathlib import Path

import pytest

from tests.report.laws import violated_rules
from tests.study.made_figures import DOWN, STILL, UP, bias, figure, protocol, result
from vldebias.measure.rows import Measurement
from vldebias.report.result import Result

COUNTS = {"prompt_readings", "reader_questions"}  # counts of labels, and no results of tasks
RESULTS = Path(__file__).parents[2] / "eval" / "results"
COMMITTED = sorted(path for path in RESULTS.glob("*.json") if path.stem not in COUNTS)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_results_follow_the_laws(path: Path) -> None:
    assert violated_rules(Result.read(path)) == []


def rows_of_everything() -> list[Measurement]:
    """Return a sweep whose best lambda is neither the default's nor the paper's, a cost on a
    utility that starts at its optimum, and a baseline that is not clearly different."""
    worst = {"metric": "worst_group"}
    large = (0.6, 0.5, 0.7)
    rows = [figure("none", 0.2, **worst), figure("none@median", 0.7, change=large, **worst)]
    rows.append(figure("default", 0.6, change=UP, **worst))
    rows.append(figure("orth-cali", 0.65, change=UP, lam=1000.0, **worst))
    rows.append(figure("orth-cali", 0.9, change=large, lam=400.0, **worst))
    rows.append(figure("orth-cali@val", 0.8, change=UP, lam=200.0, uses_labels=True, **worst))
    rows.append(
        figure(
            "default",
            -0.1,
            metric="difference_to_median",
            interval=(-0.3, 0.1),
            subset="worst-group accuracy",
        )
    )
    for method, change in (("none", None), ("default", DOWN), ("random", None)):
        rows.append(figure(method, 1.0, metric="retained@10", change=change, interval=(1.0, 1.0)))
    for method, change in (("none", None), ("default", STILL)):
        rows.append(figure(method, 0.9, metric="recall@5", change=change))
    return rows


def test_constructed_results_follow_the_laws() -> None:
    everything = rows_of_everything()
    assert violated_rules(result(everything, protocol())) == []
    without_default = [row for row in everything if row.method != "default"]
    assert violated_rules(result(without_default, protocol())) == []
    others = [bias("none", 0.5), bias("b", 0.4, change=DOWN), bias("a", 0.1, change=DOWN)]
    assert violated_rules(result(others, protocol("search"))) == []


@pytest.mark.parametrize(
    ("value", "options", "is_named"),
    [
        (0.6, {"interval": (0.5, 0.7)}, True),
        (0.45, {"interval": (0.35, 0.6)}, False),  # the intervals overlap
        (0.6, {"interval": (0.5, 0.7), "uses_labels": True}, False),
        (0.1, {"interval": (0.0, 0.2)}, False),  # worse
    ],
)
def test_the_first_line_names_a_method_that_is_better_than_the_recommended_one(
    value: float, options: dict[str, object], is_named: bool
) -> None:
    shared = {"metric": "worst_group", "change": UP, "better": "higher"}
    rows = [figure("none", 0.2, metric="worst_group", better="higher")]
    rows.append(figure("default", 0.3, interval=(0.2, 0.4), **shared))
    rows.append(figure("cali", value, **shared, **options))
    (conclusion,) = result(rows, protocol()).conclusions()
    assert ("cali gives" in conclusion.short) == is_named
    assert ("which is better" in conclusion.short) == is_named
