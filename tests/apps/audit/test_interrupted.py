"""Test that interrupted audits leave complete files, and can be run again."""

import os
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import call
from tests.processes import run_python
from vldebias.report.result import Result

# This runs a command that receives a signal instead of moving its n-th file into place.
SIGNALLED = """
import os, signal, sys
from vldebias.cli import main
# A shell's background jobs ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
number, at = int(sys.argv.pop(1)), int(sys.argv.pop(1))
replace, moved = os.replace, []
def move(*paths):
    moved.append(paths)
    if len(moved) == at:
        os.kill(os.getpid(), number)
    replace(*paths)
os.replace = move
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupted_audit_leaves_complete_files_and_can_be_rerun(
    number: int, code: int, at: int, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a nurse\n" * 6)
    (tmp_path / "b.txt").write_text("a female nurse\n" * 6)
    out = tmp_path / "out"
    command = ["audit", "--original", str(tmp_path / "a.txt"), "--attribute", "gender"]
    command += ["--rewritten", str(tmp_path / "b.txt"), "--out", str(out)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    numbers = (str(int(number)), str(at))
    done = run_python(SIGNALLED, *numbers, *command, check=False, env=environment)
    assert done.returncode == code, done.stderr
    interrupted = {file.name: file.read_bytes() for file in out.iterdir()}
    call(*command)
    complete = {file.name: file.read_bytes() for file in out.iterdir()}
    assert {"result.json", "index.html"} < set(complete)
    written = set(interrupted) & set(complete)
    assert len(written) == at - 1
    if "result.json" in written:
        kept = Result.model_validate_json(interrupted["result.json"])
        assert kept.rows == Result.model_validate_json(complete["result.json"]).rows


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, bytes]]:
    """Run an audit that generates images, and return its command and the files in its result."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "a.txt").write_text("A photo of a doctor.\nA photo of a nurse.\n")
    command = ["audit", str(folder / "a.txt"), "--attribute", "gender", "--pipeline", "miniature"]
    command += ["--measure", "2", "--steps", "2", "--out"]
    call(*command, str(folder / "out"))
    return command, _images_and_counts(folder / "out")


def _images_and_counts(out: Path) -> dict[str, bytes]:
    files = [*out.glob("images/none/**/*.png"), *out.glob("*.csv")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 10])
def test_a_killed_audit_that_generates_images_keeps_them_and_ends_with_the_same_counts(
    at: int, measured: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    command, complete = measured
    out = tmp_path / "out"
    numbers = (str(int(signal.SIGKILL)), str(at))
    done = run_python(SIGNALLED, *numbers, *command, str(out), check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    kept = {image: image.stat().st_mtime_ns for image in out.glob("images/none/**/*.png")}
    assert kept, "images were finished before the kill"
    call(*command, str(out))
    assert _images_and_counts(out) == complete
    assert {image: image.stat().st_mtime_ns for image in kept} == kept
