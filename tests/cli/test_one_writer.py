"""Test that two processes cannot write to one output folder."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import call
from vldebias.errors import InvalidInputError

SHORT = ("--attribute", "gender", "--steps", "1")
COMMANDS = {
    "generate": ("generate", "A photo of a doctor.", *SHORT, "--images", "1"),
    "audit": ("audit", "prompts.txt", *SHORT, "--pipeline", "miniature", "--measure", "1"),
    "eval run": ("eval", "run", "miniature"),
    "eval captions": ("eval", "captions", "captions.csv"),
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder to which another process is writing."""
    folder = tmp_path_factory.mktemp("locked")
    program = (
        "import sys; from vldebias.utils.files import only_writer\n"
        f"with only_writer({str(folder)!r}): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"locked\n"
        yield folder
        other.communicate(b"")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_to_which_another_process_writes_is_refused(
    name: str, locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("A photo of a doctor.\n")
    Path("captions.csv").write_text("image,caption,label\n1.jpg,A man runs.,male\n")
    before = sorted(locked.rglob("*"))
    with pytest.raises(InvalidInputError, match="is writing to this folder"):
        call(*COMMANDS[name], "--out", str(locked))
    assert sorted(locked.rglob("*")) == before
