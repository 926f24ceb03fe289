"""Replace the values that a rewritten English prompt states.

A language model that rewrites "a CEO in an office" may make it "a man in his fifties, in a suit".
What it added about gender is replaced by the value that the image gets: nouns, adjectives,
relatives, pronouns, and words for a beard or a dress. What it added about age or race is taken out,
and the value is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.adjectives import rank_of
from vldebias.prompts.english.words import gendered, kinds, listed, read_lists, singular
from vldebias.prompts.prompt_set import append_word
from vldebias.wording.english.names import find_names
from vldebias.wording.english.scene import AGE_BEFORE_NOUN, AGE_BEHIND
from vldebias.wording.english.statements import group_mentions
from vldebias.wording.english.subject import Subject, find_subjects
from vldebias.wording.english.text import Text, read_text
from vldebias.wording.language import (
    NounValue,
    Replacement,
    RewrittenPromptError,
    Value,
    replace_all,
)

_PAIRS = Path(__file__).with_name("pairs.txt")
_SIDES = ("female", "male")
_OWNERS = frozenset({"his", "her", "their"})
_WEAK = frozenset({"pronoun", "body", "dress"})  # lists whose words say no value alone
# Values for persons of either gender, whom a picture cannot show both: "men and women" stay.
_BOTH = re.compile(
    r"\b(?:(?:fe)?males?|(?:wo)?m[ae]n|boys?|girls?|ladies|gentlemen|he|she|his|hers?|him)"
    r"(?:\s*/\s*|,? (?:and|or|&) )"
    r"(?:(?:fe)?males?|(?:wo)?m[ae]n|boys?|girls?|ladies|gentlemen|he|she|his|hers?|him)\b",
    re.IGNORECASE,
)
_DESCENT = re.compile(
    r",? (?:of|with) (?:[\w-]+ ){1,2}(?:descent|heritage|origin|ethnicity|ancestry|background)\b",
    re.IGNORECASE,
)
_AGE_PHRASE = re.compile(
    rf",? ?(?:(?:who is|who's|probably|perhaps|around|about|approximately) )*"
    rf"(?:in |at )?(?:{AGE_BEHIND.pattern})",
    re.IGNORECASE,
)
# After such a word, or at the end of a clause, "her" is no "his".
_NO_NOUN = frozenset(
    {"", "and", "or", "but", "is", "are", "was", "were", "be", "to", "in", "on", "at", "of", "for"}
    | {"from", "with", "than", "as", "that", "who", "when", "while", "which", "because", "so", "if"}
    | {
        "by",
        "into",
        "onto",
        "through",
        "over",
        "under",
        "behind",
        "beside",
        "near",
        "about",
        "after",
    }
    | {"before", "during", "without", "against", "toward", "towards", "until", "the", "a", "an"}
    | {"this", "these", "those", "any", "not", "up", "down", "out", "off", "back", "away", "too"}
)
# "an academic gown" is of either gender, and so is what stands before "shirt" and the like.
_GOWNS_OF_ALL = frozenset(
    {"academic", "hospital", "surgical", "graduation", "judicial", "doctoral", "medical", "formal"}
)
# "dress shirt", "dressed" are of either gender.
_DRESS_OF_ALL = frozenset(
    {"shirt", "shoes", "pants", "trousers", "uniform", "code", "socks", "vest"}
)


@cache
def _counterparts() -> dict[str, dict[str, tuple[str, str]]]:
    """Return side -> word of the other side -> the word of this side, and the list of the pair."""
    words: dict[str, dict[str, tuple[str, str]]] = {side: {} for side in _SIDES}
    for name, pairs in read_lists(_PAIRS).items():
        for pair in pairs:
            female, male = pair.split("/")
            words["male"].setdefault(female, (male, name))
            # A tailor is of either gender: nobody is made a seamstress.
            if gendered(male) or name in ("pronoun", "body"):
                words["female"].setdefault(male, (female, name))
    return words


def _counterpart(word: str, side: str) -> tuple[str, str] | None:
    """Return the word of a side for one of the other, and the list that has it; None if none is
    known."""
    known = _counterparts()[side].get(word)
    if known:
        return known
    endings = {"woman": "man", "women": "men"}
    for female, male in endings.items():
        if side == "male" and word.endswith(female):
            return word.removesuffix(female) + male, "noun"
        if side == "female" and word.endswith(male) and not word.endswith(female):
            return word.removesuffix(male) + female, "noun"
    return None


def _side_of(word: str) -> str:
    """Return the side of which a word is, "female" or "male"; "" if neither."""
    for side, opposite in (_SIDES, _SIDES[::-1]):
        if word in _counterparts()[opposite]:
            return side
    if word.endswith(("woman", "women")):
        return "female"
    return "male" if gendered(word) and word.endswith(("man", "men")) else ""


def replace_gender(
    text: str, attribute: Attribute, people: Sequence[NounValue]
) -> tuple[str, list[bool]]:
    """Return a text with its words for women and men replaced; and for each person, whether a noun
    or an adjective says the value now.

    Raises:
        RewrittenPromptError: a word states a gender and has no counterpart, or a person is named.
    """
    words = read_text(text)
    _check_names(words)
    owners = _owners(words, people)
    replacements: list[Replacement] = []
    is_said = [False] * len(people)
    for i, owner in owners.items():
        _, value = people[owner]
        if value is None:
            continue
        if not isinstance(value, str):
            raise RewrittenPromptError("rewritten: group")
        side = attribute.words[value].lower()
        word, possessive = _split_possessive(words.low[i])
        new, name = _word_of_side(words, i, word, side)
        is_relative = not _OWNERS.isdisjoint(words.low[max(0, i - 3) : i])  # "her grandson"
        if name not in _WEAK and not is_relative:
            is_said[owner] = True
        if new != word:
            replacements.append(_replace(words, i, new, possessive))
    return replace_all(text, replacements), is_said


def _check_names(words: Text) -> None:
    """Raise RewrittenPromptError where a text names a person: a name says a gender, and has no
    counterpart."""
    for first, stop in find_names(words):
        is_word = stop - first == 1 and words.sentence[first]  # "Rich colors."
        is_silent = words.credited[first] or words.silent[first] or is_word
        if not is_silent and "f" in kinds(words.bare[first]):
            raise RewrittenPromptError(f"rewritten: names {' '.join(words.words[first:stop])}")


def sides_in(text: str, attribute: Attribute, people: Sequence[NounValue]) -> list[Value]:
    """Return for each person the value of the words that state a gender, if it is one."""
    if not people:
        return []
    words = read_text(text)
    values_of_person: list[set[str]] = [set() for _ in people]
    value_of_side = {word.lower(): value for value, word in attribute.words.items()}
    for i, owner in _owners(words, people).items():
        word, _ = _split_possessive(words.low[i])
        side = _side_of(word)
        if side in value_of_side and gendered(word):
            values_of_person[owner].add(value_of_side[side])
    return [values.pop() if len(values) == 1 else None for values in values_of_person]


def _owners(words: Text, people: Sequence[NounValue]) -> dict[int, int]:
    """Return position of a word that states a gender -> the number of the person of whom it does.

    It is of the person in whose phrase it stands; else of the last one before it whose gender the
    text has stated alike, or has not stated; else of the first one.
    """
    phrases = _phrases(words, people)
    sides = _sides_of_words(words)
    owners: dict[int, int] = {}
    side_of_person: dict[int, str] = {}
    last = 0
    for i in range(len(words.low)):
        last = phrases.get(i, last)
        if i not in sides:
            continue
        side = sides[i]
        if i in phrases:
            owners[i] = last
            if side:
                side_of_person.setdefault(last, side)
        elif not _is_on_thing(words, i):
            alike = [person for person in range(len(people)) if side_of_person.get(person) == side]
            is_of_last = side_of_person.get(last, side) == side or not alike
            owners[i] = last if is_of_last else alike[0]
    return owners


def _sides_of_words(words: Text) -> dict[int, str]:
    """Return position of a word that states a gender -> its side, "female" or "male"; "" if it is
    of neither.

    Quotations state none, nor do words for both: "men and women".
    """
    spans_of_both = [match.span() for match in _BOTH.finditer(words.prompt)]
    sides: dict[int, str] = {}
    for i, low in enumerate(words.low):
        word, _ = _split_possessive(low)
        is_dress = word in _counterparts()["male"] and not is_pronoun(word)
        is_of_both = any(start <= words.start[i] < end for start, end in spans_of_both)
        if (gendered(word) or is_dress) and not is_of_both and not words.silent[i]:
            sides[i] = _side_of(word)
    return sides


def _phrases(words: Text, people: Sequence[NounValue]) -> dict[int, int]:
    """Return position of a word -> the number of the person in whose phrase it stands."""
    subjects = find_subjects(words.prompt)
    if isinstance(subjects, str):
        return {}
    persons = group_mentions(words, subjects)
    positions: dict[int, int] = {}
    for mentions, number in zip(persons, match(words, persons, people), strict=True):
        if number is None:
            continue
        for subject in mentions:
            positions.update(dict.fromkeys(range(subject.opening, subject.head + 1), number))
    # A pronoun as a determiner, "her assistant", is of another person.
    return {i: number for i, number in positions.items() if not is_pronoun(words.low[i])}


def match(
    words: Text, persons: Sequence[Sequence[Subject]], people: Sequence[NounValue]
) -> list[int | None]:
    """Return for each person of a text which of the people this one is; None if that is not known.

    It is who has the same noun. Of the rest, nouns that state a gender ("a man") are matched in
    their order with the people who have none; a single person is everybody.
    """
    if len(people) == 1:
        return [0] * len(persons)
    matched: list[int | None] = []
    for mentions in persons:
        nouns = {singular(words.low[subject.head]) for subject in mentions}
        matched.append(None)
        for number, (noun, _) in enumerate(people):
            if singular(noun.lower().split()[-1]) in nouns:
                matched[-1] = number
                break
    free = [number for number in range(len(people)) if number not in matched]
    for place, mentions in enumerate(persons):
        is_of_gender = gendered(words.low[mentions[0].head])
        if matched[place] is None and is_of_gender and free:
            matched[place] = free.pop(0)
    return matched


def _is_on_thing(words: Text, i: int) -> bool:
    """Return whether a noun names somebody on a picture: "paints a portrait of a woman"."""
    before = [word for word in words.low[max(0, i - 4) : i] if not listed(word, "determiner")]
    return i > 4 and "of" in before and listed(before[before.index("of") - 1], "picture")


def is_pronoun(word: str) -> bool:
    """Return whether a word in lower case is a pronoun that states a gender."""
    return word in ("he", "she", "his", "her", "hers", "him", "himself", "herself")


def _word_of_side(words: Text, i: int, word: str, side: str) -> tuple[str, str]:
    """Return the word of a side for word i, and the list of the pair.

    Raises:
        RewrittenPromptError: it has no counterpart.
    """
    after = words.after(i)
    has_noun = after not in _NO_NOUN
    # Pronoun -> the side that it says, and what takes its place for the other one.
    pronouns = {
        "his": ("male", "her" if has_noun else "hers"),
        "her": ("female", "his" if has_noun and not after.endswith("ly") else "him"),
    }
    if word in pronouns:
        own_side, counterpart = pronouns[word]
        return word if side == own_side else counterpart, "pronoun"
    is_gown_of_all = word == "gown" and not _GOWNS_OF_ALL.isdisjoint(words.low[max(0, i - 2) : i])
    is_dress_of_all = after in _DRESS_OF_ALL or is_gown_of_all
    if is_dress_of_all and not gendered(word):
        return word, "dress"
    known = _counterpart(word, side)
    if known is not None:
        return known
    opposite = _SIDES[side == "female"]
    back = _counterpart(word, opposite)
    if back is None:
        raise RewrittenPromptError(f"rewritten: {word}")
    return word, back[1]


def _split_possessive(word: str) -> tuple[str, str]:
    """Return a word and its ending: "man" and "'s"."""
    for ending in ("'s", "'d", "'ll", "'"):
        if word.endswith(ending):
            return word.removesuffix(ending), ending
    return word, ""


def _replace(words: Text, i: int, new: str, possessive: str) -> Replacement:
    """Return the replacement that writes a new word in the place of word i, with its capitals and
    its ending; "a" or "an" before it is changed to what fits."""
    old = words.words[i]
    new = new.replace("_", " ")
    if len(old) > 1 and old.isupper():
        new = new.upper()
    elif old[0].isupper():
        new = new[0].upper() + new[1:]
    new += possessive
    start = words.start[i]
    end = start + len(old)
    article = re.search(r"\ban? $", words.prompt[:start], re.IGNORECASE)
    if article is not None:
        new = append_word(words.prompt[article.start() : start], new)
        start = article.start()
    return Replacement(start, end, new)


# ---- attributes whose words are taken out


def strip(text: str, attribute: Attribute, people: Sequence[NounValue]) -> str:
    """Return a text without the words that state another attribute than gender."""
    spans: list[tuple[int, int]] = []
    subjects = find_subjects(text)
    for subject in () if isinstance(subjects, str) else subjects:
        for offset, word in subject.words[:-1]:
            if rank_of(word) == attribute.rank:
                spans.append((offset, offset + len(word)))
    patterns = {"age": (_AGE_PHRASE, AGE_BEFORE_NOUN), "origin": (_DESCENT,), "skin": (_DESCENT,)}
    for pattern in patterns.get(attribute.kind, ()):
        spans += [match.span() for match in pattern.finditer(text)]
    for start, end in sorted(set(spans), reverse=True):
        text = _take_out(text, start, end)
    return text


def _take_out(text: str, start: int, end: int) -> str:
    """Return a text without some of its characters, with one space or the comma in their place, and
    with the article that fits what follows.

    >>> _take_out("an old nurse", 3, 6), _take_out("a nurse, in her forties, at work", 7, 23)
    ('a nurse', 'a nurse, at work')
    """
    before = text[:start]
    behind = text[end:]
    if behind.startswith((",", " ")) and not before.endswith(","):
        if behind.startswith(","):
            before = before.rstrip()
        if before.endswith(" ") or not before:
            behind = behind.lstrip()
    following = re.match(r"[\w-]+", behind)
    if following:
        before = append_word(before, following[0])
        behind = behind[following.end() :]
    return before + behind
