"""Decide whether an emoji of a person states a value: "👩‍⚕️ a doctor" is a woman."""

from __future__ import annotations

import unicodedata

# Kind of attribute -> words of the Unicode names of characters that state it.
_STATING = {
    "gender": {"WOMAN", "WOMEN", "GIRL", "FEMALE", "PRINCESS", "MOTHER"}
    | {"MAN", "MEN", "BOY", "MALE", "PRINCE", "FATHER"},
    "age": {"BABY", "CHILD", "GIRL", "BOY", "OLDER"},
    # Skin tone modifiers are named after the Fitzpatrick scale. They do not state an origin, but an
    # origin next to them may contradict the tone.
    "skin": {"FITZPATRICK"},
    "origin": {"FITZPATRICK"},
}
# Words in names of characters that show no person: "BABY BOTTLE", "BLACK DRAUGHTS MAN".
_THINGS = {"BOTTLE", "CHICK", "DRAUGHTS"}
_SYMBOLS = ("So", "Sk")  # categories of emoji and their modifiers


def has_stating_emoji(text: str, kind: str) -> bool:
    """Return whether an emoji of a person in a text states a value of an attribute.

    Args:
        text: a prompt.
        kind: "gender", "age", "skin" or "origin"; emoji state no other attribute.

    >>> has_stating_emoji("👩‍⚕️ a doctor", "gender"), has_stating_emoji("🚒 a firefighter", "gender")
    (True, False)
    """
    stating = _STATING.get(kind, set())
    for character in text:
        if unicodedata.category(character) not in _SYMBOLS:
            continue
        words = unicodedata.name(character, "").split()
        if stating.intersection(words) and not _THINGS.intersection(words):
            return True
    return False
