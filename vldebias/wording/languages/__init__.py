"""Identify the language of a prompt, and load its grammar at first use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from vldebias.prompts.english.words import kinds, person
from vldebias.wording.english.reading import English
from vldebias.wording.language import Assignment, Language, Replacement
from vldebias.wording.languages.base import SpacedLanguage
from vldebias.wording.languages.detection import (
    LETTER_SCORE,
    NAMES,
    code_of_script,
    latin_scores,
    scripts_of,
)

if TYPE_CHECKING:
    from vldebias.prompts.attribute import Attribute

ENGLISH = English()
CODES = ("ar", "de", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh")
_LATIN = ("de", "es", "fr", "it", "pt")
# A character of these is a syllable or a word.
_SCRIPTS_OF_SIGNS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
# Scores are sums: a function word of n languages counts 1 / n for each of them. The thresholds are
# chosen by hand in the middle of what reads all prompts of tests/wording/languages alike.
_SURE = 0.6  # more than a word that two languages share, less than a word and a letter
_LIKELY = 0.6  # of the best score: candidates, one of which has to know a noun of the text
_ENGLISH_SHARE = 0.9  # of the best score, where English knows a noun of the text
_registered: dict[str, Language] = {}


class Unread(Language):
    """Represent a language without a grammar: its prompts stay unchanged."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.name = NAMES.get(code, code)

    def reads(self, text: str) -> bool:
        return False  # such a language is recognised by its function words alone

    def states(self, text: str, attribute: Attribute) -> bool:
        return False

    def find(self, text: str, attribute: Attribute) -> str:
        return f"language: {self.name}"

    def write(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        return []


def register_language(language: Language) -> None:
    """Register your own language, which reads the texts that its `reads` accepts.

    It replaces a language registered with the same code.
    """
    _registered[language.code] = language


def unregister_language(code: str) -> None:
    """Remove a registered language."""
    _registered.pop(code, None)


@cache
def load_language(code: str) -> Language:
    """Return the grammar of a language; without one, a grammar that reads nothing."""
    if code == "en":
        return ENGLISH
    if code not in CODES:
        return Unread(code)
    language: Language = import_module(f"{__name__}.{code}.grammar").LANGUAGE
    return language


def language_of(text: str) -> Language | None:
    """Return the language of a text, or None if it is not known.

    A text in two scripts is in the language in which it names a person: a Chinese prompt with
    English tags is Chinese, an English one with the name of a place in Chinese is English.
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
            # A Chinese character says as much as a word of several letters.
            letters = scripts.total() * (2 if script in _SCRIPTS_OF_SIGNS else 1)
            # Fewer letters than Latin ones may be a name alone.
            if letters > latin or language.reads(text):
                return language
    return _latin_language(text)


def is_english(text: str) -> bool:
    """Return whether a text is read as English."""
    language = language_of(text)
    return language is not None and language.code == "en"


def _latin_language(text: str) -> Language | None:
    """Return the language of a text in Latin letters, by its function words and its nouns."""
    scores = latin_scores(text)
    english = scores.pop("en", 0)
    best = max(scores.values(), default=0)
    is_english = english > 0 and english >= best
    # "a café owner": the letter suggests Portuguese, whose article is also "a".
    only_letters = english > 0 and best - english <= LETTER_SCORE + 1e-9
    # English knows a noun of the text; "CEO" is one in many languages.
    words = [word.strip(".,;:!?()\"'").lower() for word in text.split() if not word.isupper()]
    is_person_english = any(map(person, words))
    is_close = english >= _ENGLISH_SHARE * best or only_letters
    is_english = is_english or (is_close and is_person_english)
    language = None if is_english else _foreign_language(text, scores)
    if language is None and not is_person_english:
        language = _language_of_subject(text)
    return language or (ENGLISH if english or ENGLISH.reads(text) else None)


def _language_of_subject(text: str) -> Language | None:
    """Return the language of "soldador, cinematic lighting", whose style alone is in English."""
    subject = re.split("[,;.]", text)[0]
    if subject == text or not subject.islower():
        return None  # a capital may be of a name
    scores = latin_scores(subject)
    language = None if "en" in scores else _foreign_language(subject, scores)
    if language is None or not language.reads(subject):
        return None
    is_all_read = _fit_of(subject, language.code)[0] == len(subject.split())
    return language if is_all_read else None


def _is_mostly_english(text: str) -> bool:
    """Return whether English knows most words of three letters or more: "police officer"."""
    words = re.findall(r"[^\W\d_]{3,}", text.lower())
    return 2 * sum(1 for word in words if kinds(word)) > len(words)


def _fit_of(text: str, code: str) -> tuple[int, int]:
    """Return the number of words read as people, and minus that of words of other languages."""
    language = load_language(code)
    assert isinstance(language, SpacedLanguage)
    tokens = language.read(text)
    phrases = [language.phrase_at(tokens, i) for i in range(len(tokens))]
    parts = language.entries("foreign-letters")
    n_foreign = sum(any(part in f" {token.low} " for part in parts) for token in tokens)
    n_read = sum(phrase.last - phrase.first + 1 for phrase in phrases if phrase)
    return n_read, -n_foreign


def _foreign_language(text: str, scores: Mapping[str, float]) -> Language | None:
    """Return the most likely language that knows a noun of the text, or None.

    scores: language -> score of its function words.
    """
    best = max(scores.values(), default=0)
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    likely = [code for code in ranked if scores[code] >= _LIKELY * best]
    candidates = likely
    if best < _SURE and not _is_mostly_english(text):
        # "Krankenpfleger, 4k" has no function word at all.
        candidates = list(dict.fromkeys([*likely, *_LATIN]))
    readers = [code for code in candidates if load_language(code).reads(text)]
    if readers:
        # "un vigile urbano" is Italian: French reads only two of its words.
        return load_language(
            max(readers, key=lambda code: (scores.get(code, 0), _fit_of(text, code)))
        )
    knowing = [code for code in likely if load_language(code).knows(text)]
    if not knowing and best >= _SURE:
        # The likeliest of those that have a grammar, if there is one.
        knowing = sorted(likely, key=lambda code: code not in CODES)
    return load_language(knowing[0]) if knowing else None
