"""Tell in which language a prompt is written, and load its grammar when it is first met."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from vldebias.prompts.english.reading import English
from vldebias.prompts.english.words import kinds, person
from vldebias.prompts.language import Language, Replacement, Saying
from vldebias.prompts.languages.base import SpacedLanguage
from vldebias.prompts.languages.detection import NAMES, code_of_script, latin_scores, scripts_of

if TYPE_CHECKING:
    from vldebias.prompts.attribute import Attribute

ENGLISH = English()
CODES = ("ar", "de", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh")
_LATIN = ("de", "es", "fr", "it", "pt")
_SURE = 0.6  # of a score: a function word of one language, or several that two languages share
_LIKELY = 0.6  # share of the best score
_ENGLISH_SHARE = 0.9  # of the best score, where English knows a noun of the text
_registered: dict[str, Language] = {}


class Unread(Language):
    """A language that is known by its name alone: its prompts are left alone."""

    def __init__(self, code: str) -> None:
        """Look up the name of a language."""
        self.code = code
        self.name = NAMES.get(code, code)

    def reads(self, text: str) -> bool:
        """Return False: it is told from others by its function words alone."""
        return False

    def states(self, text: str, attribute: Attribute) -> bool:
        """Return False."""
        return False

    def find(self, text: str, attribute: Attribute) -> str:
        """Return the reason with the name of the language."""
        return f"language: {self.name}"

    def write(self, text: str, sayings: Sequence[Saying]) -> list[Replacement]:
        """Return nothing."""
        return []


def register_language(language: Language) -> None:
    """Add a language of yours; the texts that its `reads` accepts are read by it.

    Raises nothing; a language of the same code takes its place.
    """
    _registered[language.code] = language


def unregister_language(code: str) -> None:
    """Forget a language that was registered."""
    _registered.pop(code, None)


@cache
def load_language(code: str) -> Language:
    """Return the grammar of a language of this package; of others, one that reads nothing."""
    if code == "en":
        return ENGLISH
    if code not in CODES:
        return Unread(code)
    language: Language = import_module(f"{__name__}.{code}.grammar").LANGUAGE
    return language


def language_of(text: str) -> Language | None:
    """Return the language of a text, or None if it is in none that is known.

    A text in two scripts is in the language in which it names a person: a Chinese prompt with
    English tags is Chinese, an English one with the name of a place in Chinese is English.
    """
    for language in _registered.values():
        if language.reads(text):
            return language
    if not text.isascii():
        by_script = _language_by_script(text)
        if by_script is not None:
            return by_script
    return _latin_language(text)


def is_english(text: str) -> bool:
    """Return whether a text is read as English."""
    language = language_of(text)
    return language is not None and language.code == "en"


def _language_by_script(text: str) -> Language | None:
    """Return the language of the letters that are not Latin, or None where they are only names."""
    scripts = scripts_of(text)
    latin = scripts.pop("LATIN", 0)
    if not scripts:
        return None
    script, _ = scripts.most_common(1)[0]
    language = load_language(code_of_script(text, script))
    # A sign of Chinese says as much as a word of several letters.
    letters = scripts.total() * (2 if script in ("CJK", "HIRAGANA", "KATAKANA", "HANGUL") else 1)
    if letters > latin or language.reads(text):
        return language
    return None


def _latin_language(text: str) -> Language | None:
    """Return the language of a text in Latin letters, by its function words and its nouns."""
    scores = latin_scores(text)
    english = scores.pop("en", 0)
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    best = scores[ranked[0]] if ranked else 0
    is_english = english >= best
    if (is_english and english) or (_has_english_person(text) and english >= _ENGLISH_SHARE * best):
        return ENGLISH if english or ENGLISH.reads(text) else None
    # Among languages that are nearly as likely: the one that knows a noun of the text.
    likely = [code for code in ranked if scores[code] >= _LIKELY * best]
    # "Krankenpfleger, 4k" has no function word at all; "police officer, city street" is English.
    rest = _LATIN if best < _SURE and not _has_english_noun(text) else ()
    for code in dict.fromkeys((*likely, *rest)):
        language = load_language(code)
        if language.reads(text):
            return language
    for code in likely:
        language = load_language(code)
        if isinstance(language, SpacedLanguage) and language.knows(text):
            return language
    if best < _SURE:
        return ENGLISH if ENGLISH.reads(text) else None
    read = [code for code in likely if code in CODES]
    return load_language((read or likely)[0])


def _has_english_noun(text: str) -> bool:
    """Return whether most words of a text, of three letters or more, are English."""
    words = re.findall(r"[^\W\d_]{3,}", text.lower())
    known = [word for word in words if kinds(word)]
    return 2 * len(known) > len(words)


def _has_english_person(text: str) -> bool:
    """Return whether English knows a noun of a text; "CEO" is one in many languages."""
    words = [word for word in text.split() if not word.isupper()]
    return any(person(word.strip(".,;:!?()\"'").lower()) for word in words)
