"""Read what a prompt says about its subject and the time of its scene.

Words about the picture ("shot on 35mm film", "in the style of a Victorian engraving") are passed
over, and so is a fact that names a thing ("a Viking museum", "Spanish guitar").
"""

from __future__ import annotations

import re
from collections import defaultdict

from vldebias.prompts.english import STOPS, Text, gendered, listed, person, read_text
from vldebias.prompts.facts import Fact, find_facts, lists_of_word

_NEAR = 8  # words behind a noun that may still describe it: "a member of the Ku Klux Klan"
_LINKS = ("of", "in", "from", "for", "with", "on")
_PLACES = ("in", "at", "on", "inside", "for", "from")
_YEAR = re.compile(r"(1\d{3})(['\u2019]?s)?(?:-\d+)?|\d{1,4}(bce?|ad|ce)")
_TENS = "twenties|thirties|forties|fifties|sixties|seventies|eighties|nineties"
_AGE = re.compile(
    r"\b\d{1,3}\s?(?:yo|y/o|yrs?(?: old)?)\b|\b[\w-]+[-\s]years?[-\s](?:olds?|of[-\s]age)\b"
    r"|\b(?:aged?|turning) (?:\d+|(?:twen|thir|for|fif|six|seven|eigh|nine)\w*)\b"
    r"|\b\w+-something\b|\bin (?:her|his|their|its|the)? ?(?:early|mid|late)?[ -]?"
    rf"(?:{_TENS}|\d0s|teens)\b",
    re.IGNORECASE,
)
_MODERN_YEAR = re.compile(r"20[0-4]\ds?")
_CENTURY = re.compile(r"(\d{1,2})(?:st|nd|rd|th)(?:-century)?")
_CENTURY_NAMES = (
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"),
    *("tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth"),
    *("seventeenth", "eighteenth", "nineteenth"),
)
_UNITS = frozenset(
    {"x", "px", "mm", "words", "dpi", "k", "iso", "m", "km", "steps", "pieces", "fps", "by", "lbs"}
)
_ERAS = frozenset({"bc", "bce", "ad", "ce"})
_STYLE_OPENERS = ("style", "styled", "manner", "aesthetic", "vein")
_SHOTS = ("shot", "photographed", "captured", "taken", "painted", "rendered", "filmed", "drawn")
_SHOT_LINKS = ("on", "with", "in", "using", "as", "like", "by")
MODERN = 2000
_ANCIENT = 0
_LAST_YEAR_OF_PERIODS = 1899


