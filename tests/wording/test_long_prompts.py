"""Test untrusted prompts on a server that runs for months: no prompt takes minutes, and words are
not stored forever."""

import time
from typing import Any

import pytest

from vldebias.prompts.english import words
from vldebias.wording import balance_prompts
from vldebias.wording.english import facts

REMEMBERING = [
    words.singular,
    words.base,
    words.kinds,
    words.person,
    words.gendered,
    words.adjective,
    facts.plain,
    facts.lists_of_word,
]


@pytest.mark.parametrize("function", REMEMBERING, ids=lambda function: function.__name__)
def test_the_word_cache_is_bounded(function: Any) -> None:
    most = function.cache_info().maxsize
    assert most == words.REMEMBERED_WORDS
    for number in range(most + 100):
        function(f"word{number}")
    assert function.cache_info().currsize == most
    function.cache_clear()


def test_the_time_for_a_long_word_does_not_grow_quadratically() -> None:
    """A million letters used to take more than a minute, and a digit repeated 16,000 times more
    than 20 s."""
    prompts = ["A photo of a doctor " + "a" * 300_000, "A photo of a doctor " + "5" * 300_000]
    began = time.monotonic()
    assert len(balance_prompts(prompts, "gender", seed=0).prompts) == 2
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("phrase", "is_left"),
    [
        ("a 30-year-old doctor", False),
        ("a thirty-five-year-old doctor", False),
        ("a two and a half-year-old", True),
        ("a 1,000-year-old tree", True),
    ],
)
def test_ages_are_found_as_before(phrase: str, is_left: bool) -> None:
    balanced = balance_prompts([f"A photo of {phrase}"], "gender", seed=0)
    assert (balanced.values[0] is None) == is_left
