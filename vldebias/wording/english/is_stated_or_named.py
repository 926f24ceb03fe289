"""Who is stated or named? Find names in an English prompt, and people whose value it states.

A word that states a value ("a male patient") applies to everybody in the text, except for words in
someone else's noun phrase and pronouns that cannot refer to the person.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain

from vldebias.prompts.attribute import Attribute
from vldebias.prompts.english.adjectives import rank_of
from vldebias.prompts.english.words import (
    REMEMBERED_WORDS,
    STOPS,
    adjective,
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
from vldebias.wording.english.is_person import is_animal
from vldebias.wording.english.phrases import PersonPhrase, Persons, is_gendered_noun
from vldebias.wording.english.scene import read_scene
from vldebias.wording.english.text import Text, read_text
from vldebias.wording.language import Value

# Tags that name a character: "kaine (nier)", "fate/zero".
_SERIES = re.compile(
    r"(?:^|[,\n])[^\S\n]*([\w' .-]{2,40}\\?\([\w' !.\\-]{2,40}\)|\w+/\w+)[^\S\n]*(?=[,\n]|$)"
)
# One or two words between commas or in brackets, and a trigger of a fine-tuned model: "m3lkador".
_TAG = re.compile(r"(?:^|[,\n(]|\bof)[ ]?\(?([\w']{3,30}(?: \w{3,30})?)[ ]*(?=[,\n):]|$)")
_TRIGGER = re.compile(r"[a-z]+\d[a-z]{3,}\w*")
_FEMALE = frozenset({"she", "her", "hers", "herself"})
_MALE = frozenset({"he", "him", "his", "himself"})
_PRONOUNS = _FEMALE | _MALE
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
    return runs + tokens + find_figures(text) + _find_character_tags(text)


def _find_character_tags(text: Text) -> list[tuple[int, int]]:
    """Return tags that name a character or are triggers of fine-tuned models: "kaine (nier)"."""
    runs = []
    for tag in chain(_SERIES.finditer(text.prompt), _TAG.finditer(text.prompt)):
        first = bisect_left(text.start, tag.start(1))
        stop = bisect_left(text.start, tag.end(1))
        if first == stop or text.credited[first]:
            continue
        is_series = tag.re is _SERIES and not any(map(person, text.low[first:stop]))
        if is_series or (tag.re is _TAG and _is_unknown_tag(text, first, stop)):
            runs.append((first, stop))
    return runs


def _is_unknown_tag(text: Text, first: int, stop: int) -> bool:
    """Return whether a tag consists of unknown words that name a character: "xeryla, 1girl"."""
    words = text.words[first:stop]
    is_prompt = len(words) == len(text.words)
    if is_prompt or all(map(str.isupper, words)) or any(map(is_known, text.low[first:stop])):
        return False
    is_trigger = _TRIGGER.fullmatch(words[0]) is not None
    return is_trigger or not any(map(person, text.low[:first]))


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
    is_slug = text.words[i].isupper() and "n" in kinds(word) and not text.prompt.isupper()
    if is_slug or listed(word, *STOPS, "tag", "draw", "picture"):
        return False
    if word in names_of_history() and not inside:
        return False  # Words of history are capitalized, but name nobody: "a Tudor king".
    is_next_capital = text.capital[i + 1 : i + 2] == [True]
    is_link = inside and listed(word, "name-link") and is_next_capital  # "Tariq bin Ziyad"
    if is_link or _is_in_full_name(text, i) or listed(word, "famous"):
        return True
    word_classes = kinds(word)
    is_only_name = not word_classes.strip("fliu")
    is_inflected = not text.capital[i] and base(word) != word
    if is_only_name and not is_inflected:
        return True  # but not "parks" in "a driver parks the bus"
    if text.capital[i]:
        return _is_name_in_capitals(text, i, inside)
    # "mark jones" in lower case, where a given name that is a rare word precedes a family name.
    is_given_name = "f" in word_classes and "u" in word_classes
    return is_given_name and bool(set(kinds(text.after(i))) & set("li"))


def _is_name_in_capitals(text: Text, i: int, inside: bool) -> bool:
    """Return whether a capitalized word can be part of a name."""
    word = text.bare[i]
    word_classes = kinds(word)
    is_person = person(word)
    is_surname = "l" in word_classes or not is_person
    if inside and is_surname:
        return True  # "Baker" in "Tom Baker"
    if "f" in word_classes and text.after(i) in ("", "the"):
        return True  # A given name may stand alone or before "the": "Frank the waiter".
    return not text.sentence[i] and not is_person


def _is_in_full_name(text: Text, i: int) -> bool:
    """Return whether word i belongs to a full name, even in lower case, as in "john smith"."""
    first = i if listed(text.low[i], "given-name") else i - 1
    last = first + 1
    if first < 0 or text.opens[last]:
        return False
    if not listed(text.low[first], "given-name"):
        return False
    classes_of_last = kinds(text.bare[last])
    return "l" in classes_of_last or not classes_of_last


def _is_name_of_person(text: Text, first: int, stop: int) -> bool:
    """Return whether a run of words names a person rather than a place, brand or thing."""
    words = text.bare[first:stop]
    if any(_is_in_full_name(text, i) for i in range(first, stop)):
        return True
    if _is_other_name(words):
        return False
    if any(listed(word, "famous") or "i" in kinds(word) for word in words):
        return True
    has_given_name = "f" in kinds(words[0])
    has_family_name = len(words) > 1
    needed = any if text.capital[first] else all
    return needed((has_given_name, has_family_name))


def _is_other_name(words: Sequence[str]) -> bool:
    """Return whether capitalized words are not a person's name, as in "the Supreme Court"."""
    if " ".join(words) in names_of_history() or has_listed(words, "no-name"):
        return True  # Known institutions are not people: "La Liga".
    if len(words) > 1:
        # Several words are a place if they begin like one: "New York".
        return listed(words[0], "place-adjective")
    # A single word may be an origin: "a Black nurse".
    return words[0] in origins() or listed(words[0], "origin")


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
    if text.words[i].istitle() and (_is_name_with_title(text, i) or _begins_with_name(text, i)):
        return True
    if _is_called_first(text, opening):
        return True
    if text.low[i][0].isdigit() and names:
        return True  # A name among tags is that of the girl: "1girl, kaine (nier)".
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
    while not text.opens[start] and text.words[start - 1].istitle():
        start -= 1
    is_bare = not listed(text.before(start), "determiner")
    return is_bare and any(_is_unknown_name(text, j) for j in range(start, i))


