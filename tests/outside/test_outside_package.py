"""Test a package made from the documentation's recipes and installed with pip: commands and
functions accept the names of its objects."""

import json
import re
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vldebias
from tests.cli.conftest import call
from vldebias.data import DATA, open_data
from vldebias.hosts import HOSTS
from vldebias.judge.judges import JUDGES, checked_judge, predict
from vldebias.losses import LOSSES
from vldebias.measure.metric import METRICS
from vldebias.methods import METHODS
from vldebias.report.result import Result
from vldebias.study import TASKS
from vldebias.study.evaluating import evaluate
from vldebias.training.settings import load_settings
from vldebias.utils.registry import Registry

HOW_TO = Path(__file__).parents[2] / "docs/how-to"
PACKAGE = "mypackage"
NAMES: dict[str, tuple[Registry[Any], str]] = {
    "loss": (LOSSES, "decoupled"),
    "data set": (DATA, "scans"),
    "method": (METHODS, "mean-difference"),
    "metric": (METRICS, "spread"),
    "task": (TASKS, "leaning"),
    "host": (HOSTS, PACKAGE),
    "judge": (JUDGES, "brightness"),
}
TRAIN = [
    *("train", "--loss", "decoupled", "--set", "push=0.5", "--data", "scans", "--steps", "2"),
    *("--batch-size", "4", "--set", "workers=0", "--cpu"),
]
SUITE = {
    "title": "Mine",
    "description": "A task, a method and a data set of another package.",
    "source": "mypackage",
    "needs": "nothing",
    "tasks": [
        {
            "task": "leaning",
            "name": "leaning",
            "title": "Leaning",
            "attribute": "gender",
            "data": {"name": "scans", "split": "test"},
            "methods": ["none", "mean-difference"],
        },
    ],
}


def blocks(kind: str) -> list[str]:
    """Return the fenced blocks on the two pages."""
    pages = "".join((HOW_TO / page).read_text(encoding="utf-8") for page in PAGES)
    return re.findall(rf"```{kind}\n(.*?)```", pages, re.DOTALL)


PAGES = ("extend.md", "method.md")


