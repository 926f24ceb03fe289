"""Who is stated or named? Find names in an English prompt, and people whose value it states.

A word that states a value ("a male patient") applies to everybody in the text, except for words in
someone else's noun phrase and pronouns that cannot refer to the person.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.adjectives import rank_of
from vldebias.prompts.english.words import (
    REMEMBERED_WORDS,
    STOPS,
    base,
    gendered,
    has_gendered,
    has_listed,
    is_misspelt_person,
    kinds,
    listed,
    lists,
    origins,
    person,
    singular,
)
from vldebias.prompts.prompt_set import StatedWords
from vldebias.wording.english.facts import find_figures, names_of_history
from vldebias.wording.english.phrases import PersonPhrase, Persons
from vldebias.wording.english.scene import read_scene
from vldebias.wording.english.text import Text, read_text
from vldebias.wording.language import Value

_FEMALE = frozenset({"she", "her", "hers", "herself"})
_MALE = frozenset({"he", "him", "his", "himself"})
_PRONOUNS = _FEMALE | _MALE
# What a body states about a race or a skin tone: "a man with green skin", "a freckled redhead".
_SKIN = re.compile(
    r"\b(?:pale|pallid|fair|light|dark|tan(?:ned)?|beige|metallic|olive|brown|black|white|red|green|blue|purple|pink"
    r"|gr[ae]y|yellow|orange|teal|golden|silver|bronzed?|ebony|ivory|porcelain|caramel|chocolate)"
    r"[- ]?(?:skin|skinned|complexion(?:ed)?|face(?! ?(?:paint|mask|veil)))\b",
    re.IGNORECASE,
)
_WRINKLES = re.compile(
    r"\bwrinkles\b|\b(?:wrinkl(?:ed|y)|aged) (?:face|skin|hands)\b"
    r"|\b(?:who|he|she) (?:is|looks) old(?:er)?\b",
    re.IGNORECASE,
)
_MOST_READ = 16  # people per text; the values of all others count as stated


# ---- who is named


def find_names(text: Text) -> list[tuple[int, int]]:
    """Return the (first, stop) positions of word runs that may name a person."""
    runs: list[tuple[int, int]] = []
    stop = -1  # the end of the last run
    for i in range(len(text.words)):
        goes_on = stop == i and not text.opens[i]
        if not _is_name(text, i, goes_on):
            continue
        # A further word of a name extends the run, from "Tom" to "Tom Baker".
        first = i
        if goes_on:
            first, _ = runs.pop()
        stop = i + 1
        runs.append((first, stop))
    runs = [run for run in runs if _is_name_of_person(text, *run)]
    # "sks" in "sks person" is the trigger of a fine-tuned model.
    tokens = [(i, i + 2) for i, word in enumerate(text.low) if listed(word, "token")]
    return runs + tokens + find_figures(text)


@lru_cache(REMEMBERED_WORDS)
def is_known(word: str) -> bool:
    """Return whether a lower-case word or its parts are in a dictionary or in a word list.

    Args:
        word: the word.
    """
    if "-" in word:
        return all(map(is_known, filter(None, word.split("-"))))
    is_listed = any(word in words for words in lists().values()) or word in origins()
    is_listed = is_listed or word[0].isdigit()
    is_person = person(word) or is_misspelt_person(word)
    return bool(kinds(word)) or is_listed or gendered(word) or is_person


def _is_name(text: Text, i: int, inside: bool) -> bool:
    """Return whether word i can be part of a name (`inside`: after another name word)."""
    word = text.bare[i]
    # Nouns in capitals are scene headings: "EXT. HARBOUR - DAWN".
    is_slug = text.words[i].isupper() and "n" in kinds(word)
    # Words of history are capitalized, but name nobody: "a Tudor king".
    is_of_history = word in names_of_history() and not inside
    if is_slug or is_of_history or listed(word, *STOPS, "tag", "draw", "picture"):
        return False
    if listed(word, "famous") or _is_in_full_name(text, i):
        return True
    if not kinds(word).strip("fliu"):
        # "parks" in "a driver parks the bus" is no name.
        return text.capital[i] or base(word) == word
    if person(word) and not (inside and "l" in kinds(word)):
        return False  # unlike "Baker" in "Tom Baker"
    if text.capital[i] and "f" in kinds(word) and text.after(i) in ("", "the"):
        return True  # A given name may stand alone or before "the": "Frank the waiter".
    return text.capital[i] and (inside or not text.sentence[i])


def _is_in_full_name(text: Text, i: int) -> bool:
    """Return whether word i belongs to a full name, even in lower case, as in "john smith"."""
    first = i if listed(text.low[i], "given-name") else i - 1
    last = first + 1
    if first < 0 or text.opens[last] or not listed(text.low[first], "given-name"):
        return False
    classes_of_last = kinds(text.bare[last])
    return "l" in classes_of_last or not classes_of_last


def _is_name_of_person(text: Text, first: int, stop: int) -> bool:
    """Return whether a run of words names a person rather than a place, brand or thing."""
    words = text.bare[first:stop]
    if has_listed(words, "no-name") or (len(words) > 1 and listed(words[0], "place-adjective")):
        return False  # Known institutions and places are not people: "New York".
    if any(listed(word, "famous") or "i" in kinds(word) for word in words):
        return True
    if any(_is_in_full_name(text, i) for i in range(first, stop)):
        return True
    has_given_name = "f" in kinds(words[0])
    has_family_name = len(words) > 1
    needed = any if text.capital[first] else all
    return needed((has_given_name, has_family_name))


def is_of_picture(text: Text, first: int) -> bool:
    """Return whether a name refers to an artistic style: "Monet style", "oil painting, Monet".

    Args:
        text: The text.
        first: The position of the first word of the name.
    """
    if text.credited[first]:
        return True
    if first == 0 or text.before(first) in ("of", "with"):
        return False  # A name at the start is the subject: "Tom Hanks, movie still".
    return has_listed(text.low, "style-word", "picture", "tag")


def may_be_alone(text: Text, first: int, stop: int) -> bool:
    """Return whether a name may name somebody without a noun, unlike "a gardner with roses".

    A single word in lower case is a name only if it is a given name or known.

    Args:
        text: The text.
        first, stop: The positions of the words of the name.
    """
    word = text.bare[first]
    is_capital = text.words[first][0].isupper()
    return stop > first + 1 or is_capital or listed(word, "famous") or "f" in kinds(word)


def is_named(text: Text, names: list[tuple[int, int]], opening: int, i: int) -> bool:
    """Return whether a text names a person.

    Args:
        text: The text.
        names: The (first, stop) positions of the names.
        opening: The position of the first word of the person's noun phrase.
        i: The position of the person's noun.
    """
    # "Portrait of Doctor Baker", in which all words are capitalized
    is_surname = text.words[i].istitle() and "l" in kinds(text.bare[i])
    if is_surname and listed(text.before(i), "title"):
        return True
    if _begins_with_name(text, i) or _is_called_first(text, opening):
        return True
    return any(
        first <= i < stop or _is_same_person(text, first, stop, opening, i) for first, stop in names
    )


def _is_unknown_name(text: Text, j: int) -> bool:
    """Return whether word j is capitalized and no known word apart from a name."""
    classes = kinds(text.bare[j])
    is_word = classes.strip("fli") if classes else is_known(text.bare[j])
    return text.words[j].istitle() and not is_word


def _begins_with_name(text: Text, i: int) -> bool:
    """Return whether an unknown word in a row of capitals precedes noun i: "Tavrix Head Guard"."""
    start = i
    while text.words[start].istitle() and not text.opens[start]:
        start -= 1
    start += not text.words[start].istitle()
    is_bare = not listed(text.before(start), "determiner")
    return is_bare and any(_is_unknown_name(text, j) for j in range(start, i))


def _is_called_first(text: Text, opening: int) -> bool:
    """Return whether a name precedes an article: "Finn the baker"."""
    name = opening - 1
    is_next = listed(text.low[opening], "article") and not text.opens[opening]
    before = text.before(name)
    is_place = listed(before, "preposition") and before != "of"  # "in Lagos a nurse"
    return is_next and not is_place and _is_unknown_name(text, name)


def _is_same_person(text: Text, first: int, stop: int, opening: int, i: int) -> bool:
    """Return whether a name belongs to a given person, not to a place, an artist or someone else.

    Examples are "Ella Fitzgerald, a singer", "a singer called Ella", but not "a nurse with Obama".
    """
    if text.credited[first]:
        return False
    if first > i:
        return _names_person_before(text, first, i)
    if not has_listed(text.low[stop:i], *STOPS):
        # It is the person's name unless it modifies the noun, as in "a Ford driver".
        return not text.after(stop - 1) or not listed(text.before(first), "determiner")
    link = text.before(opening)
    return "the" in (link, text.low[opening]) or link in ("", "world's", "as")


def _names_person_before(text: Text, first: int, i: int) -> bool:
    """Return whether a name that follows word i is the name of the person at word i."""
    before = text.before(first)
    if text.clause_start(first) == i + 1 and (not before or person(before)):
        return True  # A name in apposition belongs to the person: "a soldier, Sergeant Anna Smith".
    # So does a name after "like" or "as": "looks like a young Audrey Hepburn".
    is_also = before == "as" or "like" in text.low[i + 1 : first] or listed(before, "is-also")
    return is_also and True not in text.opens[i + 1 : first + 1]


def names_of_people(text: Text) -> list[tuple[int, int]]:
    """Return the (first, stop) positions of names, except styles such as "Edward Hopper style"."""
    return [
        (first, stop)
        for first, stop in find_names(text)
        if not has_listed(text.low[stop - 1 : stop + 1], "style-word")
    ]


# ---- who is stated


def find_stated(prompt: str, persons: Persons, attribute: Attribute) -> list[bool]:
    """Return, for each person in a prompt, whether the prompt states a value of an attribute.

    Args:
        prompt: The prompt.
        persons: The noun phrases for each person.
        attribute: The attribute.
    """
    text = read_text(prompt)
    left_out = [i for i in range(len(text.low)) if text.silent[i] or names_thing(text, i)]
    unquoted = _without(prompt, text, left_out)
    may_state = states(unquoted, attribute)
    owners = _owners_of_pronouns(text, persons) if may_state and attribute.gender else {}
    is_stated: list[bool] = []
    for number, (first, *_) in enumerate(persons):
        # The owner of a body part is the person: "a child's face".
        owner = first.words[-1][1].removesuffix("'s")
        if attribute.kind and (_states_in_phrase(first, attribute) or states(owner, attribute)):
            is_stated.append(True)
        elif not may_state or number >= _MOST_READ:
            is_stated.append(may_state)
        else:
            pronouns = [i for i, numbers in owners.items() if number not in numbers]
            rest = _without_others(unquoted, text, persons, number, pronouns)
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
        return has_gendered(read_text(text).low)
    if attribute.kind in ("origin", "skin"):
        return _SKIN.search(text) is not None
    return attribute.kind == "age" and _WRINKLES.search(text) is not None


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
        for subject in mentions if place != number else ():
            # Keep the pronoun in "her assistant", which does not refer to the assistant.
            phrase = range(subject.opening, subject.head + 1)
            if "other" in text.low[subject.opening : subject.head]:
                continue  # "a pilot and two other men": the pilot is a man, too.
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

    A pronoun may refer to anyone before it. If nobody precedes it, it may refer to anyone.
    """
    owners: dict[int, set[int]] = {}
    for i, word in enumerate(text.low):
        if word not in _PRONOUNS:
            continue
        before = {number for number, mentions in enumerate(persons) if mentions[0].head < i}
        owners[i] = before or set(range(len(persons)))
        # In "Ada with a drummer behind her", "her" does not refer to the drummer.
        is_object = listed(text.low[i - 1], "preposition") and not text.after(i)
        if before and is_object and persons[max(before)][0].head == i - 2:
            owners[i] = before - {max(before)}
    return owners


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


def _states_in_phrase(subject: PersonPhrase, attribute: Attribute) -> bool:
    """Return whether an adjective in the subject's phrase states a value."""
    # "a senior engineer" has any age.
    adjectives = [word for _, word in subject.words[:-1] if word != "senior"]
    return any(rank_of(word) == attribute.rank for word in adjectives)
