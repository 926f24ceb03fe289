"""Tell whether a picture of a person in a prompt states a value: "👩‍⚕️ a doctor" is a woman."""

from __future__ import annotations

import unicodedata

# Kind of attribute -> words of the Unicode names of characters that state it.
STATING = {
    "gender": {"WOMAN", "WOMEN", "GIRL", "FEMALE", "PRINCESS", "MOTHER"}
    | {"MAN", "MEN", "BOY", "MALE", "PRINCE", "FATHER"},
    "age": {"BABY", "CHILD", "GIRL", "BOY", "OLDER"},
    # The modifiers of skin tone are named after Fitzpatrick's scale. They say no origin, but an
    # origin written beside them may contradict what they show.
    "skin": {"FITZPATRICK"},
    "origin": {"FITZPATRICK"},
}
# Words of names that say that no person is shown: "BABY BOTTLE", "BLACK DRAUGHTS MAN".
THINGS = {"BOTTLE", "CHICK", "DRAUGHTS"}
SYMBOLS = ("So", "Sk")  # categories of pictures and of their modifiers


def has_stating_emoji(text: str, kind: str) -> bool:
    """Return whether a picture of a person in a text states a value of a kind of attribute.

    kind: "gender", "age", "skin" or "origin"; no picture states another one.

    >>> has_stating_emoji("👩‍⚕️ a doctor", "gender"), has_stating_emoji("🚒 a firefighter", "gender")
    (True, False)
    """
    stating = STATING.get(kind, set())
    for character in text:
        if unicodedata.category(character) not in SYMBOLS:
            continue
        words = unicodedata.name(character, "").split()
        if stating.intersection(words) and not THINGS.intersection(words):
            return True
    return False
