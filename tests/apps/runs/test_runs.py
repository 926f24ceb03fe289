"""Test that many results fit on one page, with one row per task and method, and that no file is
skipped silently."""

import html
import json
import math
import re
from pathlib import Path

import pytest

from apps.runs.listing import list_runs, render_runs
from tests.cli.conftest import call
from tests.study.made_figures import bias, protocol, result
from vldebias.errors import InvalidInputError
from vldebias.report.result import Result

SCRIPT = '<script>alert("x")</script>'


@pytest.fixture
def folder(made: Result, tmp_path: Path) -> Path:
    """Write two runs, one with a page and a name that contains markup, and a file that is not a
    result."""
    made.model_copy(update={"date": "2026-11-01T10:00:00+00:00"}).write(tmp_path / "a/result.json")
    (tmp_path / "a" / "index.html").write_text("")
    newer = result([bias("none", 0.25)], protocol("search", title="Search", model=SCRIPT))
    newer = newer.model_copy(update={"date": "2026-11-02T10:00:00+00:00"})
    newer.write(tmp_path / "deep" / "b #1.json")
    (tmp_path / "plan.json").write_text('{"images": []}')
    return tmp_path


def test_each_method_has_a_row_with_the_measure_of_the_conclusion(folder: Path) -> None:
    rows, unreadable, _ = list_runs(folder)
    assert not unreadable
    assert [row.run for row in rows][:2] == ["deep/b #1", "a"]  # the newest run comes first
    of_a = {row.method: row for row in rows if row.run == "a"}
    # Chance, parts and costs of the task do not get rows.
    assert set(of_a) == {"no method", "default", "cali", "dfr-up†"}
    assert of_a["default"].value == 0.3
    assert of_a["default"].number.startswith("0.30 [")
    assert of_a["default"].verdict == "better, at a cost"
    assert of_a["default"].cost.startswith("recall@5 -0.10 [")
    assert of_a["default"].page == "a/index.html"
    assert rows[0].page == ""


def test_each_row_has_the_metrics_of_its_task_starting_with_that_of_the_conclusion(
    folder: Path,
) -> None:
    of_a = {row.method: row for row in list_runs(folder).rows if row.run == "a"}
    values = of_a["default"].metrics
    assert next(iter(values)) == of_a["default"].measure
    assert values[of_a["default"].measure][:2] == (0.3, of_a["default"].number)
    assert values[of_a["default"].measure].before == "0.50"
    assert "recall@5" in values
    # There is nothing before the method in a row without one.
    assert {metric.before for metric in of_a["no method"].metrics.values()} == {""}
    printed = call("eval runs --json", str(folder))
    listed = [row for row in json.loads(printed)["runs"] if row["run"] == "a"]
    assert listed[0]["metrics"][listed[0]["measure"]] == listed[0]["value"]


def test_tasks_that_more_runs_measured_come_first_and_only_rows_beside_methods_are_folded(
    folder: Path, tmp_path: Path
) -> None:
    alone = result([bias("none", 0.1, task="alone")], protocol("alone"))
    alone.model_copy(update={"date": "2026-11-03T10:00:00+00:00"}).write(tmp_path / "c.json")
    page, _ = render_runs(folder)
    text = page.read_text()
    assert re.findall(r"<summary>(\w+): (\d) run", text) == [("search", "2"), ("alone", "1")]
    # Two runs of "search" have a row without a method; "alone" has no other row to show.
    assert text.count(" data-plain") == 2


def test_a_task_without_an_overall_row_is_represented_by_its_worst_part(tmp_path: Path) -> None:
    parts = [
        bias("none", value, subset=name, metric="accuracy", better="higher", task="by race")
        for name, value in (("White", 1.0), ("Black", 0.6), ("Asian", 0.9))
    ]
    result(parts, protocol("by race")).write(tmp_path / "result.json")
    (row,) = list_runs(tmp_path).rows
    assert (row.measure, row.value) == ("accuracy, Black", 0.6)
    assert row.run == tmp_path.name


def test_unreadable_files_are_named(folder: Path) -> None:
    (folder / "c").mkdir()
    (folder / "c" / "result.json").write_text('{"figures": [')
    page, runs = render_runs(folder)
    assert list(runs.unreadable) == ["c/result.json"]
    text = page.read_text()
    assert "Files that could not be read" in text
    assert "c/result.json: not a valid result (Expecting" in text
    printed = call("eval runs --json", str(folder), code=1)
    assert len(json.loads(printed)["runs"]) == len(runs.rows)


def test_a_folder_without_results_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"images": []}')
    with pytest.raises(InvalidInputError, match="contains no results"):
        list_runs(tmp_path)
    with pytest.raises(InvalidInputError, match="expected a folder"):
        list_runs(tmp_path / "plan.json")


def test_the_page_escapes_names_and_uses_relative_links(folder: Path, tmp_path: Path) -> None:
    page, runs = render_runs(folder, tmp_path / "pages" / "all.html")
    text = page.read_text()
    assert SCRIPT not in text
    # Each row is in the table of its task, which has a row of headings.
    assert text.count("<tr data-run") == len(runs.rows)
    assert text.count("<tr") == len(runs.rows) + len({row.task for row in runs.rows})
    assert 'href="../a/index.html"' in text
    # It is sorted as a number, not as a string.
    assert 'data-sort="0.25"' in text
    assert "2026-11-02 10:00</td>" in text
    # Only run "a" has a cost to plot. Its path is an argument of the command.
    assert text.count("<section data-run=") == 1
    assert f'<section data-run="{tmp_path}/a/result.json">' in text
    assert "default: -0.20 [-0.30, -0.10], recall@5 -0.10 [" in text
    named = html.escape(f"'{tmp_path}/deep/b #1.json'")
    assert f'<option value="{named.replace("&#x27;", "&#39;")}">deep/b #1</option>' in text


def test_names_of_figures_are_accepted_by_trackers(made: Result) -> None:
    metrics = made.to_metrics()
    assert metrics["search/max_skew_at_10/default"] == 0.3
    assert len(metrics) == 3 * len(made.rows)
    # Characters that MLflow accepts, including on Windows.
    allowed = re.compile(r"[\w\-. /]{1,250}", re.ASCII)
    assert all(allowed.fullmatch(name) for name in metrics)
    doubled = made.model_copy(update={"rows": [*made.rows, *made.rows]})
    assert len(doubled.to_metrics()) == 2 * len(metrics)
    endless = [row.model_copy(update={"interval": (0.0, math.inf)}) for row in made.rows]
    kept = made.model_copy(update={"rows": endless}).to_metrics()
    assert not any(name.endswith("/high") for name in kept)
