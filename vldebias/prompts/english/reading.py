"""Find the persons of an English text, and write values beside them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.adjectives import rank_of
from vldebias.prompts.english.context import is_fixed_by_context
from vldebias.prompts.english.groups import describe, find_group, names_a_group
from vldebias.prompts.english.statements import find_stated, group_mentions, is_joined, states
from vldebias.prompts.english.subject import Subject, find_subjects, is_foreign
from vldebias.prompts.english.text import read_text
from vldebias.prompts.english.turning import is_pronoun, match, sides_in, strip, turn_gender
from vldebias.prompts.english.words import has_gendered, is_proper
from vldebias.prompts.groups import Group, can_mix, fits
from vldebias.prompts.language import (
    MOST_PERSONS,
    Dealt,
    Language,
    Person,
    Replacement,
    Saying,
    UnturnableError,
    Value,
    replace_all,
)
from vldebias.prompts.prompt_set import StatedWords, append_word
from vldebias.prompts.syntax import is_in_capitals

# The person is a pronoun alone, "someone at a desk": there is no noun to write before.
_PRONOUN = re.compile(r"\b(?:someone|somebody|anyone|anybody|everyone|everybody)\b", re.IGNORECASE)


class English(Language):
    """Read and write English prompts, by word lists."""

    code = "en"
    name = "English"

    def reads(self, text: str) -> bool:
        """Return whether a text is in English, or at least in no other language."""
        return not is_foreign(read_text(text))

    def find(self, text: str, attribute: Attribute) -> tuple[Person, ...] | str:
        """Return the persons of a text, or the reason why nobody gets a value."""
        subjects = find_subjects(text)
        if isinstance(subjects, str):
            return "stated" if states(text, attribute) else _why_nobody(subjects, text)
        persons = group_mentions(read_text(text), subjects)
        is_stated = find_stated(text, persons, attribute)
        found: list[Person] = []
        n_open = 0
        for mentions, stated in zip(persons, is_stated, strict=True):
            # The facts about further persons are not read: these get no value.
            is_closed = stated or n_open == MOST_PERSONS
            person = _person(text, mentions[0], attribute, is_closed, not found)
            is_with_fixed = bool(found) and found[0].reason == "context"
            if is_with_fixed and not is_joined(read_text(text), mentions[0]):
                person = person._replace(reason=person.reason or "context")
            found.append(person)
            n_open += not person.reason
        return tuple(found)

    def states(self, text: str, attribute: Attribute) -> bool:
        """Return whether any word of a text states a value."""
        return states(text, attribute)

    def write(self, text: str, sayings: Sequence[Saying]) -> list[Replacement]:
        """Return the replacements that write values beside nouns, with the articles that fit."""
        in_capitals = is_in_capitals(text)  # "A CEO IN AN OFFICE" gets "FEMALE"
        # Words for one place are written together: "an old female nurse".
        words_of_slot = defaultdict[_Slot, list[tuple[int, str]]](list)
        for saying in sayings:
            word = _word_for(saying)
            if in_capitals:
                word = word.upper()
            words_of_slot[_slot_of(saying)].append((saying.attribute.rank, word))
        replacements: list[Replacement] = []
        for slot, ranked in words_of_slot.items():
            words = [word for _, word in sorted(ranked)]
            replacements.append(_replacement(text, slot, words))
        return replacements

    def turn(self, text: str, attribute: Attribute, people: Sequence[Dealt]) -> str:
        """Return a rewritten prompt with the values that were dealt, whatever it states."""
        is_said = [False] * len(people)
        if attribute.gender:
            turned, is_said = turn_gender(text, attribute, people)
        else:
            turned = strip(text, attribute, people)
        words = read_text(turned)
        subjects = find_subjects(turned)
        persons = [] if isinstance(subjects, str) else group_mentions(words, subjects)
        is_stated = find_stated(turned, persons, attribute)
        matched = match(words, persons, people)
        sayings: list[Saying] = []
        for mentions, stated, number in zip(persons, is_stated, matched, strict=True):
            value = None if number is None else people[number].value
            if number is None or value is None or is_said[number]:
                continue
            if stated and not attribute.gender:
                raise UnturnableError("rewritten: stated")
            is_said[number] = True
            phrase = words.low[mentions[0].opening : mentions[0].head + 1]
            if attribute.gender and has_gendered(word for word in phrase if not is_pronoun(word)):
                continue  # "her little girl"
            person = _person(turned, mentions[0], attribute, is_stated=False, is_first=True)
            if isinstance(value, str) or (person.group and fits(person.group, value)):
                sayings.append(Saying(person, attribute, value))
        for dealt, is_done in zip(people, is_said, strict=True):
            if dealt.value is not None and not is_done:
                sayings.append(Saying(_person_named(turned, dealt), attribute, dealt.value))
        return replace_all(turned, self.write(turned, sayings))

    def values_in(self, text: str, attribute: Attribute, people: Sequence[Dealt]) -> list[Value]:
        """Return which value a text states of each of these people; None where it states none."""
        if attribute.gender:
            return sides_in(text, attribute, people)
        stated: list[Value] = []
        for value, words in attribute.set.attributes.items():
            if StatedWords((*words, attribute.words[value])).find(text):
                stated.append(value)
        first = stated[0] if len(stated) == 1 else None
        return [first, *[None] * (len(people) - 1)]


def _person_named(text: str, dealt: Dealt) -> Person:
    """Return the person of an original prompt where a rewritten one has the same noun.

    Raises:
        UnturnableError: it has not.
    """
    match_of_noun = re.search(rf"\b{re.escape(dealt.noun)}\b", text, re.IGNORECASE)
    if match_of_noun is None or not isinstance(dealt.value, str):
        raise UnturnableError(f"rewritten: no person named {dealt.noun}")
    start, end = match_of_noun.span()
    return Person(match_of_noun[0], start, end, (start, start))


# ---- whether a person is open


def _person(
    text: str, subject: Subject, attribute: Attribute, is_stated: bool, is_first: bool
) -> Person:
    """Return the person of a phrase, with the reason why no value is written; "" if one can be."""
    group = find_group(text, subject)
    reason = ""
    if is_stated:
        reason = "stated"
    elif group is not None and (not is_first or _leaves(group, attribute)):
        reason = "group"  # "a teacher and students": the teacher gets a value
    elif is_fixed_by_context(text, subject.start, subject.end, attribute.set):
        reason = "context"
    offset = _place_among_adjectives(subject, attribute)
    start, _ = subject.words[-1]
    noun = text[start : subject.end]
    return Person(noun, start, subject.end, (offset, offset), reason, group)


def _place_among_adjectives(subject: Subject, attribute: Attribute) -> int:
    """Return the offset at which English writes the value among a noun's adjectives."""
    for offset, word in subject.words[:-1]:
        if rank_of(word) >= attribute.rank:
            return offset
    noun_offset, _ = subject.words[-1]
    return noun_offset


