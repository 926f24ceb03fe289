"""Languages that write words without spaces: nouns of persons are found by lists and endings."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from vldebias.wording.groups import Group
from vldebias.wording.language import Assignment, Mention, Replacement
from vldebias.wording.languages.base import ListedLanguage, blank_quotations

if TYPE_CHECKING:
    from vldebias.prompts.attribute import Attribute


# Signs of a prompt that are read: no text encoder of an image generator reads more, and the time of
# a call stays bounded.
_LONGEST_PROMPT = 2000
_CLAUSE_END = re.compile("[，。、,.；;！？\n]")


class Match(NamedTuple):
    """A noun for a person in a text."""

    start: int
    end: int
    noun: str


def pattern_of(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for any of the words, longest first; without words it matches nothing."""
    longest_first = sorted(set(words), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", re.IGNORECASE)


class UnspacedLanguage(ListedLanguage):
    """A language without spaces.

    Attributes:
        human: the word for a human that is replaced by one for a woman or man.
        thing_link: what joins a person with a thing that is theirs: 的.
        endings_before: how many signs stand before an ending that makes a person.
    """

    human: str
    human_of: ClassVar[Mapping[str, str]]
    thing_link: str
    comma: str
    joiner: str

    @abstractmethod
    def humans(self, text: str) -> list[Match]:
        """Return where the word for a human alone is a person."""

    @abstractmethod
    def size_of(self, text: str, match: Match) -> tuple[bool, int | None]:
        """Return whether several persons are named, and how many."""

    @abstractmethod
    def changes_for(
        self, text: str, match: Match, gender: str, adjectives: Sequence[str]
    ) -> list[tuple[int, int, str]]:
        """Return start, end and text of the changes that write the values of one person.

        gender: "female", "male" or "" for none. adjectives: the words of other values.
        """

    # ---- lists

    def pattern(self, name: str) -> re.Pattern[str]:
        """Return a pattern for the words of a list."""
        if name not in self._patterns:
            self._patterns[name] = pattern_of(self.entries(name))
        return self._patterns[name]

    @cached_property
    def _patterns(self) -> dict[str, re.Pattern[str]]:
        return {}

    def covers(self, text: str, start: int, name: str) -> bool:
        """Return whether a word of a list stands over an offset."""
        longest = max(map(len, self.entries(name)), default=0)
        for match in self.pattern(name).finditer(text, max(0, start - longest), start + longest):
            if match.start() <= start < match.end():
                return True
        return False

    def has(self, text: str, name: str) -> bool:
        """Return whether a text has a word of a list."""
        return self.pattern(name).search(text) is not None

    # ---- finding

    def reads(self, text: str) -> bool:
        """Return whether a text names a person in this language."""
        return bool(self.matches(text[:_LONGEST_PROMPT]))

    def states(self, text: str, attribute: Attribute) -> bool:
        """Return whether any word of a text states a value, of a person or not."""
        return bool(self._stated(text[:_LONGEST_PROMPT], attribute))

    def find(self, text: str, attribute: Attribute) -> tuple[Mention, ...] | str:
        """Return the persons of a text, or the reason why nobody gets a value."""
        text = blank_quotations(text[:_LONGEST_PROMPT])
        kind = self.kind_of(attribute)
        if not kind or self.lacks_words(attribute):
            return "no word"
        if self.is_edit(text):
            return "edit"
        matches = self.matches(text)
        stated = self._stated(text, attribute)
        stated_matches: list[Match] = []
        for match in matches:
            # 女医生
            if any(match.start - 2 <= word.start() < match.end for word in stated):
                stated_matches.append(match)
        # Of several persons who are joined, the value of one says nothing of the others.
        is_joined = len(matches) > 1 and self.has(text, "joining")
        are_all_of_persons = is_joined and len(stated_matches) >= len(stated)
        if stated and not are_all_of_persons:
            return "stated"
        if self.is_named(text, matches):
            return "named"
        is_fixed = self.has(text, f"fixed-{kind}")
        if not matches or any(self._may_be_owner(text, match) for match in matches):
            return "context" if is_fixed else self._why_nobody(text, matches)
        persons: list[Mention] = []
        for match in matches:
            persons.append(self._person(text, match, attribute, match in stated_matches, is_fixed))
        return tuple(persons)

    def _may_be_owner(self, text: str, match: Match) -> bool:
        """Return whether a noun may only say whose a thing is: 厨师的刀."""
        if not text.startswith(self.thing_link, match.end):
            return False
        owned = _CLAUSE_END.split(text[match.end + len(self.thing_link) :])[0]
        return not self.has(owned, "shows") and not self.matches(owned)

    def _why_nobody(self, text: str, matches: Sequence[Match]) -> str:
        """Return the reason why a prompt gets no value that shows nobody, or perhaps only a thing
        of somebody."""
        if matches:
            return "not understood"
        for list_name, reason in (("group-left-unchanged", "group"), ("pronoun", "pronoun")):
            if self.has(text, list_name):
                return reason
        return "no person"

    def is_edit(self, text: str) -> bool:
        """Return whether a prompt asks to change a given picture."""
        return self.pattern("edit").match(text.strip()) is not None

    def matches(self, text: str) -> list[Match]:
        """Return the nouns of the persons in the picture, in order."""
        found: list[Match] = []
        for listed in self.pattern("person").finditer(text):
            found.append(Match(listed.start(), listed.end(), listed[0]))
        covered = {offset for match in found for offset in range(match.start, match.end)}
        for match in [*self.by_ending(text), *self.humans(text)]:
            if covered.isdisjoint(range(match.start, match.end)):
                found.append(match)
                covered.update(range(match.start, match.end))
        kept: list[Match] = []
        for match in sorted(found):
            is_thing = self.covers(text, match.start, "not-person") or self.covers(
                text, match.end - 1, "not-person"
            )
            if not is_thing and not self.is_out_of_picture(text, match):
                kept.append(match)
        joined = self.without_heads(text, kept)
        # Without roles of another person, 当水管工的人; in 看護師として働く the nurse is one.
        return [match for match in joined if not self.is_role(text, match)] or joined

    def is_role(self, text: str, match: Match) -> bool:
        """Return whether a noun says what somebody is or does, by the words beside it."""
        trades = tuple(self.entries("trade"))  # "人物，职业：焊工"
        if re.sub(r"[\s:\uff1a]+$", "", text[: match.start]).endswith(trades):
            return True
        for words in self.entries("role-behind"):
            if text.startswith(words.replace("_", " "), match.end):
                return True
        return False

    def without_heads(self, text: str, matches: list[Match]) -> list[Match]:
        """Return matches of which none stands directly before another: 医生助理 is one person."""
        kept: list[Match] = []
        for match in matches:
            if kept and text[kept[-1].end : match.start] == "の" and match.noun == self.human:
                kept.pop()  # 農家の人
            if kept and kept[-1].end == match.start:
                kept[-1] = Match(kept[-1].start, match.end, text[kept[-1].start : match.end])
            else:
                kept.append(match)
        return kept

    def by_ending(self, text: str) -> list[Match]:
        """Return nouns that are not listed and end like a person."""
        return []

    def is_out_of_picture(self, text: str, match: Match) -> bool:
        """Return whether a person is not shown: 医生的雕像, 玩具士兵."""
        behind = text[match.end :]
        link = re.escape(self.thing_link)
        things = self.pattern("thing-behind").pattern
        # "起業家のスタジオ写真" is a picture, and no studio.
        pictures = self.pattern("picture-behind").pattern
        if re.match(rf"(?:{link}|\s?)(?:{things})(?!\s?(?:{pictures}))", behind):
            return True
        absent = self.pattern("absent-behind").pattern
        if re.match(rf"[가이은는도がはも]?\s?(?:{absent})", behind):
            return True  # 사람 없음
        before = text[max(0, match.start - 6) : match.start].rstrip()
        for name in ("thing-before", "animal-before", "not-subject"):
            if any(before.endswith(word) for word in self.entries(name)):
                return True
        return False

    def _stated(self, text: str, attribute: Attribute) -> list[re.Match[str]]:
        """Return the words that state a value."""
        kind = self.kind_of(attribute)
        if kind != "gender":
            own_words = attribute.set.languages.get(self.code, {}).values()
            words = [*self.entries(f"stated-{kind}"), *own_words]
            return list(pattern_of(words).finditer(text))
        found: list[re.Match[str]] = []
        for name in ("female", "male"):
            for match in self.pattern(name).finditer(text):
                if not self.covers(text, match.start(), "not-stated"):
                    found.append(match)
        return found

    def is_named(self, text: str, matches: list[Match]) -> bool:
        """Return whether a prompt names a person."""
        return self.has(text, "famous") or self.has(text, "named")

    def _person(
        self, text: str, match: Match, attribute: Attribute, is_stated: bool, is_fixed: bool
    ) -> Mention:
        """Return the person of a noun, with the reason why no value is written."""
        is_group, size = self.size_of(text, match)
        reason = ""
        if is_stated:
            reason = "stated"
        elif is_fixed:
            reason = "context"
        elif is_group and self.leaves_groups(attribute):
            reason = "group"
        group = None
        if is_group:
            is_young = match.noun.endswith(self.entries("child"))
            group = Group(match.end, size, is_young, mixes=True)
        return Mention(
            match.noun, match.start, match.end, (match.start, match.start), reason, group
        )

    # ---- writing

    def write(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        """Return what to replace in a text so that it says these values."""
        replacements: list[Replacement] = []
        assignments_of_mention: dict[Mention, list[Assignment]] = {}
        for assignment in assignments:
            person, _, _ = assignment
            person = person._replace(reason="", place=(0, 0))
            assignments_of_mention.setdefault(person, []).append(assignment)
        for person, assignments_of_one in assignments_of_mention.items():
            if not person.noun:
                replacements += self.write_at_places(assignments_of_one)
                continue
            for assignment in assignments_of_one:
                _, _, value = assignment
                if isinstance(value, Mapping):
                    replacements.append(self._mixed(text, person, assignment))
            gender, adjectives = self.words_of(assignments_of_one)
            if gender or adjectives:
                match = Match(person.start, person.end, person.noun)
                for change in self.changes_for(text, match, gender, adjectives):
                    replacements.append(Replacement(*change))
        return replacements

    def _mixed(self, text: str, person: Mention, assignment: Assignment) -> Replacement:
        """Return the numbers of women and men after a noun: 三名警察，两女一男."""
        end = self.end_of_group(text, person.end)
        is_young = person.group is not None and person.group.young
        parts = [self.counted(*part, is_young) for part in self.mixture(assignment)]
        is_counted = all(count is not None for _, count in self.mixture(assignment))
        return Replacement(end, end, self.mixed_text(parts, is_counted, text[end:]))

    def mixed_text(self, parts: list[str], is_counted: bool, rest: str) -> str:
        """Return the women and men of a group as they are written after its noun."""
        comma = self.comma if rest[:1].isalnum() else ""
        text = self.joiner.join(parts) if is_counted else self.both
        return f"{self.comma}{text}{comma}"

    both = ""

    def end_of_group(self, text: str, end: int) -> int:
        """Return the offset after a noun and its sign of the plural."""
        return end
