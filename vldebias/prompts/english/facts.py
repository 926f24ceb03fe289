"""Find facts in a prompt: words and phrases of the lists in `facts/`.

A list is a line "name: words", continued on indented lines; "_" stands for a space, "prostat*" is
every word that begins so and "*ologist" every word that ends so. Plurals are found as well.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vldebias.prompts.english.text import Text
from vldebias.prompts.english.words import read_lists, singular

_FOLDER = Path(__file__).parent / "facts"
_SHORTEST_STEM = 4
_OF_PEOPLE = ("-speaking", "-born", "-descended")  # "a Quechua-speaking farmer"


class Fact(NamedTuple):
    """Hold a match of a list: words first to stop - 1 of a text are an entry of the list `name`."""

    name: str
    first: int
    stop: int


class _Index(NamedTuple):
    """Hold the lists that have a phrase, a stem or an ending."""

    lists_of_phrase: dict[str, list[str]]
    lists_of_stem: dict[str, list[str]]
    lists_of_ending: dict[str, list[str]]
    openings: set[str]  # the beginnings of phrases of several words


@cache
def _index() -> _Index:
    index = _Index(defaultdict(list), defaultdict(list), defaultdict(list), set())
    for path in sorted(_FOLDER.glob("*.txt")):
        for name, phrases in read_lists(path).items():
            for phrase in phrases:
                _add(index, name, phrase)
    return index


@cache
def plain(word: str) -> str:
    """Return a word without accents: "burkinabe" for "burkinabé"."""
    if word.isascii():
        return word
    letters = ""
    for character in unicodedata.normalize("NFD", word):
        if not unicodedata.combining(character):
            letters += character
    return letters


def _add(index: _Index, name: str, phrase: str) -> None:
    # A text drops the ending of "Scott's", so the entries do as well.
    phrase = " ".join(re.sub(r"'s?$", "", plain(word)) for word in phrase.split())
    if phrase.endswith("*"):
        index.lists_of_stem[phrase[:-1]].append(name)
    elif phrase.startswith("*"):
        index.lists_of_ending[phrase[1:]].append(name)
    else:
        index.lists_of_phrase[phrase].append(name)
        words = phrase.split()
        # With them a search stops early: most words open no phrase.
        for n in range(1, len(words)):
            index.openings.add(" ".join(words[:n]))


@cache
def lists_of_word(word: str) -> frozenset[str]:
    """Return the names of the lists that have a word in lower case, in the singular or plural."""
    index = _index()
    word = plain(word)
    for ending in _OF_PEOPLE:
        word = word.removesuffix(ending)
    names = {*index.lists_of_phrase.get(word, ()), *index.lists_of_phrase.get(singular(word), ())}
    names.update(index.lists_of_phrase.get(word.removesuffix("s"), ()))
    names.update(index.lists_of_phrase.get(word.replace("-", " "), ()))  # "sixth-form"
    for n in range(_SHORTEST_STEM, len(word) + 1):
        names.update(index.lists_of_stem.get(word[:n], ()))
        names.update(index.lists_of_ending.get(singular(word)[-n:], ()))
    return frozenset(names)


def find_facts(text: Text) -> list[Fact]:
    """Return the facts of a text in their order; a phrase does not cross the end of a clause."""
    facts = []
    for first, word in enumerate(text.bare):
        facts += [Fact(name, first, first + 1) for name in sorted(lists_of_word(word))]
        facts += _find_phrases(text, first)
    return facts


def _find_phrases(text: Text, first: int) -> list[Fact]:
    """The entries of several words that begin at a word."""
    index = _index()
    facts = []
    phrase = plain(text.bare[first])
    stop = first + 1
    # The end of a text opens a clause as well, so that stop is never behind it.
    while phrase in index.openings and not text.opens[stop]:
        last = plain(text.bare[stop])
        # "boy scouts" as well as "boy scout".
        names = index.lists_of_phrase.get(f"{phrase} {last}", [])
        if not names:
            names = index.lists_of_phrase.get(f"{phrase} {singular(last)}", [])
        stop += 1
        facts += [Fact(name, first, stop) for name in names]
        phrase = f"{phrase} {last}"
    return facts
