"""Find groups in English prompts and describe mixtures, such as "three women and two men"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from vldebias.prompts.english.words import has_listed, listed, lists, person, singular
from vldebias.wording.english.phrases import PersonPhrase
from vldebias.wording.english.text import read_text
from vldebias.wording.groups import Group

_COLLECTIVE_SIZES = {
    "pair": 2,
    "duo": 2,
    "trio": 3,
    "quartet": 4,
    "quintet": 5,
    "both": 2,
    "couple": 2,
}
# Groups of unknown size, as in "a crowd of angry nurses".
_MANY = re.compile(
    r"\b(?:couples|crowds?|bands?|famil(?:y|ies)|audiences?|mob|throng|hordes?|swarm|procession"
    r"|parade|hundreds|thousands|millions|sea|mass) of\s+(?:\w+\s+){0,3}$",
    re.IGNORECASE,
)
# The order in "both women and men", regardless of the order of the values.
_ORDER_OF_NOUNS = ("women", "girls", "men", "boys")
_ADULTS = {"female": ("woman", "women"), "male": ("man", "men")}
_YOUTHS = {"female": ("girl", "girls"), "male": ("boy", "boys")}
_NEXT_NOUN = re.compile(r"\s+(?:and|or|&)\s+([a-z-]+)", re.IGNORECASE)
_BEFORE = 60  # number of characters before a noun to search for a number


def find_group(prompt: str, subject: PersonPhrase) -> Group | None:
    """Return the group that a noun phrase refers to, or None if it refers to one person.

    Args:
        prompt: The prompt.
        subject: The noun phrase for a person or group.
    """
    text = read_text(prompt)
    word = text.bare[subject.head]
    is_young = listed(word, "young")
    # A noun in the singular may refer to several people: "every chef".
    clause = text.low[text.clause_start(subject.opening) : subject.head]
    if has_listed(clause, "distributive"):
        return Group(subject.end, None, is_young, mixes=False)
    if listed(word, "collective"):
        return Group(subject.end, None, young=False, mixes=not has_listed(text.low, "sport"))
    if not subject.plural:
        return None
    before = prompt[max(0, subject.start - _BEFORE) : subject.start]
    size = _size(before)
    end = subject.end
    # The description follows the last of several nouns: "doctors and nurses in a hallway".
    while not size and (following := _NEXT_NOUN.match(prompt, end)):
        noun = following[1].lower()
        if singular(noun) == noun or not person(noun):
            break
        end = following.end()
    # The children of a family stay unchanged, unlike "her pupils".
    is_offspring = is_young and not listed(word, "pupil")
    is_offspring &= listed(text.low[subject.opening], "owner")
    is_left_unchanged = is_offspring or listed(word, "group-left-unchanged")
    return Group(end, size, is_young, not is_left_unchanged and not _MANY.search(before))


def _size(before: str) -> int | None:
    """Return the exact number before a noun, as in "a pair of" or "the two", or None."""
    clause = re.split(r"[,.;:!?|\n]", before)[-1]
    words = ["", "", "", *re.findall(r"[\w'-]+", clause.lower())]
    # The number precedes "of" and articles: "five of the".
    while words[-1] in ("of", "the", "these", "those"):
        words.pop()
    first, previous, number = words[-3:]
    previous = first if previous == "to" else previous  # "next to two", not "two to three"
    if listed(previous, "inexact") or previous in _sizes():
        return None  # An inexact number is no size: "about ten", "two or three".
    return _sizes().get(number)


@cache
def _sizes() -> dict[str, int]:
    """Return a mapping from number words, numerals (2 to 12) and collectives to numbers."""
    sizes = {word: size for size, word in enumerate(lists()["number-word"], 2)}
    return sizes | {str(size): size for size in sizes.values()} | _COLLECTIVE_SIZES


def describe(mixture: Mapping[str, int | None], words: Mapping[str, str], young: bool) -> str:
    """Return a phrase that describes a mixture of people.

    Args:
        mixture: A mapping from values to numbers of people, or to None for an unknown number.
        words: A mapping from values to adjectives ("female" or "male").
        young: Whether to describe the people as girls and boys.

    >>> describe({"f": 3, "m": 1}, {"f": "female", "m": "male"}, young=False)
    'three women and one man'
    """
    nouns = _YOUTHS if young else _ADULTS
    numbers = list(lists()["number-word"])
    parts = []
    for value, count in mixture.items():
        noun, plural = nouns[words[value].lower()]
        if count is None:
            parts.append(plural)
        elif count == 1:
            # "a woman and a man", but "two women and one man"
            article = "a" if all(number == 1 for number in mixture.values()) else "one"
            parts.append(f"{article} {noun}")
        else:
            parts.append(f"{numbers[count - 2]} {plural}")
    if None in mixture.values():
        return "both " + " and ".join(sorted(parts, key=_ORDER_OF_NOUNS.index))
    return " and ".join(parts)
