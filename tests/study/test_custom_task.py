"""Test a task and metrics of a user: they can be used by name in `evaluate`, suites, commands and
reports."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.study.any_method_parts import GENDER, part, texts
from tests.study.groups_parts import birds, measure
from tests.study.made_figures import SUITE, figure, protocol, result
from vldebias.cli.evaluate import app
from vldebias.data import Embeddings, Labels, save_embeddings
from vldebias.errors import InvalidInputError
from vldebias.hosts import TextTable
from vldebias.judge.judges import JUDGES
from vldebias.measure.metric import Metric, computed, get_metric, register_metric
from vldebias.measure.rows import TaskResult
from vldebias.metrics import METRICS
from vldebias.prompts import load_prompts
from vldebias.report.page import grids, render
from vldebias.report.result import Result
from vldebias.report.table import readable
from vldebias.study import TASKS, load_suite
from vldebias.study.evaluating import evaluate
from vldebias.study.tasks.images import ImageTask
from vldebias.study.tasks.retrieval import Gallery
from vldebias.study.tasks.share_rows import ShareRows
from vldebias.utils.registry import Registry


def over_groups(hits: np.ndarray, size: np.ndarray) -> np.ndarray:
    return (hits / np.maximum(size, 1)).sum(-1) / (size > 0).sum(-1)


def most_shown(counts: np.ndarray) -> np.ndarray:
    return (counts / counts.sum(-1, keepdims=True)).max(-1)


def first_group(groups: np.ndarray, prior: np.ndarray) -> np.ndarray:
    return (groups[:, 0] == 0).astype(float)


SHOWN = "share of the value that is shown most"
FIRST = "first place goes to the first group"
METRICS_OF_USER = (
    Metric(
        "macro",
        "mean over the groups",
        "utility",
        "higher",
        (0, 1),
        "groups",
        over_groups,
        interval="bootstrap",
    ),
    Metric("most_shown", SHOWN, "bias", "lower", (0, 1), "shares", most_shown),
    Metric("first_group", FIRST, "bias", "lower", (0, 1), "rankings", first_group),
)


class Said(ImageTask):
    """How often the nearest class prompt is the label of an image."""

    task: Literal["said"] = "said"
    attribute: str
    column: str

    def measure(
        self, images: Embeddings, texts: TextTable, *, weights: np.ndarray | None = None
    ) -> list[TaskResult]:
        sets = [load_prompts(self.attribute)]
        fitted = self.fit(texts, sets)
        labels = images.column(self.column)
        own = [sets[0].class_names.index(name) for name in labels.names]
        about = {"title": "T", "description": "D", "n": {"images": len(images)}, "settings": {}}
        methods = {name: self.about(edit) for name, edit in fitted.items()}
        result = TaskResult(self.provenance(self.name, images, texts, sets, methods, **about))
        right = {}
        for name, edit in fitted.items():
            scores = images.unit[:].double() @ self.rows(texts, sets[0].classes, edit).T
            hits = scores.argmax(1).numpy() == [own[code] for code in labels.codes]
            right[name] = hits * (1.0 if weights is None else weights)
        result.add_resampled(
            "average", right, n=about["n"], resamples=self.resamples, seed=self.seed
        )
        return [result]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the metrics and the task. Tests of entry points are in tests/outside."""
    for metric in METRICS_OF_USER:
        register_metric(metric)
    monkeypatch.setattr(TASKS, "data", {**TASKS})
    TASKS.register(Said)


@pytest.fixture
def measured(registered: None) -> Result:
    return Result.from_tasks(
        "birds", measure(birds(600, noise=1.0), methods=("orth",)), seconds=1.0
    )


def test_a_custom_metric_is_measured_with_an_interval_and_a_paired_change(measured: Result) -> None:
    none, orth = (measured.row("birds", "macro", method) for method in ("none", "orth"))
    for row in (none, orth):
        groups = [
            r.value for r in measured.rows if (r.metric, r.method) == ("accuracy", row.method)
        ]
        assert row.value == pytest.approx(np.mean(groups))
        assert 0 <= row.interval[0] < row.value < row.interval[1] <= 1
    assert (none.change, orth.better) == (None, "higher")
    assert orth.change[0] == pytest.approx(orth.value - none.value)


def test_tables_page_and_conclusion_use_the_metric_title(measured: Result, tmp_path: Path) -> None:
    frame = readable(measured)
    heads = []
    for _, heads_of_grid, _, _ in grids(frame[~frame.task.str.contains("cosines")]):
        heads += heads_of_grid
    assert "mean over the groups (higher is better)" in heads
    page = render(measured, tmp_path / "page.html", run_folder=tmp_path).read_text()
    assert ("mean over the groups" in page, "macro" in page) == (True, False)
    rows = [figure("none", 0.5, metric="worst_group"), figure("none", 0.9, metric="macro")]
    rows += [figure("orth", 0.7, metric="worst_group", change=(0.2, 0.1, 0.3))]
    rows += [figure("orth", 0.7, metric="macro", change=(-0.2, -0.3, -0.1))]
    (conclusion,) = result(rows).conclusions()
    assert conclusion.cost == "mean over the groups 0.90 to 0.70 (-0.20 [-0.30, -0.10])"


