"""Test the words that state an attribute, and the placeholders in templates."""

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.prompts import StatedWords, fill
from vldebias.prompts.english.words import base, gendered

WORDS = ("man", "woman", "African American", "dark-skinned", "white woman", "year old")


def naive(words: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Return the result of the same rule with regular expressions, for scripts that separate words
    by spaces."""

    def pieces(word: str) -> list[str]:
        return [p for p in re.split(r"[\W_]+", unicodedata.normalize("NFKC", word).casefold()) if p]

    patterns = sorted(((pieces(w), w) for w in words), key=lambda item: -len(item[0]))
    choices = "|".join(f"({r'[^a-z0-9]+'.join(p)})" for p, _ in patterns)
    matches = re.finditer(rf"(?<![a-z0-9])(?:{choices})(?![a-z0-9])", text.casefold())
    return tuple(dict.fromkeys(patterns[match.lastindex - 1][1] for match in matches))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the woman\u2019s hat", ("woman",)),
        ("a\nwoman\tand a\u00a0man", ("woman", "man")),
        ("\uff57\uff4f\uff4d\uff41\uff4e", ("woman",)),
        ("an African-American man", ("African American", "man")),
        ("man-made", ("man",)),  # documented: a hyphen separates words
        ("manager of mankind, chairman, womanly, human", ()),
        ("manœuvre, mañana, womané", ()),
        ("American, African; skinned, dark", ()),
        ("", ()),
    ],
)
def test_find_returns_the_stated_words_in_order(text: str, words: tuple[str, ...]) -> None:
    assert StatedWords(WORDS).find(text) == words


def test_find_prefers_the_longest_phrase_and_follows_the_order_of_the_text() -> None:
    stated = StatedWords(["man", "white", "white woman", "year", "year old"])
    assert stated.find("a white woman and a white man") == ("white woman", "white", "man")
    assert stated.find("a year old man, a year ago") == ("year old", "man", "year")
    assert StatedWords(["Dark skinned", "dark-skinned"]).find("dark-skinned") == ("Dark skinned",)
    assert StatedWords(()).find("a man") == ()
    with pytest.raises(InvalidInputError, match="'--'"):
        StatedWords(["man", "--"])


def test_han_and_kana_do_not_need_spaces() -> None:
    stated = StatedWords(["女性", "男"])
    assert stated.find("一位女性医生的照片") == ("女性",)
    assert stated.find("一 位 女 性 医 生") == ("女性",)  # as a tokenizer decodes it
    assert stated.find("男医生") == ("男",)
    assert not stated.find("一位医生的照片")


ALPHABET = st.sampled_from(
    [*"man wo-_'.,1", " a", "man", "woman", " African", "American ", "white ", "year-old"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ALPHABET, max_size=12).map("".join))
def test_find_matches_the_naive_implementation(text: str) -> None:
    assert StatedWords(WORDS).find(text) == naive(WORDS, text)


# ---- templates

AN = (
    "Asian Indian evil unattractive unfriendly architect engineer elderly old uninsured"
    " unidentified unimportant urban ugly usher hour honest heir honorable oncologist onerous Uzbek"
)
A = (
    "doctor Latino university uniform union unique unidirectional user utility European Ukrainian"
    " Ugandan urologist one-armed once-famous house hospital young white DJ"
)


def test_the_article_follows_the_sound() -> None:
    filled = [fill("an {x}", x=word) for word in A.split()] + [
        fill("a {x}", x=word) for word in AN.split()
    ]
    assert filled == [f"a {word}" for word in A.split()] + [f"an {word}" for word in AN.split()]


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("A photo of an {attribute} {concept}.", "A photo of an Asian type a."),
        ("An {concept} and a {attribute}", "A type a and an Asian"),
        # The article is only adjusted before a placeholder.
        ("a apple, {concept} {attribute}", "a apple, type a Asian"),
        ("banana {concept}{attribute}", "banana type aAsian"),
    ],
)
def test_fill_replaces_placeholders_and_adjusts_the_article(template: str, filled: str) -> None:
    assert fill(template, attribute="Asian", concept="type a") == filled
    assert fill("see {attribute}", attribute=r"{concept} \1") == r"see {concept} \1"
    for wrong in ("{a}", "{a} {b} {c}", "{a} {b", "}{a}{b}", "{a}{b}{}", "{a}{{b}}", "none"):
        with pytest.raises(InvalidInputError, match=r"expected \{a\} and \{b\}"):
            fill(wrong, a="x", b="y")


@pytest.mark.parametrize(
    ("form", "verb"), [("sitting", "sit"), ("baking", "bake"), ("cries", "cry"), ("walks", "walk")]
)
def test_the_base_form_of_a_verb_is_found(form: str, verb: str) -> None:
    assert base(form) == verb


def test_endings_only_state_a_gender_in_nouns_for_people() -> None:
    persons = "prioress housemaid great-grandmother policewomen oilman mermaid"
    others = "witness homeless Eastman lumen specimen Greco-Roman shaman Aardman"
    assert all(gendered(word.lower()) for word in persons.split())
    assert not any(gendered(word.lower()) for word in others.split())
