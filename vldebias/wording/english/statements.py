"""Find people whose value an English text states, such as the patient in "a male patient".

A word that states a value applies to everybody in the text, except for words in someone else's
noun phrase and pronouns that cannot refer to the person.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.adjectives import rank_of
from vldebias.prompts.english.words import (
    STOPS,
    base,
    has_gendered,
    has_listed,
    listed,
    person,
    singular,
)
from vldebias.prompts.prompt_set import StatedWords
from vldebias.wording.english.phrases import PersonPhrase, Persons, is_gendered_noun
from vldebias.wording.english.scene import read_scene
from vldebias.wording.english.subject import find_subjects
from vldebias.wording.english.text import Text, read_text
from vldebias.wording.language import Value

_FEMALE = frozenset({"she", "her", "hers", "herself"})
_MALE = frozenset({"he", "him", "his", "himself"})
_PRONOUNS = _FEMALE | _MALE
_SENTENCE_END = re.compile(r"[.;!?\n|]")
_UNSPECIFIED = re.compile(
    r"\b(?:un(?:specified|determined|defined|known|clear)|ambiguous|indeterminate|neutral) (\w+)"
)
# What a body states about a race or a skin tone: "a man with green skin", "a freckled redhead".
_SKIN = re.compile(
    r"\b(?:pale|pallid|fair|light|dark|tan(?:ned)?|beige|metallic|olive|brown|black|white|red|green|blue|purple|pink"
    r"|gr[ae]y|yellow|orange|teal|golden|silver|bronzed?|ebony|ivory|porcelain|caramel|chocolate)"
    r"[- ]?(?:skin|skinned|complexion(?:ed)?|face(?! ?(?:paint|mask|veil)))\b",
    re.IGNORECASE,
)
_FRECKLES = re.compile(r"\bfreckle[sd]?\b", re.IGNORECASE)
_RED_HAIR = re.compile(
    r"\b(?:strawberry[- ]blonde?|red[- ]?(?:head(?:ed)?|haired)|reddish[- ](?:\w+ )?hair|ginger)\b",
    re.IGNORECASE,
)
_WRINKLES = re.compile(
    r"\bwrinkles\b|\b(?:wrinkl(?:ed|y)|aged) (?:face|skin|hands)\b"
    r"|\b(?:who|he|she) (?:is|looks) old(?:er)?\b",
    re.IGNORECASE,
)
_FACIAL_HAIR = re.compile(r"(?<!no )facial hair")
_MOST_READ = 16  # people per text; the values of all others count as stated


def find_persons(prompt: str) -> Persons:
    """Return the noun phrases for each person in a prompt."""
    subjects = find_subjects(prompt)
    return [] if isinstance(subjects, str) else group_mentions(read_text(prompt), subjects)


def group_mentions(text: Text, subjects: Sequence[PersonPhrase]) -> list[list[PersonPhrase]]:
    """Group noun phrases that refer to the same person.

    "a CEO, a leader of hundreds" is one person, "a cook, a waiter and a guest" are three.

    Args:
        text: The text.
        subjects: The noun phrases for people, in order of appearance.
    """
    persons = [[subject] for subject in subjects[:1]]
    for number in range(1, len(subjects)):
        subject = subjects[number]
        # The phrase may describe members of the preceding group: "two cooks, a woman and a man".
        group = persons[-1]
        words = _words_between(text, subjects, number)
        goes_on = not words or (len(group) > 1 and words == ["and"])
        is_of_group = goes_on and group[0].plural
        if is_of_group and not _SENTENCE_END.search(_gap(text, subjects, number)):
            if not is_gendered_noun(text.low[subject.head]) and len(group) == 1:
                persons[-1] = [subject]  # "two people, a cook and a waiter": only these two
            else:
                group.append(subject)
        elif _is_same(text, subjects, number):
            group.append(subject)
        else:
            persons.append([subject])
    return persons


def may_be_two(text: Text, subjects: Sequence[PersonPhrase]) -> bool:
    """Return whether a phrase after a comma may be a second person: "a detective, a suspect".

    Args:
        text: The text.
        subjects: The noun phrases for people, in order of appearance.
    """
    for number in range(1, len(subjects)):
        first = subjects[number - 1]
        second = subjects[number]
        is_next = second.opening == first.head + 1
        if not is_next or not _is_same(text, subjects, number):
            continue
        heads = [singular(text.low[first.head]), singular(text.low[second.head])]
        if any(map(is_gendered_noun, heads)):
            continue
        # "a person, a person with a hat" are two, unlike "a nurse, a specialist".
        if heads[0] == heads[1] or not has_listed(heads, "generic"):
            return True
    return False


def _is_same(text: Text, subjects: Sequence[PersonPhrase], number: int) -> bool:
    """Return whether a phrase refers to the same person as the phrase before it."""
    subject = subjects[number]
    words = _words_between(text, subjects, number)
    if not words and _is_in_list(text, subjects, number):
        return False
    if text.low[subject.head] == "person" and text.before(subject.head) == "single":
        return True  # "a single person" is the person already described.
    is_new_sentence = _SENTENCE_END.search(_gap(text, subjects, number)) is not None
    is_man = is_gendered_noun(text.low[subject.head])
    if words:
        # A description may follow the complement of a noun: "the hero of a film, a woman".
        is_apposed = words[0] == "of" and text.opens[subject.opening] and not is_new_sentence
        # "there is a waiter" introduces somebody, unlike "the painter is a woman".
        return (listed(words[-1], "is-also") and "there" not in words) or (is_man and is_apposed)
    # A phrase with a verb of its own is someone else: "a baker serving a guest, a waiter holding".
    verb = text.after(subject.head)
    is_clause = verb.endswith(("s", "ing")) and base(verb) != verb
    # A description may be a sentence: "an office worker. A man in his thirties".
    is_description = is_man and verb in ("in", "with")
    return not is_clause and (is_description or not is_new_sentence)


def _is_in_list(text: Text, subjects: Sequence[PersonPhrase], number: int) -> bool:
    """Return whether a phrase and the one right before it are items in the same list."""
    # "a vet, a farmer and a cow" are two people.
    end = subjects[number].head
    if listed(text.after(end), "adds") and listed(text.after(end + 1), "determiner"):
        return True
    # "a nurse, a doctor, a patient" and "a cook, a waiter and a guest" are three.
    if number > 1 and not _words_between(text, subjects, number - 1):
        return True
    if number + 1 == len(subjects):
        return False
    words_behind = _words_between(text, subjects, number + 1)
    return not words_behind or listed(words_behind[0], "adds")


def _words_between(text: Text, subjects: Sequence[PersonPhrase], number: int) -> list[str]:
    """Return the words between the previous phrase and a phrase with its determiners."""
    return text.low[subjects[number - 1].head + 1 : subjects[number].opening]


def _gap(text: Text, subjects: Sequence[PersonPhrase], number: int) -> str:
    """Return the characters between the previous phrase and a phrase."""
    return text.prompt[subjects[number - 1].end : text.start[subjects[number].opening]]


def find_stated(prompt: str, persons: Persons, attribute: Attribute) -> list[bool]:
    """Return, for each person in a prompt, whether the prompt states a value of an attribute.

    Args:
        prompt: The prompt.
        persons: The noun phrases for each person.
        attribute: The attribute.
    """
    text = read_text(prompt)
    quoted = [i for i in range(len(text.low)) if text.silent[i] or names_thing(text, i)]
    unquoted = _without(prompt, text, quoted)
    may_state = states(unquoted, attribute)
    owners = _owners_of_pronouns(text, persons) if may_state and attribute.gender else {}
    is_stated: list[bool] = []
    for number, (first, *_) in enumerate(persons):
        # The owner of a body part is the person: "a child's face".
        owner = first.words[-1][1].removesuffix("'s")
        has_adjectives = len(first.words) > 1
        is_in_phrase = has_adjectives and _states_in_phrase(prompt, first, attribute)
        if attribute.kind and (is_in_phrase or states(owner, attribute)):
            is_stated.append(True)
        elif not may_state or number >= _MOST_READ:
            is_stated.append(may_state)
        else:
            left_out = [i for i, numbers in owners.items() if number not in numbers]
            rest = _without_others(unquoted, text, persons, number, left_out)
            is_stated.append(_states_of_person(rest, prompt, first, attribute))
    return is_stated


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


def values_of_persons(prompt: str, attribute: Attribute) -> dict[int, Value]:
    """Return the value that a prompt states for each person, or None, by the noun's offset.

    Args:
        prompt: The prompt.
        attribute: Any attribute except gender.
    """
    text = read_text(prompt)
    persons = find_persons(prompt)
    is_stated = find_stated(prompt, persons, attribute)
    values: dict[int, Value] = {}
    for number, mentions in enumerate(persons):
        first = mentions[0]
        # The person's noun phrase takes precedence over the rest of the text, in which "white"
        # may be the color of a coat.
        phrase = prompt[text.start[first.opening] : first.end]
        rest = _without_others(prompt, text, persons, number, ())
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
        is_stated = has_gendered(read_text(text).low) or _FACIAL_HAIR.search(text) is not None
    elif attribute.kind in ("origin", "skin"):
        is_stated = _body_states(text)
    else:
        is_stated = attribute.kind == "age" and _WRINKLES.search(text) is not None
    # A value may be left open on purpose: "of unspecified gender".
    return is_stated or not attribute.names.isdisjoint(_UNSPECIFIED.findall(text.lower()))


def _body_states(text: str) -> bool:
    """Return whether a body states a race or a skin tone, as in "green skin"."""
    if _FRECKLES.search(text) and _RED_HAIR.search(text):
        return True
    words = read_text(text)
    for i, word in enumerate(words.low):
        after = words.after(i)  # The word describes a being, unlike in "an alien planet".
        noun = after.removesuffix("'s")
        if listed(word, "body-color") and (person(noun) or is_gendered_noun(noun)):
            return True  # "a green man"
        is_being = not after or listed(after, *STOPS) or person(after) or has_gendered([after])
        if listed(word, "body-of-origin") and is_being:
            return True
    return _SKIN.search(text) is not None


def _states_by_set(text: str, attribute: Attribute) -> bool:
    """Return whether a text contains a word from the prompt set, except gendered nouns."""
    words = attribute.stated.find(text)
    return any(not (attribute.gender and person(word.lower())) for word in words)


def _without_others(
    prompt: str, text: Text, persons: Persons, number: int, left_out: Iterable[int]
) -> str:
    """Return a prompt without the given words and without the phrases for every other person."""
    words = set(left_out)
    for place, mentions in enumerate(persons):
        if place == number:
            continue
        for subject in mentions:
            stop = subject.head + 1
            if is_gendered_noun(text.low[subject.head]) and text.after(subject.head) == "with":
                while not text.opens[stop] and not person(text.low[stop]):
                    # What follows "with" belongs to the other person: "a barber and a man with a
                    # beard".
                    stop += 1
            phrase = range(subject.opening, stop)
            # Keep the pronoun in "her assistant", which does not refer to the assistant.
            words.update(i for i in phrase if text.low[i] not in _PRONOUNS)
    return _without(prompt, text, words)


def _without(prompt: str, text: Text, words: Iterable[int]) -> str:
    """Replace the words at the given positions with spaces."""
    kept = list(prompt)
    for i in words:
        start = text.start[i]
        end = start + len(text.words[i])
        kept[start:end] = " " * (end - start)
    return "".join(kept)


def _owners_of_pronouns(text: Text, persons: Persons) -> dict[int, set[int]]:
    """Map each pronoun's position to the indices of the people to whom it may refer.

    A pronoun refers to the nearest person before it if their stated gender agrees, and may
    otherwise refer to anyone before it. If nobody precedes it, it may refer to anyone.
    """
    owners: dict[int, set[int]] = {}
    for i, word in enumerate(text.low):
        if word not in _PRONOUNS:
            continue
        before = {number for number, mentions in enumerate(persons) if mentions[0].head < i}
        if not before:
            owners[i] = set(range(len(persons)))
            continue
        nearest = max(before)
        head = persons[nearest][0].head
        # In "Ada with a drummer behind her", "her" does not refer to the drummer.
        is_object = listed(text.low[i - 1], "preposition") and not text.after(i)
        if head == i - 2 and text.before(i - 1) and is_object:
            owners[i] = before - {nearest}
            continue
        genders = {_gender_of(text, subject) for subject in persons[nearest]}
        is_of_nearest = (_FEMALE if word in _FEMALE else _MALE) in genders
        owners[i] = {nearest} if is_of_nearest else before
    return owners


def _gender_of(text: Text, subject: PersonPhrase) -> frozenset[str] | None:
    """Return the pronouns for the gender that a phrase states, or None if it states none."""
    words = [singular(word) for word in text.low[subject.opening : subject.head + 1]]
    if has_listed(words, "female-noun"):
        return _FEMALE
    if has_gendered(words) and not _PRONOUNS.intersection(words):
        return _MALE
    return None


def _states_of_person(rest: str, prompt: str, subject: PersonPhrase, attribute: Attribute) -> bool:
    """Return whether `rest` states a value, unless only the medium or a thing has it.

    An example of a medium is "Japanese print of a nurse".
    """
    if _states_otherwise(rest, attribute):
        return True
    if not _states_by_set(rest, attribute):
        return False
    scene = read_scene(prompt, subject.start, subject.end)
    is_origin = attribute.kind == "origin"
    about_picture = scene.words_about_picture(origins=is_origin, ages=attribute.kind == "age")
    return _states_by_set(_without(rest, scene.text, about_picture), attribute)


def _states_in_phrase(text: str, subject: PersonPhrase, attribute: Attribute) -> bool:
    """Return whether an adjective in the subject's phrase states a value."""
    for offset, word in subject.words[:-1]:
        if rank_of(word) != attribute.rank:
            continue
        scene = read_scene(text, subject.start, subject.end)
        if word == "senior" and not listed(scene.noun, "people"):
            continue  # "a senior engineer", unlike "a senior couple"
        # In "a newborn photographer", "newborn" is not the photographer's age.
        position = scene.text.start.index(offset)
        if attribute.kind != "age" or not scene.is_for_age(position):
            return True
    return False
