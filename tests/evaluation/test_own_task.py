"""A task of another package, in one file: by name in `evaluate`, in suites and in the commands."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import yaml
from any_method_parts import GENDER, part, texts
from typer.testing import CliRunner

from vldebias.cli.evaluate import app
from vldebias.data import save_embeddings
from vldebias.errors import InvalidInputError
from vldebias.evaluation import TASKS, evaluate, load_suite
from vldebias.evaluation.judges import JUDGES
from vldebias.registry import Registry

pytestmark = pytest.mark.usefixtures("no_charts")

MINE = '''
from typing import Literal

from vldebias.evaluation import Task, TaskResult
from vldebias.evaluation.images import ImageTask
from vldebias.prompts import load_prompts


class Said(ImageTask):
    """How often the nearest class prompt is the label of an image."""

    task: Literal["said"] = "said"
    prompts: str
    column: str
    at_least: float = 0.0

    def measure(self, images, texts, *, weights=None):
        sets = [load_prompts(self.prompts)]
        fitted = self.fit(texts, sets)
        labels = images.column(self.column)
        own = [sets[0].class_names.index(name) for name in labels.names]
        about = {"title": "T", "description": "D", "n": {"images": len(images)}, "settings": {}}
        methods = {name: one.about for name, one in fitted.items()}
        result = TaskResult(self.provenance(self.name, images, texts, sets, methods, **about))
        right = {}
        for name, one in fitted.items():
            scores = images.unit[:].double() @ self.rows(texts, sets[0].classes, one.edit).T
            right[name] = (scores.argmax(1).numpy() == [own[code] for code in labels.codes]).astype(float)
            right[name] = right[name] if weights is None else right[name] * weights
        counts = {"images": len(images)}
        result.add_resampled("average", right, n=counts, resamples=self.resamples, seed=self.seed)
        return [result]
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a package, and its entry point; what was registered is forgotten afterwards."""
    (tmp_path / "mine_tasks.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(TASKS, "data", {**TASKS})
    monkeypatch.setattr(TASKS, "_searched", False)
    points = [EntryPoint("said", "mine_tasks:Said", "vldebias.tasks")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: points if group == "vldebias.tasks" else [])
    GENDER.to_yaml(tmp_path / "jobs.yaml")
    task = {"task": "said", "name": "jobs", "title": "Jobs", "data": {"name": "given"}, "resamples": 20}
    task |= {"prompts": str(tmp_path / "jobs.yaml"), "column": "job", "methods": ["cali"]}
    suite = {"title": "t", "description": "d", "source": "s", "needs": "--embeddings", "tasks": [task]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(suite))
    save_embeddings(tmp_path / "images.npz", part("test"), texts())
    return tmp_path


def test_evaluate_measures_it_as_the_command_does(mine: Path) -> None:
    data = part("test")
    options = {"prompts": str(mine / "jobs.yaml"), "methods": "cali", "column": "job", "resamples": 20}
    found = evaluate(texts(), data, task="said", **options)
    right = (data.features @ np.stack([texts()[prompt] for prompt in GENDER.classes]).T).argmax(1)
    assert found.row("said", "average", "none").value > 0.5
    same = np.mean(right == data.column("job").codes)
    assert found.row("said", "average", "none").value == pytest.approx(same, abs=0.02)
    halved = evaluate(texts(), data, task="said", weights=np.full(len(data), 0.5), **options)
    assert halved.row("said", "average", "none").value == found.row("said", "average", "none").value / 2
    arguments = ["run", str(mine / "mine.yaml"), "--embeddings", str(mine / "images.npz"), "--out", str(mine / "o")]
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    rows = [{**row, "task": "said"} for row in json.loads(done.stdout)["figures"]]
    assert rows == [row.model_dump(mode="json") for row in found.rows]
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "reused" in again.stderr


def test_suites_and_commands_know_it(mine: Path) -> None:
    assert [task.task for task in load_suite(mine / "mine.yaml").tasks] == ["said"]
    shown = CliRunner().invoke(app, ["show", str(mine / "mine.yaml")], catch_exceptions=False)
    assert "said" in shown.stdout
    wrong = yaml.safe_load((mine / "mine.yaml").read_text())
    (mine / "unknown.yaml").write_text(yaml.safe_dump({**wrong, "tasks": [{"task": "sayd", "name": "said"}]}))
    with pytest.raises(InvalidInputError, match=r"expected `task:` with one of .*said"):
        load_suite(mine / "unknown.yaml")
    wrong["tasks"][0]["colum"] = wrong["tasks"][0].pop("column")
    (mine / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    with pytest.raises(InvalidInputError, match=r"tasks\.0: colum: unknown key"):
        load_suite(mine / "wrong.yaml")


@pytest.mark.parametrize("registry", [TASKS, JUDGES])
def test_what_is_no_kind_is_refused(registry: Registry[type]) -> None:
    with pytest.raises(InvalidInputError, match=r"expected a subclass of vldebias.* with a field \w+: Literal\["):
        registry.register(str)
    taken = next(iter(registry.values()))
    key = "task" if registry is TASKS else "kind"
    with pytest.raises(InvalidInputError, match=r"taken|one of this name"):
        registry.register(type("Twin", (taken,), {"__annotations__": {key: str}, key: taken.model_fields[key].default}))
