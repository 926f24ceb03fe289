"""Test hand-labelled scenes: several people, markup, verbs, nouns, quotations.

The labels in `scenes.jsonl` were written before the rules ran on them, and the rules were extended
afterwards. The rates therefore do not estimate the accuracy on other prompts, but they must not
decrease.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from eval.experiments.prompt_rules import decide, read

SCENES = Path(__file__).with_name("scenes.jsonl")
AT_LEAST = {"several": 46, "markup": 47, "verb": 42, "nouns": 43, "quoted": 14}


@pytest.fixture(scope="module")
def correct_by_kind() -> dict[str, int]:
    """Return how many prompts of each kind are rewritten as labelled."""
    of_kind = defaultdict[str, int](int)
    lines = SCENES.read_text(encoding="utf-8").splitlines()
    for line, row in zip(lines, read(SCENES), strict=True):
        of_kind[json.loads(line)["kind"]] += decide(row).is_right
    return of_kind


@pytest.mark.parametrize("kind", AT_LEAST)
def test_scenes_are_rewritten_as_labelled(correct_by_kind: dict[str, int], kind: str) -> None:
    assert correct_by_kind[kind] >= AT_LEAST[kind]
