import pytest

from vldebias.errors import PromptSetError
from vldebias.prompts.recipe import article, check_slots, fill

AN = (
    "Asian Indian evil unattractive unfriendly architect engineer elderly old uninsured unidentified unimportant "
    "urban ugly usher hour honest heir honorable oncologist onerous Uzbek"
)
A = (
    "doctor Latino university uniform union unique unidirectional user utility European Ukrainian Ugandan "
    "urologist one-armed once-famous house hospital young white DJ"
)


def test_the_article_is_that_of_the_sound() -> None:
    assert [word for words, said in ((AN, "an"), (A, "a")) for word in words.split() if article(word) != said] == []


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("A photo of a {attribute} {concept}.", "A photo of an Asian doctor."),
        ("A photo of an {attribute} {concept}.", "A photo of an Asian doctor."),
        ("A {concept} and a {attribute}", "A doctor and an Asian"),
        ("A {attribute} photo", "An Asian photo"),
        ("An {concept} photo", "A doctor photo"),
        ("a apple, {concept}", "a apple, doctor"),  # not before a slot: verbatim
        ("banana {attribute}", "banana Asian"),
        ("{concept}{attribute}", "doctorAsian"),
    ],
)
def test_fill(template: str, filled: str) -> None:
    assert fill(template, attribute="Asian", concept="doctor") == filled


@pytest.mark.parametrize("word", ["{concept}", r"\1", "a {attribute}"])
def test_a_word_is_put_in_as_it_is(word: str) -> None:
    assert fill("see {attribute} {concept}", attribute=word, concept="x") == f"see {word} x"


@pytest.mark.parametrize("template", ["{a}", "{a} {b} {c}", "{a} {b", "}{a}{b}", "{a}{b}{}", "{a}{{b}}"])
def test_check_slots_refuses(template: str) -> None:
    with pytest.raises(PromptSetError, match=r"key: got '.*'; expected \{a\} and \{b\}; write it in"):
        check_slots("key", template, ("a", "b"))


def test_check_slots_accepts() -> None:
    check_slots("key", "a {a} of {b}", ("a", "b"))
    check_slots("key", "nothing", optional=("a",))
    check_slots("key", "a {a}", optional=("a",))
