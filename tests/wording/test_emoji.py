"""Test that person emoji in a prompt state a value, like words."""

import pytest

from vldebias.wording import balance_prompts


@pytest.mark.parametrize(
    ("prompt", "attribute", "is_stated"),
    [
        ("👩‍⚕️ a photo of a doctor", "gender", True),
        ("a photo of a doctor 👨🏽‍⚕️", "gender", True),
        ("a firefighter ♀️", "gender", True),
        ("a firefighter 🚒🔥", "gender", False),
        ("a doctor in a shop with 👠 and 👞", "gender", False),
        ("a dentist 🧑🏿‍⚕️", "skin-tone", True),
        ("a dentist 🧑‍⚕️", "skin-tone", False),
        ("👬 two doctors", "gender", True),
        ("a farmer 🐤", "age", False),
        ("a nurse with a 🍼", "age", False),
        ("a gardener 👵", "age", True),
        ("a gardener 👩", "age", False),
    ],
)
def test_a_person_emoji_states_a_value(prompt: str, attribute: str, is_stated: bool) -> None:
    balanced = balance_prompts([prompt], attribute, seed=0)
    assert balanced.reasons == ["stated" if is_stated else None]
    assert (balanced.prompts == [prompt]) == is_stated
