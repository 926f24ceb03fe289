"""Detect emoji that state a value, such as the female health worker in "👩‍⚕️ a doctor"."""

from __future__ import annotations

import unicodedata

# Kind of attribute -> words in Unicode character names that state it.
_STATING = {
    "gender": {"WOMAN", "WOMEN", "GIRL", "FEMALE", "PRINCESS", "MOTHER"}
    | {"MAN", "MEN", "BOY", "MALE", "PRINCE", "FATHER"},
    "age": {"BABY", "CHILD", "GIRL", "BOY", "OLDER"},
    # Skin tone modifiers are named after the Fitzpatrick scale. They do not state an origin, but an
    # origin next to them may contradict the tone.
    "skin": {"FITZPATRICK"},
    "origin": {"FITZPATRICK"},
}
# Words in the names of characters that do not show a person: "BABY BOTTLE", "BLACK DRAUGHTS MAN".
_THINGS = {"BOTTLE", "CHICK", "DRAUGHTS"}
_SYMBOLS = ("So", "Sk")  # Unicode categories of emoji and their modifiers


def has_stating_emoji(text: str, kind: str) -> bool:
    """Return whether a text contains an emoji of a person that states a value of an attribute.

    Args:
        text: A prompt.
        kind: The kind of attribute. Emoji can state only "gender", "age", "skin" and "origin".

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
