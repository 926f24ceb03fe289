"""Find the words of an English text that state a value of an attribute, and whose value it is."""

from __future__ import annotations

import re

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.words import has_gendered, listed, person, singular
from vldebias.prompts.prompt_set import StatedWords
from vldebias.wording.english.phrases import Persons
from vldebias.wording.english.text import Text, read_text
from vldebias.wording.language import Value

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


def find_stated(prompt: str, persons: Persons, attribute: Attribute) -> list[bool]:
    """Return, for each person in a prompt, whether the prompt states a value of an attribute.

    A word for a value states it for everybody, unless it is in the phrase of somebody else. The
    pronoun of "her students" says nothing about the students.

    Args:
        prompt: The prompt.
        persons: The noun phrases for each person.
        attribute: The attribute.
    """
    if not states(prompt, attribute):
        return [False] * len(persons)
    return [
        states(_without_others(prompt, persons, number), attribute)
        for number in range(len(persons))
    ]


def names_thing(text: Text, i: int) -> bool:
    """Return whether word i and the next one are a thing, such as "grandfather clock"."""
    return listed(f"{text.low[i]} {singular(text.after(i))}", "gendered-thing")


def values_of_words(text: str, attribute: Attribute) -> list[str]:
    """Return the values whose words a text contains.

    Args:
        text: The text.
        attribute: The attribute.
    """
    values: list[str] = []
    for value, words in attribute.set.attributes.items():
        if StatedWords((*words, attribute.words[value])).find(text):
            values.append(value)
    return values


def values_of_persons(prompt: str, persons: Persons, attribute: Attribute) -> dict[int, Value]:
    """Return the value that a prompt states for each person, or None, by the noun's offset.

    Args:
        prompt: The prompt.
        persons: The noun phrases for each person.
        attribute: Any attribute except gender.
    """
    text = read_text(prompt)
    is_stated = find_stated(prompt, persons, attribute)
    values: dict[int, Value] = {}
    for number, mentions in enumerate(persons):
        first = mentions[0]
        # The person's noun phrase takes precedence over the rest of the text, in which "white"
        # may be the color of a coat.
        phrase = prompt[text.start[first.opening] : first.end]
        rest = _without_others(prompt, persons, number)
        found = values_of_words(phrase, attribute)
        if not found:
            # The longest words count: "an East Asian man" does not also name "Asian".
            stated_words = {word.lower() for word in attribute.stated.find(rest)}
            for value, words_of_set in attribute.set.attributes.items():
                words = (*words_of_set, attribute.words[value])
                if not stated_words.isdisjoint(word.lower() for word in words):
                    found.append(value)
        offset, _ = first.words[-1]
        values[offset] = found[0] if is_stated[number] and len(found) == 1 else None
    return values


def states(text: str, attribute: Attribute) -> bool:
    """Return whether any word in a text states a value.

    Args:
        text: The text.
        attribute: The attribute.
    """
    return _states_otherwise(text, attribute) or _states_by_set(text, attribute)


def _states_otherwise(text: str, attribute: Attribute) -> bool:
    """Return whether a text states a value without a word from the prompt set: "green skin"."""
    if attribute.gender:
        return has_gendered(read_text(text).low)
    if attribute.kind in ("origin", "skin"):
        return _SKIN.search(text) is not None
    return attribute.kind == "age" and _WRINKLES.search(text) is not None


def _states_by_set(text: str, attribute: Attribute) -> bool:
    """Return whether a text contains a word from the prompt set, except gendered nouns."""
    words = attribute.stated.find(text)
    return any(not (attribute.gender and person(word.lower())) for word in words)


def _without_others(prompt: str, persons: Persons, number: int) -> str:
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
