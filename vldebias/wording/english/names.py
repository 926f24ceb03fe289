"""Find names of people in a prompt, and determine whether a person is named."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

from vldebias.prompts.english.words import (
    REMEMBERED_WORDS,
    STOPS,
    adjective,
    base,
    gendered,
    has_listed,
    kinds,
    listed,
    lists,
    origins,
    person,
)
from vldebias.wording.english.facts import find_figures, names_of_history
from vldebias.wording.english.text import Text

# Tags that name a character: "kaine (nier)", "fate/zero".
_SERIES = re.compile(
    r"(?:^|[,\n])\s*([\w' .-]{2,40}\\?\([\w' !.\\-]{2,40}\)|\w+/\w+)\s*(?=[,\n]|$)"
)
# One or two words between commas or in brackets, and a trigger of a fine-tuned model: "m3lkador".
_TAG = re.compile(r"(?:^|[,\n(]|\bof)[ ]?\(?([\w']{3,30}(?: \w{3,30})?)[ ]*(?=[,\n):]|$)")
_TRIGGER = re.compile(r"[a-z]+\d[a-z]{3,}\w*")


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
    return bool(kinds(word)) or is_listed or gendered(word) or person(word)


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


def is_named(text: Text, names: list[tuple[int, int]], opening: int, i: int) -> bool:
    """Return whether a text names a person.

    Args:
        text: The text.
        names: The (first, stop) positions of the names.
        opening: The position of the first word of the person's noun phrase.
        i: The position of the person's noun.
    """
    if text.words[i].istitle() and _is_name_with_title(text, i):
        return True
    if text.low[i][0].isdigit() and names:
        return True  # A name among tags is that of the girl: "1girl, kaine (nier)".
    return any(
        first <= i < stop or _is_same_person(text, first, stop, opening, i) for first, stop in names
    )


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
    return (
        link in ("", "the", "world's", "as")
        or text.low[opening] == "the"
        or listed(link, "is-also")
    )


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