def _leaves(group: Group, attribute: Attribute) -> bool:
    """Return whether a group is left alone: it cannot be mixed, and is not of one value."""
    if attribute.groups == "leave":
        return True
    if attribute.groups == "same" or 1 in attribute.shares.values():
        return attribute.has_phrases
    if not group.mixes or not attribute.gender:
        return True  # only women and men have nouns in the plural
    return not can_mix(attribute.words.values())


def _why_nobody(reason: str, text: str) -> str:
    """Return a reason that says more: a group is shown, or the person is a pronoun."""
    if not reason.startswith("no person"):
        return reason
    if _PRONOUN.search(text):
        return "pronoun"
    return "group" if names_a_group(text) else reason


# ---- writing


class _Slot(NamedTuple):
    """Hold where words go: "before" a noun, "behind" it, or "aside" between commas."""

    start: int
    end: int
    kind: str


def _slot_of(saying: Saying) -> _Slot:
    """Return where the word for a value goes."""
    person, attribute, value = saying
    start, end = person.place
    behind = person.end if person.group is None else person.group.end
    if isinstance(value, Mapping):
        return _Slot(behind, behind, "aside")
    if not attribute.has_phrases:
        return _Slot(start, end, "before")
    is_placeholder = start < end
    return _Slot(start if is_placeholder else behind, behind, "behind")


def _word_for(saying: Saying) -> str:
    """Return how a value is said: by its word, or by the numbers of a mixture."""
    person, attribute, value = saying
    if isinstance(value, Mapping):
        is_young = person.group is not None and person.group.young
        return describe(value, attribute.words, is_young)
    return attribute.words[value]


def _replacement(text: str, slot: _Slot, words: Sequence[str]) -> Replacement:
    """Return the replacement that writes words into a slot of a text."""
    start, end, kind = slot
    behind = text[end:]
    if kind == "before":
        return _before(text, slot, _like(text[start:end], " ".join(words)))
    if kind == "behind":
        start = len(text[:start].rstrip())
        return Replacement(start, end, f" {' and '.join(words)}{_space_before(behind)}")
    comma = "" if re.match(r"\s*(?:[^\w\s'\"(<-]|$)", behind) else ","
    return Replacement(start, end, f", {', '.join(words)}{comma}{_space_before(behind)}")


def _before(text: str, slot: _Slot, word: str) -> Replacement:
    """Return the replacement that writes a word before a noun, with the article that fits; its
    first letter is a capital at the start."""
    text_before = text[: slot.start]
    text_behind = text[slot.end :].lstrip()
    end = len(text) - len(text_behind)
    noun_start = ""
    if not text_before.strip() and re.match(r"[A-Z][a-z]", text_behind):
        word = word[0].upper() + word[1:]
        if not is_proper(text_behind.split()[0].lower()):  # "Tibetan priests"
            noun_start = text_behind[0].lower()
            end += 1
    written = append_word(text_before, word)
    start = _length_in_common(text_before, written)
    return Replacement(start, end, f"{written[start:]} {noun_start}")


def _length_in_common(text: str, other: str) -> int:
    """Return how many characters two texts have in common at their start."""
    if other.startswith(text):
        return len(text)
    length = 0
    while text[length] == other[length]:
        length += 1
    return length


def _like(slot: str, word: str) -> str:
    """Return a word in the letters of its placeholder: {gender}, {Gender} or {GENDER}."""
    letters = slot.strip("{ }")
    if len(letters) > 1 and letters.isupper():
        return word.upper()
    return word[0].upper() + word[1:] if letters[:1].isupper() else word


def _space_before(behind: str) -> str:
    """Return a space where the rest of a prompt begins with a word."""
    return " " if re.match(r"\w", behind) else ""
