"""Test the LaTeX tables of a result's main figures, and its citation."""

import re
from pathlib import Path

import yaml

from tests.cli.conftest import call
from tests.study.made_figures import DOWN, bias, figure, protocol, result

ROOT = Path(__file__).parents[2]


def test_the_tables_contain_the_rows_of_the_page_and_escape_names() -> None:
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    recall = {"metric": "recall@5", "better": "higher", "task": "search"}
    change = (-0.02, -0.03, -0.01)
    rows += [figure("none", 0.9, **recall), figure("default", 0.8, change=change, **recall)]
    rows.append(bias("my_method & 5%", 0.4, change=DOWN))
    table = result(rows, protocol("search")).to_latex()
    lines = table.splitlines()
    assert lines[:2] == [r"\begin{table}", r"\centering"]
    assert re.fullmatch(r"\\caption\{.*MaxSkew@10, with 95\\% .*\}", lines[2])
    assert re.fullmatch(r"\\label\{tab:[\w-]*maxskew-10\}", lines[3])
    assert lines[4] == r"\begin{tabular}{lllllll}"
    assert lines[7] == r"\midrule"
    assert lines[8].startswith(r"search & default & 0.50 [0.40, 0.60] & 0.30 [")
    assert "recall@5 $-$0.020 [$-$0.030, $-$0.010] & better, at a cost" in lines[8]
    assert r"& my\_method \& 5\% &" in lines[9]
    assert lines[-3:] == [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    assert "dagger" not in table


def test_every_metric_has_a_table_with_its_own_label() -> None:
    rows = [figure("none", 0.17, task="shares", metric="discrepancy")]
    rows.append(figure("none", 0.3, task="shares", metric="max_skew@10"))
    rows.append(figure("none", 0.2, task="other", metric="discrepancy"))
    table = result(rows, protocol("shares"), protocol("other")).to_latex()
    first, second = table.split(r"\end{table}")[:2]
    assert r"\caption{" in first
    assert "gap from even shares" in first
    assert r"shares & no method & 0.17 [0.07, 0.27] \\" in first
    assert r"other & no method & 0.20 [0.10, 0.30] \\" in first
    assert r"shares & no method & 0.30 [0.20, 0.40] \\" in second
    labels = re.findall(r"\\label\{(.*)\}", table)
    assert len(set(labels)) == len(labels) == 2


def test_a_table_with_methods_that_use_labels_has_a_note() -> None:
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    rows.append(bias("gap", 0.2, change=DOWN, uses_labels=True))
    table = result(rows, protocol("search")).to_latex()
    assert r"gap$^\dagger$ &" in table
    note = r"\end{tabular}" + "\n" + r"\par\footnotesize $^\dagger$ used labels of other images"
    assert note in table


def test_the_command_writes_tables_if_the_file_ends_in_tex(tmp_path: Path) -> None:
    rows = [bias("none", 0.5), bias("default", 0.3, change=DOWN)]
    made = result(rows, protocol("search"))
    path = made.write(tmp_path / "result.json")
    table = tmp_path / "table.tex"
    call("eval report", str(path), "--out", str(table))
    assert table.read_text() == made.to_latex()
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["result.json", "table.tex"]


def test_the_command_cites_the_software_and_the_result(tmp_path: Path) -> None:
    made = result([bias("none", 0.5)], protocol("search"))
    made.versions = {"vldebias": "1.2.3"}
    made.date = "2026-11-24T14:02:00+00:00"
    path = made.write(tmp_path / "result.json")
    entry = call("eval report --cite", str(path))
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert entry.startswith("@software{vldebias,\n")
    assert entry.endswith("}\n")
    assert f"  author = {{{{{cited['authors'][0]['name']}}}}},\n" in entry
    assert f"  title = {{{{{cited['title']}}}}},\n" in entry
    assert f"  year = {{{cited['date-released'].year}}},\n" in entry
    assert "  version = {1.2.3},\n" in entry
    assert f"  note = {{Result {made.name}, 24 November 2026, 14:02 UTC}},\n" in entry
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]
