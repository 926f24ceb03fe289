"""Find people in English text and insert values for them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.adjectives import rank_of
from vldebias.prompts.english.words import (
    has_gendered,
    has_listed,
    is_proper,
    kinds,
    listed,
    lists,
    singular,
)
from vldebias.prompts.english.words import person as is_person
from vldebias.prompts.prompt_set import append_word
from vldebias.wording.english.context import words_of_fact
from vldebias.wording.english.descriptions import (
    agreeing_form,
    neutral_text,
    values_of_persons,
    values_of_words,
)
from vldebias.wording.english.groups import describe, find_group
from vldebias.wording.english.people import (
    find_marked,
    find_persons,
    find_subjects,
    has_word_for_person,
)
from vldebias.wording.english.phrases import PersonPhrase, Persons
from vldebias.wording.english.stated import find_stated, states, without_others
from vldebias.wording.english.text import read_text, with_capitals_of
from vldebias.wording.groups import Group, can_mix
from vldebias.wording.language import (
    MOST_PERSONS,
    Assignment,
    Language,
    Mention,
    NounValue,
    Replacement,
    Value,
)
from vldebias.wording.reasons import CONTEXT, NOT_PLAIN, STATED, context_reason
from vldebias.wording.syntax import is_in_capitals

# Kinds of attributes in which the members of a family are alike, or differ in a fixed way.
_OF_FAMILIES = ("origin", "skin", "age")


class DescribedPerson(NamedTuple):
    """A person in a description.

    Attributes:
        noun: The noun in the singular and in lower case.
        value: The stated value, or None if no value in the prompt set is stated.
        is_stated: Whether any value is stated.
        names_value: Whether the noun itself states the value, as in "man".
    """

    noun: str
    value: Value
    is_stated: bool
    names_value: bool


# Marks people in a text who must not have a value.
NEUTRAL = ""

# Start and end of the span to replace, and the position of the new words: "before" a noun
# ("a female CEO"), "after" it ("a cook who is blind"), or "aside", between commas ("five engineers,
# three women and two men,").
_Place = tuple[int, int, str]


class English(Language):
    """Find people in English prompts and insert values, using word lists."""

    code = "en"
    name = "English"

    def reads(self, text: str) -> bool:
        """Return whether a text is in English, or in no other known language."""
        words = read_text(text)
        foreign = 0
        before = ""
        for word in words.words:
            # "van" in "Vincent van Gogh" does not count as a foreign word.
            is_listed = listed(word.lower(), "foreign") and not before[:1].isupper()
            foreign += is_listed or word[0] > "\u024f"
            before = word
        return foreign <= sum(listed(word, "english") for word in words.low)

    def find(self, text: str, attribute: Attribute) -> tuple[Mention, ...] | str:
        subjects = find_subjects(text)
        if isinstance(subjects, str):
            return STATED if states(text, attribute) else subjects
        if _are_related(text, subjects, attribute):
            return NOT_PLAIN
        return _mentions(text, attribute, [(subject, "") for subject in subjects])

    def may_be_marked(self, text: str) -> bool:
        return has_word_for_person(text)

    def find_marked(
        self, text: str, attribute: Attribute, marks: Sequence[int]
    ) -> tuple[Mention, ...]:
        marked = find_marked(text, tuple(marks))
        if _are_related(text, [phrase for phrase, _ in marked], attribute):
            return ()
        heads = {phrase.head for phrase, _ in marked}
        unmarked = [
            phrases
            for phrases in find_persons(text)
            if heads.isdisjoint(phrase.head for phrase in phrases)
        ]
        return _mentions(text, attribute, marked, unmarked)

    def states(self, text: str, attribute: Attribute) -> bool:
        return states(text, attribute)

    def write(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        in_capitals = is_in_capitals(text)  # "A CEO IN AN OFFICE" needs "FEMALE"
        # Words for the same place are inserted together: "an old female nurse".
        words_of_place = defaultdict[_Place, list[tuple[int, str]]](list)
        for person, attribute, value in assignments:
            after_noun = person.end if person.group is None else person.group.end
            if isinstance(value, Mapping):
                is_young = person.group is not None and person.group.young
                word = describe(value, attribute.words, is_young)
                place = (after_noun, after_noun, "aside")
            else:
                word = agreeing_form(attribute.words[value], text, person.end)
                place = (*person.place, "before")
                noun = _noun_of_value(text, person, word)
                if noun:
                    word, place = noun, (person.start, person.end, "noun")
                if attribute.has_phrases:
                    # A phrase replaces a placeholder, or follows the noun if there is none.
                    start, end = person.place
                    place = (start if start < end else after_noun, after_noun, "after")
            word = word.upper() if in_capitals else word
            words_of_place[place].append((attribute.rank, word))
        replacements: list[Replacement] = []
        nouns = {
            start: ranked for (start, _, kind), ranked in words_of_place.items() if kind == "noun"
        }
        for (start, end, kind), ranked in words_of_place.items():
            words = [word for _, word in sorted(ranked)]
            if kind == "noun":
                before = sorted(words_of_place.get((start, start, "before"), ()))
                words = [word for _, word in before] + words
                replacements.append(_write_before(text, start, end, " ".join(words), is_noun=True))
                continue
            if kind == "before":
                if start not in nouns:
                    replacements.append(_write_before(text, start, end, " ".join(words)))
                continue
            if kind == "after":
                start = len(text[:start].rstrip())
                written = f" {' and '.join(words)}"
            else:
                written = f", {', '.join(words)}"
                if not re.match(r"\s*(?:[^\w\s'\"(<-]|$)", text[end:]):
                    written += ","
            if re.match(r"\w", text[end:]):
                written += " "
            replacements.append(Replacement(start, end, written))
        return replacements

    def values_in(
        self, text: str, attribute: Attribute, people: Sequence[NounValue]
    ) -> list[Value]:
        return values_of_persons(text, attribute, people)

    def neutral(self, text: str, attribute: Attribute) -> str:
        people: list[NounValue] = []
        for phrase, *_ in find_persons(text):
            noun = _person(text, phrase, attribute, is_stated=False).noun
            people.append((noun, None if phrase.named else NEUTRAL))
        return neutral_text(text, attribute, people)

    def stated_values(self, text: str, attribute: Attribute) -> list[str]:
        return values_of_words(text, attribute) if attribute.gender else []

    def persons_with_values(self, text: str, attribute: Attribute) -> list[DescribedPerson]:
        """Return the people in a description, except named ones, with their stated values.

        Args:
            text: A description, such as a caption.
            attribute: The attribute to look for.
        """
        persons = find_persons(text)
        mentions = [_person(text, phrase, attribute, is_stated=False) for phrase, *_ in persons]
        is_stated = find_stated(text, persons, attribute)
        if attribute.gender:
            people: list[NounValue] = [(person.noun, None) for person in mentions]
            values = values_of_persons(text, attribute, people)
        else:
            values = _values_of_phrases(text, persons, is_stated, attribute)
        described = []
        for (phrase, *_), person, value, stated in zip(
            persons, mentions, values, is_stated, strict=True
        ):
            if phrase.named:
                continue
            # Reduce "female nurse" and "woman doctor" to the profession, but keep a lone "man".
            words = [singular(word) for word in person.noun.lower().split()]
            while attribute.gender and len(words) > 1 and has_gendered(words[:1]):
                del words[0]
            names_value = attribute.gender and has_gendered(words)
            is_any = stated or value is not None
            described.append(DescribedPerson(" ".join(words), value, is_any, names_value))
        return described


def _values_of_phrases(
    text: str, persons: Persons, is_stated: Sequence[bool], attribute: Attribute
) -> list[Value]:
    """Return the value of an attribute other than gender for each person in a text, or None."""
    starts = read_text(text).start
    values: list[Value] = []
    for number, mentions in enumerate(persons):
        first = mentions[0]
        # The person's noun phrase takes precedence over the rest of the text, in which "white"
        # may be the color of a coat.
        found = values_of_words(text[starts[first.opening] : first.end], attribute)
        if not found:
            # The longest words count: "an East Asian man" does not also name "Asian".
            rest = without_others(text, persons, number)
            stated_words = {word.lower() for word in attribute.stated.find(rest)}
            for value, words_of_set in attribute.set.attributes.items():
                words = (*words_of_set, attribute.words[value])
                if not stated_words.isdisjoint(word.lower() for word in words):
                    found.append(value)
        values.append(found[0] if is_stated[number] and len(found) == 1 else None)
    return values


def _are_related(text: str, subjects: Sequence[PersonPhrase], attribute: Attribute) -> bool:
    """Return whether independent values do not fit, because members of a family are shown."""
    if attribute.kind not in _OF_FAMILIES or 1 in attribute.shares.values():
        return False
    words = read_text(text).bare
    nouns = [singular(words[subject.head]) for subject in subjects]
    return len(nouns) > 1 and has_listed(nouns, "relative")


def _mentions(
    text: str,
    attribute: Attribute,
    subjects: Sequence[tuple[PersonPhrase, str]],
    further: Persons = (),
) -> tuple[Mention, ...]:
    """Create the mentions for phrases, with the reasons of those that cannot get a value.

    Args:
        text: The text.
        attribute: The attribute.
        subjects: Each phrase with a reason that is known already, or "".
        further: The phrases of further people, whose values say nothing about the subjects.
    """
    persons = [*([phrase] for phrase, _ in subjects), *further]
    is_stated = find_stated(text, persons, attribute)[: len(subjects)]
    found: list[Mention] = []
    n_open = 0
    for (subject, reason), stated in zip(subjects, is_stated, strict=True):
        # Later people cannot get a value, so the facts about them need not be analysed.
        person = _person(text, subject, attribute, stated or n_open == MOST_PERSONS)
        person = person._replace(reason=person.reason or reason)
        # Facts that fix the value for the first person also fix it for everybody else.
        if not person.reason and found and found[0].reason.startswith(CONTEXT):
            person = person._replace(reason=found[0].reason)
        found.append(person)
        n_open += not person.reason
    return tuple(found)


def _person(text: str, subject: PersonPhrase, attribute: Attribute, is_stated: bool) -> Mention:
    """Create the mention for a phrase, with the reason if no value can be inserted."""
    group = find_group(text, subject)
    reason = ""
    if is_stated:
        reason = STATED
    elif group is not None and _leaves(group, attribute):
        reason = NOT_PLAIN
    elif fact := words_of_fact(text, subject.start, subject.end, attribute.kind):
        reason = context_reason(fact)  # as in "a Catholic priest"
    start, _ = subject.words[-1]
    noun = text[start : subject.end]
    # Insert the value before the first adjective of the same or a later rank in English word order.
    place = subject.place
    for offset, word in subject.words[:-1]:
        if rank_of(word) >= attribute.rank:
            place = min(place, offset)
            break
    return Mention(noun, start, subject.end, (place, place), reason, group)


def _leaves(group: Group, attribute: Attribute) -> bool:
    """Return whether a group stays unchanged, because it can neither be mixed nor share a value."""
    if attribute.people == "leave" or not group.mixes:
        return True
    if attribute.people == "same" or 1 in attribute.shares.values():
        return attribute.has_phrases
    return not can_mix(attribute.words.values())


# ---- inserting values


@cache
def _nouns_of_values() -> dict[str, dict[str, str]]:
    """Map nouns such as "child" to the nouns for each gender: "girl" and "boy"."""
    nouns: dict[str, dict[str, str]] = {}
    for entry in lists()["value-noun"]:
        noun, female, male = entry.split("/")
        nouns[noun] = {"female": female, "male": male}
    return nouns


def _noun_of_value(text: str, person: Mention, word: str) -> str:
    """Return the noun that replaces "person" or "child" and states a gender: "woman", or ""."""
    is_weighted = re.match(r"\s*:", text[person.end :]) and text[: person.start].endswith(
        ("(", "[")
    )
    if is_weighted:
        return ""  # "(person:1.2)" may be a trigger.
    return _nouns_of_values().get(person.noun.lower(), {}).get(word.lower(), "")


def _write_before(
    text: str, start: int, end: int, word: str, *, is_noun: bool = False
) -> Replacement:
    """Return a replacement that inserts a word before a noun and adjusts the article.

    The word takes over the capitalization of the placeholder that it replaces: {gender}, {Gender}
    or {GENDER}. At the start of a sentence, it takes over the noun's capital letter. If it ends
    with a noun (`is_noun`), it replaces the noun at start to end.
    """
    word = with_capitals_of(text[start:end].strip("{ }"), word)
    text_before = text[:start]
    text_behind = text[end:] if is_noun else text[end:].lstrip()
    end = len(text) - len(text_behind)
    noun_start = ""
    before = text_before.rstrip(" \t")
    is_first = not before or before[-1] in ".!?\n"
    if is_first and not is_noun and re.match(r"[A-Z][a-z]", text_behind):
        word = word[0].upper() + word[1:]
        # "Tibetan", "Miami" and "Supreme Court judge" keep their capitals.
        first_word = re.split(r"[^\w-]", text_behind)[0].lower()
        is_name = re.match(r"\w+ [A-Z][a-z]", text_behind) or is_proper(first_word)
        is_word = is_person(first_word) or not set(kinds(first_word)).isdisjoint("anvprx")
        if is_word and not is_name:
            noun_start = text_behind[0].lower()
            end += 1
    written = append_word(text_before, word)
    if is_in_capitals(text):
        written = written.upper()  # "A CEO IN AN OFFICE" needs "AN ASIAN"
    # Replace only what changes: either nothing but the word, or also the article, "a" -> "an".
    start = len(text_before)
    while not written.startswith(text_before[:start]):
        start -= 1
    is_end = is_noun or re.match(r"[,.;:!?)\]]|$", text_behind)
    space = "" if is_end else " "
    return Replacement(start, end, f"{written[start:]}{space}{noun_start}")
