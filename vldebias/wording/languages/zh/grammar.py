"""Chinese: 一位医生 becomes 一位女医生 or 一位男医生; 自信的人 becomes 自信的女人."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vldebias.wording.languages.unspaced import Match, UnspacedLanguage

_NUMBER = "一二两兩三四五六七八九十几0-9０-９"
_MEASURED = re.compile(rf"(?:[{_NUMBER}]{{1,2}}|这|那|這|某|每)(?:位|名|个|個)$")
_MEASURE = re.compile(rf"(?:[{_NUMBER}]|这|那|這|某|每)(?:位|名|个|個)")
# Characters that never belong to a noun and therefore mark its beginning.
_BREAK = re.compile(
    r"[的了着过在是有和与跟及给为让被把对从到张幅正很地得，。、；：！？（）()\[\],.;:!?\s\"“”「」《》]"
)
_ADJECTIVE = "年[轻輕迈邁]|[中老]年|老|退休|资深|著名|专业|疯狂|邪恶|神秘|勇敢|疲惫|孤独"
_LONGEST_MODIFIER = 8


class Chinese(UnspacedLanguage):
    """Find people in Chinese prompts, and insert values before the noun."""

    code = "zh"
    name = "Chinese"
    human = "人"
    # 一个人 is "alone" in 医生一个人, but a person after a verb or at a clause's start.
    lone_human = re.compile(
        rf"(?:(?<=的)|(?<=[{_NUMBER}这那這某每][位名个個]))"
        r"(?<![^有是的了着，。、,.;；:：\s]一[个個])人"
    )
    thing_link = "的"
    plural_signs = ("们", "們")
    # A number and its measure word may precede a description: "三位戴眼镜的医生".
    count = re.compile(
        r"(十一|十二|[二两兩三四五六七八九十]|\d+)(?:位|名|个|個)(?:[^，。,.\s位名个個]{1,8}的)?$"
    )
    words_for_one = ("1",)
    reach = 6
    brackets = ("，", "，")

    def joined(self, parts: list[str], is_counted: bool) -> str:
        return "".join(parts) if is_counted else "有男有女"

    def unlisted(self, text: str) -> Iterator[Match]:
        # Require two more characters before the ending: 接线员, 空调安装师.
        for match in self.pattern("person-ending").finditer(text):
            start = match.start() - 2
            piece = text[max(0, start) : match.start()]
            is_noun = len(piece) == 2 and piece.isalpha() and not _BREAK.search(piece)
            if is_noun and not re.search(f"[{_NUMBER}位名个]", piece):
                yield Match(start, match.end(), text[start : match.end()])
        yield from super().unlisted(text)

    def is_role(self, text: str, match: Match) -> bool:
        verbs = self.entries("role-before")  # "work as", as in 当水管工的人, 做一名厨师的人
        starts = (match.start, self._start_of_noun(text, match))
        is_behind_verb = any(_MEASURED.sub("", text[:start]).endswith(verbs) for start in starts)
        return is_behind_verb or super().is_role(text, match)

    def is_named(self, text: str, matches: list[Match]) -> bool:
        if super().is_named(text, matches):
            return True
        surname = "".join(self.entries("surname"))
        for match in matches:
            # A name follows the noun (医生王明在...) or precedes it in its clause (王明医生).
            behind = rf"[{surname}](?!某)[\u4e00-\u9fff]{{1,2}}(?=[在正站坐，,。\s]|$)"
            if re.match(behind, text[match.end :]):
                return True
            before = re.split(r"[，。,.；\s]", text[: match.start])[-1]
            is_name = re.fullmatch(rf"[{surname}][\u4e00-\u9fff]{{0,2}}(?<!的)", before)
            if is_name and not self._covers(text, match.start - 1, "modifier"):
                return True
        return bool(re.match(rf"[{surname}][\u4e00-\u9fff]{{1,2}}[，,]", text))

    def _place_of(self, text: str, match: Match) -> int:
        start = self._start_of_noun(text, match)
        # A gender comes after any adjective, even one without 的: 年轻的女科学家, 年轻女科学家.
        young = re.match(_ADJECTIVE, text[start : match.start])
        if young:
            start += young.end()
        gendered = re.search("[女男]性?$", text[:start])
        return gendered.start() if gendered else start

    def _start_of_noun(self, text: str, match: Match) -> int:
        breaks = [found.end() for found in _BREAK.finditer(text, 0, match.start)]
        opening = breaks[-1] if breaks else 0
        measured = [found.end() for found in _MEASURE.finditer(text, opening, match.start)]
        is_near = bool(measured) and match.start - measured[-1] <= _LONGEST_MODIFIER
        return measured[-1] if is_near else match.start

    def _word_before(self, match: Match, start: int, gender: str) -> str:
        word = super()._word_before(match, start, gender)
        is_abstract = match.noun.endswith(("人士", "人员", "人物", "者"))
        is_long = is_abstract and (start != match.start or match.noun == "人物")
        return f"{word}性" if is_long else word


LANGUAGE = Chinese()
