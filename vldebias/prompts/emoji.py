"""Tell whether a picture of a person in a prompt states a value: "👩‍⚕️ a doctor" is a woman."""

from __future__ import annotations

import unicodedata

# Kind of attribute -> words of the Unicode names of characters that state it.
STATING = {
    "gender": {"WOMAN", "MAN", "GIRL", "BOY", "FEMALE", "MALE", "PRINCESS", "PRINCE"},
    "age": {"BABY", "CHILD", "GIRL", "BOY", "OLDER"},
    # The modifiers of skin tone are named after Fitzpatrick's scale.
    "skin": {"FITZPATRICK"},
    "origin": {"FITZPATRICK"},
}
SYMBOLS = ("So", "Sk")  # categories of pictures and of their modifiers


def has_stating_emoji(text: str, kind: str) -> bool:
    """Return whether a picture of a person in a text states a value of a kind of attribute.

    kind: "gender", "age", "skin" or "origin"; no picture states another one.

    >>> has_stating_emoji("👩‍⚕️ a doctor", "gender"), has_stating_emoji("🚒 a firefighter", "gender")
    (True, False)
    """
    stating = STATING.get(kind, set())
    for character in text:
        if not character.isascii() and unicodedata.category(character) in SYMBOLS:
            words = unicodedata.name(character, "").split()
            if stating.intersection(words):
                return True
    return False
