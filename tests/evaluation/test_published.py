"""The paper's figures: transcribed without slips, and set beside the rows that repeat them."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from vldebias.evaluation.report.pages import markdown, print_table, render
from vldebias.evaluation.report.published import FIGURES, published
from vldebias.evaluation.result import Result, TaskProvenance, TaskResult
from vldebias.evaluation.suite import load_suite


def made(suite: str, model: str, task: str, metric: str, value: float) -> Result:
    part = TaskResult(TaskProvenance(task=task, description="made up", model=model))
    for method in ("none", "orth-cali"):
        part.add(metric, method, value, (value - 0.01, value + 0.01), n={"images": 10}, lam=1000.0)
        part.add(metric, method, 0.5, (0.4, 0.6), n={"images": 10}, lam=10.0)
    return Result.of(suite, [part], seconds=1.0)


def test_gaps_are_average_less_worst_group_and_methods_are_those_of_the_suites() -> None:
    for suite, models in FIGURES.items():
        (task,) = load_suite(suite).tasks
        there = {"none", *task.names(), *task.baselines}  # type: ignore[attr-defined]
        for name, _, table in models.values():
            assert name == task.name
            assert set(table) <= there
            assert all(average - worst == pytest.approx(gap, abs=0.0016) for worst, average, gap in table.values())


@pytest.mark.parametrize(
    ("model", "value"),
    [("RN50 openai", 0.740), ("ViT-L-14 openai", 0.688), ("openai/clip-vit-large-patch14", 0.688)],
)
def test_a_row_stands_beside_the_figure_that_it_repeats(model: str, value: float) -> None:
    found = published(made("waterbirds", model, "waterbirds", "worst_group", 0.7))
    (one,) = [b for b in found if (b.metric, b.method) == ("worst_group", "orth-cali")]
    assert one.value == value
    assert one.cells()[3:] == ("0.700 [0.690, 0.710]", f"{0.7 - value:+.3f}")
    assert {b.cells()[3] for b in found if b.metric == "gap"} == {"not measured"}


@pytest.mark.parametrize(
    ("suite", "model"),
    [("waterbirds", "ViT-L-14 laion2b_s32b_b82k"), ("waterbirds", "ViT-L-14-336 openai"), ("mine", "RN50 openai")],
)
def test_other_models_and_suites_have_none(suite: str, model: str) -> None:
    assert published(made(suite, model, "waterbirds", "worst_group", 0.7)) == []


def test_terminal_page_and_markdown_have_the_table(tmp_path: Path) -> None:
    result = made("fairface", "ViT-B-32 openai", "fairface gender", "max_skew@1000", 0.2)
    console = Console(record=True, width=160)
    print_table(result, console)
    page = render(result, tmp_path / "page.html", beside=tmp_path).read_text()
    for text in (console.export_text(), page, markdown(result)):
        assert "0.102" in text
        assert "+0.098" in text
        assert "7.5 (MaxSkew@1000" in text
