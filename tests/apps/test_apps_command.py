"""Test `vldebias label`: what it prints before it serves a page."""

import socket
from pathlib import Path

import pytest
from label_parts import draw

from apps.shares.answers import AnnotationLog
from tests.cli.conftest import call
from vldebias.errors import InvalidInputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "images"
    draw(path)
    return path


def test_an_invalid_annotator_is_rejected(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="remove /"):
        call(f"label {folder} --attribute gender --annotator a/b")


@pytest.mark.slow
def test_a_port_in_use_is_reported(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        message = f"port {port}: cannot be opened.*choose another --port"
        with pytest.raises(InvalidInputError, match=message):
            call(f"label {folder} --attribute gender --port {port} --out {tmp_path / 'x'}")
    assert AnnotationLog(tmp_path / "x").answers() == {}
