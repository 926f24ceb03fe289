"""Test that people whom a prompt excludes get no value, and that all others do.

A text encoder that reads "do not include people, both women and men" draws people.
"""

import time

import pytest

from vldebias.wording import balance_prompts

# One character, a pair and words, each repeated.
UNITS = ["\n", " ", "-", "a", "\u4e00", "\n ", ", ", "::", "no nurse ", "have left, ", "ein Arzt "]
UNITS += ["remain ", "remain\n", "estaban "]


def _fastest(*prompts: str) -> list[float]:
    """Return the shortest time of each prompt, in turns, so that a busy machine delays all."""
    times: list[list[float]] = [[] for _ in prompts]
    for number in range(5):
        for prompt, times_of_prompt in zip(prompts, times, strict=True):
            began = time.process_time()
            balance_prompts(f"{prompt} {number}", "gender", seed=0)  # new, so it is not cached
            times_of_prompt.append(time.process_time() - began)
    return [min(times_of_prompt) for times_of_prompt in times]


@pytest.mark.parametrize("unit", UNITS)
def test_a_prompt_of_four_times_the_length_takes_about_four_times_the_time(unit: str) -> None:
    """31 kB of line breaks used to take 40 s, and quadratic time would be 16 times as long."""
    repeated = unit * (4000 // len(unit))
    balance_prompts(unit, "gender", seed=0)
    once, four_times = _fastest(f"a nurse {repeated}", f"a nurse {4 * repeated}")
    assert four_times <= max(5.5 * once, 0.1)