def _is_called_first(text: Text, opening: int) -> bool:
    """Return whether a name precedes an article: "Finn the baker", "portrait of Noor, a baker"."""
    name = opening - 1
    if name < 0 or not listed(text.low[opening], "article") or text.credited[name]:
        return False
    before = text.before(name)
    is_place = listed(before, "preposition") and before != "of"  # "in Lagos a nurse"
    # A tag that is not behind "of" may be about the style.
    gap = text.prompt[text.start[name] + len(text.words[name]) : text.start[opening]]
    is_next = not text.opens[opening] or (before == "of" and gap == ", ")
    return is_next and not is_place and _is_unknown_name(text, name)


def _is_name_with_title(text: Text, i: int) -> bool:
    """Return whether a capitalized noun is a name or precedes one, as in "Agent 47"."""
    title = text.before(i)
    is_title = listed(title, "title") and not adjective(title)  # not "General Nurse On Duty"
    is_numbered = text.after(i).isdigit() and listed(text.low[i], "title")
    # "the Joker", or "Portrait of Doctor Baker", in which all words are capitalized
    is_name = text.capital[i] or (is_title and "l" in kinds(text.bare[i]))
    return is_numbered or (is_name and (is_title or title == "the"))


def _is_same_person(text: Text, first: int, stop: int, opening: int, i: int) -> bool:
    """Return whether a name belongs to a given person, not to a place, an artist or someone else.

    Examples are "Ella Fitzgerald, a singer", "a singer called Ella", but not "a nurse with Obama".
    """
    before = text.before(first)
    if text.credited[first] or listed(before, "elsewhere"):
        return False
    if first > i:
        return _names_person_before(text, first, stop, i)
    if not has_listed(text.low[stop:i], *STOPS):
        # It is the person's name unless it modifies the noun, as in "a Ford driver".
        return not text.after(stop - 1) or not listed(text.before(first), "determiner")
    link = text.before(opening)
    is_definite = "the" in (link, text.low[opening])
    return is_definite or link in ("", "world's", "as") or listed(link, "is-also")


def _names_person_before(text: Text, first: int, stop: int, i: int) -> bool:
    """Return whether a name that follows word i is the name of the person at word i."""
    before = text.before(first)
    after = text.after(stop - 1)
    if listed(before, "resembles"):
        return True  # A comparison names the person, too: "resembles Lara Croft".
    is_next = text.clause_start(first) == i + 1 or (
        text.after(i) == "of" and True not in text.opens[i + 1 : first]
    )
    if is_next and not before and after in ("", "mixed"):
        return True  # A name in apposition belongs to the person: "a soldier, Sergeant Anna Smith".
    if first == i + 1 and not text.opens[first]:
        return listed(after, *STOPS) or not after or "n" not in kinds(after)
    # So does a name after "like" or "as": "looks like a young Audrey Hepburn".
    is_also = before == "as" or "like" in text.low[i + 1 : first] or listed(before, "is-also")
    return is_also and True not in text.opens[i + 1 : first + 1]


def names_of_people(text: Text) -> list[tuple[int, int]]:
    """Return the (first, stop) positions of names, except those of styles and animals."""
    names: list[tuple[int, int]] = []
    for first, stop in find_names(text):
        behind = text.low[stop : stop + 2]
        # "Edward Hopper style" is a style, but "Ada styled by" is a person.
        is_style = has_listed(text.low[stop - 1 : stop + 1], "style-word")
        # "Garfield the cat" and "a dog named Tom" are animals.
        is_of_animal = behind[:1] == ["the"] and is_animal(text.after(stop))
        is_called = text.before(first) in ("called", "named")
        is_of_animal = is_of_animal or (is_called and is_animal(text.before(first - 1)))
        if not is_of_animal and (not is_style or behind == ["styled", "by"]):
            names.append((first, stop))
    return names


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
        has_adjectives = len(first.words) > 1
        is_in_phrase = has_adjectives and _states_in_phrase(prompt, first, attribute)
        if attribute.kind and (is_in_phrase or states(owner, attribute)):
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
