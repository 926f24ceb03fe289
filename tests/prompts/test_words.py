"""Words that state an attribute, and words in templates."""

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError, PromptSetError
from vldebias.prompts.words import StatedWords, article, check_slots, fill

WORDS = ("man", "woman", "African American", "dark-skinned", "white woman", "year old")


def naive(words: tuple[str, ...], text: str) -> tuple[str, ...]:
    """The same rule with regular expressions, for texts in scripts that put spaces between words."""

    def pieces(word: str) -> list[str]:
        return [p for p in re.split(r"[\W_]+", unicodedata.normalize("NFKC", word).casefold()) if p]

    patterns = sorted(((pieces(w), w) for w in words), key=lambda item: -len(item[0]))
    choices = "|".join(f"({r'[^a-z0-9]+'.join(p)})" for p, _ in patterns)
    found = re.finditer(rf"(?<![a-z0-9])(?:{choices})(?![a-z0-9])", text.casefold())
    return tuple(dict.fromkeys(patterns[match.lastindex - 1][1] for match in found))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the woman\u2019s hat", ("woman",)),
        ("(woman:1.2)", ("woman",)),
        ("a\nwoman\tand a\u00a0man", ("woman", "man")),
        ("female_woman", ("woman",)),
        ("\uff57\uff4f\uff4d\uff41\uff4e", ("woman",)),
        ("an African-American man", ("African American", "man")),
        ("dark\u2011skinned", ("dark-skinned",)),
        ("a 25-year-old", ("year old",)),
        ("man-made", ("man",)),  # documented: a hyphen only separates
        ("manager of mankind, chairman, womanly, human", ()),
        ("manœuvre, mañana, womané", ()),
        ("American, African; skinned, dark", ()),
        ("", ()),
    ],
)
def test_find(text: str, found: tuple[str, ...]) -> None:
    stated = StatedWords(WORDS)
    assert stated.find(text) == found
    assert stated.match(text) is bool(found)


def test_the_longest_phrase_counts_and_the_order_is_that_of_the_text() -> None:
    stated = StatedWords(["man", "white", "white woman", "year", "year old"])
    assert stated.find("a white woman and a white man") == ("white woman", "white", "man")
    assert stated.find("a year old man, a year ago") == ("year old", "man", "year")
    assert StatedWords(["Dark skinned", "dark-skinned"]).find("dark-skinned") == ("Dark skinned",)
    assert StatedWords(()).find("a man") == ()
    assert not StatedWords(()).match("a man")


def test_han_and_kana_need_no_spaces() -> None:
    stated = StatedWords(["女性", "男"])
    assert stated.find("一位女性医生的照片") == ("女性",)
    assert stated.find("一 位 女 性 医 生") == ("女性",)  # as a tokenizer decodes it
    assert stated.find("男医生") == ("男",)
    assert not stated.match("一位医生的照片")


ALPHABET = st.sampled_from([*"man wo-_'.,1", " a", "man", "woman", " African", "American ", "white ", "year-old"])


@settings(max_examples=150, deadline=None)
@given(st.lists(ALPHABET, max_size=12).map("".join))
def test_equals_the_naive_twin(text: str) -> None:
    assert StatedWords(WORDS).find(text) == naive(WORDS, text)


@pytest.mark.parametrize("text", ["a photo of a male-dominated office", "a dark-skinned woman's 25-year-old son"])
def test_clip_ids_tell_the_same_as_the_text(text: str) -> None:
    from open_clip.tokenizer import SimpleTokenizer

    tokenizer = SimpleTokenizer()
    decoded = tokenizer.decode(tokenizer.encode(text))
    assert decoded.strip() != text  # else this test shows nothing
    stated = StatedWords((*WORDS, "male"))
    assert stated.find(decoded) == stated.find(text) != ()


def test_bad_entries_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"got the text 'man'; expected several; write \['man'\]"):
        StatedWords("man")
    with pytest.raises(InvalidInputError, match="got '--'; expected letters or digits"):
        StatedWords(["man", "--"])


# ---- templates

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
        ("A photo of an {attribute} {concept}.", "A photo of an Asian doctor."),
        ("An {concept} and a {attribute}", "A doctor and an Asian"),
        ("a apple, {concept}", "a apple, doctor"),  # not before a slot: verbatim
        ("banana {concept}{attribute}", "banana doctorAsian"),
    ],
)
def test_fill(template: str, filled: str) -> None:
    assert fill(template, attribute="Asian", concept="doctor") == filled
    assert fill("see {attribute}", attribute=r"{concept} \1", concept="x") == r"see {concept} \1"


def test_check_slots() -> None:
    check_slots("key", "a {a} of {b}", ("a", "b"))
    check_slots("key", "nothing", optional=("a",))
    check_slots("key", "a {a}", optional=("a",))
    for template in ("{a}", "{a} {b} {c}", "{a} {b", "}{a}{b}", "{a}{b}{}", "{a}{{b}}"):
        with pytest.raises(PromptSetError, match=r"key: got '.*'; expected \{a\} and \{b\}"):
            check_slots("key", template, ("a", "b"))
    with pytest.raises(PromptSetError, match="key"):
        check_slots("key", "{a}")
