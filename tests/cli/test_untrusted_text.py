"""Test that prompts are treated as data: anything that spreadsheets or terminals would execute is
escaped."""

import csv
import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import call
from tests.terminals import output_on_terminal
from vldebias.cli import common

FORMULAS = ["=cmd|' /C calc'!A0 of a nurse", "+1 nurse", "-2+3 nurses", "@SUM(A1) nurse"]
TITLE = "\x1b]0;title\x07"
RED = "\x1b[31mred"
EIGHT_BIT = "\x9b31m"


@pytest.mark.parametrize(
    "command",
    [
        ("prompts", "balance", "prompts.txt", "--attribute", "gender"),
        ("prompts", "balance", "prompts.txt", "--attribute", "gender", "--json"),
        ("prompts", "show", f"no{TITLE}{RED}{EIGHT_BIT}.yaml"),
    ],
    ids=["table", "json", "error"],
)
def test_control_characters_do_not_reach_the_terminal(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    text = f"A photo of a doctor {TITLE} {RED} {EIGHT_BIT}\n"
    (tmp_path / "prompts.txt").write_text(text, "utf-8")
    words = [sys.executable, "-m", "vldebias", *command]
    output, _ = output_on_terminal(words, 80, tmp_path)
    assert "u001b" in output, "escaped"
    for control in (TITLE, RED, "\x07", "\x9b"):
        assert control not in output


def test_remarks_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_message(f"{TITLE} \ud83d")
    assert capsys.readouterr().err == "\\u001b]0;title\\u0007 \\ud83d\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_text_is_escaped_for_terminals_and_unchanged_for_programs(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    common.echo(f"a\t{TITLE}")
    expected = "a\t\\u001b]0;title\\u0007\n" if is_terminal else f"a\t{TITLE}\n"
    assert capsys.readouterr().out == expected


def test_json_preserves_every_character_of_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{TITLE}{EIGHT_BIT}\x7f\ud83d \u00e9 \n"
    common.print_json(text)
    printed = capsys.readouterr().out
    assert json.loads(printed) == text
    assert "\u00e9" in printed
    assert not {"\x1b", "\x07", "\x9b", "\x7f"} & set(printed)


def test_prompts_in_an_audit_list_are_never_formulas(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(FORMULAS), encoding="utf-8")
    command = ("audit", str(prompts), "--attribute", "gender")
    call(*command, "--out", str(tmp_path / "audit"))
    with (tmp_path / "audit" / "prompts.csv").open(encoding="utf-8", newline="") as file:
        cells = {row["prompt"] for row in csv.DictReader(file)}
    assert cells == {f"'{formula}" for formula in FORMULAS}
