"""Look up English words: their classes, lists, and singular and base forms.

`eval/lexicon.py` creates `wordnet.txt.gz` from WordNet 3.1 (licence: `wordnet.LICENSE`) and the
name lists of the 1990 US census (public domain), and explains the word classes. `words.txt` was
compiled by hand.
"""

from __future__ import annotations

import gzip
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

_HERE = Path(__file__).parent
PEOPLES = _HERE / "peoples"
# Endings and what replaces them in the base form: "cherries" -> "cherry", "tried" -> "try".
_PLURALS = {"ies": "y", "sses": "ss", "ches": "ch", "shes": "sh", "xes": "x", "oes": "o", "s": ""}
_VERBS = {**_PLURALS, "ied": "y", "ed": "", "ing": ""}
# Words such as "policewoman" and "cowboys" are gendered even if no dictionary contains them.
_GENDERED_ENDING = re.compile(r"[a-z]{2}(?:men|man|women|woman|boys?|girls?)$")
# Dictionary nouns for people with these endings are gendered: "prioress", "housemaid".
_GENDERED_PERSON = re.compile(r"(?:ess|trix|euse|maid|lady|mother|father|nephew|niece|aunt|uncle)$")
# Size limit of the word-property caches, needed because a server may run for months.
REMEMBERED_WORDS = 20_000
# Lists of words that end a noun phrase.
STOPS = ("determiner", "preposition", "function")


@cache
def _lines() -> list[str]:
    """Return the sorted lines of the dictionary, each with a word, a tab and its classes."""
    content = gzip.decompress((_HERE / "wordnet.txt.gz").read_bytes())
    return content.decode("utf-8").rstrip("\n").split("\n")


def classes(word: str) -> str:
    """Return the classes of a word or phrase, most frequent first, or "" if unknown."""
    # Searching the lines avoids building a dict of 100,000 words for the first prompt.
    lines = _lines()
    start = f"{word}\t"
    place = bisect_left(lines, start)
    if place < len(lines) and lines[place].startswith(start):
        return lines[place].removeprefix(start)
    return ""


@cache
def lists() -> dict[str, dict[str, None]]:
    """Return the lists in `words.txt` by name, with the words as ordered keys."""
    return read_lists(_HERE / "words.txt")


@cache
def read_lists(path: Path) -> dict[str, dict[str, None]]:
    """Parse a word list file, which consists of "name: words" entries.

    Entries are continued on indented lines, and "_" represents a space. Do not change the result,
    which is shared by all callers.
    """
    text = re.sub(r"(?m)^#.*\n", "", path.read_text(encoding="utf-8")).replace("\n ", " ")
    words_of_name: dict[str, dict[str, None]] = {}
    for line in filter(None, text.splitlines()):
        name, _, words = line.partition(":")
        entries = words_of_name.setdefault(name, {})
        # One replacement for all words is several times faster than one for each.
        entries.update(dict.fromkeys("\n".join(words.split()).replace("_", " ").splitlines()))
    return words_of_name


@cache
def origins() -> frozenset[str]:
    """Return the lowercase adjectives for peoples and nations."""
    return entries_of_lists([PEOPLES], "people", "open-nation")


@cache
def countries() -> frozenset[str]:
    """Return the lowercase names of countries."""
    return entries_of_lists([PEOPLES], "country", "open-country")


def is_proper(word: str) -> bool:
    """Return whether a lower-case word is always capitalized."""
    # Origins, religions, and nations without an adjective: "Tibetan", "Catholic", "US".
    return word in origins() or word in religions() or word in lists()["nation"]


@cache
def religions() -> frozenset[str]:
    """Return the lowercase words for religions."""
    return frozenset(word.lower() for word in lists()["religion"])


def entries_of_lists(folders: Iterable[Path], *names: str) -> frozenset[str]:
    """Return the entries of the named lists in all files in some folders.

    Args:
        folders: the folders that contain word list files.
        names: the names of the lists.
    """
    entries: set[str] = set()
    for folder in folders:
        for path in folder.glob("*.txt"):
            lists_of_file = read_lists(path)
            for name in names:
                entries.update(lists_of_file.get(name, ()))
    return frozenset(entries)


def listed(word: str, *names: str) -> bool:
    """Return whether one of the named lists contains a word.

    Digits count as determiners.

    Args:
        word: a word in lower case.
        names: the names of the lists.
    """
    if word.isdigit() and "determiner" in names:
        return True
    words_of_list = lists()
    for name in names:  # faster than any(), which matters because this runs for every word
        if word in words_of_list[name]:
            return True
    return False


def has_listed(words: Iterable[str], *names: str) -> bool:
    """Return whether one of the named lists contains one of the words.

    Args:
        words: words in lower case.
        names: the names of the lists.
    """
    return any(listed(word, *names) for word in words)


