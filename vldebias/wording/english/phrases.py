"""Find the extent of an English noun phrase, and the position for a value in it.

No parser is used. Phrases extend from their last noun to the left over adjectives and nouns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vldebias.prompts.english.words import (
    STOPS,
    adjective,
    base,
    classes,
    has_gendered_ending,
    is_inflected,
    is_plural,
    is_proper,
    listed,
    person,
    singular,
)
from vldebias.wording.english.text import Text

# A possessive acts as a determiner, as in "the king's guard".
POSSESSIVE = ("'s", "s'")
_LONGEST_PHRASE = 20  # words


class PersonPhrase(NamedTuple):
    """A noun phrase for a person in an English text.

    `English.find` converts phrases to mentions. Two phrases may refer to the same person.

    Attributes:
        words: The offset and the lower-case form of each adjective and of the first noun.
        start: The offset of the first word after determiners ("tired" in "two tired coaches").
        end: The offset of the end of the last noun.
        place: The last offset at which a value may be inserted.
        plural: Whether the last noun is in the plural.
        opening: The position of the first determiner in the words of the text.
        head: The position of the last noun.
        named: Whether the text names the person.
    """

    words: list[tuple[int, str]]
    start: int
    end: int
    place: int
    plural: bool
    opening: int
    head: int
    named: bool = False


# The noun phrases for each person in a text, in order of appearance.
Persons = Sequence[Sequence[PersonPhrase]]


def is_gendered_noun(word: str) -> bool:
    """Return whether a lower-case word is a gendered noun for a person."""
    return listed(word, "gendered-noun", "gendered-title") or has_gendered_ending(word)


# ---- the extent of a phrase


def extend_left(text: Text, i: int) -> tuple[int, int]:
    """Return where the phrase of word i and its first noun start: "tired old | police officer"."""
    start = i
    first_noun = i
    while not text.opens[start] and i - start < _LONGEST_PHRASE:
        word = text.low[start - 1]
        following = text.low[start]
        joins = listed(word, "degree")
        # "and" joins two adjectives of the phrase: "tall and tired".
        if word == "and":
            joins = adjective(following) and adjective(text.before(start - 1))
        compounds = first_noun == start and is_compound(word, following)
        if not compounds and not joins:
            if _is_before_phrase(text, start - 1, i):
                break
            # Values are inserted before the first noun, as in "tired old | police officer".
            compounds = _is_part_of_noun(text.low[start - 1], text.low[i])
        start -= 1
        if compounds and first_noun == start + 1:
            first_noun = start
    return start, first_noun


def _is_before_phrase(text: Text, j: int, i: int) -> bool:
    """Return whether word j is outside of the phrase with head i, such as "the" or "draw"."""
    word = text.low[j]
    if word.endswith(POSSESSIVE) or listed(word, *STOPS):
        return True
    # A verb of another person precedes the phrase: "doctor examining patient".
    is_verb = is_inflected(word, "s") and classes(base(word)).startswith("v")
    if word.endswith("ing"):
        is_verb = is_plural(text.bare[i]) or not listed(text.before(j - 1), "article")
    # "draw archer", "could you draw archer"
    is_asked = listed(word, "draw") and (text.opens[j] or listed(text.before(j), "asks"))
    return is_asked or (is_verb and person(text.before(j)))


def is_compound(word: str, following: str) -> bool:
    """Return whether two words are known as a compound noun, such as "police officer"."""
    is_pair = listed(f"{word} {singular(following)}", "person-phrase", "pair")
    is_noun = classes(f"{word} {following}") in ("c", "p", "n")
    return is_pair or (is_noun and not listed(word, "age"))


def _is_part_of_noun(word: str, head: str) -> bool:
    """Return whether a word is part of the noun, as in "civil engineer" or "swimming coach"."""
    if not _is_description(word) or listed(word, "occupational"):
        return True
    return word.endswith("ing") and listed(singular(head), "gerund-head")


def _is_description(word: str) -> bool:
    """Return whether a word describes a noun without classifying it, unlike "ceramic"."""
    if is_proper(word) or listed(word, "age", "style-adjective", "of-character"):
        return True
    if "-" in word and set("nv").intersection(classes(word.rsplit("-", 1)[1])[:1]):
        return word.endswith(("ed", "-time"))  # "a one-legged pirate", not "a deep-sea welder"
    # A relational adjective tells the kind: "a legal adviser".
    return adjective(word) and "o" not in classes(word)


def skip_medium(text: Text, start: int, i: int) -> int:
    """Return where a tag starts after words for the medium: "pixel art | archer"."""
    if listed(text.low[i], "art-tag", "shows-owner"):
        return start  # "manga artist", "cartoon character"
    for j in range(i - 1, start - 1, -1):
        if listed(text.low[j], "medium") or listed(f"{text.before(j)} {text.low[j]}", "medium"):
            return j + 1
    return start


def place_of_value(
    text: Text, start: int, first_noun: int, i: int, has_determiner: bool
) -> int | None:
    """Return the last position in the phrase with head i at which a value fits, or None.

    Args:
        text: The text.
        start: The position of the first word of the phrase, without determiners.
        first_noun: The position of the first noun of the phrase.
        i: The position of the head.
        has_determiner: Whether a determiner precedes the phrase.
    """
    if first_noun in (start, i):
        return first_noun
    # An adjective before several nouns may belong to the first: "a small business owner".
    is_of_person = [
        listed(word, "age", "style-adjective", "of-character") or word.endswith("-old")
        for word in text.low[start:first_noun]
    ]
    if is_of_person[-1] or person(text.low[first_noun]):
        return first_noun
    described = text.low[first_noun - 1]
    # The last adjective does not describe the person, so a False always precedes the noun.
    place = start + is_of_person.index(False)
    is_adjective = adjective(described) and set(classes(described)).isdisjoint("no")
    # Without a determiner, a phrase may begin with a name, as in "Negro leagues shortstop".
    is_sure = has_determiner or is_proper(described) or is_adjective
    return place if is_sure else None