@pytest.mark.usefixtures("registered")
def test_share_metrics_and_ranking_metrics_are_measured_too() -> None:
    counts = {"none": np.array([[2, 2, 0], [3, 1, 0]])}
    right = {"none": np.array([1.0, 0.5])}
    drawn = TaskResult(protocol(task="generation gender"))
    rows = ShareRows(
        drawn, ("male", "female"), counts, ["nurse", "pilot"], subset="train", resamples=20
    )
    rows.add(recognised=right)
    rows = {(row.metric, row.subset): row for row in drawn.rows if row.method == "none"}
    # The most frequent value is shown for 2 of 4 nurses and 3 of 4 pilots.
    assert rows["most_shown", "train"].value == (3 / 4 + 2 / 4) / 2
    assert rows["most_shown", "train"].n == {"prompts": 2, "images each": 4}
    worst = [rows[metric, "train, the worst"].value for metric in ("discrepancy", "recognised")]
    assert worst == pytest.approx([2**0.5 / 4, 0.5])
    gallery = Gallery(Labels(np.array([0, 0, 1, 1]), ("a", "b")), [2])
    values = gallery.measure(
        gallery.codes[[[0, 1, 2, 3], [2, 3, 0, 1], [1, 2, 3, 0]]], gallery.prior
    )
    assert values["first_group@2"].tolist() == [1, 0, 1]
    assert get_metric("first_group@2").title == "first place goes to the first group@2"


def test_none_chance_and_facts_have_no_change_and_intervals_are_clipped_to_bounds() -> None:
    part = TaskResult(protocol())
    with pytest.raises(InvalidInputError, match=r"did you mean 'accuracy'.*one of worst_group, "):
        part.add("acuracy", "none", 0.5, n={})
    values = {"none": 0.1, "random": 0.2, "cali": 0.3}
    draws = dict.fromkeys(values, np.linspace(-1, 1, 9))
    part.add_draws("gap", values, draws, n={"images": 9})
    part.add_draws("share", values, draws, n={"images": 9})
    assert [row.change is None for row in part.rows] == [True, True, False, True, True, True]
    assert {row.interval[0] for row in part.rows} == {0.0}


def test_a_task_rejects_unknown_settings() -> None:
    with pytest.raises(InvalidInputError, match=r"methods: unknown key; expected one of task, "):
        evaluate(None, task="shares", methods="cali")


@pytest.mark.usefixtures("registered")
def test_evaluate_and_the_command_measure_a_task_identically(tmp_path: Path) -> None:
    data = part("test")
    prompts = str(GENDER.to_yaml(tmp_path / "jobs.yaml"))
    task = {"attribute": prompts, "column": "job", "resamples": 20}
    measured_here = evaluate(texts(), data, task="said", methods="cali", **task)
    right = (data.features @ np.stack([texts()[prompt] for prompt in GENDER.classes]).T).argmax(1)
    share = np.mean(right == data.column("job").codes)
    assert (
        0.5 < measured_here.row("said", "average", "none").value == pytest.approx(share, abs=0.02)
    )
    halved = evaluate(
        texts(), data, task="said", methods="cali", weights=np.full(len(data), 0.5), **task
    )
    assert (
        halved.row("said", "average", "none").value
        == measured_here.row("said", "average", "none").value / 2
    )
    task |= {
        "task": "said",
        "name": "jobs",
        "title": "Jobs",
        "data": {"name": "given"},
        "methods": ["cali"],
    }
    suite = {**SUITE, "tasks": [task]}
    file = tmp_path / "mine.yaml"
    images = save_embeddings(tmp_path / "images.npz", data, texts())
    file.write_text(json.dumps(suite))
    command = ["run", str(file), "--embeddings", str(images), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    rows = [{**row, "task": "said"} for row in json.loads(done.stdout)["figures"]]
    assert rows == [row.model_dump(mode="json") for row in measured_here.rows]
    assert "reused" in CliRunner().invoke(app, command, catch_exceptions=False).stderr
    assert "said" in CliRunner().invoke(app, ["show", str(file)], catch_exceptions=False).stdout
    for change, named in (
        ({"task": "sayd"}, "with one of .*said"),
        ({"colum": "job"}, r"tasks\.0: colum: "),
    ):
        file.write_text(json.dumps(suite | {"tasks": [task | change]}))
        with pytest.raises(InvalidInputError, match=named):
            load_suite(file)


@pytest.mark.parametrize("registry", [TASKS, JUDGES])
def test_invalid_kinds_of_metrics_are_rejected(registry: Registry[type]) -> None:
    with pytest.raises(InvalidInputError, match=r"a subclass of vldebias.* with a field \w+"):
        registry.register(str)
    registered = next(iter(registry.values()))
    key = "task" if registry is TASKS else "kind"
    with pytest.raises(InvalidInputError, match=r"taken|one of this name"):
        registry.register(
            type(
                "Twin",
                (registered,),
                {"__annotations__": {key: str}, key: registered.model_fields[key].default},
            )
        )


@pytest.mark.usefixtures("registered")
def test_tasks_and_metrics_that_return_nothing_raise_helpful_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(METRICS, "data", {**METRICS})
    register_metric(Metric("forgetful", "no return", reads="shares", compute=lambda counts: None))
    for metric, compute in computed("shares"):
        if metric.name == "forgetful":
            with pytest.raises(InvalidInputError, match="'forgetful': compute returned None"):
                compute(np.ones((2, 2)))

    monkeypatch.setattr(TASKS["said"], "measure", lambda self, images, texts: None)
    prompts = str(GENDER.to_yaml(tmp_path / "jobs.yaml"))
    with pytest.raises(InvalidInputError, match="task 'said': measure returned None; expected a"):
        evaluate(texts(), part("test"), task="said", attribute=prompts, column="job")