class Scene:
    """Hold a prompt, its subject, the facts about it and the time of the scene.

    Attributes:
        text: the words of the prompt.
        first, head: positions of the first word and of the last noun of the subject's phrase.
        year: the latest year that the scene is dated to; None if it is not dated.
    """

    def __init__(self, prompt: str, start: int, end: int) -> None:
        self.text = read_text(prompt)
        inside = [i for i, at in enumerate(self.text.start) if start <= at < end]
        self.first = inside[0] if inside else 0
        self.head = inside[-1] if inside else 0
        self.noun = self.text.bare[self.head] if self.text.bare else ""
        self.roles = lists_of_word(self.noun)
        found = find_facts(self.text)
        self._about_picture = self._find_picture(found)
        self._facts = defaultdict[str, list[Fact]](list)
        for fact in found:
            if not self._about_picture[fact.first] and not self._names_thing(fact):
                self._facts[fact.name].append(fact)
        self.year = self._read_year()

    def without_picture(self, origins: bool) -> str:
        """Return the prompt without words about the picture: "a nurse, children's book".

        origins: also without words that say where a thing is from, "in a Japanese restaurant".
        """
        text = self.text
        kept = list(text.prompt)
        for i, start in enumerate(text.start):
            is_origin = origins and i > self.head and self._names_thing(Fact("", i, i + 1))
            if self._about_picture[i] or is_origin:
                end = start + len(text.words[i])
                kept[start:end] = " " * (end - start)
        return "".join(kept)

    # ---- facts by their place

    def has(self, *names: str) -> bool:
        """Return whether the scene has a fact of one of the lists, wherever it stands."""
        return any(self._facts[name] for name in names)

    def has_in_phrase(self, *names: str) -> bool:
        """Return whether the subject's own phrase has one: "a Catholic priest"."""
        return any(self.is_in_phrase(fact) for name in names for fact in self._facts[name])

    def facts(self, name: str) -> list[Fact]:
        """Return the facts of a list."""
        return self._facts[name]

    def has_on_subject(self, *names: str) -> bool:
        """Return whether the phrase or what describes it has one: "a member of the Klan"."""
        return any(
            self.is_in_phrase(fact) or self._describes(fact)
            for name in names
            for fact in self._facts[name]
        )

    def has_owned(self, name: str) -> bool:
        """Return whether a fact is the subject's: not in "a nurse with a prostate patient"."""
        return any(self._owner(fact) == self.head for fact in self._facts[name])

    def has_place(self, name: str) -> bool:
        """Return whether the scene is at such a place: "at the museum"."""
        for fact in self._facts[name]:
            before = self.text.bare[max(0, fact.first - 4) : fact.first]
            if any(word in _PLACES for word in before):
                return True
        return False

    def follows_as_tag(self, fact: Fact) -> bool:
        """Return whether a fact is a clause of its own behind the subject: "a doctor, Nigerian"."""
        i = fact.first
        return i == self.head + 1 and self.text.opens[i] and not self.text.after(fact.stop - 1)

    def is_from(self, name: str) -> bool:
        """Return whether the subject is from such a place: "a nurse from Ghana"."""
        for fact in self._facts[name]:
            before = self.text.bare[max(0, fact.first - 3) : fact.first]
            if "from" in before and self._describes(fact):
                return True
        return False

    def has_stated_age(self) -> bool:
        """Return whether the age of the subject is stated in years: "30yo", "in her forties"."""
        for match in _AGE.finditer(self.text.prompt):
            if self._is_of_subject(match.start(), match.end()):
                return True
        return False

    def _is_of_subject(self, start: int, end: int) -> bool:
        """Whether characters start to end describe the subject, not a thing or another person."""
        inside = [i for i, at in enumerate(self.text.start) if start <= at < end]
        if not inside:
            return False
        following = inside[-1] + 1
        if inside[0] >= self.first and inside[-1] <= self.head:
            return True
        if self.text.after(following - 1) and not self._ends_phrase(following):
            if not self.is_person(following):
                return False  # "a 30-year-old Bordeaux"
        return self._owner(Fact("age", inside[0], following)) == self.head

    def is_in_phrase(self, fact: Fact) -> bool:
        """Return whether a fact stands in the subject's phrase."""
        return self.first <= fact.first and fact.stop <= self.head + 1

    def _describes(self, fact: Fact) -> bool:
        """Whether a fact stands behind the subject, linked to it: "a pledge of a sorority"."""
        between = range(self.head + 1, fact.first)
        if fact.first <= self.head or len(between) >= _NEAR:
            return False
        if any(self.text.opens[i] for i in between) or self.text.opens[fact.first]:
            return False
        if any(self.is_person(i) for i in between):
            return False
        return self.text.after(self.head) in _LINKS

    def is_person(self, i: int) -> bool:
        """Return whether word i is a noun for a person."""
        return person(self.text.bare[i]) or gendered(self.text.low[i])

    def _owner(self, fact: Fact) -> int:
        """The position of the person whom a fact describes: the one behind it ("a prostate cancer
        patient") or else the last one before it."""
        for i in range(fact.first, min(fact.stop + 3, len(self.text.bare))):
            if i > fact.first and (self.text.opens[i] or self._ends_phrase(i)):
                break
            if self.is_person(i) and i >= fact.stop - 1:
                return i
        for i in range(fact.first - 1, -1, -1):
            if i == self.head or self.is_person(i):
                return i
        return self.head

    def _ends_phrase(self, i: int) -> bool:
        return listed(self.text.low[i], *STOPS)

    def _names_thing(self, fact: Fact) -> bool:
        """Whether a fact only says which thing is meant: "a Viking museum", "Victorian house"."""
        names = "thing-of-origin" if self.is_in_phrase(fact) else "thing"
        last = min(fact.stop + 2, len(self.text.bare))
        for i in range(fact.stop, last):
            if self.text.opens[i] or self._ends_phrase(i):
                return False
            if names in lists_of_word(self.text.bare[i]):
                return True
        return False

    # ---- words about the picture

    def _find_picture(self, facts: list[Fact]) -> list[bool]:
        """For each word whether it is about the picture."""
        skipped = [False] * len(self.text.bare)
        for fact in facts:
            if fact.name == "medium-phrase":
                skipped[fact.first : fact.stop] = [True] * (fact.stop - fact.first)
        media = {fact.first for fact in facts if fact.name == "medium"}
        for first, stop in self._clauses():
            for i in range(first, stop):
                self._skip_style(i, first, stop, skipped)
            self._skip_tag(first, stop, media, skipped)
        self._skip_medium_before_subject(media, skipped)
        return skipped

    def _clauses(self) -> list[tuple[int, int]]:
        """First word of each clause, and the one behind its last."""
        starts = [i for i in range(len(self.text.bare)) if self.text.opens[i]]
        return list(zip(starts, [*starts[1:], len(self.text.bare)], strict=True))

    def _skip_tag(self, first: int, stop: int, media: set[int], skipped: list[bool]) -> None:
        """Skip a clause about the picture: "oil on canvas", "1950s magazine cover".

        A clause with a person is none, but for words that only say which medium it is: "Japanese
        woodblock print", "children's book illustration".
        """
        if first <= self.head < stop:
            return
        about_picture = [i in media or skipped[i] for i in range(first, stop)]
        if not any(about_picture):
            return
        for i in range(first, stop):
            names_medium = i + 1 < stop and about_picture[i + 1 - first]
            owns_medium = self.text.words[i].endswith(("'s", "\u2019s"))
            if self.is_person(i) and not skipped[i] and not names_medium and not owns_medium:
                return
        skipped[first:stop] = [True] * (stop - first)

    def _skip_style(self, at: int, first: int, stop: int, skipped: list[bool]) -> None:
        """Skip "in the style of a Victorian engraving", "shot on film", "ukiyo-e style"."""
        word = self.text.bare[at]
        if word in _SHOTS and at > self.head and self.text.after(at) in _SHOT_LINKS:
            skipped[at:stop] = [True] * (stop - at)
        if word not in _STYLE_OPENERS or (at < self.head and self.text.after(at) != "of"):
            return
        begin = at
        while begin > first and begin - 1 > self.head and not self._ends_phrase(begin - 1):
            begin -= 1
        end = stop if at > self.head else at + 1
        skipped[begin:end] = [True] * (end - begin)

    def _skip_medium_before_subject(self, media: set[int], skipped: list[bool]) -> None:
        """Skip "a Victorian engraving of" before the subject."""
        for i in range(self.first - 1, -1, -1):
            if self.text.bare[i] == "of" and any(j in media for j in range(max(0, i - 4), i)):
                skipped[: i + 1] = [True] * (i + 1)
                return

    # ---- the time of the scene

    def _read_year(self) -> int | None:
        words = self.text.bare
        years = []
        for i, word in enumerate(words):
            if not self._about_picture[i]:
                years += self._years_of_word(i, word)
        if years:
            return max(years)
        if self.has("today"):
            return MODERN
        return _LAST_YEAR_OF_PERIODS if self.has("period") else None

    def _years_of_word(self, i: int, word: str) -> list[int]:
        """The year that a word stands for, if any: "1943", "1870s", "14th-century", "480BC"."""
        following = self.text.after(i)
        if _MODERN_YEAR.fullmatch(word):
            return [MODERN]
        if word.isdigit() and (following in _ERAS or self.text.before(i) == "ad"):
            return [_ANCIENT]
        match = _YEAR.fullmatch(word)
        if match and following not in _UNITS and self.text.before(i) not in _UNITS:
            if match[3]:
                return [_ANCIENT]
            decade = match[2] is not None and match[1].endswith("0")
            century = decade and match[1].endswith("00")
            return [int(match[1]) + (99 if century else 9 if decade else 0)]
        number = self._century(i, word)
        return [] if number is None else [number * 100 - 1]

    def _century(self, i: int, word: str) -> int | None:
        """The number of the century that a word and the next name: "14th century"."""
        if not word.endswith("-century") and self.text.after(i) not in ("century", "centuries"):
            return None
        match = _CENTURY.fullmatch(word)
        if match:
            return int(match[1])
        name = word.removesuffix("-century")
        return _CENTURY_NAMES.index(name) + 1 if name in _CENTURY_NAMES else None


def is_capital(text: Text, i: int) -> bool:
    """Return whether word i is written with a capital."""
    return text.words[i][:1].isupper()
