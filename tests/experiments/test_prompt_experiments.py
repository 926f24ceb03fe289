"""Test the score of balanced prompts on labelled prompts, with known answers."""

import json
from pathlib import Path

import pytest

from eval.experiments import prompt_rules
from vldebias.errors import InvalidInputError

LABELLED = [
    {"prompt": "a nurse", "attribute": "gender", "label": "open", "expected": "a {v} nurse"},
    {"prompt": "a red chair", "attribute": "gender", "label": "open"},  # labelled incorrectly
    {"prompt": "a Zulu warrior", "attribute": "race", "label": "fixed"},
    {"prompt": "five engineers", "attribute": "gender", "label": "group"},
    {
        "prompt": "(nurse:1.2)",
        "attribute": "gender",
        "label": "syntax",
        "expected": "({v} nurse:1.2)",
    },
]


def test_labels_are_compared_with_the_result(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, LABELLED)), encoding="utf-8")
    decisions = [prompt_rules.decide(row) for row in prompt_rules.read(path)]
    assert [decision.is_right for decision in decisions] == [True, False, True, True, True]
    assert [decision.is_changed for decision in decisions] == [True, False, False, True, True]
    path.write_text('{"prompt": "a nurse"}', encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"mine.jsonl:1"):
        prompt_rules.read(path)
