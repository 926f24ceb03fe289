"""Find names of people in an English text."""

from __future__ import annotations

from vldebias.prompts.english.words import STOPS, base, has_listed, kinds, listed, person
from vldebias.wording.english.facts import find_figures, names_of_history
from vldebias.wording.english.text import Text


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
