"""Test that no command truncates a word in a terminal of 80 columns, except in long prompts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.terminals import printed_in_terminal
from vldebias.cli import app

ROOT = Path(__file__).parents[2]
FRAMES = re.compile(r"[─-╿]+")

LISTS = ["methods", "eval list", "prompts list", "eval show waterbirds", "train --settings"]
PROGRAMS = ["", "debias", "train", "audit", "diagnose", "generate", "rerank", "serve", "mcp"]
PROGRAMS += ["demo", "label", "quickstart", "eval", "eval shares", "eval waterbirds"]
HELP = [f"{command} --help" for command in [*PROGRAMS, "prompts", "prompts balance"]]
MODELS = [
    "eval data birds --option n=40",
    "debias gender --model miniature --method difference",
    "audit prompts.txt --attribute gender --pipeline miniature",
    "prompts balance prompts.txt --attribute gender --seed 1",
    "rerank results.csv --k 2 --attribute gender",
    f"eval gate {ROOT / 'eval/results/quickstart.json'} --max-gap 0.3",
]


def words(text: str) -> set[str]:
    return set(FRAMES.sub(" ", text).split())


def check(command: str, folder: Path) -> None:
    words_of_command = [sys.executable, "-m", "vldebias", *command.split()]
    narrow = printed_in_terminal(words_of_command, 80, folder)
    wide = printed_in_terminal(words_of_command, 400, folder)
    assert words(wide) - words(narrow) == set()
    assert words(narrow) - words(wide) == set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts.txt").write_text("A photo of a nurse.\nA photo of a pilot on a ship.\n")
    rows = ["id,score,gender", "1,.9,male", "2,.8,male", "3,.7,female", "4,.6,male"]
    (tmp_path / "results.csv").write_text("\n".join(rows))
    return tmp_path


@pytest.mark.parametrize("command", LISTS[:2])
def test_lists_do_not_truncate_words(command: str, folder: Path) -> None:
    check(command, folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", [*LISTS[2:], *HELP, *MODELS])
def test_commands_do_not_truncate_words(command: str, folder: Path) -> None:
    check(command, folder)


def test_long_prompts_take_one_line_in_a_terminal_and_are_complete_if_piped(folder: Path) -> None:
    start = "A photo of a doctor in a hospital corridor"
    prompt = f"{start} with a white coat and a clipboard, photographed in soft daylight"
    (folder / "long.txt").write_text(f"{prompt}\n")
    command = [sys.executable, "-m", "vldebias", "prompts", "neutral", "long.txt"]
    lines = printed_in_terminal(command, 80, folder).splitlines()
    rows = [line for line in lines if "A photo" in line]
    assert len(rows) == 1
    assert rows[0].count("...") == 2
    assert "daylight" not in "\n".join(lines)
    # In a terminal that is wide enough, and in a pipe, nothing is truncated.
    assert prompt in printed_in_terminal(command, 400, folder)
    piped = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert piped.stdout.splitlines() == ["neutral\toriginal", f"{prompt}\t{prompt}"]


@pytest.mark.parametrize("command", ["methods", "losses", "prompts list", "eval list", "eval data"])
def test_lists_say_what_is_piped_and_offer_json(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"]).output
    text = " ".join(FRAMES.sub(" ", shown).split())
    assert "--json Print only JSON to stdout. Without it, piped tables are tab-separated" in text
