"""Who is one of several? Decide whether an English noun phrase adds a person to those before it.

It may also describe one of them ("a CEO, a leader of hundreds"). A prompt that shows somebody
without a noun phrase ("hugging someone") counts as not understood.
"""

from __future__ import annotations

from collections.abc import Sequence

from vldebias.prompts.english.words import (
    listed,
    singular,
)
from vldebias.wording.english.is_person import is_object_in_brackets
from vldebias.wording.english.phrases import (
    NOBODY,
    UNCLEAR,
    PersonPhrase,
)
from vldebias.wording.english.text import Text


def why_nobody_else(text: Text, subject: PersonPhrase, subjects: Sequence[PersonPhrase]) -> str:
    """Return why a phrase after others does not add a person, or "" if it adds one.

    It may repeat a person ("a nurse at a desk. The nurse smiles") or be a thing.
    """
    if not subjects or is_object_in_brackets(text, subject.opening):
        return ""
    last = subjects[-1]
    head = text.low[subject.head]
    is_next_sentence = not text.is_same_sentence(last.head, subject.head)
    # A word right behind the person is a verb, and in a new sentence, it may be a thing.
    is_verb = subject.head == last.head + 1 and not text.opens[subject.head]
    if is_verb or (is_next_sentence and listed(singular(head), "thing")):
        return NOBODY
    determiner = text.low[subject.opening]
    before = text.before(subject.opening)
    is_joined = listed(before, "joins", "preposition") or before.endswith("ing")
    if not (listed(determiner, "determiner") or subject.plural or is_joined):
        return NOBODY if subject.named else UNCLEAR  # a further tag
    is_new = listed(determiner, "article") and text.opens[subject.opening]
    if is_new and is_next_sentence and listed(text.low[last.head], "picture-person"):
        return UNCLEAR  # "a main character. A young helper"
    is_definite = listed(determiner, "definite")
    nouns = [singular(text.bare[earlier.head]) for earlier in subjects]
    if singular(text.bare[subject.head]) in nouns and (is_next_sentence or is_definite):
        # Without adjectives, the noun repeats a person; otherwise it may be another one.
        return NOBODY if len(subject.words) == 1 else UNCLEAR
    # A definite or general noun may repeat a person: "a swimmer on a rock, the athlete looks".
    is_general = head in ("figure", "character", "being", "subject")
    is_apposed = subject.opening == last.head + 1  # "a hacker, the main character"
    is_clause = is_next_sentence or text.opens[subject.opening]
    return UNCLEAR if is_definite and not is_apposed and (is_general or is_clause) else ""


# ---- the same person


def group_mentions(text: Text, subjects: Sequence[PersonPhrase]) -> list[list[PersonPhrase]]:
    """Group noun phrases that refer to the same person.

    "a CEO, a leader of hundreds" is one person, "a cook, a waiter and a guest" are three.

    Args:
        text: The text.
        subjects: The noun phrases for people, in order of appearance.
    """
    persons = [[subject] for subject in subjects[:1]]
    for number in range(1, len(subjects)):
        # The phrase may describe members of the preceding group: "two cooks, a woman and a man".
        is_of_group = persons[-1][0].plural and not _words_between(text, subjects, number)
        if is_of_group or _is_same(text, subjects, number):
            persons[-1].append(subjects[number])
        else:
            persons.append([subjects[number]])
    return persons


def _is_same(text: Text, subjects: Sequence[PersonPhrase], number: int) -> bool:
    """Return whether a phrase refers to the same person as the phrase before it."""
    words = _words_between(text, subjects, number)
    if words:
        return listed(words[-1], "is-also")
    if number + 1 < len(subjects):
        # "a cook, a waiter and a guest" are three people.
        words_behind = _words_between(text, subjects, number + 1)
        if not words_behind or listed(words_behind[0], "adds"):
            return False
    return text.is_same_sentence(subjects[number - 1].head, subjects[number].head)


def _words_between(text: Text, subjects: Sequence[PersonPhrase], number: int) -> list[str]:
    """Return the words between the previous phrase and a phrase with its determiners."""
    return text.low[subjects[number - 1].head + 1 : subjects[number].opening]
