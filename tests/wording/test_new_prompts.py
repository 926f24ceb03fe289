"""Prompts of every kind labelled by others: few of them may be changed wrongly."""

import json
from pathlib import Path

import pytest

from eval.fresh_prompts import measure

HERE = Path(__file__).parent
SETS = ("fresh_kinds", "fresh_languages_rewritten", "new_prompts_1", "new_prompts_2")


@pytest.mark.parametrize("name", SETS)
def test_at_most_one_percent_of_the_prompts_is_changed_wrongly(name: str) -> None:
    lines = (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rates = measure([json.loads(line) for line in lines])["rates"]["all"]
    assert rates["wrong edit"]["count"] <= 0.01 * rates["n"]
    assert rates["right"]["count"] >= 0.95 * rates["n"]
