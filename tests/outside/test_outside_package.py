"""A package of somebody else, installed with pip: its loss, data set, method, task and host are
used from Python and from the command line by their names."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import vldebias
from vldebias.cli import app
from vldebias.data import DATA, open_data
from vldebias.hosts import HOSTS
from vldebias.losses import LOSSES
from vldebias.methods import METHODS
from vldebias.report.result import Result
from vldebias.study import TASKS, evaluate
from vldebias.training.settings import load_settings
from vldebias.utils.registry import Registry

NAME = "theirs"
ENTRY_POINTS = {
    "vldebias.losses": "DECOUPLED",
    "vldebias.data": "SHADES",
    "vldebias.methods": "MeanDifference",
    "vldebias.tasks": "Leaning",
    "vldebias.hosts": "TowerHost",
}
REGISTRIES: tuple[Registry[Any], ...] = (LOSSES, DATA, METHODS, TASKS, HOSTS)
TRAIN = [
    *("train", "--loss", NAME, "--set", "push=0.5", "--data", NAME, "--steps", "2"),
    *("--batch-size", "4", "--set", "workers=0", "--cpu"),
]
SUITE = {
    "title": "Theirs",
    "description": "A task of another package.",
    "source": "theirs",
    "needs": "nothing",
    "tasks": [
        {
            "task": NAME,
            "name": "shades",
            "title": "Shades",
            "prompts": "gender",
            "data": {"name": NAME, "split": "test"},
            "methods": ["none", NAME],
        }
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed the package into, from a wheel and without a network."""
    wheel = tmp_path_factory.mktemp("wheel") / f"{NAME}-1.0-py3-none-any.whl"
    info = f"{NAME}-1.0.dist-info"
    points = "".join(
        f"[{group}]\n{NAME} = {NAME}:{target}\n" for group, target in ENTRY_POINTS.items()
    )
    files = {
        f"{NAME}.py": (Path(__file__).parent / f"{NAME}.py").read_text(encoding="utf-8"),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True)
    return target


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package on the path; what it registered is forgotten afterwards."""
    for registry in REGISTRIES:
        len(registry)  # what is found without the package
    monkeypatch.syspath_prepend(folder)
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "data", {**registry.data})
        monkeypatch.setattr(registry, "_searched", False)
    yield
    sys.modules.pop(NAME, None)


def run(arguments: list[str]) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_an_entry_point_is_found_by_its_name(registry: Registry[Any]) -> None:
    assert NAME in registry
    assert NAME in list(registry)


@pytest.mark.usefixtures("installed")
def test_listings_show_what_another_package_adds() -> None:
    for command in (["losses"], ["methods"], ["eval", "data"]):
        listed = json.loads(run([*command, "--json"]))
        assert NAME in [entry["name"] for entry in listed]


@pytest.mark.usefixtures("installed")
def test_a_host_and_a_method_of_another_package_debias() -> None:
    import theirs

    tower = theirs.Tower()
    texts = ["a photo of a doctor", "a photo of a chef"]
    bare = tower.encode(texts)
    with vldebias.debias(tower, "gender", method=NAME) as attachment:
        (edit,) = attachment.projections.values()
        torch.testing.assert_close(tower.encode(texts), edit(bare))
        assert not torch.allclose(tower.encode(texts), bare)
    assert torch.equal(tower.encode(texts), bare)


@pytest.mark.usefixtures("installed")
def test_a_data_set_and_a_task_of_another_package_are_evaluated() -> None:
    assert len(open_data(NAME)) == 8
    result = evaluate("miniature", NAME, task=NAME, prompts="gender", methods=NAME)
    assert {row.method for row in result.rows} == {"none", NAME}


@pytest.mark.usefixtures("installed")
def test_the_settings_of_a_loss_of_another_package_are_checked() -> None:
    settings = load_settings(loss=NAME, push=0.5, data=NAME, steps=1)
    assert settings.push == 0.5
    assert load_settings(data=NAME, loss=NAME, steps=1).push == 1.0
    for wrong, message in (
        ({"push": -1}, "push"),
        ({"q": 0.5}, f"{NAME} does not read q; it reads .*push"),
        ({"loss": "rince", "push": 1}, "push: unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            load_settings(**{"loss": NAME, "steps": 1, **wrong})


@pytest.mark.usefixtures("installed")
def test_train_takes_the_loss_and_the_data_of_another_package(tmp_path: Path) -> None:
    run([*TRAIN, "--out", str(tmp_path)])
    outcome = json.loads((tmp_path / "run.json").read_text())
    assert (outcome["settings"]["loss"], outcome["settings"]["push"]) == (NAME, 0.5)
    assert "zero_shot_accuracy" in outcome["after"]


@pytest.mark.slow
def test_the_commands_of_a_shell_take_them_too(folder: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(json.dumps(SUITE))
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{folder}"}
    for command in (
        [*TRAIN, "--out", str(tmp_path / "run")],
        ["eval", str(suite), "--model", "miniature", "--out", str(tmp_path / "eval")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "vldebias", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    rows = Result.read(tmp_path / "eval/result.json").rows
    assert {row.method for row in rows} == {"none", NAME}
