"""Extract from a prompt the facts about its subject and the time of its scene.

Words about the picture ("shot on 35mm film", "in the style of a Victorian engraving") are ignored,
as are words that describe a thing ("a Viking museum", "Spanish guitar").
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from functools import lru_cache

from vldebias.prompts.english.words import (
    adjective,
    ends_phrase,
    gendered,
    has_listed,
    kinds,
    listed,
    origins,
    person,
)
from vldebias.wording.english.dates import MODERN, year_of_word
from vldebias.wording.english.facts import Fact, find_facts, lists_of_word
from vldebias.wording.english.text import read_text

_NEAR = 8  # maximum distance in words between a noun and a fact after it that describes it
_POSSESSIVE = ("'s", "s'", "\u2019s", "s\u2019")
_SCENE_NOUNS = frozenset({"scene-noun", "country", "open-country"})
_AGE_LISTS = ("age-said", "young-person")
_TENS = "twenties|thirties|forties|fifties|sixties|seventies|eighties|nineties"
_TEN_TO_NINETY = r"(?:\d+|(?:ten|elev|twel|twen|thir|for|fif|six|seven|eigh|nine)\w*)"
# Ages before a person or thing, as in "a 30yo nurse" or "a 30-year-old Bordeaux". The number of
# repetitions is bounded, because long runs of digits would otherwise take quadratic time.
AGE_BEFORE_NOUN = re.compile(
    r"\b\d{1,3}\s?(?:years?olds?|yo|y\.o\.|y/o|yrs?(?:[- ]old)?)\b|\b\d{1,3}-years?\b(?=\s+\w)"
    r"|\b(?:\w{1,40}[- ](?:and a half[- ])?)?[\d,]{0,20}[\w-]{0,40}"
    r"[-\s]years?[-\s](?:olds?|of[-\s]age)\b"
    r"|\b(?:month|week|day)s?[- ]olds?\b|\b(?:\d+|\w+ty)[- ]something\b"
    r"|\b(?:u|under|over)[- ]?(?:[6-9]|1\d|2[0-3])s?\b",
    re.IGNORECASE,
)
# Ages after a person, as in "a nurse in her late forties" or "a nurse aged 60".
AGE_BEHIND = re.compile(
    rf"\b(?:aged?|turning|age of|past|over) (?:of )?{_TEN_TO_NINETY}\b"
    rf"|\b(?:early|mid|late)[ -](?:{_TENS}|\d0s|teens)\b|, [34]0s,"
    rf"|\b(?:her|his|their|its|my|your|the) (?:{_TENS}|teens)\b"
    r"|\b(?:her|his|their|its|my|your) \d\ds\b"
    r"|(?:man|woman|lady) of (?:twenty|thirty|forty|fifty|sixty|seventy|eighty)\b"
    rf"|\bin (?:{_TENS}|teens)\b|\b{_TEN_TO_NINETY}(?:th|st|nd)? birthday\b",
    re.IGNORECASE,
)
_LAST_YEAR_OF_PERIODS = 1899


class Scene:
    """A person in a prompt, with the facts about this person and the time of the scene.

    Attributes:
        text: The words of the prompt.
        first, head: The positions of the first word and the last noun in the subject's noun phrase.
        year: The latest year in which the scene may be set, or None if it is not dated.
    """

    def __init__(self, prompt: str, start: int, end: int) -> None:
        self.text = read_text(prompt)
        self.first, behind = self._words_at(start, end)
        self.head = max(self.first, behind - 1)
        self.noun = self.text.bare[self.head] if self.text.bare else ""
        # "an astronomer-priest" is also a priest.
        self.roles = lists_of_word(self.noun) | lists_of_word(self.noun.rsplit("-", 1)[-1])
        facts = list(find_facts(self.text))
        self._about_picture = self._find_picture(facts)
        self._ages = [fact for fact in facts if fact.name in _AGE_LISTS]
        self._facts = self._sort_facts(facts)
        # Numbers take precedence over words for the present, which take precedence over periods.
        # Periods end before 1900, as in "Victorian" or "medieval".
        self._year_in_numbers = self._read_numbers()
        self.year = self._year_in_numbers
        if self.year is None and self.has("today"):
            self.year = MODERN
        elif self.year is None and self.has("period"):
            self.year = _LAST_YEAR_OF_PERIODS

    def _sort_facts(self, facts: list[Fact]) -> dict[str, list[Fact]]:
        """Group facts by list, except those about the picture or a thing."""
        facts_of_list = defaultdict[str, list[Fact]](list)
        for fact in facts:
            if fact.first in self._about_picture or self._names_thing(fact):
                continue
            facts_of_list[fact.name].append(fact)
        return facts_of_list

    def words_about_picture(self, origins: bool, ages: bool) -> set[int]:
        """Return the positions of words about the picture.

        Args:
            origins: Whether to add the origins of things ("in a Japanese restaurant").
            ages: Whether to add the ages of things or other people ("a 900-year-old oak").
        """
        words = set(self._about_picture)
        if ages:
            words |= self._ages_of_others()
        if origins:
            count = len(self.text.words)
            words.update(i for i in range(count) if self._names_thing(Fact("", i, i + 1)))
        return words

    def _ages_of_others(self) -> set[int]:
        """Return the positions of words that state the age of a thing or of someone else.

        Examples are "young adult novels" and "a doctor helping a young patient".
        """
        ages = [age for age in self._ages_before_nouns() if not self._is_age_of_subject(age)]
        ages += [age for age in self._ages if age.first > self.head and self._goes_on(age.stop)]
        return {i for age in ages for i in range(age.first, age.stop)}

    # ---- facts by position

    def has(self, *names: str) -> bool:
        """Return whether the scene contains a fact from one of the lists, in any position."""
        return any(self._facts.get(name) for name in names)

    def has_role(self, *names: str) -> bool:
        """Return whether the subject's noun is in one of the lists, such as "observer"."""
        return not self.roles.isdisjoint(names)

    def is_called(self, word: str) -> bool:
        """Return whether the subject's noun starts with a word, which allows for plurals."""
        return self.noun.startswith(word)

    def has_in_phrase(self, *names: str) -> bool:
        """Return whether a fact from the lists is in the subject's phrase: "a Catholic priest"."""
        return any(map(self.is_in_phrase, self.facts(*names)))

    def facts(self, *names: str) -> list[Fact]:
        """Return the facts from the given lists."""
        return [fact for name in names for fact in self._facts.get(name, ())]

    def has_on_subject(self, *names: str) -> bool:
        """Return whether a fact from the lists describes the subject: "a member of the Klan"."""
        facts = self.facts(*names)
        return any(self.is_in_phrase(fact) or self._describes(fact) for fact in facts)

    def has_owned(self, name: str) -> bool:
        """Return whether a fact is about the subject, as in "a nurse with prostate cancer".

        In "a nurse with a prostate patient", it is about someone else.
        """
        return any(self._owner(fact) == self.head for fact in self.facts(name))

    def undergoes(self, name: str) -> bool:
        """Return whether the subject has a condition from a list, as in "after a vasectomy"."""
        return any(self._follows(fact, "undergoes") for fact in self.facts(name))

    def _follows(self, fact: Fact, name: str) -> bool:
        """Return whether a word from a list is after the subject, within four words of a fact."""
        first = max(self.head + 1, fact.first - 4)
        return any(name in lists_of_word(word) for word in self.text.bare[first : fact.first])

    def has_place(self, name: str) -> bool:
        """Return whether the scene is at a place from a list, as in "at the museum"."""
        facts = self.facts(name)
        return any(has_listed(self._words_before(fact, 4), "at-place") for fact in facts)

    def is_from(self, name: str) -> bool:
        """Return whether the subject is from a place in a list, as in "a nurse from Ghana"."""
        facts = [fact for fact in self.facts(name) if "from" in self._words_before(fact, 3)]
        return any(map(self._describes, facts))

    def _words_before(self, fact: Fact, n: int) -> list[str]:
        """Return the n words before a fact."""
        return self.text.bare[max(0, fact.first - n) : fact.first]

    def has_stated_age(self) -> bool:
        """Return whether the subject's age is stated in years: "30yo", "in her forties"."""
        ages = self._ages_before_nouns()
        for match in AGE_BEHIND.finditer(self.text.prompt):
            first, stop = self._words_at(match.start(), match.end())
            if stop > first:
                ages.append(Fact("age", first, stop))
        return any(map(self._is_age_of_subject, ages))

    def _ages_before_nouns(self) -> list[Fact]:
        """Return numeric ages before nouns, as in "a 30-year-old Bordeaux"."""
        matches = AGE_BEFORE_NOUN.finditer(self.text.prompt)
        ages = []
        for first, stop in [self._words_at(*match.span()) for match in matches]:
            while first < stop and listed(self.text.low[first], "determiner"):
                first += 1
            if first < stop:
                ages.append(Fact("age before", first, stop))
        return ages

    def _words_at(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of words that start between two characters."""
        first = bisect_left(self.text.start, start)
        stop = bisect_left(self.text.start, end)
        return (first, stop) if first < stop else (0, 0)

    def _is_age_of_subject(self, fact: Fact) -> bool:
        """Return whether an age describes the subject, not a thing or a different person."""
        if self.is_in_phrase(fact):
            return True
        if fact.name != "age before":
            return self.text.low[self._last_person_before(fact.first)] == self.text.low[self.head]
        # In "a 30-year-old Bordeaux" and "a 30-year-old single malt", a thing follows.
        i = fact.stop
        while not self.text.opens[i] and adjective(self.text.low[i]):
            i += 1
        goes_on = self._goes_on(i) and not self.text.low[i].endswith("ing")
        return not goes_on and self._owner(fact) == self.head

    def _last_person_before(self, stop: int) -> int:
        """Return the position of the last person before a word, or of the subject if none."""
        for i in range(stop - 1, -1, -1):
            if i == self.head or self.is_person(i):
                return i
        return self.head

    def _goes_on(self, i: int) -> bool:
        """Return whether word i continues the phrase before it."""
        return not self.text.opens[i] and not ends_phrase(self.text.low[i])

    def is_in_phrase(self, fact: Fact) -> bool:
        """Return whether a fact is in the subject's phrase."""
        return self.first <= fact.first and fact.stop <= self.head + 1

    def _describes(self, fact: Fact) -> bool:
        """Return whether a fact after the subject describes it, as in "a pledge of a sorority"."""
        between = range(self.head + 1, fact.first)
        if fact.first <= self.head or len(between) >= _NEAR:
            return False
        # After a new clause or another person, the fact no longer describes the subject.
        if True in self.text.opens[self.head + 1 : fact.first + 1]:
            return False
        is_linked = listed(self.text.after(self.head), "fact-link")
        return is_linked and not any(map(self.is_person, between))

    def is_person(self, i: int) -> bool:
        """Return whether word i is a noun for a person."""
        word = self.text.low[i]
        if listed(word, "gendered-pronoun"):
            return False
        return person(self.text.bare[i]) or gendered(word)

    def is_capital(self, i: int) -> bool:
        """Return whether word i is capitalized."""
        return self.text.words[i][:1].isupper()

    def _owner(self, fact: Fact) -> int:
        """Return the position of the person whom a fact describes (the next or the last one)."""
        for i in range(fact.first, min(fact.stop + 3, len(self.text.bare))):
            if i > fact.first and not self._goes_on(i):
                break
            if self.is_person(i) and i >= fact.stop - 1:
                return i
        return self._last_person_before(fact.first)

    def _names_thing(self, fact: Fact) -> bool:
        """Return whether a fact describes a thing: "a Viking museum", "Victorian house"."""
        # An origin before a thing is that of the thing: "Chinese medicine".
        is_origin = fact.first > self.head and self.text.bare[fact.first] in origins()
        if is_origin and self._is_thing(fact.stop):
            return True
        list_of_things = "thing"
        last = min(fact.stop + 2, len(self.text.bare))
        if self.is_in_phrase(fact):
            list_of_things = "thing-of-origin"
            last = min(last, self.head + 1)
        for i in range(fact.stop, last):
            if not self._goes_on(i):
                return False
            lists_of_thing = lists_of_word(self.text.bare[i])
            if fact.name == "church" and "house-of-church" in lists_of_thing:
                # A house of a church belongs to the church: "a priest in a Catholic church".
                return False
            if list_of_things in lists_of_thing:
                return True
            if self.text.low[i].endswith("ing"):
                return False  # "in the 38th week of pregnancy shelving books" is about the subject
        return False

    def _is_thing(self, i: int) -> bool:
        """Return whether word i continues its phrase with a thing, not with a person or scene."""
        if not self._goes_on(i):
            return False
        word = self.text.bare[i]
        if lists_of_word(word) & _SCENE_NOUNS or listed(word, "no-name", "descent"):
            # Places and descent are not things: "at the Tudor court", "of Chinese descent".
            return False
        if self.is_person(i) or self.is_capital(i):
            return False
        return not kinds(word) or "n" in kinds(word)

    # ---- words about the picture

    def _find_picture(self, facts: list[Fact]) -> set[int]:
        """Return the positions of words about the picture."""
        skipped: set[int] = set()
        for fact in facts:
            if fact.name == "medium-phrase":
                skipped.update(range(fact.first, fact.stop))
        media = {fact.first for fact in facts if fact.name == "medium"}
        first = 0
        for stop in range(1, len(self.text.bare) + 1):
            if not self.text.opens[stop]:
                continue
            for i in range(first, stop):
                self._skip_style(i, stop, skipped)
            self._skip_tag(first, stop, media, skipped)
            first = stop
        return skipped

    def _skip_tag(self, first: int, stop: int, media: set[int], skipped: set[int]) -> None:
        """Skip a clause about the picture, such as "oil on canvas" or "1950s magazine cover".

        A clause that mentions a person is kept, unless the noun merely specifies the medium, as in
        "Japanese woodblock print" and "children's book illustration".
        """
        if first <= self.head < stop:
            return
        about_picture = (media | skipped).intersection(range(first, stop))
        if not about_picture:
            return
        skipped.update(range(first, stop))

    def _skip_style(self, i: int, stop: int, skipped: set[int]) -> None:
        """Skip "in the style of a Victorian engraving", "shot on film", "ukiyo-e style"."""
        word = self.text.bare[i]
        is_behind_subject = i > self.head
        is_linked = listed(self.text.after(i), "shot-link")
        if listed(word, "shot") and is_behind_subject and is_linked:
            skipped.update(range(i, stop))
        if not listed(word, "style-opener") or i < self.head:
            return
        skipped.update(range(i, stop))

    # ---- the time of the scene

    def _read_numbers(self) -> int | None:
        """Return the latest year in the scene, as in "1810" or "14th century", or None."""
        # Exclude the year of the picture, as in "1950s magazine cover".
        words = [i for i in range(len(self.text.bare)) if i not in self._about_picture]
        years = [year_of_word(self.text, i) for i in words]
        return max((year for year in years if year is not None), default=None)


@lru_cache(maxsize=100)  # needed for stated values, and again for values determined by facts
def read_scene(prompt: str, start: int, end: int) -> Scene:
    """Return the `Scene` for a person in a prompt from a cache.

    Args:
        prompt: The prompt.
        start: The start of the person's noun phrase, excluding determiners.
        end: The end of the last noun in the phrase.
    """
    return Scene(prompt, start, end)
