"""Test the LaTeX table of a result's main figures."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tests.study.made_figures import DOWN, bias, figure, protocol, result
from vldebias.cli import app


def test_the_table_contains_the_rows_of_the_page_and_escapes_names() -> None:
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    recall = {"metric": "recall@5", "better": "higher", "task": "search"}
    change = (-0.02, -0.03, -0.01)
    rows += [figure("none", 0.9, **recall), figure("default", 0.8, change=change, **recall)]
    rows.append(bias("my_method & 5%", 0.4, change=DOWN))
    table = result(rows, protocol("search")).to_latex()
    lines = table.splitlines()
    assert lines[0] == r"\begin{tabular}{llllllll}"
    assert lines[3] == r"\midrule"
    assert lines[4].startswith(r"search & MaxSkew@10 & default & 0.50 [0.40, 0.60] & 0.30 [")
    assert "recall@5 $-$0.020 [$-$0.030, $-$0.010] & better, at a cost" in lines[4]
    assert r"& my\_method \& 5\% &" in lines[5]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_a_result_without_methods_lists_its_figures() -> None:
    rows = [figure("none", 0.17, task="shares", metric="discrepancy")]
    table = result(rows, protocol("shares")).to_latex()
    assert r"shares & gap from even shares & no method & 0.17 [0.07, 0.27] \\" in table


def test_the_command_writes_a_table_if_the_file_ends_in_tex(tmp_path: Path) -> None:
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    made = result(rows, protocol("search"))
    path = made.write(tmp_path / "result.json")
    table = tmp_path / "table.tex"
    done = CliRunner().invoke(app, ["eval", "report", str(path), "--out", str(table)])
    assert done.exit_code == 0
    assert table.read_text() == made.to_latex()
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["result.json", "table.tex"]
