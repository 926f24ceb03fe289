"""Test hand-labelled prompts with every class of facts: how many are decided as labelled.

The labels in `classes.jsonl` were written before the rules ran on them, and the word lists were
extended afterwards. The rates therefore do not estimate the accuracy on other prompts, but they
must not decrease.
"""

from collections import defaultdict
from pathlib import Path

import pytest

from eval.experiments.prompt_rules import decide, read
from vldebias.wording import Balancer

CLASSES = Path(__file__).with_name("classes.jsonl")
AT_LEAST = {"fixed": 0.97, "open": 0.95, "group": 0.97, "stated": 0.95}


@pytest.fixture(scope="module")
def correct_by_label() -> dict[str, list[bool]]:
    """Return whether the prompts with each label are decided as labelled."""
    of_label = defaultdict[str, list[bool]](list)
    for row in read(CLASSES):
        of_label[row["label"]].append(decide(row).is_right)
    return of_label


@pytest.mark.parametrize("label", AT_LEAST)
def test_labelled_prompts_are_decided_as_labelled(
    correct_by_label: dict[str, list[bool]], label: str
) -> None:
    assert sum(correct_by_label[label]) >= AT_LEAST[label] * len(correct_by_label[label])


@pytest.mark.parametrize(
    ("prompt", "names", "words", "result"),
    [
        ("a Catholic priest", "age", ["old"], "an old Catholic priest"),
        ("a Muslim doctor", "race", ["White"], "a white Muslim doctor"),
        ("a US senator", "age", ["young"], "a young US senator"),
        ("a US senator", "gender", ["female"], "a US female senator"),
        ("an American nurse", "race", ["Asian"], "an Asian American nurse"),
    ],
)
def test_nationalities_and_religions_are_placed_next_to_the_noun(
    prompt: str, names: str, words: list[str], result: str
) -> None:
    assert Balancer(names).write([prompt], words) == [result]
