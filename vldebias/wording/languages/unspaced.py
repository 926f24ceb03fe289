"""Base class for East Asian languages, in which nouns are found by word lists and endings."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from vldebias.wording.groups import Group
from vldebias.wording.language import Assignment, Mention, Replacement
from vldebias.wording.languages.base import ListedLanguage, blank_quotations
from vldebias.wording.reasons import context_reason

if TYPE_CHECKING:
    from vldebias.prompts.attribute import Attribute


# Longer prompts are truncated to bound the running time. No text encoder accepts such long prompts.
_LONGEST_PROMPT = 2000
_CLAUSE_END = re.compile("[，。、,.；;！？\n]")


class Match(NamedTuple):
    """A noun for people that was found in a prompt."""

    start: int
    end: int
    noun: str


def pattern_of(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the words and prefers the longest.

    If there are no words, the pattern never matches.
    """
    longest_first = sorted(set(words), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", re.IGNORECASE)


class UnspacedLanguage(ListedLanguage):
    """Parse a language without agreement, in which values are inserted before the noun.

    Attributes:
        human: the word for "person", which is replaced by a word for a woman or man.
        lone_human: a pattern for this word if it can be edited on its own.
        thing_link: the possessive particle between a person and a thing, such as 的.
        plural_signs: the plural suffixes, such as 们.
        count: a pattern for a number at the end of the text before a noun.
        count_behind: a pattern for a number at the start of the text after a noun.
        words_for_one: the words for 1 that `count` can match.
        reach: the maximum number of characters between "many" and a noun.
        brackets: the characters around the numbers of women and men in a group.
        space: the separator between a value and the noun.
    """

    human: str
    lone_human: re.Pattern[str]
    thing_link: str
    plural_signs: tuple[str, ...]
    count: re.Pattern[str]
    count_behind = re.compile(r"(?!)")
    words_for_one: tuple[str, ...]
    reach: int
    brackets: tuple[str, str]
    space = ""

    @abstractmethod
    def joined(self, parts: list[str], is_counted: bool) -> str:
        """Join the numbers of women and men into one phrase."""

    @abstractmethod
    def _start_of_noun(self, text: str, match: Match) -> int:
        """Return the start of a noun including its modifiers, such as 심리 in 심리 상담사."""

    # ---- lists

    @cache  # noqa: B019 - languages are kept as long as the program runs
    def pattern(self, name: str) -> re.Pattern[str]:
        """Return a pattern for the words in a list."""
        return pattern_of(self.entries(name))

    def _covers(self, text: str, start: int, name: str) -> bool:
        """Return whether a listed word covers the character at an offset."""
        longest = max(map(len, self.entries(name)), default=0)
        found = self.pattern(name).finditer(text, max(0, start - longest), start + longest)
        return any(match.start() <= start < match.end() for match in found)

    def _has(self, text: str, name: str) -> bool:
        """Return whether a text contains a listed word."""
        return self.pattern(name).search(text) is not None

    # ---- finding

    def reads(self, text: str) -> bool:
        return bool(self.matches(text[:_LONGEST_PROMPT]))

    def states(self, text: str, attribute: Attribute) -> bool:
        return bool(self._stated(text[:_LONGEST_PROMPT], attribute))

    def stated_values(self, text: str, attribute: Attribute) -> list[str]:
        if not attribute.gender:
            return []
        words = {match[0].lower() for match in self._stated(text[:_LONGEST_PROMPT], attribute)}
        genders = {value: self._gender_of(value, attribute) for value in attribute.words}
        return [value for value, gender in genders.items() if words & set(self.entries(gender))]

    def find(self, text: str, attribute: Attribute) -> tuple[Mention, ...] | str:
        text = blank_quotations(text[:_LONGEST_PROMPT])
        kind = self.kind_of(attribute)
        if self.lacks_words(attribute):
            return "no word"
        if self.pattern("edit").match(text.strip()) or self._has(text, "given-picture"):
            return "edit"
        matches = self.matches(text)
        stated = self._stated(text, attribute)
        stated_matches = [match for match in matches if _is_stated(text, match, stated)]
        if len(stated) > len(stated_matches) or not self._are_apart(text, matches, stated_matches):
            return "stated"
        if self.is_named(text, matches):
            return "named"
        fact = self.pattern(f"fixed-{kind}").search(text)
        fixed = "" if fact is None else context_reason(fact[0])
        if not matches or self._is_unsure(matches):
            return fixed or self._why_nobody(text, matches)
        return tuple(
            self._person(text, match, attribute, match in stated_matches, fixed)
            for match in matches
        )

    def _are_apart(self, text: str, matches: Sequence[Match], stated: Sequence[Match]) -> bool:
        """Return whether conjunctions separate people with a stated value from people without."""
        for match, following in pairwise(matches):
            is_same = (match in stated) == (following in stated)
            if not is_same and not self._has(text[match.end : following.start], "joining"):
                return False
        return len(matches) > len(stated) or not stated

    def _is_unsure(self, matches: Sequence[Match]) -> bool:
        """Return whether a person may be mentioned twice: 模特...模特, 医生...人物."""
        nouns = [match.noun for match in matches]
        return len(set(nouns)) < len(nouns) or "人物" in nouns[1:]

    def _why_nobody(self, text: str, matches: Sequence[Match]) -> str:
        if matches:
            return "not understood"
        for list_name, reason in (("group-left-unchanged", "group"), ("pronoun", "pronoun")):
            if self._has(text, list_name):
                return reason
        return "no person"

    def matches(self, text: str) -> list[Match]:
        """Return the nouns for people in the picture, in order."""
        found = [
            self._longest(text, *noun.span()) for noun in self.pattern("person").finditer(text)
        ]
        covered = {offset for match in found for offset in range(match.start, match.end)}
        for match in self.unlisted(text):
            if covered.isdisjoint(range(match.start, match.end)):
                found.append(match)
                covered.update(range(match.start, match.end))
        kept: list[Match] = []
        for match in sorted(found):
            ends = (match.start, match.end - 1)
            is_thing = any(self._covers(text, end, "not-person") for end in ends)
            if not is_thing and not self.is_out_of_picture(text, match):
                kept.append(match)
        joined = self._without_heads(text, kept)
        # Drop nouns that describe another person's role, as in 当水管工的人. If only roles are
        # left, keep them: 看護師として働く.
        return [match for match in joined if not self.is_role(text, match)] or joined

    def _longest(self, text: str, start: int, end: int) -> Match:
        """Return a listed noun, or a longer one that begins inside it: 师傅 in 糖画师傅."""
        for inner in range(start + 1, end):
            other = self.pattern("person").match(text, inner)
            if other and other.end() > end:
                start, end = other.span()
        return Match(start, end, text[start:end])

    def is_role(self, text: str, match: Match) -> bool:
        """Return whether the adjacent words show that a noun describes another person's role.

        Args:
            text: the prompt.
            match: the noun.
        """
        before = text[: self._start_of_noun(text, match)].rstrip(" :\uff1a\n\t")
        # A label introduces the trade of a person: "人物，职业：焊工".
        is_trade = before.endswith(self.entries("trade"))
        return is_trade or text.startswith(self.entries("role-behind"), match.end)

    def _without_heads(self, text: str, matches: list[Match]) -> list[Match]:
        """Join adjacent nouns that refer to one person: 医生助理."""
        kept: list[Match] = []
        for match in matches:
            is_owner = bool(kept) and text[kept[-1].end : match.start] == "の"
            if is_owner and (match.noun == self.human or kept[-1].noun.endswith("屋")):
                kept.pop()  # The second noun is the person: 農家の人, パン屋の職人.
            if kept and kept[-1].end == match.start:
                kept[-1] = Match(kept[-1].start, match.end, text[kept[-1].start : match.end])
            else:
                kept.append(match)
        return kept

    def unlisted(self, text: str) -> Iterator[Match]:
        """Yield people without a listed noun, such as the word for "person" on its own."""
        for match in self.lone_human.finditer(text):
            if not self._covers(text, match.start(), "not-human"):
                yield Match(*match.span(), self.human)

    def is_out_of_picture(self, text: str, match: Match) -> bool:
        """Return whether a person is not shown: 医生的雕像, 玩具士兵.

        Args:
            text: the prompt.
            match: the noun.
        """
        behind = text[match.end :]
        link = re.escape(self.thing_link)
        things = self.pattern("thing-behind").pattern
        # "起業家のスタジオ写真" is a picture of a person, although it contains the word "studio".
        pictures = self.pattern("picture-behind").pattern
        if re.match(rf"(?:{link}|\s?)(?:{things})(?!\s?(?:{pictures}))", behind):
            return True
        before = text[max(0, match.start - 6) : match.start].rstrip()
        names = ("thing-before", "animal-before", "not-subject")
        return any(before.endswith(self.entries(name)) for name in names)

    def _stated(self, text: str, attribute: Attribute) -> list[re.Match[str]]:
        """Return the words that state a value."""
        kind = self.kind_of(attribute)
        if kind != "gender":
            own_words = attribute.set.languages.get(self.code, {}).values()
            words = [*self.entries(f"stated-{kind}"), *own_words]
            return list(pattern_of(words).finditer(text))
        found = [*self.pattern("female").finditer(text), *self.pattern("male").finditer(text)]
        return [match for match in found if not self._covers(text, match.start(), "not-stated")]

    def is_named(self, text: str, matches: list[Match]) -> bool:
        """Return whether a prompt mentions someone by name.

        Args:
            text: the prompt.
            matches: the nouns for people in the prompt.
        """
        return self._has(text, "famous") or self._has(text, "named")

    def _person(
        self, text: str, match: Match, attribute: Attribute, is_stated: bool, fixed: str
    ) -> Mention:
        """Return the mention for a noun, with the reason if no value is inserted."""
        is_group, size = self._size_of(text, match)
        reason = "stated" if is_stated else fixed
        if not reason and is_group and self.leaves_groups(attribute):
            reason = "group"
        is_young = match.noun.endswith(self.entries("child"))
        group = Group(match.end, size, is_young, mixes=True) if is_group else None
        place = (match.start, match.start)
        return Mention(match.noun, match.start, match.end, place, reason, group)

    def _size_of(self, text: str, match: Match) -> tuple[bool, int | None]:
        """Return whether a noun is plural, and the number of people if it is stated."""
        before = text[: self._start_of_noun(text, match)]
        counted = self.count.search(before) or self.count_behind.match(text, match.end)
        if counted and counted[1]:
            return counted[1] not in self.words_for_one, self.number_of(counted[1])
        before = _CLAUSE_END.split(before)[-1]
        many = rf"(?:{self.pattern('many').pattern})\s?\S{{0,{self.reach}}}$"
        is_plural = text.startswith(self.plural_signs, match.end)
        return is_plural or re.search(many, before) is not None, None

    # ---- writing

    def write_group(self, text: str, end: int, parts: list[str], is_counted: bool) -> Replacement:
        counted = self.count_behind.match(text, end)
        signs = [sign for sign in self.plural_signs if text.startswith(sign, end)]
        if counted:
            end = counted.end()
        elif signs:
            end += len(signs[0])
        opening, closing = self.brackets
        if opening == closing and not text[end : end + 1].isalnum():
            closing = ""  # no comma before other punctuation or at the end of the prompt
        return Replacement(end, end, f"{opening}{self.joined(parts, is_counted)}{closing}")

    def write_person(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        person, _, _ = assignments[0]
        gender, adjectives = self.words_of(assignments)
        words = "".join(word + self.space for word in adjectives)
        noun = self.nouns_of_gender("whole").get(person.noun, {}).get(gender, "")
        if noun or person.noun == self.human:
            return [Replacement(person.start, person.end, words + (noun or self.human))]
        match = Match(person.start, person.end, person.noun)
        start = self._place_of(text, match)
        if gender:
            words += self._word_before(match, start, gender)
        return [Replacement(start, start, words)]

    def _place_of(self, text: str, match: Match) -> int:
        """Return the offset at which a value is inserted."""
        return self._start_of_noun(text, match)

    def _word_before(self, match: Match, start: int, gender: str) -> str:
        """Return the word for a woman or man to insert before a noun."""
        return self.entries(f"say-{gender}")[0] + self.space


def _is_stated(text: str, match: Match, stated: Sequence[re.Match[str]]) -> bool:
    """Return whether a stated gender or other value applies to a noun: 女医生, 女性の医者."""
    return any(
        match.start - 2 <= word.start() < match.end or text[word.end() : match.start] in ("の", " ")
        for word in stated
    )
