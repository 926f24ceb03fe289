"""What the shell completes, and what is told before anything is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vldebias.cli import app, complete, main
from vldebias.files import prompt_names, suite_names


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["vldebias", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        return int(stopped.value.code or 0), " ".join((said.out + said.err).split())

    return call


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("vldebias eval wat", {"waterbirds"}),
        ("vldebias eval sha", {"shares"}),
        ("vldebias eval run water", {"waterbirds"}),
        ("vldebias eval data celeb", {"celeba"}),
        ("vldebias debias professions-w", {"professions-winobias"}),
        ("vldebias debias gender --method orth-c", {"orth-cali"}),
        ("vldebias eval run fairface --methods cali,orth-c", {"cali,orth-cali"}),
        ("vldebias audit prompts.txt --prompts professions-w", {"professions-winobias"}),
        ("vldebias train --debias professions-w", {"professions-winobias"}),
        ("vldebias train --preset he", {"heads"}),
    ],
)
def test_names_complete_in_a_shell(monkeypatch, capsys, typed: str, expected: set[str]) -> None:
    monkeypatch.setenv("_VLDEBIAS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with pytest.raises(SystemExit):
        app(args=[], prog_name="vldebias")
    assert expected <= set(capsys.readouterr().out.split())


def test_all_names_are_offered() -> None:
    assert complete.complete_suites("") == sorted(suite_names())
    assert complete.complete_prompt_sets("") == sorted(prompt_names())
    assert complete.complete_methods("cali,difference,none") == ["cali,difference,none"]


@pytest.mark.parametrize("words", [("debias", "gender", "--model", "nowhere"), ("quickstart",), ("eval", "miniature")])
def test_a_folder_that_cannot_be_written_is_told_first(command, tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    code, said = command(*words, "--out", str(file / "results"))
    assert code == 2
    assert "expected a folder that can be written" in said
    assert "is a file; name another" in said
    assert file.read_text() == "mine"


@pytest.mark.parametrize("weight", ["-3", "inf", "much"])
def test_a_weight_that_is_none_is_told_before_the_model(command, tmp_path: Path, weight: str) -> None:
    code, said = command("debias", "gender", "--model", "nowhere", "--lam", weight, "--out", str(tmp_path / "new"))
    assert code == 2
    assert f"--lam: expected a number from 0 on, got '{weight}'" in said
    assert not (tmp_path / "new").exists()
