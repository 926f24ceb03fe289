"""Which prompts of a set describe which value."""

import pytest

import vldebias
from vldebias.errors import PromptSetError
from vldebias.prompts.stated_words import StatedWords


@pytest.mark.parametrize("name", [name for name in vldebias.list_prompts() if name != "fairface"])
def test_every_value_of_every_set_has_prompts_of_its_own(name: str) -> None:
    prompt_set = vldebias.load_prompts(name)
    found = prompt_set.by_value()
    assert list(found) == list(prompt_set.attributes)
    assert prompt_set.names_values
    for prompt in {*prompt_set.spurious, *(p for group in prompt_set.groups for p in group)}:
        alone = [value for value, words in prompt_set.attributes.items() if StatedWords(words).match(prompt)]
        assert list(prompt_set.values_in(prompt)) == alone  # committed figures rest on either rule
    for value, prompts in found.items():
        others = [word for other, words in prompt_set.attributes.items() if other != value for word in words]
        assert prompts
        assert all(StatedWords(prompt_set.attributes[value]).match(prompt) for prompt in prompts)
        assert not any(StatedWords(others).match(prompt) for prompt in prompts)


def test_spurious_prompts_come_first() -> None:
    assert vldebias.load_prompts("waterbirds").by_value()["water"] == (
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
    assert made.by_value() == {
        "with": ("A photo of a bespectacled doctor.",),
        "without": ("A photo of a clear-eyed doctor.",),
    }


def test_a_value_without_a_prompt_of_its_own_is_named() -> None:
    mixed = vldebias.PromptSet(
        "mixed", groups=(("a man and a woman", "a man"),), attributes={"m": ("man",), "w": ("woman",)}
    )
    with pytest.raises(PromptSetError, match=r"no prompt names a word of \['w'\] alone"):
        mixed.by_value()
    assert not mixed.names_values


def asian(**more: tuple[str, ...]) -> vldebias.PromptSet:
    return vldebias.PromptSet(
        "a", groups=(("p", "q"),), attributes={"Asian": ("Asian",), "East": ("East Asian",), **more}
    )


def test_the_longest_phrase_names_the_value() -> None:
    assert asian().values_in("an east-asian man") == ("East",)
    assert asian().values_in("an Asian man from the East") == ("Asian",)
    assert asian().values_in("an East Asian and an Asian man") == ("Asian", "East")
    assert asian().values_in("a Caucasian man") == ()
    assert asian(other=("ASIAN",)).values_in("an Asian man") == ("Asian", "other")  # a word of two values names both
    texts = ("an Asian", "an Asian", "an Asian and an East Asian", "a man")
    assert asian().by_value(texts) == {"Asian": ("an Asian",), "East": ()}


def test_a_set_of_parts_knows_the_values_of_all() -> None:
    fairface = vldebias.load_prompts("fairface")
    with pytest.raises(PromptSetError, match="expected one attribute with words for each value, got 3 attributes"):
        fairface.by_value()
    by_value = fairface.by_value(fairface.spurious)
    assert list(by_value) == [value for part in fairface.parts for value in part.attributes]
    assert all(by_value.values())
    assert not fairface.names_values
    for part in fairface.parts:
        assert part.by_value() == {value: by_value[value] for value in part.attributes}


# ---- pairs without classes


def test_agnostic_pairs_of_waterbirds_and_celeba() -> None:
    water = vldebias.load_prompts("waterbirds").class_agnostic()
    words = ("a land background", "a forest", "a water background", "an ocean", "a water")
    assert water.groups == (tuple(f"a photo of {word}" for word in words),)
    assert len(water.pairs) == 10
    celeba = vldebias.load_prompts("celeba").class_agnostic()
    assert celeba.pairs == (
        ("a photo of a male", "a photo of a female"),
        ("a photo of a man", "a photo of a woman"),
    )


@pytest.mark.parametrize("name", vldebias.list_prompts())
def test_agnostic_pairs_name_no_class_and_leave_the_rest(name: str) -> None:
    given = vldebias.load_prompts(name)
    made = given.class_agnostic()
    assert not any(f" {c.casefold()}" in p.casefold() for p in sum(made.groups, ()) for c in given.class_names)
    kept = ("spurious", "classes", "stated_words", "attributes")
    assert [getattr(made, key) for key in kept] == [getattr(given, key) for key in kept]
    assert made.hash != given.hash
    assert [part.name for part in made.parts] == [f"{part.name}, class-agnostic" for part in given.parts]
    with pytest.raises(PromptSetError, match="birds: class-agnostic pairs are made of the words of the attribute"):
        vldebias.PromptSet("birds", groups=(("a", "b"),)).class_agnostic()
