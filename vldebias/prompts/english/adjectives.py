"""Order English adjectives: "an old white Catholic priest", "a US female senator"."""

from __future__ import annotations

from vldebias.prompts.english.words import lists, origins, religions

# Kinds of adjectives in their English order.
ORDER = ("size", "age", "skin", "origin", "nation", "gender")
# The kinds that can be an attribute, which excludes nations.
KINDS = ("size", "age", "skin", "origin", "gender")


def rank_of(word: str) -> int:
    """Return the position of an adjective in English adjective order, or -1 if unknown.

    Nations and religions come last before the noun, followed only by a gender: "an old white
    Catholic priest", "a US female senator".
    """
    for rank, kind in enumerate(ORDER):
        if word in lists()[kind]:
            return rank
    if word in lists()["classifying"]:
        return len(ORDER)  # next to the noun, as in "a female homeless person"
    is_nation = word in origins() or word in religions()
    return ORDER.index("nation") if is_nation else -1


def kind_of_words(words: set[str]) -> str:
    """Return the most frequent kind of adjective, or "" if none of the words is known."""
    known_of_kind = {kind: len(words & lists()[kind].keys()) for kind in KINDS}
    most_frequent = max(KINDS, key=known_of_kind.__getitem__)
    return most_frequent if known_of_kind[most_frequent] else ""
