"""Find English texts that state a value of an attribute, and the people it belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.words import has_gendered, listed, person, singular
from vldebias.wording.english.phrases import PersonPhrase, Persons
from vldebias.wording.english.text import Text, read_text, without_quotations

# What a body states about a race or a skin tone: "a man with green skin", "a freckled redhead".
_SKIN = re.compile(
    r"\b(?:pale|pallid|fair|light|dark|tan(?:ned)?|beige|metallic|olive|brown|black|white|red|green|blue|purple|pink"
    r"|gr[ae]y|yellow|orange|teal|golden|silver|bronzed?|ebony|ivory|porcelain|caramel|chocolate)"
    r"[- ]?(?:skin|skinned|complexion(?:ed)?|face(?! ?(?:paint|mask|veil)))\b"
    r"|\b(?:freckle[sd]?|strawberry[- ]blonde?|redhead(?:ed)?|afro|mixed|biracial|multiracial)\b",
    re.IGNORECASE,
)
_WRINKLES = re.compile(
    r"\bwrinkles\b|\b(?:wrinkl(?:ed|y)|aged) (?:face|skin|hands)\b"
    r"|\b(?:who|he|she) (?:is|looks) old(?:er)?\b",
    re.IGNORECASE,
)
# Kind of attribute -> a pattern that states a value without a word from the prompt set.
_PATTERNS = {"origin": _SKIN, "skin": _SKIN, "age": _WRINKLES}


def find_stated(prompt: str, persons: Persons, attribute: Attribute) -> list[bool]:
    """Return, for each person in a prompt, whether the prompt states a value of an attribute.

    A word for a value states it for everybody, unless it is in the phrase of somebody else. The
    pronoun of "her students" says nothing about the students.

    Args:
        prompt: The prompt.
        persons: The noun phrases for each person.
        attribute: The attribute.
    """
    is_described = [_is_described(mentions, attribute) for mentions in persons]
    if not states(prompt, attribute):
        return is_described
    return [
        described or states(without_others(prompt, persons, number), attribute)
        for number, described in enumerate(is_described)
    ]


def _is_described(mentions: Sequence[PersonPhrase], attribute: Attribute) -> bool:
    """Return whether a word in a person's phrase states a value: "an old bearded knight"."""
    if attribute.gender:
        return False  # its words state a gender anywhere in the prompt
    words = {word for phrase in mentions for _, word in phrase.words}
    return any(attribute.stated.find(f"{word} person") for word in words)


def names_thing(text: Text, i: int) -> bool:
    """Return whether word i and the next one are a thing, such as "grandfather clock"."""
    return listed(f"{text.low[i]} {singular(text.after(i))}", "gendered-thing")


def states(text: str, attribute: Attribute) -> bool:
    """Return whether any word in a text states a value.

    Args:
        text: The text.
        attribute: The attribute.
    """
    text = without_quotations(text)
    if attribute.gender and has_gendered(read_text(text).low):
        return True
    pattern = _PATTERNS.get(attribute.kind)
    if pattern is not None and pattern.search(text):
        return True
    # A noun for people states a gender only if it is gendered, which was checked above.
    words = attribute.stated.find(text)
    return any(not (attribute.gender and person(word.lower())) for word in words)


def without_others(prompt: str, persons: Persons, number: int) -> str:
    """Return a prompt without a person's determiners, and without the phrases of all others.

    The pronoun in "her assistant" does not refer to the assistant, but it may refer to others.
    """
    starts = read_text(prompt).start
    kept = list(prompt)
    for place, mentions in enumerate(persons):
        for phrase in mentions:
            span = slice(phrase.start, phrase.end)
            if place == number:
                span = slice(starts[phrase.opening], phrase.start)
            kept[span] = " " * (span.stop - span.start)
    return "".join(kept)
