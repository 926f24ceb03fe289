"""Japanese: 医者 becomes 女性の医者 or 男性の医者; 野心的な人 becomes 野心的な女性."""

from __future__ import annotations

import re

from vldebias.wording.languages.unspaced import Match, UnspacedLanguage

_NUMBER = "一二三四五六七八九十0-9\uff10-\uff19"
# A noun consists of kanji, katakana and Latin letters. Hiragana and punctuation end it.
_NOUN = re.compile(r"[\u4e00-\u9fff々\u30a0-\u30fbー\u30fcA-Za-z]+$")


class Japanese(UnspacedLanguage):
    """Find people in Japanese prompts, and insert values before the noun."""

    code = "ja"
    name = "Japanese"
    human = "人"
    # Only after a verb or adjective, because 人 after a number is a counter.
    lone_human = re.compile(r"(?<=[いなたるうくすぐぶむぬつのだ])(?:ひと|人)(?![々形工気生口類])")
    thing_link = "の"
    plural_signs = ("たち", "達", "ら")
    count = re.compile(
        rf"([{_NUMBER}]{{1,2}})(?:人|名)の(?:[^、。，,.\s]{{0,8}}(?:い|な|た|る|の))?$"
    )
    count_behind = re.compile(rf"([{_NUMBER}]{{1,2}})[人名]")  # as in 料理人3人 ("3 cooks")
    words_for_one = ("一", "1", "１")
    reach = 8
    brackets = ("（", "）")

    def joined(self, parts: list[str], is_counted: bool) -> str:
        return ("、" if is_counted else "と").join(parts)

    def is_named(self, text: str, matches: list[Match]) -> bool:
        # "さん" also follows words that are not names: 看護師さん, おばあさん.
        if super().is_named(re.sub("(?:お..?|[師士者員手])さん", "", text), matches):
            return True
        # Surnames next to a noun: 田中先生, 医師の佐藤.
        if re.search(r"[\u30a1-\u30fa\u30fc]{3,}(?:教授|博士|先生|船長|選手|さん|様|氏)", text):
            return True  # A foreign name in katakana precedes a title: レイトン教授.
        surname = self.pattern("surname").pattern
        for match in matches:
            before = rf"(?:^|[、。\s])(?:{surname})(?:(?!の)[\u4e00-\u9fff\u3040-\u309f]){{0,3}}$"
            behind = rf"の?(?:{surname})"
            if re.search(before, text[: match.start]) or re.match(behind, text[match.end :]):
                return True
        return bool(re.search(rf"(?:{surname})[^\s、。]{{0,3}}(?:さん|様|氏|君|ちゃん|先生)", text))

    def _start_of_noun(self, text: str, match: Match) -> int:
        noun = _NOUN.search(text[: match.start])
        if noun is None or noun[0].endswith(("人", "名")):
            return match.start
        return noun.start()


LANGUAGE = Japanese()
