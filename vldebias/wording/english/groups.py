"""Find groups in English prompts and describe mixtures, such as "three women and two men"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from vldebias.prompts.english.words import has_listed, kinds, listed, lists, person, singular
from vldebias.wording.english.is_person import is_agent
from vldebias.wording.english.phrases import PersonPhrase, is_gendered_noun
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
_OF_COLOR = re.compile(r"\s+of colou?r\b", re.IGNORECASE)
_BEFORE = 60  # number of characters before a noun to search for a number


def find_group(prompt: str, subject: PersonPhrase) -> Group | None:
    """Return the group that a noun phrase refers to, or None if it refers to one person.

    Args:
        prompt: The prompt.
        subject: The noun phrase for a person or group.
    """
    noun = re.search(r"[\w'\u2019-]+$", prompt[subject.start : subject.end])
    word = noun[0].lower() if noun else ""
    before = prompt[max(0, subject.start - _BEFORE) : subject.start]
    text = read_text(prompt)
    # The children of a family stay unchanged, unlike "her pupils".
    is_offspring = listed(word, "young") and not listed(word, "pupil")
    is_offspring &= listed(text.low[subject.opening], "owner")
    is_left_unchanged = is_offspring or listed(word, "group-left-unchanged")
    if _is_distributed(prompt, subject):
        return Group(subject.end, None, listed(word, "young"), mixes=False)
    if listed(word, "collective"):
        is_sport = has_listed(text.low, "sport")
        is_one = singular(word) == word
        return Group(subject.end, None, young=False, mixes=is_one and not is_sport)
    if not subject.plural and not is_left_unchanged:
        return None
    size = _size(before)
    end = subject.end
    if complement := _OF_COLOR.match(prompt, end):
        end = complement.end()
    is_pupil = listed(word, "pupil") and has_listed((low for _, low in subject.words), "school")
    is_baby = has_listed((low for _, low in subject.words), "baby")  # "baby dancers"
    is_young = is_pupil or is_baby or listed(word, "young")
    mixes = not is_left_unchanged and not _MANY.search(before)
    if not size:
        # The description follows the last of several nouns: "doctors and nurses in a hallway".
        while following := _NEXT_NOUN.match(prompt, end):
            next_noun = following[1].lower()
            is_plural = singular(next_noun) != next_noun and person(next_noun)
            if not is_plural or is_gendered_noun(next_noun):
                # The next noun may be a machine or a person, as in "cooks and dishwashers".
                is_known = bool(kinds(next_noun)) or is_gendered_noun(next_noun)
                mixes &= is_known and not is_agent(singular(next_noun))
                break
            end = following.end()
    return Group(end, size, is_young, mixes)


def _is_distributed(prompt: str, subject: PersonPhrase) -> bool:
    """Return whether a noun in the singular refers to several people.

    Examples are "every chef" and "several mats, each with a person".
    """
    text = read_text(prompt)
    words = text.low[text.clause_start(subject.opening) : subject.head]
    return any(
        listed(word, "distributive") and not listed(following, "time-noun")
        for word, following in pairwise([*words, ""])
    )


def _size(before: str) -> int | None:
    """Return the exact number before a noun, as in "a pair of" or "the two", or None."""
    clause = re.split(r"[,.;:!?|\n]", before)[-1]
    # The number precedes "of" and articles: "five of the".
    clause = re.sub(r"(?:\s+(?:of|the|these|those))+\s*$", "", clause)
    *_, previous, number = ["", "", *re.findall(r"[\w'-]+", clause)]
    if number.isdigit() and previous[:1].isupper() and previous != "The":
        return None  # A number after a name belongs to the name: "Apollo 11".
    number = number.lower()
    previous = previous.lower()
    if listed(previous, "inexact") or previous in _sizes():
        return None  # An inexact number is no size: "about ten", "two or three".
    return _sizes().get(number)


@cache
def _sizes() -> dict[str, int]:
    """Return a mapping from number words, numerals (2 to 12) and collectives to numbers."""
    sizes = {word: size for size, word in enumerate(lists()["number-word"], 2)}
    return sizes | {str(size): size for size in sizes.values()} | _COLLECTIVE_SIZES


def names_a_group(prompt: str) -> bool:
    """Return whether a prompt mentions a couple, a family, a band or a crowd."""
    words = re.findall(r"\w+", prompt.lower())
    return has_listed(words, "group-left-unchanged")


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
