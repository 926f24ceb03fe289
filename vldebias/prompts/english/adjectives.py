"""Order English adjectives: "an old white Catholic priest", "a US female senator"."""

from __future__ import annotations

from collections.abc import Iterable

from vldebias.prompts.english.words import lists, origins, religions

# Kinds of adjectives as English orders them, from left to right.
ORDER = ("size", "age", "skin", "origin", "nation", "gender")
# The kinds that are attributes; a nation has a place among adjectives, but makes no attribute.
KINDS = ("size", "age", "skin", "origin", "gender")


def rank_of(word: str) -> int:
    """Return the place of an adjective in the English order of adjectives; -1 if unknown.

    Nations and religions stand next to the noun, before a gender alone: "an old white Catholic
    priest", "a US female senator".
    """
    for rank, kind in enumerate(ORDER):
        if word in lists()[kind]:
            return rank
    if word in lists()["classifying"]:
        return len(ORDER)  # "a female homeless person"
    is_nation = word in origins() or word in religions()
    return ORDER.index("nation") if is_nation else -1


def kind_of_words(words: set[str]) -> str:
    """Return the kind of adjectives that most words are of; "" if none of them is known."""
    likeliest = ""
    most_words = 0
    for kind in KINDS:
        known = len(words & lists()[kind].keys())
        if known > most_words:
            likeliest = kind
            most_words = known
    return likeliest


def rank_of_set(kind: str, words: Iterable[str]) -> int:
    """Return the place of the adjectives of a set: that of their kind, or of a religion's."""
    if kind:
        return ORDER.index(kind)
    rank_of_nations = ORDER.index("nation")
    if rank_of_nations in map(rank_of, words):
        return rank_of_nations
    return ORDER.index("size")
