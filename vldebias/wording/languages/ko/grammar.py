"""Korean: 의사 becomes 여성 의사 or 남성 의사; 야심 찬 사람 becomes 야심 찬 여성."""

from __future__ import annotations

import re
from functools import cached_property

from vldebias.wording.languages.unspaced import Match, UnspacedLanguage


class Korean(UnspacedLanguage):
    """Find people in Korean prompts, and insert values before the noun."""

    code = "ko"
    name = "Korean"
    human = "사람"
    lone_human = re.compile(r"(?<![가-힣])사람(?!들|마다|의 손으로)")
    thing_link = "의 "
    plural_signs = ("들",)
    count = re.compile(r"(?<!\S)(\S+?)\s?(?:명|분)의\s(?:\S+\s)?$")
    count_behind = re.compile(r"(?:들)?\s(\S+?)\s?(?:명|분)(?!\S*의)")  # as in 의사 세 명
    words_for_one = ("한", "1", "한두")
    reach = 0
    brackets = ("(", ")")
    space = " "

    @cached_property
    def _particles(self) -> re.Pattern[str]:
        """Return a pattern for an optional particle at the end of a word."""
        particles = sorted(self.entries("particle"), key=len, reverse=True)
        return re.compile(rf"(?:{'|'.join(particles)})?(?![가-힣])")

    def matches(self, text: str) -> list[Match]:
        # The noun must be the entire rest of the word, apart from a particle.
        # Only a known word may precede a short noun in it, unlike in 공사장 ("building site").
        known = ("", *self.entries("modifier"), *self.entries("person"), *self.entries("prefix"))
        matches: list[Match] = []
        for match in super().matches(text):
            before = text[self._start_of_word(text, match) : match.start]
            is_word = len(match.noun) > 2 or before in known
            if is_word and self._particles.match(text, match.end):
                matches.append(match)
        return matches

    def is_named(self, text: str, matches: list[Match]) -> bool:
        # Names before a noun or a title: 김철수 의사, 민수 씨.
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
        before = re.split(r"[\s,.!?(\"'“‘\[]", text[: match.start])[-1]
        return match.start - len(before)

    def _start_of_noun(self, text: str, match: Match) -> int:
        start = self._start_of_word(text, match)
        modifiers = self.entries("modifier")
        while True:
            before = re.search(r"(\S+)\s$", text[:start])
            if before is None or not (before[1] in modifiers or self._is_bare_noun(before[1])):
                return start
            start = before.start()

    def _is_bare_noun(self, word: str) -> bool:
        """Return whether a word is a noun without a particle, as in 등대 관리인."""
        if not re.fullmatch("[가-힣]{2,}", word) or word.endswith(self.entries("word-ending")):
            return False
        # A word that ends in ㄴ or ㄹ may be an adjective or verb: 젊은, 일할.
        final = (ord(word[-1]) - ord("가")) % 28
        if final in (4, 8) or word.endswith(("고", "며", "게", "히", "적", "도", "만")):
            return False
        lists = ("person", "apart", "stated-age", "stated-race", "shows", "many", "fixed-race")
        return not any(word in self.entries(name) for name in lists)

    def joined(self, parts: list[str], is_counted: bool) -> str:
        # "And" is 과 after a consonant (남성과 여성) and 와 after a vowel (여자아이와 남자아이).
        has_consonant = (ord(parts[0][-1]) - ord("가")) % 28 > 0
        joiner = "과 " if has_consonant else "와 "
        return (", " if is_counted else joiner).join(parts)


LANGUAGE = Korean()
