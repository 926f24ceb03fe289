"""Test `vldebias label`: what it prints before it serves a page."""

import subprocess
import sys
from pathlib import Path

import pytest
from browsing import free_port
from label_parts import draw
from typer.testing import CliRunner

from apps.shares.answers import AnnotationLog
from vldebias.cli import app


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
def test_a_port_in_use_is_reported(folder: Path, tmp_path: Path) -> None:
    import socket

    port = free_port()
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", port))
        occupied.listen()
        command = f"label {folder} --attribute gender --port {port} --out {tmp_path / 'x'}"
        done = subprocess.run(
            [sys.executable, "-m", "vldebias", *command.split()],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert f"port {port}: cannot be opened" in done.stderr
    assert "choose another --port" in " ".join(done.stderr.split())
    assert AnnotationLog(tmp_path / "x").answers() == {}
