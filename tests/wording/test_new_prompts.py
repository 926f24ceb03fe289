"""Test prompts of every kind, labelled before the rules ran: only a few of them may be changed
wrongly."""

import json
import math
from pathlib import Path

import pytest

from eval.fresh_prompts import measure
from eval.tables import RESULTS

HERE = Path(__file__).parent
# Share of prompts that must be correct. The rules were corrected on all of these sets.
SETS = {
    "composed_prompts": 0.95,
    "fresh_kinds": 0.95,
    "fresh_languages": 0.95,
    "new_prompts_1": 0.95,
    "new_prompts_2": 0.95,
    "held_out_prompts": 0.9,
    "held_out_prompts_2": 0.95,
    "held_out_prompts_3": 0.95,
    "held_out_prompts_4": 0.95,
    "held_out_prompts_5": 0.95,
    "development_2": 0.95,
    "development_3": 0.9,
}


@pytest.mark.parametrize("name", SETS)
def test_at_most_one_percent_of_the_prompts_is_changed_wrongly(name: str) -> None:
    lines = (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rates = measure([json.loads(line) for line in lines])["rates"]["all"]
    assert rates["wrong edit"]["count"] <= math.ceil(0.01 * rates["n"])
    assert rates["right"]["count"] >= SETS[name] * rates["n"]


def test_the_prompts_by_kind_are_decided_as_their_page_says() -> None:
    lines = (HERE / "kinds_blind.jsonl").read_text(encoding="utf-8").splitlines()
    stored = json.loads((RESULTS / "languages" / "kinds_blind.json").read_text(encoding="utf-8"))
    assert measure([json.loads(line) for line in lines])["rates"] == stored["rates"]
