"""A cold start is timed step by step in a clone, with nothing of the environment that measures."""

import subprocess
from pathlib import Path

import pytest

from tests.robust import cold_start


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def test_each_step_has_its_minutes_and_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("MAKELEVEL", "1")  # as below `make test`
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "Makefile").write_text(
        'quickstart: .venv/.ready\n\t@echo "path=[$$PYTHONPATH]"\n'
        ".venv/.ready:\n\t@mkdir .venv && head -c 3000000 /dev/zero > .venv/.ready && ln .venv/.ready .venv/again\n"
    )
    git(tmp_path / "source", "init", "-q")
    git(tmp_path / "source", "add", "-A")
    git(tmp_path / "source", "commit", "-qm", "all")
    (tmp_path / "source" / "never-committed").write_text("x" * 10_000_000)
    clone, environment, measured = cold_start.measure(tmp_path, tmp_path / "source")
    assert (clone["MB"], environment["MB"], measured["MB"]) == (0, 3, 3)  # a file with two names once
    assert measured["last"] == ["path=[]"]
    assert all(0 <= row["minutes"] < 1 for row in (clone, environment, measured))


def test_a_step_that_fails_ends_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ended with 3\nno room"):
        cold_start.timed(["sh", "-c", "echo no room; exit 3"], tmp_path)
