"""Find the people whom an English prompt shows.

`_read_phrase` asks the same questions about each noun for a person, in the same order. In case of
doubt, the prompt counts as not understood. Whose value is stated depends on the attribute, so
`find_stated` answers that question later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from vldebias.prompts.english.words import has_listed, is_plural, kinds, listed
from vldebias.wording.english.is_another import group_mentions, why_nobody_else
from vldebias.wording.english.is_person import may_be_person, why_no_person, why_no_tag
from vldebias.wording.english.is_shown import why_not_shown
from vldebias.wording.english.is_stated_or_named import (
    is_known,
    is_named,
    is_of_picture,
    may_be_alone,
    names_of_people,
)
from vldebias.wording.english.phrases import (
    NOBODY,
    POSSESSIVE,
    UNCLEAR,
    PersonPhrase,
    Persons,
    extend_left,
    is_gendered_noun,
    place_of_value,
    skip_medium,
)
from vldebias.wording.english.text import Text, read_text


@lru_cache(maxsize=1000)  # called for each image generated from a prompt
def find_subjects(prompt: str) -> tuple[PersonPhrase, ...] | str:
    """Return the people in a prompt in order of appearance, or the reason why none are found.

    If a noun may refer to an additional person, the prompt counts as not understood.
    """
    text = read_text(prompt)
    names = names_of_people(text)
    has_names = any(
        not (text.silent[first] or is_of_picture(text, first)) and may_be_alone(text, first, stop)
        for first, stop in names
    )
    subjects: list[PersonPhrase] = []
    is_unclear = False
    for i in range(len(text.bare)):
        if not may_be_person(text, i):
            continue
        phrase = _read_phrase(text, i, names, subjects)
        if isinstance(phrase, PersonPhrase):
            subjects.append(phrase)
        elif phrase == UNCLEAR and not is_gendered_noun(text.bare[i]):
            return UNCLEAR
        else:
            is_unclear |= phrase == UNCLEAR
    if subjects:
        # "hugging someone" shows a person without a phrase.
        leaves_one_out = has_listed(text.low, "indefinite-person")
        return UNCLEAR if leaves_one_out else tuple(subjects)
    if has_names:
        return "named"
    # An unknown noun may be a person: "a gardner with roses".
    is_unclear |= any(_is_unknown_noun(text, i) for i in range(len(text.low)))
    return UNCLEAR if is_unclear else NOBODY


def _is_unknown_noun(text: Text, i: int) -> bool:
    """Return whether word i follows an article and is in no dictionary, except as a name."""
    if not listed(text.before(i), "article") or not text.words[i].islower():
        return False
    classes = kinds(text.bare[i])
    return not classes.strip("fli") if classes else not is_known(text.bare[i])


def _read_phrase(
    text: Text, i: int, names: list[tuple[int, int]], subjects: Sequence[PersonPhrase]
) -> PersonPhrase | str:
    """Return the phrase with head i, or the reason why it adds no person to those before it."""
    # Who is a person?
    start, first_noun = extend_left(text, i)
    reason = why_no_person(text, i, start)
    if reason:
        return reason
    # Who is shown? The word before all determiners is decisive, as in "by all the masters".
    plural = is_plural(text.bare[i]) or listed(text.low[i], "collective")
    determiner = text.before(start)
    has_determiner = listed(determiner, "determiner") or determiner.endswith(POSSESSIVE)
    is_bare = not plural and not has_determiner
    opening = start
    while listed(text.before(opening), "determiner"):
        opening -= 1
    reason = why_not_shown(text, opening - 1, i)
    # A singular noun without a determiner is a tag ("doctor, 4k") or not a person at all.
    if is_bare:
        start = skip_medium(text, start, i)
        first_noun = max(start, first_noun)
        reason = reason or why_no_tag(text, start, first_noun, i)
    place = place_of_value(text, start, first_noun, i, has_determiner)
    if reason or place is None:
        return reason or UNCLEAR
    words = [(text.start[j], text.low[j]) for j in range(start, first_noun + 1)]
    end = text.start[i] + len(text.bare[i])
    # Who is named?
    named = is_named(text, names, opening, i)
    first, value = text.start[start], text.start[place]
    phrase = PersonPhrase(words, first, end, value, plural, opening, i, named)
    # Who is one of several?
    return why_nobody_else(text, phrase, subjects) or phrase


def find_persons(prompt: str) -> Persons:
    """Return the noun phrases for each person in a prompt."""
    subjects = find_subjects(prompt)
    return [] if isinstance(subjects, str) else group_mentions(read_text(prompt), subjects)
