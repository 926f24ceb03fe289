"""Find texts that state a value, in all languages in which prompts can be balanced."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from vldebias.prompts.attribute import Attribute, can_balance
from vldebias.prompts.prompt_set import PromptSet, StatedWords
from vldebias.wording.languages import CODES, language_of, latin_scores, load_language
from vldebias.wording.persons import PersonReader
from vldebias.wording.reasons import NO_PERSON

_CACHED = 10_000  # Number of texts whose answers are cached.


class StatedValues:
    """Find texts that state a value of a prompt set, or that only show people with names.

    A text states a value if it contains one of the attribute words. For prompt sets that can be
    balanced, the rules for balanced prompts also apply: "eine Ärztin" and "ropa femenina" state a
    gender, "ein Arzt" does not.

    Args:
        words: The attribute words.
        sets: The prompt sets. Those that cannot be balanced have no rules but the words.

    Attributes:
        find: A cached function that returns whether a text states a value.

    >>> from vldebias.prompts import load_prompts
    >>> stated = StatedValues(["female", "male"], [load_prompts("gender")])
    >>> [stated.find(text) for text in ("a female doctor", "eine Ärztin", "ein Arzt")]
    [True, True, False]
    """

    def __init__(self, words: Sequence[str], sets: Sequence[PromptSet]) -> None:
        self._given = (words, sets)
        self._words = StatedWords(words)
        parts = [part for prompt_set in sets for part in prompt_set.parts or (prompt_set,)]
        self._readers = [PersonReader(Attribute(part, {})) for part in parts if can_balance(part)]
        self.find = lru_cache(maxsize=_CACHED)(self._find)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._given  # the caches cannot be pickled

    def _find(self, text: str) -> bool:
        if any(not _is_foreign(word, text) for word in self._words.find(text)):
            return True
        composed = unicodedata.normalize("NFC", text)  # the word lists contain no combining accents
        return any(_states(reader, composed) for reader in self._readers)


def _is_foreign(word: str, text: str) -> bool:
    """Return whether a word is a function word of a text's language: "son" is French for "his"."""
    scores = latin_scores(word)
    if not scores:
        return False
    language = language_of(text)
    return language is not None and language.code != "en" and language.code in scores


def _states(reader: PersonReader, text: str) -> bool:
    """Return whether a text states a value of an attribute by the rules of a language."""
    persons = reader.persons(text)
    reasons = {persons} if isinstance(persons, str) else {person.reason for person in persons}
    if "stated" in reasons or reasons == {"named"}:
        return True
    # Without a person, too few words may tell the language, as in "ropa femenina".
    if isinstance(persons, str) and persons.startswith((NO_PERSON, "language")):
        languages = [load_language(code) for code in CODES]
    else:
        language = language_of(text)
        # The attribute words are English.
        languages = [] if language is None or language.code == "en" else [language]
    return any(language.states(text, reader.attribute) for language in languages)
