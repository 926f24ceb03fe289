"""A result for others: what the hub's own reader finds in a model card, and what schema.org's words say."""

import json

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from made_figures import figure
from made_figures import result as made_result
from typer.testing import CliRunner

from eval.tables import RESULTS, read
from vldebias.cli import app
from vldebias.evaluation.exports import json_ld, latex, model_card
from vldebias.evaluation.report.tables import blocks
from vldebias.evaluation.result import Result


@pytest.fixture(scope="module")
def result() -> Result:
    return read("quickstart")


@pytest.mark.parametrize("parts", [False, True])
def test_the_hub_reads_every_figure_of_a_card(result: Result, parts: bool) -> None:
    card = ModelCard(model_card(result, parts=parts))
    head = yaml.safe_load(card.content.split("---")[1])
    name, found = model_index_to_eval_results(head["model-index"])
    rows = [row for row in result.rows if parts or not row.subset]
    assert len(rows) > 10
    assert sorted((one.metric_type, one.metric_value) for one in found) == sorted((r.metric, r.value) for r in rows)
    by_name = {(one.task_name, one.metric_name): one for one in found}
    assert len(by_name) == len(found)
    row = result.row("generation gender", "discrepancy", "stated-value", subset="unseen professions")
    if parts:
        one = next(o for o in found if (o.metric_type, o.metric_value) == (row.metric, row.value))
        assert one.metric_args["interval"] == list(row.interval)
        assert one.metric_args["change"] == list(row.change)
    assert name.startswith("miniature")
    assert "| task |" in card.text.lower()


def test_linked_data_has_every_figure_with_its_interval(result: Result) -> None:
    found = json.loads(json_ld(result, parts=True))
    assert (found["@context"], found["@type"]) == ("https://schema.org", "Dataset")
    figures = found["variableMeasured"]
    assert len(figures) == len(result.rows)
    assert len({one["propertyID"] for one in figures}) == len(result.rows)
    for one, row in zip(figures, result.rows, strict=True):
        assert (one["value"], one["minValue"], one["maxValue"]) == (row.value, *row.interval)
        assert row.better in one["description"]


@pytest.mark.parametrize(
    ("flags", "starts"), [(["--model-card"], "---\ntags:"), (["--json-ld"], "{"), (["--latex"], "% vldebias")]
)
def test_on_the_command_line(flags: list[str], starts: str) -> None:
    path = str(RESULTS / "quickstart.json")
    done = CliRunner().invoke(app, ["eval", "report", path, *flags])
    assert done.stdout.startswith(starts)
    both = CliRunner().invoke(app, ["eval", "report", path, *flags, "--markdown"])
    assert "expected one of --markdown, --model-card, --json-ld" in str(both.exception)


def test_a_paper_gets_every_table_of_wholes(result: Result) -> None:
    text = latex(result)
    tables = [table for block in blocks(result) for table in block.tables if not table.detail]
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == len(tables) > 2
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == sum(1 + len(table.rows) for table in tables)
    widths = [len(table.columns) for table in tables for _ in range(1 + len(table.rows))]
    assert [line.count(" & ") for line in rows] == widths
    cell = result.row("birds", "worst_group", "default")
    assert f"{cell.value:.3f} [{cell.interval[0]:.3f}, {cell.interval[1]:.3f}]*" in text


def test_latex_reads_no_name_as_its_own() -> None:
    nasty = r"50 % of $x_1$ & {y} \ #3 ~ ^"
    text = latex(made_result([figure("none"), figure(nasty, 0.7)], name="r"))
    row = next(line for line in text.splitlines() if line.startswith("50"))
    assert row.startswith(r"50 \% of \$x\_1\$ \& \{y\} \textbackslash{} \#3 \textasciitilde{} \textasciicircum{} & ")
