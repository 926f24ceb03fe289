"""Detect the language of a prompt from its script and its function words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from vldebias.prompts.english.words import kinds, read_lists

_READ = frozenset({"en", "de", "fr", "es", "it", "pt"})  # in Latin letters
_LETTERS = "letters-"  # prefix of the lists of characteristic letters
LETTER_SCORE = 0.4  # score of a characteristic letter, lower than that of a function word
# Gender-inclusive forms that only German uses: "eine*r Lehrer*in", "Ärzt:innen".
_GERMAN_SIGN = re.compile(r"\w[*:](?:in|innen|r)\b")
# Feminine endings after a separator in Romance languages: "étudiant·e·s", "médico/a", "doctor(a)".
_ENDING = (
    "(?:e|a|o|la|una|uma|une|ne|le|ère|rice|trice|euse|esse|ora|essa|as|es|os|ras|nes|ères|rices|"
    "trices|euses)"
)
# Each alternative has one group, which captures the plural "s" after the separator.
GENDER_SIGN = (
    rf"(?<=[^\W\d_])(?:[\u00b7\u2022\u22c5./]{_ENDING}(?:[\u00b7\u2022\u22c5.](s))?(?!\w)"
    rf"|\({_ENDING}\)(s?)(?!\w))"
)
_ROMANCE_SIGN = re.compile(GENDER_SIGN)
_WORD = re.compile(r"(?<!\w)[^\W\d_]+['\u2019]?")


def _lists(path: str) -> dict[str, dict[str, None]]:
    return read_lists(Path(__file__).parent / path)


@cache
def _pairs(name: str) -> dict[str, str]:
    """Return a list with "first/second" entries as a mapping from first to second."""
    return dict(entry.split("/") for entry in _lists("function_words.txt").get(name, ()))


def name_of(code: str) -> str:
    """Return the English name of a language without a table, given its code or its name."""
    return _pairs("name").get(code, code)


@cache
def _codes_of_word() -> dict[str, tuple[str, ...]]:
    """Return a mapping from each function word to the languages that use it."""
    codes_of_word: dict[str, tuple[str, ...]] = {}
    for code, words in _lists("function_words.txt").items():
        for word in words if len(code) == 2 else ():
            codes_of_word[word] = (*codes_of_word.get(word, ()), code)
    return codes_of_word


def scripts_of(text: str) -> Counter[str]:
    """Count the letters in each script, with scripts named as in Unicode."""
    scripts: Counter[str] = Counter()
    for character in text:
        if character.isascii():
            scripts["LATIN"] += character.isalpha()
        elif character.isalpha():
            # The script is the first word of the character name: "CYRILLIC SMALL LETTER A".
            script = re.split("[ -]", unicodedata.name(character, ""))[0]
            scripts[script] += 1
    return scripts


def code_of_script(text: str, script: str) -> str:
    """Return the language code of a prompt, or the name of a language without a code.

    Args:
        text: the prompt.
        script: the most frequent script in the prompt, as named by `scripts_of`.
    """
    letters = set(text.lower())
    if script in ("CJK", "HIRAGANA", "KATAKANA"):
        return "ja" if _is_japanese(text) else "zh"
    for code, own_letters in _pairs(f"script-{script}").items():
        if letters.intersection(own_letters):
            return code
    # Unlisted scripts, such as "GREEK", share their name with a language.
    return _pairs("script").get(script, script.capitalize())


def _is_japanese(text: str) -> bool:
    """Return whether a prompt that contains Chinese characters is Japanese."""
    scripts = scripts_of(text)
    if scripts["HIRAGANA"] + scripts["KATAKANA"] > 0:
        return True
    if "\uff0c" in text:
        return False  # Japanese does not use the Chinese comma.
    lists = _lists("ja.txt")
    is_noun = any(word in lists["only-japanese"] for word in re.findall(r"\w+", text))
    return is_noun or not lists["japanese-form"].keys().isdisjoint(text)


def without_gender_sign(text: str) -> str:
    """Remove feminine endings that follow a separator from lower-case words.

    >>> without_gender_sign("un·e étudiant·e"), without_gender_sign("los/as médicos/as")
    ('un étudiant', 'los médicos')
    >>> without_gender_sign("des étudiant·e·s"), without_gender_sign("doctor(a)s")
    ('des étudiants', 'doctors')
    """
    return _ROMANCE_SIGN.sub(r"\1\2", text)


def latin_scores(text: str) -> dict[str, float]:
    """Score each language for a prompt in Latin script, based on its words and letters."""
    scores: defaultdict[str, float] = defaultdict(float)
    codes_of_word = _codes_of_word()
    low = text.lower().replace("\u2019", "'")
    if _GERMAN_SIGN.search(low):
        scores["de"] += 1
    for word in _WORD.findall(without_gender_sign(low)):
        if word not in codes_of_word:
            word = word.rstrip("'")
        codes = codes_of_word.get(word, ())
        # A word that is also English is weaker evidence: "an elderly care worker" is not Romanian.
        if codes and _READ.isdisjoint(codes) and kinds(word):
            codes = (*codes, "en")
        for code in codes:
            # A word shared by several languages is weaker evidence.
            scores[code] += 1 / len(codes)
    if not low.isascii():
        for name, letters in _lists("function_words.txt").items():
            if name.startswith(_LETTERS) and not letters.keys().isdisjoint(low):
                scores[name.removeprefix(_LETTERS)] += LETTER_SCORE
    return dict(scores)
