"""Detect the language of a prompt, and load its table on first use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.prompts.english.words import kinds, person
from vldebias.wording.english.reading import English
from vldebias.wording.language import Assignment, Language, Replacement
from vldebias.wording.languages.detection import (
    LETTER_SCORE,
    code_of_script,
    latin_scores,
    name_of,
    scripts_of,
)
from vldebias.wording.languages.table import Table

if TYPE_CHECKING:
    from vldebias.prompts.attribute import Attribute

ENGLISH = English()
CODES = ("ar", "de", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh")
_LATIN = ("de", "es", "fr", "it", "pt")
# Scripts in which a character represents a syllable or a word.
_SCRIPTS_OF_SIGNS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
# A function word shared by n languages adds 1 / n to the score of each. The thresholds were set by
# hand, in the middle of the range in which all prompts in tests/wording/languages are detected.
_SURE = 0.6  # more than one word shared by two languages, less than such a word plus a letter
# A language is a candidate if its score is at least this fraction of the best score. A candidate
# is only chosen if it also recognises a noun.
_LIKELY = 0.6
# If English recognises a noun, it needs only this fraction of the best score.
_ENGLISH_SHARE = 0.9
_registered: dict[str, Language] = {}


class Unread(Language):
    """Represent a language without a table, whose prompts stay unchanged."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.name = name_of(code)

    def reads(self, text: str) -> bool:
        return False  # such a language is only detected by its function words

    def states(self, text: str, attribute: Attribute) -> bool:
        return False

    def find(self, text: str, attribute: Attribute) -> str:
        return f"language: {self.name}"

    def write(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        return []


def register_language(language: Language) -> None:
    """Register a custom language, which handles every prompt that its `reads` accepts.

    It replaces any language registered earlier under the same code.
    """
    _registered[language.code] = language


def unregister_language(code: str) -> None:
    """Remove a registered language."""
    _registered.pop(code, None)


@cache
def load_language(code: str) -> Language:
    """Return the table of a language, or an `Unread` language if there is none."""
    if code == "en":
        return ENGLISH
    if code not in CODES:
        return Unread(code)
    return Table(Path(__file__).parent / f"{code}.txt")


def language_of(text: str) -> Language | None:
    """Return the language of a prompt, or None if it cannot be determined.

    If a prompt mixes two scripts, the language that mentions a person wins. A Chinese prompt with
    English tags is Chinese, and an English prompt with a Chinese place name is English.
    """
    for language in _registered.values():
        if language.reads(text):
            return language
    if not text.isascii():
        scripts = scripts_of(text)
        latin = scripts.pop("LATIN", 0)
        if scripts:
            script, _ = scripts.most_common(1)[0]
            language = load_language(code_of_script(text, script))
            # A Chinese character carries as much information as several letters.
            letters = scripts.total() * (2 if script in _SCRIPTS_OF_SIGNS else 1)
            # If most letters are Latin, the others may just be a name.
            if letters > latin or language.reads(text):
                return language
    return _latin_language(text)


def is_english(text: str) -> bool:
    """Return whether a prompt is treated as English."""
    language = language_of(text)
    return language is not None and language.code == "en"


def _latin_language(text: str) -> Language | None:
    """Return the language of a prompt in Latin script, based on its function words and nouns."""
    scores = latin_scores(text)
    english = scores.pop("en", 0)
    best = max(scores.values(), default=0)
    # In "a café owner", the "é" suggests Portuguese, which also has the article "a".
    only_letters = english > 0 and best - english <= LETTER_SCORE + 1e-9
    # Words in capitals are skipped because "CEO" is a noun in many languages.
    words = [word.strip(".,;:!?()\"'").lower() for word in text.split() if not word.isupper()]
    is_person_english = any(map(person, words))
    is_close = english >= _ENGLISH_SHARE * best or only_letters
    # "a" is a word in several languages: "un dentista atendiendo a un paciente".
    # A word of three letters or more is surer, unless it is only a name.
    is_sure = english > best or any(kinds(word).strip("fliu") for word in _long_words(text))
    is_english = (english > 0 and english >= best and is_sure) or (is_close and is_person_english)
    language = None if is_english else _foreign_language(text, scores)
    return language or (ENGLISH if english or ENGLISH.reads(text) else None)


def _long_words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{3,}", text.lower())


def _foreign_language(text: str, scores: Mapping[str, float]) -> Language | None:
    """Return the most likely language that recognises a noun in the prompt, or None.

    scores: language code -> score from `latin_scores`.
    """
    best = max(scores.values(), default=0)
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    likely = [code for code in ranked if scores[code] >= _LIKELY * best]
    candidates = likely if best >= _SURE else _candidates(text, likely)
    if not candidates:
        return None
    readers = [code for code in candidates if load_language(code).reads(text)]
    if readers:
        return _best_fit(text, {code: scores.get(code, 0) for code in readers})
    knowing = [code for code in likely if load_language(code).knows(text)]
    if best >= _SURE:
        # Otherwise prefer the likeliest language that has a table.
        knowing += sorted(likely, key=lambda code: code not in CODES)
    return load_language(knowing[0]) if knowing else None


def _candidates(text: str, likely: Sequence[str]) -> list[str]:
    """Return the languages to try if the function words are too few to be sure."""
    words = _long_words(text)
    n_english = sum(1 for word in words if kinds(word).strip("fliu"))  # except names
    if likely and 2 * n_english > len(words) > 1:
        return []  # One word is too little beside an English one: "persona 5, school".
    # In "police officer", most words are English. "Krankenpfleger, 4k" has no function words.
    is_mostly_english = 2 * sum(1 for word in words if kinds(word)) > len(words)
    return list(likely) if is_mostly_english else list(dict.fromkeys([*likely, *_LATIN]))


def _best_fit(text: str, scores: Mapping[str, float]) -> Language:
    """Return the language with the best score and the most words that it reads.

    "un vigile urbano" is Italian, because French recognises only two of its words. Words of another
    language are worse than none.
    """
    fits: dict[str, tuple[float, int]] = {}
    for code, score in scores.items():
        language = load_language(code)
        assert isinstance(language, Table)
        minus_foreign, n_read = language.fit(text)
        fits[code] = (score + minus_foreign, n_read)
    best = max(fits.values())
    return load_language(" or ".join(code for code in fits if fits[code] == best))