def wheel_of(code: str, folder: Path) -> Path:
    """Return a wheel with one module and the entry points shown on the page."""
    info = f"{PACKAGE}-1.0.dist-info"
    (points,) = blocks("toml")
    points = re.sub(r"\[project\.entry-points\.\"(.+)\"\]", r"[\1]", points)
    points = re.sub(r" = \"(.+)\" .*", r" = \1", points)
    files = {
        f"{PACKAGE}/__init__.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    wheel = folder / f"{PACKAGE}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def installed_into(folder: Path, code: str) -> Path:
    """Return the folder into which pip installed the package, from a wheel and without network
    access."""
    target = folder / "site"
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
    subprocess.run([*command, str(wheel_of(code, folder))], check=True)
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package without the `register_*` calls, which its entry points replace."""
    code = re.sub(r"^(register_|assert ).*\n", "", "\n\n".join(blocks("python")), flags=re.M)
    return installed_into(tmp_path_factory.mktemp("package"), code)


@pytest.fixture(scope="module")
def registering_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package with the `register_*` calls."""
    return installed_into(tmp_path_factory.mktemp("package"), "\n\n".join(blocks("python")))


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an image folder in the layout that the data set recipe expects."""
    root = tmp_path_factory.mktemp("scans")
    for split, count in (("train", 12), ("val", 8), ("test", 8)):
        (root / split).mkdir()
        for row in range(count):
            kind = ("dark", "bright")[row % 2]
            image = Image.new("RGB", (64, 64), (200 * (row % 2) + row,) * 3)
            image.save(root / split / f"{kind}-{row:03}.png")
    return root


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for registry, _ in NAMES.values():
        len(registry)  # load the entry points before the package is on the path
    monkeypatch.syspath_prepend(folder)
    for registry, _ in NAMES.values():
        monkeypatch.setattr(registry, "data", {**registry.data})
        monkeypatch.setattr(registry, "_searched", False)
    yield
    sys.modules.pop(PACKAGE, None)


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the package on the path, and unregister its objects afterwards."""
    yield from use(folder, monkeypatch)


@pytest.fixture
def registering(registering_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the package that also registers its objects on the path."""
    yield from use(registering_folder, monkeypatch)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", NAMES)
def test_an_entry_point_is_found_by_its_name(kind: str) -> None:
    registry, name = NAMES[kind]
    assert registry.kind == kind
    assert name in registry
    assert name in list(registry)


@pytest.mark.usefixtures("registering")
def test_an_entry_point_of_a_registered_object_is_ignored_silently() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for registry, name in NAMES.values():
            assert name in list(registry)


@pytest.mark.usefixtures("installed")
def test_listings_include_objects_from_another_package() -> None:
    for command, kind in (("losses", "loss"), ("methods", "method"), ("eval data", "data set")):
        listed = json.loads(call(command, "--json"))
        assert NAMES[kind][1] in [entry["name"] for entry in listed]


@pytest.mark.usefixtures("installed")
def test_a_host_and_a_method_from_another_package_can_be_used() -> None:
    import mypackage

    tower = mypackage.AcmeTower()
    texts = ["a photo of a doctor", "a photo of a chef"]
    bare = tower.encode(texts)
    with vldebias.debias(tower, "gender", method="mean-difference") as attachment:
        (edit,) = attachment.projections.values()
        torch.testing.assert_close(tower.encode(texts), edit(bare))
        assert not torch.allclose(tower.encode(texts), bare)
    assert torch.equal(tower.encode(texts), bare)


@pytest.mark.usefixtures("installed")
def test_a_data_set_and_a_task_from_another_package_are_evaluated(scans: Path) -> None:
    assert len(open_data("scans", scans)) == 8
    methods = ["orth", "mean-difference"]
    result = evaluate(
        "miniature", "scans", task="leaning", attribute="gender", methods=methods, root=scans
    )
    correlation = {row.method: row.value for row in result.rows}
    assert list(correlation) == ["none", *methods]
    # The measured value depends on the method.
    assert len({round(value, 6) for value in correlation.values()}) == 3
    assert all(0 <= value <= 1 for value in correlation.values())


@pytest.mark.usefixtures("installed")
def test_a_metric_from_another_package_can_be_measured() -> None:
    labels = {"label": ["landbird", "waterbird"] * 8, "place": ["c", "c", "d", "d"] * 4}
    images = np.random.default_rng(0).normal(size=(16, 256))
    result = evaluate("miniature", images, task="groups", attribute="waterbirds", labels=labels)
    assert "spread" in {row.metric for row in result.rows}


@pytest.mark.usefixtures("installed")
def test_a_judge_from_another_package_can_label_images() -> None:
    fields = {
        "name": "shades",
        "title": "Shades",
        "attribute": "gender",
        "attributes": ["shade"],
        "judge": {"kind": "brightness", "threshold": 100},
        "variants": {"difference": {"method": "difference"}},
    }
    spec: Any = TASKS["generation"].build(fields)
    judge = checked_judge(spec.judge, spec.judge.ready(spec, None))
    shades = [Image.new("RGB", (8, 8), (shade,) * 3) for shade in (0, 110, 255)]
    assert predict(judge, shades)["shade"].argmax(1).tolist() == [0, 1, 1]


@pytest.mark.usefixtures("installed")
def test_settings_of_a_loss_from_another_package_are_checked() -> None:
    settings = load_settings(loss="decoupled", push=0.5, data="scans", steps=1)
    assert settings.push == 0.5
    assert load_settings(data="scans", loss="decoupled", steps=1).push == 1.0
    for wrong, message in (
        ({"push": -1}, "push"),
        ({"q": 0.5}, "decoupled does not read q; it reads .*push"),
        ({"loss": "rince", "push": 1}, "push: unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            load_settings(**{"loss": "decoupled", "steps": 1, **wrong})


@pytest.mark.usefixtures("installed")
def test_train_accepts_a_loss_and_data_from_another_package(scans: Path, tmp_path: Path) -> None:
    call(*TRAIN, "--data-root", str(scans), "--out", str(tmp_path))
    outcome = json.loads((tmp_path / "run.json").read_text())
    assert (outcome["settings"]["loss"], outcome["settings"]["push"]) == ("decoupled", 0.5)
    assert "zero_shot_accuracy" in outcome["after"]


@pytest.mark.usefixtures("installed")
def test_a_suite_may_name_objects_from_another_package(scans: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(json.dumps(SUITE))
    out = tmp_path / "eval"
    where = ["--data-root", str(scans), "--out", str(out)]
    call("eval", str(suite), "--model", "miniature", *where)
    rows = Result.read(out / "result.json").rows
    assert {row.method for row in rows} == {"none", "mean-difference"}
