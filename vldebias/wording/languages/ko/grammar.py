"""Korean: 의사 becomes 여성 의사 or 남성 의사; 야심 찬 사람 becomes 야심 찬 여성."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from vldebias.wording.languages.unspaced import Match, UnspacedLanguage

_COUNT = re.compile(r"(?<!\S)(\S+?)\s?(?:명|분)의\s(?:\S+\s)?$")
_COUNT_BEHIND = re.compile(r"(?:들)?\s(\S+?)\s?(?:명|분)(?!\S*의)")


class Korean(UnspacedLanguage):
    """Find persons in Korean prompts, and write a value before the noun."""

    code = "ko"
    name = "Korean"
    folder = Path(__file__).parent
    human = "사람"
    human_of: ClassVar[Mapping[str, str]] = {"female": "여성", "male": "남성"}
    thing_link = "의 "
    comma = ","
    joiner = ", "

    @cached_property
    def _particles(self) -> re.Pattern[str]:
        """Return a pattern for what can follow a noun."""
        particles = sorted(self.entries("particle"), key=len, reverse=True)
        return re.compile(rf"(?:{'|'.join(particles)})?(?![가-힣])")

    def matches(self, text: str) -> list[Match]:
        """Return the nouns of persons whose word ends after them, or goes on with a particle."""
        kept: list[Match] = []
        for match in super().matches(text):
            if self._particles.match(text, match.end):
                kept.append(match)
        return kept

    def without_heads(self, text: str, matches: list[Match]) -> list[Match]:
        """Return matches; of those in one word the last, 기사단원."""
        kept: list[Match] = []
        for match in matches:
            is_same_word = kept and not re.search(r"\s|[,.]", text[kept[-1].end : match.start])
            if is_same_word:
                kept.pop()
            kept.append(match)
        return kept

    def humans(self, text: str) -> list[Match]:
        """Return where 사람 is a person."""
        matches: list[Match] = []
        for match in re.finditer(r"(?<![가-힣])사람(?!들|마다|의 손으로)", text):
            if self._particles.match(text, match.end()):
                matches.append(Match(match.start(), match.end(), "사람"))
        return matches

    def is_named(self, text: str, matches: list[Match]) -> bool:
        """Return whether a name stands beside a noun: 김철수 의사, 박 교수, 민수 씨."""
        if super().is_named(text, matches):
            return True
        surname = "".join(self.entries("surname"))
        for match in matches:
            start = self._start_of_word(text, match)
            before = re.search(rf"(?<!\S)([{surname}][가-힣]{{2}})\s$", text[:start])
            if before is None or before[1] in self.entries("modifier"):
                continue
            if not before[1].endswith(self.entries("word-ending")):
                return True
        return bool(re.search(r"[가-힣]{2,4} ?씨(?:가|는|의|를|와|,|\s|$)", text))

    def _start_of_word(self, text: str, match: Match) -> int:
        start = match.start
        while start and not re.match(r"[\s,.!?(\"'“‘\[]", text[start - 1]):
            start -= 1
        return start

    def size_of(self, text: str, match: Match) -> tuple[bool, int | None]:
        """Return whether several persons are named, and how many."""
        before = text[: self._start_of_noun(text, match)]
        counted = _COUNT.search(before) or _COUNT_BEHIND.match(text, match.end)
        if counted:
            if counted[1] in ("한", "1", "한두"):
                return False, None
            return True, self.number_of(counted[1])
        is_plural = text[match.end :].startswith("들")
        many = tuple(f"{word} " for word in self.entries("many"))
        return is_plural or before.endswith(many), None

    def _start_of_noun(self, text: str, match: Match) -> int:
        """Return where the noun begins with the words that are part of it: 에어컨 설치공."""
        start = self._start_of_word(text, match)
        modifiers = self.entries("modifier")
        while True:
            before = re.search(r"(\S+)\s$", text[:start])
            if before is None or before[1] not in modifiers:
                return start
            start = before.start()

    def end_of_group(self, text: str, end: int) -> int:
        """Return the offset after a noun and 들, or its number: 의사 세 명."""
        counted = _COUNT_BEHIND.match(text, end)
        if counted:
            return counted.end()
        return end + 1 if text[end:].startswith("들") else end

    def mixed_text(self, parts: list[str], is_counted: bool, rest: str) -> str:
        """Return the women and men of a group in brackets: 의사(여성 두 명, 남성 한 명)."""
        if is_counted:
            return f"({', '.join(parts)})"
        # "남성과 여성" after a consonant, "여자아이와 남자아이" after a vowel.
        has_consonant = (ord(parts[0][-1]) - ord("가")) % 28 > 0
        joiner = "과 " if has_consonant else "와 "
        return f"({joiner.join(parts)})"

    def changes_for(
        self, text: str, match: Match, gender: str, adjectives: Sequence[str]
    ) -> list[tuple[int, int, str]]:
        """Return the changes that write the values of one person."""
        before = "".join(f"{word} " for word in adjectives)
        if match.noun == "사람":
            return [(match.start, match.end, before + self.human_of.get(gender, "사람"))]
        start = self._start_of_noun(text, match)
        # "젊은 여성 의사"
        gendered = re.search("(?:여성|남성|여자|남자) $", text[:start])
        start = gendered.start() if gendered else start
        if gender:
            before += self.human_of[gender] + " "
        return [(start, start, before)]


LANGUAGE = Korean()
