"""Scenes labelled by hand: several persons, markup, verbs, nouns, quotations.

`scenes.jsonl` was written before the rules were run on it, and the rules were extended after that,
so its rates are no estimate for other prompts; they must not fall.
"""

from collections import defaultdict
from pathlib import Path

import pytest

from eval.experiments.prompt_rules import decide, read

SCENES = Path(__file__).with_name("scenes.jsonl")
AT_LEAST = {"several": 46, "markup": 47, "verb": 42, "nouns": 49, "quoted": 14}


@pytest.fixture(scope="module")
def rights() -> dict[str, int]:
    """Return for each kind how many of its prompts are written as labelled."""
    of_kind = defaultdict[str, int](int)
    for row in read(SCENES):
        of_kind[row["kind"]] += decide(row).is_right
    return of_kind


@pytest.mark.parametrize("kind", AT_LEAST)
def test_scenes_are_rewritten_as_labelled(rights: dict[str, int], kind: str) -> None:
    assert rights[kind] >= AT_LEAST[kind]
