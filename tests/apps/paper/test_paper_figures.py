"""Test the rows of the paper's tables next to the published figures."""

from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from rich.console import Console

from apps.paper.tables import Run, compared, paper, plan, sentences
from tests.study.made_figures import figure, result
from vldebias.errors import InvalidInputError
from vldebias.study.suite import load_suite
from vldebias.utils.options import Options
from vldebias.utils.progress import Progress


def test_generated_people_are_compared_with_published_figures(tmp_path: Path) -> None:
    (run,) = plan(None, ["generation"], pipeline="own/pipe")
    row = figure(
        "cali",
        0.4,
        task="gender",
        metric="discrepancy",
        subset="unseen professions",
        better="lower",
        interval=(0.3, 0.5),
        n={"professions": 20, "images each": 1000},
    )
    t = compared([run], {run.name: result([row])}, tmp_path).set_index(["data", "metric", "method"])
    assert (run.model, len(t), t.suite.unique().tolist()) == ("own/pipe", 24, ["generation"])
    figures_row = t.loc["gender", "discrepancy, unseen professions", "cali"]
    assert (figures_row.published, figures_row.measured, figures_row.low, figures_row.high) == (
        0.354,
        0.4,
        0.3,
        0.5,
    )
    assert (figures_row.difference, figures_row.n) == (
        pytest.approx(0.046),
        "20 professions, 1,000 images each",
    )
    assert (
        t.loc["pairs race", "pair_distance, unseen", "none"].published,
        t.measured.isna().sum(),
    ) == (0.69, 23)
    deviation = t.loc["race", "discrepancy_deviation, train professions", "none"]
    assert deviation.published == 0.16


def test_missing_parts_are_skipped_and_measured_parts_are_kept(
    tmp_path: Path, monkeypatch: Any
) -> None:
    with pytest.raises(InvalidInputError, match="celebs"):
        plan(None, ["celebs"])
    runs = plan(None, ["celeba", "generation"], ["RN50:openai"], pipeline="miniature")
    assert [run.missing for run in runs] == [f"expected {runs[0].suite.needs}", ""]
    (tmp_path / "celeba").mkdir()  # each in a folder with its name, or all in one folder
    assert str(tmp_path / "celeba") in plan(tmp_path, ["celeba"])[0].missing
    output = StringIO()
    measured = Mock(
        side_effect=[result([figure(task="waterbirds", metric="worst_group")]), KeyboardInterrupt]
    )
    monkeypatch.setattr("apps.paper.tables.run_suite", measured)
    runs.insert(0, Run(load_suite("waterbirds"), "RN50:openai"))
    with pytest.raises(KeyboardInterrupt):
        paper(
            tmp_path,
            runs,
            Options(out=tmp_path),
            Progress(Console(file=output, width=200)),
        )
    options = [call.args[1] for call in measured.call_args_list]
    names = [(given.model, given.pretrained, given.pipeline) for given in options]
    assert names == [("RN50", "openai", None), (None, None, "miniature")]
    assert {given.cache for given in options} == {tmp_path / "cache"}, "shared by all runs"
    assert "waterbirds, RN50:openai: measured" in output.getvalue()
    assert f"celeba, RN50:openai: {runs[1].missing}" in output.getvalue()
    page = (tmp_path / "index.html").read_text()
    assert [
        page.count(text) for text in (">measured</a>", "not measured yet", "0.500 [0.400, 0.600]")
    ] == [1, 1, 1]
    assert page.index("waterbirds: ") < page.index("celeba: ") < page.index("generation: ")
    assert (
        (tmp_path / "paper.csv")
        .read_text()
        .startswith("suite,data,model,metric,method,published,published of,measured,")
    )


def test_a_model_reproduces_a_figure_that_is_inside_its_measured_interval() -> None:
    nan = float("nan")
    columns = ["published", "measured", "low", "high"]
    rows = [
        (0.4, 0.5, 0.3, 0.7),  # inside
        (0.1, 0.5, 0.3, 0.7),  # outside
        (0.2, nan, nan, nan),  # not measured
        (nan, 0.5, 0.3, 0.7),  # not published
    ]
    frame = pd.DataFrame(rows, columns=columns)
    first, second = sentences(frame)
    assert first.startswith("2 of 3 published values were measured again; 1 of them is inside")
    assert second == "1 more value was measured that the paper does not report."
    assert sentences(frame[3:])[0] == "The paper has no values for these models."
    assert sentences(frame[:0]) == ["The paper has no values for the requested models."]
