"""Test that words about the medium have no effect: how a picture is made does not show who is in
it."""

import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from vldebias.wording import balance_prompts

LABELLED = Path(__file__).with_name("labelled.jsonl")
MEDIA = [
    ", shot on 35mm film",
    ", museum quality",
    ", oil on canvas",
    ", watercolour",
    ", vintage postcard",
    ", black and white photograph",
    ", polaroid",
    ", concept art",
    ", trending on artstation",
    ", 8k, highly detailed",
    ", cinematic lighting",
    ", studio portrait",
    ", children's book illustration",
    ", comic book style",
    ", Japanese woodblock print",
    ", game art",
    ", digital painting",
]


def decisions(prompts: list[str], name: str) -> list[bool]:
    """Return whether each prompt gets a value."""
    return [reason is None for reason in balance_prompts(prompts, name, seed=0).reasons]


@cache
def decisions_without_medium(prompts: tuple[str, ...], name: str) -> list[bool]:
    """Return the decisions without a medium, which those with a medium are compared to."""
    return decisions(list(prompts), name)


@pytest.mark.parametrize("medium", MEDIA)
def test_adding_a_medium_does_not_change_the_decision_for_a_labelled_prompt(medium: str) -> None:
    rows = [json.loads(line) for line in LABELLED.read_text("utf-8").splitlines()]
    prompts = [row["prompt"].rstrip(".") for row in rows]
    shown = decisions([prompt + medium for prompt in prompts], "gender")
    bare_decisions = decisions_without_medium(tuple(prompts), "gender")
    for prompt, bare, added in zip(prompts, bare_decisions, shown, strict=True):
        assert bare == added, prompt


def calls(prompt: str) -> int:
    """Count the function calls for a prompt, which are the same on every machine."""
    counted = Counter[str]()

    def count(_: object, event: str, __: object) -> None:
        counted[event] += 1

    sys.setprofile(count)
    try:
        balance_prompts(prompt, "gender", seed=0)
    finally:
        sys.setprofile(None)
    return counted["call"] + counted["c_call"]


def test_the_work_grows_linearly_with_the_length() -> None:
    line = "a photo of a tired doctor in a small old hospital with a 'red' lamp and green walls, "
    balance_prompts(line, "gender", seed=0)  # the word lists are only loaded once
    assert calls(line * 16 * 12) <= 24 * calls(line * 12)


# These are so long that quadratic work would far exceed the limit.
HOSTILE = {
    "brackets": "(" * 5000,
    "alternatives": "{" + "|".join(f"doctor {number}" for number in range(400)) + "}",
    "nested alternatives": "{a|" * 1500 + "doctor" + "}" * 1500,
    "JSON": '{"a":' * 1000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_prompt_is_not_more_work_than_a_long_one(kind: str) -> None:
    prompt = HOSTILE[kind]
    balance_prompts("a doctor", "gender", seed=0)
    assert calls(prompt) < 200 * len(prompt)
    assert balance_prompts(prompt, "gender", seed=0).prompts == [prompt]
