"""Test the count of the labelled prompts that a rule decides, with known answers."""

import json
import sys
from pathlib import Path

import pytest

from eval import ablate_rules

LABELLED = [
    {"prompt": "a rabbit detective", "attribute": "gender", "label": "none"},
    {"prompt": "a nurse", "attribute": "gender", "label": "open"},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, LABELLED)), encoding="utf-8")
    return path


def test_a_rule_decides_the_prompts_that_come_out_differently_without_it(path: Path) -> None:
    prompts = list(ablate_rules.labelled(path, "given"))
    result = ablate_rules.measure(prompts)
    assert result["totals"]["given"] == {"prompts": 2, "right": 2}
    rows = {row["function"].rpartition(".")[2]: row for row in result["without"]}
    assert rows["_is_thing_by_modifiers"]["given"] == {"decided": 1, "right": -1, "wrong edit": 1}
    assert rows["_is_credit_tag"]["given"] == {}
    # The functions work as before afterwards.
    assert [prompt.decide() for prompt in prompts] == ["right", "right"]


def test_missing_files_are_reported(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablate_rules, "COMMITTED", path.parent)
    written = tmp_path / "table.json"
    arguments = ["ablate_rules", "absent.jsonl", "--json", str(written)]
    monkeypatch.setattr(sys, "argv", arguments)
    ablate_rules.main()
    messages = capsys.readouterr().err
    assert "SKIPPED absent.jsonl" in messages
    assert "no other labelled prompts" in messages
    assert json.loads(written.read_text(encoding="utf-8"))["totals"]["committed"]["right"] == 2
