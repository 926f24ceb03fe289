"""Test that people whom a prompt excludes get no value, and that all others do.

A text encoder that reads "do not include people, both women and men" draws people.
"""

import time

import pytest

from vldebias.wording import balance_prompts

# One character, a pair and words, each repeated.
UNITS = ["\n", " ", "-", "a", "\u4e00", "\n ", ", ", "::", "no nurse ", "have left, ", "ein Arzt "]
UNITS += ["remain ", "remain\n", "estaban "]


def _fastest(prompt: str) -> float:
    times = []
    for number in range(5):
        began = time.process_time()
        balance_prompts(f"{prompt} {number}", "gender", seed=0)  # a new prompt, which is not cached
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("unit", UNITS)
def test_a_prompt_of_twice_the_length_takes_about_twice_the_time(unit: str) -> None:
    """31 kB of line breaks used to take 40 s."""
    repeated = unit * (8000 // len(unit))
    balance_prompts(unit, "gender", seed=0)
    once = _fastest(f"a nurse {repeated}")
    assert _fastest(f"a nurse {repeated}{repeated}") <= max(2.5 * once, 0.1)
