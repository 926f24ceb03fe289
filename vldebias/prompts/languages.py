"""Tell in which language a prompt is written."""

from __future__ import annotations

from vldebias.prompts.english.reading import English
from vldebias.prompts.language import Language

# Asked in this order: the first that reads a text does so.
LANGUAGES: tuple[Language, ...] = (English(),)


def language_of(text: str) -> Language | None:
    """Return the language of a text, or None if it is in none of those that are known."""
    for language in LANGUAGES:
        if language.reads(text):
            return language
    return None
