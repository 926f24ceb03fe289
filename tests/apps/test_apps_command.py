"""Test `vldebias label` and the loader of pages: what the commands print before they serve a
page."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import free_port
from label_parts import draw
from typer.testing import CliRunner

from vldebias.cli import app, apps
from vldebias.judge.answers import AnnotationLog


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "images"
    draw(path)
    return path


def test_an_invalid_host_name_is_rejected(folder: Path) -> None:
    done = CliRunner().invoke(
        app, ["label", str(folder), "--attribute", "gender", "--annotator", "a/b"]
    )
    assert "remove /" in str(done.exception)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["wheel", "checkout"])
def test_a_wheel_and_a_checkout_have_their_pages(where: str, tmp_path: Path) -> None:
    """The same code finds the pages inside the package and next to it. Those inside take
    precedence."""
    package = Path(apps.__file__).parents[2]
    shutil.copytree(
        package, tmp_path / "vldebias", ignore=shutil.ignore_patterns("_resources", "__pycache__")
    )
    places = [tmp_path / "apps", *([tmp_path / "vldebias/cli/apps"] if where == "wheel" else [])]
    for place in places:
        for name in ("demo", "label"):
            (place / name).mkdir(parents=True)
            (place / name / "__init__.py").write_text(f"where = {str(place)!r}\n")
    script = "from vldebias.cli.apps import label; print(label.where)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (str(places[-1]), "")


@pytest.mark.slow
def test_a_port_in_use_is_reported(folder: Path, tmp_path: Path) -> None:
    import socket

    port = free_port()
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", port))
        occupied.listen()
        command = [
            sys.executable,
            "-m",
            "vldebias",
            "label",
            str(folder),
            "--attribute",
            "gender",
            "--port",
            str(port),
        ]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "x")],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ,
        )
    assert done.returncode == 2
    assert f"port {port}: cannot be opened" in done.stderr
    assert "choose another --port" in " ".join(done.stderr.split())
    assert AnnotationLog(tmp_path / "x").answers() == {}
