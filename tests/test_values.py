"""Which prompts of a set describe which value."""

import pytest

import vldebias
from vldebias.errors import PromptSetError
from vldebias.stated import StatedWords
from vldebias.values import value_prompts

ONE_ATTRIBUTE = [name for name in vldebias.list_prompts() if name != "fairface"]


@pytest.mark.parametrize("name", ONE_ATTRIBUTE)
def test_every_value_of_every_set_has_prompts_of_its_own(name: str) -> None:
    prompt_set = vldebias.load_prompts(name)
    found = value_prompts(prompt_set)
    assert list(found) == list(prompt_set.attributes)
    for value, prompts in found.items():
        others = [word for other, words in prompt_set.attributes.items() if other != value for word in words]
        assert prompts
        assert all(StatedWords(prompt_set.attributes[value]).match(prompt) for prompt in prompts)
        assert not any(StatedWords(others).match(prompt) for prompt in prompts)


def test_spurious_prompts_come_first() -> None:
    assert value_prompts(vldebias.load_prompts("waterbirds"))["water"] == (
        "This is a water background.",
        "This is a picture of an ocean.",
    )


def test_pairs_serve_where_the_spurious_prompts_leave_a_value_out() -> None:
    made = vldebias.make_prompt_set(
        "glasses",
        attribute={"with": ["bespectacled"], "without": ["clear-eyed"]},
        concepts=["doctor"],
        spurious=["A photo of a bespectacled person."],
    )
    assert value_prompts(made) == {
        "with": ("A photo of a bespectacled doctor.",),
        "without": ("A photo of a clear-eyed doctor.",),
    }


def test_a_set_of_several_attributes_is_refused() -> None:
    with pytest.raises(PromptSetError, match="expected one attribute with words for each value, got 3 attributes"):
        value_prompts(vldebias.load_prompts("fairface"))


def test_a_value_without_a_prompt_of_its_own_is_named() -> None:
    mixed = vldebias.PromptSet(
        "mixed", groups=(("a man and a woman", "a man"),), attributes={"m": ("man",), "w": ("woman",)}
    )
    with pytest.raises(PromptSetError, match=r"no prompt names a word of \['w'\] alone"):
        value_prompts(mixed)