def _without(word: str, endings: Mapping[str, str], accepted_classes: str) -> str:
    """Strip an inflectional ending if a base form of an accepted class remains."""
    for ending, replacement in endings.items():
        stem = word.removesuffix(ending)
        if stem == word:
            continue
        candidates = [stem + replacement]
        if ending in ("ed", "ing"):
            candidates.append(f"{stem}e")  # "bake", from "baking"
            if stem[-1:] == stem[-2:-1]:
                candidates.append(stem[:-1])  # "sit", from "sitting"
        for candidate in candidates:
            if set(classes(candidate)) & set(accepted_classes):
                return candidate
    return word


@lru_cache(REMEMBERED_WORDS)
def singular(word: str) -> str:
    """Return the singular of a plural noun, or any other word unchanged."""
    # Irregular plurals such as "people" and "thieves" are listed. Others are recognised by ending.
    if word.endswith("men") and not listed(word, "not-gendered"):
        man = f"{word[:-2]}an"
        if "p" in classes(man) or not classes(word):
            return man  # "firemen" becomes "fireman"
    return _singular_of_plural().get(word) or _without(word, _PLURALS, "pnx")


@cache
def _singular_of_plural() -> dict[str, str]:
    return dict(pair.split("/") for pair in lists()["plural/singular"])


@lru_cache(REMEMBERED_WORDS)
def base(word: str) -> str:
    """Return the base form of an inflected verb, or any other word unchanged."""
    return _without(word, _VERBS, "v")


def is_plural(word: str) -> bool:
    """Return whether a lower-case word is a noun in the plural."""
    return singular(word) != word


def is_inflected(word: str, *endings: str) -> bool:
    """Return whether a lower-case word is a verb form with one of the endings, as in "runs"."""
    return word.endswith(endings) and base(word) != word


@lru_cache(REMEMBERED_WORDS)
def kinds(word: str) -> str:
    """Return the classes of a lower-case word, which may be inflected."""
    return classes(word) or classes(singular(word)) or classes(base(word))


@lru_cache(REMEMBERED_WORDS)
def person(word: str) -> bool:
    """Return whether a lower-case noun refers to a person without stating a gender."""
    noun = singular(word)
    if listed(noun, "also-person") or noun.endswith(tuple(lists()["person-ending"])):
        return True
    if "p" in classes(noun):
        return True
    # An unknown word may end like an occupation: "codebreaker".
    is_unknown = not classes(noun) and not gendered(noun)
    if is_unknown and noun.endswith(tuple(lists()["agent-ending"])):
        return True
    last_part = noun.rsplit("-", 1)[-1]  # "sculptor" in "painter-sculptor"
    return "p" in classes(last_part) and not listed(noun, "gendered")


@lru_cache(REMEMBERED_WORDS)
def gendered(word: str) -> bool:
    """Return whether a lower-case word states a gender."""
    word = re.sub(r"['\u2019]s?$", "", word)
    parts = word.split("-")  # A part may state the gender: "she-wolf", "great-grandmother".
    return has_listed((word, *parts), "gendered") or any(map(has_gendered_ending, parts))


def begins_with_person(words: Sequence[str]) -> bool:
    """Return whether lower-case words begin with a noun for people, such as "police officer"."""
    if any(person(word) or gendered(word) or listed(word, "people") for word in words[:1]):
        return True
    phrases = [" ".join(words[:length]) for length in (2, 3)]
    return has_listed(phrases, "person-phrase") or any("p" in classes(text) for text in phrases)


def has_gendered_ending(word: str) -> bool:
    """Return whether the ending of a lower-case noun for people states a gender: "prioress"."""
    if listed(word, "not-gendered", "famous"):
        return False
    noun = singular(word)
    is_person = "p" in classes(noun)
    if _GENDERED_ENDING.search(word):
        return is_person or not classes(word)  # not "Eastman", which is a name
    return is_person and _GENDERED_PERSON.search(noun) is not None


def has_gendered(words: Iterable[str]) -> bool:
    """Return whether one of the words states a gender."""
    return any(map(gendered, words))


@lru_cache(REMEMBERED_WORDS)
def adjective(word: str) -> bool:
    """Return whether a word before a noun is an adjective rather than a noun."""
    if word in origins():
        return True
    word_classes = classes(word)
    if "a" in word_classes:
        is_noun_too = bool(set(word_classes) & set("npx"))
        if word_classes[0] == "a" or word.endswith("less") or not is_noun_too:
            return True
    # A compound's last part determines its class: "battle-weary".
    if "-" in word:
        return adjective(word.rsplit("-", 1)[1])
    return is_inflected(word, "ed", "ing") and "n" not in word_classes
