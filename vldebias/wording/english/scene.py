"""Read what a prompt says about its subject and the time of its scene.

Words about the picture ("shot on 35mm film", "in the style of a Victorian engraving") are ignored,
as are facts that describe a thing ("a Viking museum", "Spanish guitar").
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterable
from functools import lru_cache

from vldebias.prompts.english.words import (
    STOPS,
    adjective,
    gendered,
    kinds,
    listed,
    origins,
    person,
)
from vldebias.wording.english.dates import MODERN, year_of_word
from vldebias.wording.english.facts import Fact, find_facts, lists_of_word
from vldebias.wording.english.text import read_text

_NEAR = 8  # words after a noun that may still describe it: "a member of the Ku Klux Klan"
_LINKS = ("of", "in", "from", "for", "with", "on")
_POSSESSIVE = ("'s", "s'", "\u2019s", "s\u2019")
# They state a gender, but refer to a person mentioned before.
_PRONOUNS = frozenset({"he", "she", "him", "her", "his", "hers", "himself", "herself"})
# Lists of facts that date or place a scene.
_SCENES = ("period", "one-origin", "war", "war-site", "event", "event-of", "troops", "expedition")
_SCENE_NOUNS = frozenset({"scene-noun", "country", "open-country"})
_OWNERS = frozenset({"her", "his", "their", "my", "our"})
_AGE_LISTS = ("age-said", "young-person")
# "in Victorian London", "during the Crusades": such a fact sets the scene.
_SETTINGS = frozenset({"in", "during", "at"})
# "at the museum": such a fact is where the scene is.
_PLACES = frozenset({"in", "at", "on", "inside", "for", "from"})
_TENS = "twenties|thirties|forties|fifties|sixties|seventies|eighties|nineties"
_TEN_TO_NINETY = r"(?:\d+|(?:ten|elev|twel|twen|thir|for|fif|six|seven|eigh|nine)\w*)"
# Ages before a noun, which may be a thing: "a 30yo nurse", "a 30-year-old Bordeaux". Repetitions
# are bounded, because a long run of digits would take quadratic time.
AGE_BEFORE_NOUN = re.compile(
    r"\b\d{1,3}\s?(?:yo|y\.o\.|y/o|yrs?(?:[- ]old)?)\b|\b\d{1,3}-years?\b(?=\s+\w)"
    r"|\b(?:\w{1,40}[- ](?:and a half[- ])?)?[\d,]{0,20}[\w-]{0,40}"
    r"[-\s]years?[-\s](?:olds?|of[-\s]age)\b"
    r"|\b(?:month|week|day)s?[- ]olds?\b|\b(?:\d+|\w+ty)[- ]something\b"
    r"|\b(?:u|under|over)[- ]?(?:[6-9]|1\d|2[0-3])s?\b",
    re.IGNORECASE,
)
# Ages after a person: "a nurse in her late forties", "a nurse aged 60".
AGE_BEHIND = re.compile(
    rf"\b(?:aged?|turning|age of|past|over) (?:of )?{_TEN_TO_NINETY}\b"
    rf"|\b(?:early|mid|late)[ -](?:{_TENS}|\d0s|teens)\b"
    rf"|\b(?:her|his|their|its|my|your|the) (?:{_TENS}|teens)\b"
    r"|\b(?:her|his|their|its|my|your) \d0s\b"
    rf"|\bin (?:{_TENS}|teens)\b|\b{_TEN_TO_NINETY}(?:th|st|nd)? birthday\b",
    re.IGNORECASE,
)
# Words about the picture: "in the style of a Victorian engraving", "shot on film".
_STYLE_OPENERS = ("style", "styled", "manner", "aesthetic", "vein")
_SHOTS = ("shot", "photographed", "captured", "taken", "painted", "rendered", "filmed", "drawn")
_SHOT_LINKS = ("on", "with", "in", "using", "as", "like", "by")
_LAST_YEAR_OF_PERIODS = 1899


class Scene:
    """A prompt with its subject, the facts about it and the time of the scene.

    Attributes:
        text: the words of the prompt.
        first, head: positions of the first word and of the last noun of the subject's phrase.
        year: the latest year that the scene is dated to; None if it is not dated.
    """

    def __init__(self, prompt: str, start: int, end: int) -> None:
        self.text = read_text(prompt)
        self.first, behind = self._words_at(start, end)
        self.head = max(self.first, behind - 1)
        self.noun = self.text.bare[self.head] if self.text.bare else ""
        # "an astronomer-priest" is a priest as well.
        self.roles = lists_of_word(self.noun) | lists_of_word(self.noun.rsplit("-", 1)[-1])
        facts = list(find_facts(self.text))
        self._about_picture = self._find_picture(facts)
        self._ages = _of_lists(facts, _AGE_LISTS)
        self._facts = self._sort_facts(facts)
        # The latest year of numbers, else of a word for today, else of a period. Periods end before
        # 1900: "Victorian", "medieval".
        self.year = max(self._read_numbers(), default=None)
        if self.year is None and self.has("today"):
            self.year = MODERN
        elif self.year is None and self.has("period"):
            self.year = _LAST_YEAR_OF_PERIODS

    def _sort_facts(self, facts: list[Fact]) -> dict[str, list[Fact]]:
        """Group the facts that hold for the scene, not for the picture or a thing, by list."""
        facts_of_list = defaultdict[str, list[Fact]](list)
        for fact in facts:
            if self._about_picture[fact.first]:
                continue
            # It is only a topic: "a book about the Crusades".
            is_topic = fact.name in _SCENES and self._word_before_object(fact) == "about"
            if is_topic or self._names_thing(fact):
                continue
            facts_of_list[fact.name].append(fact)
            is_in_capitals = self.text.words[fact.first][:2].isupper()
            if fact.name == "troops-capital" and is_in_capitals:
                facts_of_list["troops"].append(fact)  # "a GI", not "a karate gi"
        return facts_of_list

    def without_picture(self, origins: bool, ages: bool) -> str:
        """Return the prompt without words about the picture: "a nurse, children's book".

        Args:
            origins: also leave out where a thing is from, "in a Japanese restaurant".
            ages: also leave out ages of things and of other persons, "beside a 900-year-old oak".
        """
        text = self.text
        kept = list(text.prompt)
        left_out: set[int] = self._ages_of_others() if ages else set()
        for i, start in enumerate(text.start):
            if self._about_picture[i] or (origins and self._names_thing(Fact("", i, i + 1))):
                left_out.add(i)
            if i in left_out:
                end = start + len(text.words[i])
                kept[start:end] = " " * (end - start)
        return "".join(kept)

    def _ages_of_others(self) -> set[int]:
        """Return the words that state the age of a thing or of another person than the subject."""
        words = set[int]()
        for age in self._ages_before_nouns():
            if not self._is_age_of_subject(age):
                words.update(range(age.first, age.stop))
        for fact in self._ages:
            if self._is_said_of_other(fact):
                words.update(range(fact.first, fact.stop))
        return words

    def is_for_age(self, i: int) -> bool:
        """Return whether word i of the subject's phrase says for whom the subject works.

        "an elderly care worker", "a newborn photographer"; not "an elderly photographer".
        """
        is_noun = i in {fact.first for fact in _of_lists(self._ages, ("young-person",))}
        if "works-with-age" in self.roles:
            return is_noun
        is_before_noun = i + 1 < self.head and self._is_thing(i + 1)
        if is_before_noun and not adjective(self.text.low[i + 1]):
            return is_noun  # "a youth orchestra conductor"
        # One of several words for an age: "a young adult librarian".
        phrases = [fact for fact in self._ages if fact.stop - fact.first > 1]
        return any(fact.first <= i < fact.stop <= self.head + 1 for fact in phrases)

    def _is_said_of_other(self, fact: Fact) -> bool:
        """Return whether a word for an age is not about the subject.

        "young adult novels", "an elderly care worker", "a doctor helping a young patient".
        """
        if self.text.words[fact.first].endswith(_POSSESSIVE):
            return True  # "a children's librarian"
        if self.first <= fact.first < self.head:
            return self.is_for_age(fact.first)
        if fact.first == self.head or fact.first < self.first or self.text.opens[fact.first]:
            return False
        if fact.name == "young-person":
            # A child of the subject's says that the subject is not old: "her baby".
            return self.text.before(fact.first) not in _OWNERS
        return self._goes_on(fact.stop)

    # ---- facts by their place

    def has(self, *names: str) -> bool:
        """Return whether the scene has a fact of one of the lists, wherever it stands."""
        return any(self._facts.get(name) for name in names)

    def has_role(self, *names: str) -> bool:
        """Return whether the subject's noun is of one of the lists: an observer, an athlete."""
        return not self.roles.isdisjoint(names)

    def is_called(self, word: str) -> bool:
        """Return whether the subject's noun begins with a word: "nurse", "nurses"."""
        return self.noun.startswith(word)

    def has_in_phrase(self, *names: str) -> bool:
        """Return whether the subject's phrase has a fact of the lists: "a Catholic priest"."""
        return any(map(self.is_in_phrase, self.facts(*names)))

    def facts(self, *names: str) -> list[Fact]:
        """Return the facts of some lists."""
        return [fact for name in names for fact in self._facts.get(name, ())]

    def has_on_subject(self, *names: str) -> bool:
        """Return whether a fact of the lists describes the subject: "a member of the Klan"."""
        facts = self.facts(*names)
        return any(self.is_in_phrase(fact) or self._describes(fact) for fact in facts)

    def has_own_age(self, name: str) -> bool:
        """Return whether a word for an age describes the subject: not in "a young adult novel"."""
        left_out = self._ages_of_others()
        for level in self._facts["level"]:
            # The "junior" of "a junior high principal" is of the school.
            if level.stop - level.first > 1:
                left_out.add(level.first)
        for fact in self._facts[name]:
            if fact.first in left_out:
                continue
            if self.is_in_phrase(fact):
                return True
            # "a boss with a new intern": the intern is another person.
            if self._describes(fact) and not self.is_person(fact.stop - 1):
                return True
        return False

    def has_owned(self, name: str) -> bool:
        """Return whether a fact describes the subject: not in "a nurse with a prostate patient"."""
        return any(self._owner(fact) == self.head for fact in self.facts(name))

    def undergoes(self, name: str) -> bool:
        """Return whether the subject has such a fact: "with endometriosis", "after a vasectomy"."""
        owned = [fact for fact in self.facts(name) if self._owner(fact) == self.head]
        return any(self._follows(fact, "undergoes") for fact in owned)

    def does(self, name: str) -> bool:
        """Return whether such a fact is what the subject does: "a nurse expecting triplets"."""
        if not self.text.after(self.head).endswith("ing"):
            return False
        return self.head + 1 in {fact.first for fact in self._facts[name]}

    def speaks_of(self, name: str) -> bool:
        """Return whether the subject only speaks of such facts: "explaining menstruation"."""
        return all(self._follows(fact, "speaks-of") for fact in self._facts[name])

    def _follows(self, fact: Fact, name: str) -> bool:
        """Return whether a listed word occurs up to four words before a fact, after the subject."""
        first = max(self.head + 1, fact.first - 4)
        return any(name in lists_of_word(word) for word in self.text.bare[first : fact.first])

    def has_place(self, name: str) -> bool:
        """Return whether the scene is at such a place: "at the museum"."""
        facts = self.facts(name)
        return any(not _PLACES.isdisjoint(self._words_before(fact, 4)) for fact in facts)

    def follows_as_tag(self, fact: Fact) -> bool:
        """Return whether a fact is a clause of its own after the subject: "a doctor, Nigerian"."""
        is_next = fact.first == self.head + 1 and self.text.opens[fact.first]
        return is_next and not self.text.after(fact.stop - 1)

    def owns_subject(self, fact: Fact) -> bool:
        """Return whether a fact says whose the subject is: "a Zulu king's guard"."""
        owner = self.first - 1
        if self.text.opens[self.first] or not self.text.words[owner].endswith(_POSSESSIVE):
            return False
        return owner - 2 <= fact.first <= owner

    def is_from(self, name: str) -> bool:
        """Return whether the subject is from such a place: "a nurse from Ghana"."""
        facts = [fact for fact in self.facts(name) if "from" in self._words_before(fact, 3)]
        return any(map(self._describes, facts))

    def has_year_before(self, year: int) -> bool:
        """Return whether the scene is dated by a number before a year: "1810", "14th century"."""
        years = self._read_numbers()
        return bool(years) and max(years) < year

    def is_set_before(self, year: int) -> bool:
        """Return whether the scene is set in a time before a year, and not only about that time.

        "in Victorian London" and "Edo, a teacher" set it; "of the Crusades" does not.
        """
        if self.has_year_before(year):
            return True
        for fact in self._facts["period"]:
            # The fact is a clause of its own, the subject's, or after "in" or "during".
            if self.text.opens[fact.first] or self.is_in_phrase(fact):
                return True
            if not _SETTINGS.isdisjoint(self._words_before(fact, 3)):
                return True
        return False

    def _words_before(self, fact: Fact, n: int) -> list[str]:
        """Return the n words before a fact."""
        return self.text.bare[max(0, fact.first - n) : fact.first]

    def has_stated_age(self) -> bool:
        """Return whether the age of the subject is stated in years: "30yo", "in her forties"."""
        ages = self._ages_before_nouns()
        for match in AGE_BEHIND.finditer(self.text.prompt):
            first, stop = self._words_at(match.start(), match.end())
            if stop > first:
                ages.append(Fact("age", first, stop))
        return any(map(self._is_age_of_subject, ages))

    def _ages_before_nouns(self) -> list[Fact]:
        """Return the ages in years that stand before a noun: "a 30-year-old Bordeaux"."""
        matches = AGE_BEFORE_NOUN.finditer(self.text.prompt)
        ages = []
        for first, stop in [self._words_at(*match.span()) for match in matches]:
            while first < stop and listed(self.text.low[first], "determiner"):
                first += 1
            if first < stop:
                ages.append(Fact("age before", first, stop))
        return ages

    def _words_at(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of words that begin in characters start to end."""
        first = bisect_left(self.text.start, start)
        stop = bisect_left(self.text.start, end)
        return (first, stop) if first < stop else (0, 0)

    def _is_age_of_subject(self, fact: Fact) -> bool:
        """Return whether an age describes the subject, not a thing or another person."""
        if self.is_in_phrase(fact):
            return True
        if fact.name != "age before":
            return self._last_person_before(fact.first) == self.head
        # "a 30-year-old Bordeaux", "a 30-year-old single malt": the phrase goes on with a thing.
        i = fact.stop
        while not self.text.opens[i] and adjective(self.text.low[i]):
            i += 1
        goes_on = self._goes_on(i) and not self.text.low[i].endswith("ing")
        return not goes_on and self._owner(fact) == self.head

    def _last_person_before(self, stop: int) -> int:
        """Return the position of the last person before a word; the subject if there is none."""
        for i in range(stop - 1, -1, -1):
            if i == self.head or self.is_person(i):
                return i
        return self.head

    def _goes_on(self, i: int) -> bool:
        """Return whether word i is part of the phrase before it."""
        return not self.text.opens[i] and not self._ends_phrase(i)

    def is_in_phrase(self, fact: Fact) -> bool:
        """Return whether a fact stands in the subject's phrase."""
        return self.first <= fact.first and fact.stop <= self.head + 1

    def _describes(self, fact: Fact) -> bool:
        """Return whether a fact is linked to the subject before it: "a pledge of a sorority"."""
        between = range(self.head + 1, fact.first)
        if fact.first <= self.head or len(between) >= _NEAR:
            return False
        # A new clause or another person in between takes the fact over.
        if True in self.text.opens[self.head + 1 : fact.first + 1]:
            return False
        return self.text.after(self.head) in _LINKS and not any(map(self.is_person, between))

    def is_person(self, i: int) -> bool:
        """Return whether word i is a noun for a person."""
        word = self.text.low[i]
        if word in _PRONOUNS:
            return False
        return person(self.text.bare[i]) or gendered(word)

    def is_capital(self, i: int) -> bool:
        """Return whether word i is capitalized."""
        return self.text.words[i][:1].isupper()

    def _owner(self, fact: Fact) -> int:
        """Return the index of the person whom a fact describes: the next, or else the last."""
        for i in range(fact.first, min(fact.stop + 3, len(self.text.bare))):
            if i > fact.first and not self._goes_on(i):
                break
            if self.is_person(i) and i >= fact.stop - 1:
                return i
        return self._last_person_before(fact.first)

    def _ends_phrase(self, i: int) -> bool:
        return listed(self.text.low[i], *STOPS)

    def _names_thing(self, fact: Fact) -> bool:
        """Return whether a fact only qualifies a thing: "a Viking museum", "Victorian house"."""
        if fact.first > self.head and self._is_thing(fact.stop):
            is_origin = self.text.bare[fact.first] in origins()  # "Chinese medicine"
            # "making a Japanese lantern"; not "leading a Zulu army", "at the Tudor court"
            if is_origin or self._word_before_object(fact).endswith("ing"):
                return True
        list_of_things = "thing"
        last = min(fact.stop + 2, len(self.text.bare))
        if self.is_in_phrase(fact):
            list_of_things = "thing-of-origin"
            last = min(last, self.head + 1)
        for i in range(fact.stop, last):
            if self.text.opens[i] or self._ends_phrase(i):
                return False
            lists_of_thing = lists_of_word(self.text.bare[i])
            if fact.name == "church" and "house-of-church" in lists_of_thing:
                return False  # "a priest in a Catholic church"
            if list_of_things in lists_of_thing:
                return True
            if self.text.low[i].endswith("ing"):
                return False  # "in the 38th week of pregnancy shelving books"
        return False

    def _word_before_object(self, fact: Fact) -> str:
        """Return the word that governs a fact after the subject: "making" in "making a kimono"."""
        i = fact.first - 1
        while i > self.head and listed(self.text.low[i], "determiner"):
            i -= 1
        return self.text.low[i] if i > self.head else ""

    def _is_thing(self, i: int) -> bool:
        """Return whether word i goes on with a noun for a thing, not for a person or a scene."""
        if not self._goes_on(i):
            return False
        word = self.text.bare[i]
        if lists_of_word(word) & _SCENE_NOUNS or listed(word, "no-name"):
            return False  # "at the Tudor court", "in Anglo-Saxon Britain"
        if self.is_person(i) or self.is_capital(i):
            return False
        return not kinds(word) or "n" in kinds(word)

    # ---- words about the picture

    def _find_picture(self, facts: list[Fact]) -> list[bool]:
        """Return for each word whether it is about the picture."""
        skipped = [False] * len(self.text.bare)
        for fact in facts:
            if fact.name == "medium-phrase":
                skipped[fact.first : fact.stop] = [True] * (fact.stop - fact.first)
        media = {fact.first for fact in _of_lists(facts, ("medium",))}
        first = 0
        for stop in range(1, len(self.text.bare) + 1):
            if not self.text.opens[stop]:
                continue
            for i in range(first, stop):
                self._skip_style(i, first, stop, skipped)
            self._skip_tag(first, stop, media, skipped)
            first = stop
        # "a Victorian engraving of" before the subject.
        for i in range(self.first - 1, -1, -1):
            if self.text.bare[i] == "of" and not media.isdisjoint(range(i - 4, i)):
                skipped[: i + 1] = [True] * (i + 1)
                break
        return skipped

    def _skip_tag(self, first: int, stop: int, media: set[int], skipped: list[bool]) -> None:
        """Skip a clause about the picture: "oil on canvas", "1950s magazine cover".

        A clause with a person is none, but for words that only say which medium it is: "Japanese
        woodblock print", "children's book illustration".
        """
        if first <= self.head < stop:
            return
        about_picture = {i for i in range(first, stop) if i in media or skipped[i]}
        if not about_picture:
            return
        for i in range(first, stop):
            names_medium = i + 1 in about_picture
            owns_medium = self.text.words[i].endswith(("'s", "\u2019s"))
            may_show_person = not names_medium and not owns_medium
            if may_show_person and not skipped[i] and self.is_person(i):
                return
        skipped[first:stop] = [True] * (stop - first)

    def _skip_style(self, i: int, first: int, stop: int, skipped: list[bool]) -> None:
        """Skip "in the style of a Victorian engraving", "shot on film", "ukiyo-e style"."""
        word = self.text.bare[i]
        is_behind_subject = i > self.head
        is_linked = self.text.after(i) in _SHOT_LINKS
        if word in _SHOTS and is_behind_subject and is_linked:
            skipped[i:stop] = [True] * (stop - i)
        if word not in _STYLE_OPENERS or i < self.head:
            return
        # "in the ukiyo-e | style": what says which style goes as well.
        begin = i
        earliest = max(first, self.head + 1)
        while begin > earliest and not self._ends_phrase(begin - 1):
            begin -= 1
        skipped[begin:stop] = [True] * (stop - begin)

    # ---- the time of the scene

    def _read_numbers(self) -> list[int]:
        """Return the years that numbers of the scene stand for."""
        # Not those of the picture: "1950s magazine cover".
        words = [i for i in range(len(self.text.bare)) if not self._about_picture[i]]
        years = [year_of_word(self.text, i) for i in words]
        return [year for year in years if year is not None]


@lru_cache(maxsize=100)  # read for what is stated, and again for what the facts fix
def read_scene(prompt: str, start: int, end: int) -> Scene:
    """Return the scene of a person in a prompt, read once.

    Args:
        prompt: the prompt.
        start: offset of the person's phrase, without its determiners.
        end: offset after its last noun.
    """
    return Scene(prompt, start, end)


def _of_lists(facts: Iterable[Fact], names: Container[str]) -> list[Fact]:
    """Return the facts that are of these lists."""
    return [fact for fact in facts if fact.name in names]
