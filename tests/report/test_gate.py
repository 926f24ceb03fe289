"""Test that a figure only violates a limit if its entire interval is beyond it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from vldebias.cli.evaluate import app
from vldebias.errors import InvalidInputError
from vldebias.measure.rows import Measurement
from vldebias.report.gate import check_limits, has_passed
from vldebias.report.result import Result


def result_of(*rows: tuple[str, str, float, float, float, str], subset: str = "") -> Result:
    """Return a result with rows of method, metric, value, low, high, better."""
    measured = []
    for method, metric, value, low, high, better in rows:
        measured.append(
            Measurement(
                task="t",
                metric=metric,
                method=method,
                value=value,
                interval=(low, high),
                change=(0.0, 0.0, 0.0),
                better=better,
                n={"images": 10},
                subset=subset,
            )
        )
    return Result(name="r", figures=measured, protocols=[], versions={}, commit=None, seconds=None)


@given(
    numbers=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    limit=st.floats(0, 1),
    better=st.sampled_from(["lower", "higher"]),
)
def test_outcomes_follow_from_the_interval(numbers: list[float], limit: float, better: str) -> None:
    low, value, high = sorted(numbers)
    (check,) = check_limits(result_of(("m", "gap", value, low, high, better)), {"gap": limit})
    good = [number <= limit for number in (low, value, high)]
    if better == "higher":
        good = [number >= limit for number in (low, value, high)]
    if not any(good):
        assert check.outcome == "beyond"
    elif all(good):
        assert check.outcome == "within"
    else:
        assert check.outcome == "undecided"
    assert has_passed([check]) == any(good)


def test_a_figure_from_few_images_is_marked_next_to_its_interval() -> None:
    few, enough = (
        check_limits(result_of(("m", metric, 0.1, 0.0, 0.2, "lower")), {metric: 0.3})[0]
        for metric in ("max_skew@50", "gap")
    )
    assert (few.few, enough.few) == ("few images", "")
    assert "(few images)" in str(few)
    assert "few" not in str(enough)


def test_metrics_with_a_depth_are_found_and_partial_metrics_are_excluded() -> None:
    result = result_of(("m", "max_skew@50", 0.1, 0.0, 0.2, "lower"))
    assert check_limits(result, {"max_skew": 0.3})[0].outcome == "within"
    part = result_of(("m", "max_skew@50", 0.9, 0.8, 1.0, "lower"), subset="a query")
    both = result.model_copy(update={"rows": [*result.rows, *part.rows]})
    assert [check.row.value for check in check_limits(both, {"max_skew": 0.3})] == [0.1]
    with pytest.raises(InvalidInputError, match="ndkl"):
        check_limits(result, {"ndkl": 0.3})


def test_the_default_is_checked_unless_another_method_is_named() -> None:
    rows: list[Any] = [(name, "gap", 0.1, 0.0, 0.2, "lower") for name in ("none", "a", "b")]
    with pytest.raises(InvalidInputError, match="a, b"):
        check_limits(result_of(*rows), {"gap": 1})
    assert check_limits(result_of(*rows), {"gap": 1}, method="a")[0].row.method == "a"
    with_default = result_of(*rows, ("default", "gap", 0.5, 0.4, 0.6, "lower"))
    assert check_limits(with_default, {"gap": 1})[0].row.method == "default"
    with pytest.raises(InvalidInputError, match="expected one or more"):
        check_limits(with_default, {})


@pytest.mark.parametrize(
    ("options", "code", "outcome"),
    [
        (["--max-gap", "0.3"], 1, "beyond"),
        (["--max-gap", "0.45"], 0, "undecided"),
        (["--limit", "gap=0.9"], 0, "within"),
    ],
)
def test_the_command_exits_with_a_code(
    tmp_path: Path, options: list[str], code: int, outcome: str
) -> None:
    path = result_of(("m", "gap", 0.5, 0.4, 0.6, "lower")).write(tmp_path / "result.json")
    run = CliRunner().invoke(app, ["gate", str(path), *options])
    assert run.exit_code == code
    assert run.output.startswith(outcome)
    as_json = CliRunner().invoke(app, ["gate", str(path), *options, "--json"])
    assert json.loads(as_json.output)["passed"] == (code == 0)
