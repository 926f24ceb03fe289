"""Test that a figure only violates a limit if its entire interval is beyond it."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.cli.conftest import call
from tests.study.made_figures import figure, result
from vldebias.cli.evaluate import app
from vldebias.errors import InvalidInputError
from vldebias.report.gate import Gate, check_limits
from vldebias.report.result import Result

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/gate.md"


def result_of(*rows: tuple[str, str, float, float, float, str], subset: str = "") -> Result:
    """Return a result with rows of method, metric, value, low, high, better."""
    measured = []
    for method, metric, value, low, high, better in rows:
        change = None if method == "none" else (0.0, 0.0, 0.0)
        fields = {"task": "t", "metric": metric, "interval": (low, high), "better": better}
        measured.append(figure(method, value, **fields, change=change, subset=subset))
    return result(measured)


@given(
    numbers=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    limit=st.floats(0, 1),
    better=st.sampled_from(["lower", "higher"]),
)
def test_outcomes_follow_from_the_interval(numbers: list[float], limit: float, better: str) -> None:
    low, value, high = sorted(numbers)
    (check,) = check_limits(
        result_of(("m", "gap", value, low, high, better)), {"gap": limit}
    ).checks
    good = [number <= limit for number in (low, value, high)]
    if better == "higher":
        good = [number >= limit for number in (low, value, high)]
    if not any(good):
        assert check.outcome == "beyond"
    elif all(good):
        assert check.outcome == "within"
    else:
        assert check.outcome == "undecided"
    assert Gate((check,), ()).status == (0 if any(good) else 1)


def test_a_figure_from_few_images_is_marked_next_to_its_interval() -> None:
    few, enough = (
        check_limits(result_of(("m", metric, 0.1, 0.0, 0.2, "lower")), {metric: 0.3}).checks[0]
        for metric in ("max_skew@50", "gap")
    )
    assert (few.few, enough.few) == ("few images", "")
    assert "(few images)" in str(few)
    assert "few" not in str(enough)


def test_metrics_with_a_depth_are_found_and_partial_metrics_are_excluded() -> None:
    result = result_of(("m", "max_skew@50", 0.1, 0.0, 0.2, "lower"))
    assert check_limits(result, {"max_skew": 0.3}).checks[0].outcome == "within"
    part = result_of(("m", "max_skew@50", 0.9, 0.8, 1.0, "lower"), subset="a query")
    both = result.model_copy(update={"rows": [*result.rows, *part.rows]})
    gate = check_limits(both, {"max_skew": 0.3, "ndkl": 0.3})
    assert [check.row.value for check in gate.checks] == [0.1]
    assert gate.not_checked == ("ndkl, which the result does not contain; it contains max_skew@50",)
    assert gate.status == 2


def test_a_method_is_only_suggested_if_it_is_spelt_alike() -> None:
    rows: list[Any] = [(name, "gap", 0.1, 0.0, 0.2, "lower") for name in ("none", "orth")]
    result = result_of(*rows)
    with pytest.raises(InvalidInputError, match=r"no method 'nonsense'; choose .* It has none, or"):
        check_limits(result, {"gap": 1}, method="nonsense")
    with pytest.raises(InvalidInputError, match="did you mean 'orth'"):
        check_limits(result, {"gap": 1}, method="ort")


def test_the_method_of_the_conclusion_is_checked_unless_another_is_named() -> None:
    rows: list[Any] = [(name, "gap", 0.1, 0.0, 0.2, "lower") for name in ("none", "a", "b")]

    def checked(method: Any, *more: Any) -> list[str]:
        result = result_of(*rows, *more)
        if method is None:
            (conclusion,) = result.conclusions()
            assert check_limits(result, {"gap": 1}).checks[0].method == conclusion.method
        gate = check_limits(result, {"gap": 1}, method=method)
        return [check.row.method for check in gate.checks]

    assert checked(None) == ["a"]
    for default in ("default", "default+reference", "balanced-prompts"):
        assert checked(None, (default, "gap", 0.5, 0.4, 0.6, "lower")) == [default]
    assert checked("b") == checked({"t": "b"}) == ["b"]
    with pytest.raises(InvalidInputError, match="no method 'c'"):
        checked("c")
    with pytest.raises(InvalidInputError, match="no task 'u'"):
        checked({"u": "a"})
    with pytest.raises(InvalidInputError, match="expected one or more"):
        check_limits(result_of(*rows), {})
    with pytest.raises(InvalidInputError, match="gap: got the limit nan; expected a number"):
        check_limits(result_of(*rows), {"gap": float("nan")})


def test_a_method_without_the_metric_is_named_as_not_checked() -> None:
    rows = [("a", "gap", 0.1, 0.0, 0.2, "lower"), ("b", "max_skew@5", 0.9, 0.8, 1.0, "lower")]
    gate = check_limits(result_of(*rows), {"gap": 0.3}, method="b")
    assert gate.not_checked == ("t, gap, b; it was measured for a",)
    assert (gate.checks, gate.status) == ((), 2)
    both = check_limits(result_of(*rows), {"gap": 0.3, "max_skew": 0.3}, method="b")
    assert both.not_checked
    assert both.status == 1  # a violated limit is more important


COMMANDS = re.findall(r"^\$ (vldebias .*)\n((?:(?!\$|```).*\n)*)", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=[text for text, _ in COMMANDS])
def test_the_commands_of_the_page_print_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, command: str, printed: str
) -> None:
    monkeypatch.chdir(ROOT)
    run = CliRunner().invoke(app, shlex.split(command)[2:])
    assert f"{run.output}exit code {run.exit_code}\n" == printed


def test_the_workflow_of_the_page_passes_with_its_own_suite() -> None:
    (command,) = re.findall(r"run: (vldebias eval gate .*)", PAGE.read_text())
    arguments = shlex.split(command)[2:]
    assert arguments[1] == "bias"
    arguments[1] = str(ROOT / "eval/results/miniature.json")
    lines = call("eval gate", *arguments[1:]).splitlines()
    assert len(set(lines)) == len(lines)  # one row of a sweep over lambda, not all of them


@pytest.mark.parametrize("option", ["--max-gap", "--min-worst-group"])
def test_percentages_are_not_limits(tmp_path: Path, option: str) -> None:
    path = result_of(("m", "gap", 0.5, 0.4, 0.6, "lower")).write(tmp_path / "result.json")
    printed = call("eval gate", str(path), option, "30", code=2, with_stderr=True)
    assert "or equal to 1; got '30'" in " ".join(printed.replace("│", " ").split())


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
    printed = call("eval gate", str(path), *options, code=code)
    assert printed.startswith(outcome)
    assert printed.endswith("\nfailed: 1 value beyond the limit\n") is (code == 1)
    as_json = call("eval gate --json", str(path), *options, code=code)
    assert json.loads(as_json)["status"] == code
