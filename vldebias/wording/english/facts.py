"""Find facts in a prompt, using the word lists in `facts/` and the lists of peoples.

A list is a line "name: words", which may continue on indented lines. "_" stands for a space,
"prostat*" matches words that begin with "prostat", and "*ologist" matches words that end in
"ologist". Plural forms match as well.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from vldebias.prompts.english.words import (
    PEOPLES,
    REMEMBERED_WORDS,
    entries_of_lists,
    read_lists,
    singular,
)
from vldebias.wording.english.text import Text

_FOLDERS = (Path(__file__).parent / "facts", PEOPLES)
_SHORTEST_STEM = 4
_OF_PEOPLE = ("-speaking", "-born", "-descended")  # as in "a Quechua-speaking farmer"


class Fact(NamedTuple):
    """A match of the list `name`, consisting of words first to stop - 1 in a text."""

    name: str
    first: int
    stop: int


class _Index:
    """An index from words and phrases to the lists that contain them.

    A possessive "'s" is removed from the entries.

    Attributes:
        lists_of_phrase, lists_of_stem, lists_of_ending: Mappings from a phrase, a stem or an ending
            to the names of its lists.
        openings: The initial parts of phrases with several words. They make it possible to end a
            search early, since most words do not start a phrase.
        words_of_figures: The longest words of well-known figures, such as "hatter".
        longest: The length of the longest stem or ending.
    """

    def __init__(self) -> None:
        self.lists_of_phrase = defaultdict[str, list[str]](list)
        self.lists_of_stem = defaultdict[str, list[str]](list)
        self.lists_of_ending = defaultdict[str, list[str]](list)
        self.openings: set[str] = set()
        self.words_of_figures: set[str] = set()
        self.longest = 0

    def add(self, phrases: Iterable[str], name: str) -> None:
        """Add the entries of a list."""
        for phrase in phrases:
            if "'" in phrase or not phrase.isascii():
                phrase = re.sub(r"'s?(?= |$)", "", plain(phrase))
            if "*" in phrase:
                self.longest = max(self.longest, len(phrase) - 1)
                if phrase.endswith("*"):
                    self.lists_of_stem[phrase[:-1]].append(name)
                else:
                    self.lists_of_ending[phrase[1:]].append(name)
                continue
            self.lists_of_phrase[phrase].append(name)
            if name == "unique":
                self.words_of_figures.add(max(phrase.split(), key=len))
            if " " in phrase:
                words = phrase.split()
                for n in range(1, len(words)):
                    self.openings.add(" ".join(words[:n]))


@cache
def _index() -> _Index:
    index = _Index()
    paths = chain.from_iterable(folder.glob("*.txt") for folder in _FOLDERS)
    for path in sorted(paths, key=lambda path: path.name):
        for name, phrases in read_lists(path).items():
            index.add(phrases, name)
    return index


@cache
def names_of_history() -> frozenset[str]:
    """Return lower-case words for peoples, troops, churches and periods, not for individuals."""
    history = ("troops", "one-origin", "period", "church", "expedition", "war", "war-site")
    lists_of_peoples = ("people", "open-nation", "league", "closed-school")
    return entries_of_lists(_FOLDERS, *lists_of_peoples, *history)


@lru_cache(REMEMBERED_WORDS)
def lists_of_word(word: str) -> frozenset[str]:
    """Return the names of the lists that contain a lower-case word in the singular or plural."""
    word = plain(word)
    for ending in _OF_PEOPLE:
        word = word.removesuffix(ending)
    noun = singular(word)
    index = _index()
    names: set[str] = set()
    # Some compounds, such as "sixth-form", are listed as two words.
    for form in (word, noun, word.removesuffix("s"), word.replace("-", " ")):
        names.update(index.lists_of_phrase.get(form, ()))
    for n in range(_SHORTEST_STEM, min(len(word), index.longest) + 1):
        names.update(index.lists_of_stem.get(word[:n], ()))
        names.update(index.lists_of_ending.get(noun[-n:], ()))
    return frozenset(names)


@lru_cache(REMEMBERED_WORDS)
def plain(word: str) -> str:
    """Remove accents from a word, as in "burkinabe" for "burkinabé"."""
    if word.isascii():
        return word
    letters = unicodedata.normalize("NFD", word)
    return "".join([letter for letter in letters if not unicodedata.combining(letter)])


@lru_cache(maxsize=1000)
def find_facts(text: Text) -> tuple[Fact, ...]:
    """Return the facts in a text in order. Phrases do not cross clause boundaries."""
    index = _index()
    facts = []
    for first, word in enumerate(text.bare):
        facts += [Fact(name, first, first + 1) for name in sorted(lists_of_word(word))]
        # Find entries with several words that begin here. `opens` is also True for the end of the
        # text, so that `stop` never exceeds it.
        phrase = plain(word)
        stop = first + 1
        while phrase in index.openings and not text.opens[stop]:
            last = plain(text.bare[stop])
            # Match both "boy scout" and "boy scouts".
            names = index.lists_of_phrase.get(f"{phrase} {last}", [])
            if not names:
                names = index.lists_of_phrase.get(f"{phrase} {singular(last)}", [])
            stop += 1
            facts += [Fact(name, first, stop) for name in names]
            phrase = f"{phrase} {last}"
    return tuple(facts)


def find_figures(text: Text) -> list[tuple[int, int]]:
    """Return the (first, stop) positions of well-known figures, as in "the mad hatter"."""
    # Hardly any prompt needs the search, so that it must not slow down the others.
    if _index().words_of_figures.isdisjoint(text.bare):
        return []
    figures = [(first, stop) for name, first, stop in find_facts(text) if name == "unique"]
    # "a doctor who smiles" is not Doctor Who.
    return [(first, stop) for first, stop in figures if text.words[stop - 1] != "who"]
