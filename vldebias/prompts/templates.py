"""Fill the slots of prompt templates with words, and choose the article that fits."""

import re
from collections.abc import Collection

from vldebias.errors import PromptSetError

_SLOT = re.compile(r"(?:\b(?P<article>[Aa])n?\s+)?\{(?P<slot>[^{}]*)\}")
# English goes by sound: "yoo" and "won" take "a" though written with a vowel, a silent h takes "an".
_CONSONANT_SOUND = re.compile(
    r"uni(?![mn]|d(?!i))|unanim|us[aeiu]|ut[aeio]|ur[aeiou]|ubiq|uk[ru]|ugand|uygh|eu|ewe|onc?e\b", re.IGNORECASE
)
_SILENT_H = re.compile(r"hour|honest|honou?r|heir", re.IGNORECASE)


def article(word: str) -> str:
    """Choose "a" or "an" by the first letters of `word`. Initials go by their first letter ("a MC").

    >>> [article(word) for word in ("Asian", "doctor", "university", "uninsured", "hour")]
    ['an', 'a', 'a', 'an', 'an']
    """
    vowel = word[:1].lower() in set("aeiou") and not _CONSONANT_SOUND.match(word)
    return "an" if vowel or _SILENT_H.match(word) else "a"


def fill(template: str, **words: str) -> str:
    """Fill the slots with words; an "a" or "an" right before a slot is adapted, and all else stays unchanged.

    >>> fill("A photo of a {attribute} {concept}.", attribute="Asian", concept="architect")
    'A photo of an Asian architect.'
    """

    def put(match: re.Match[str]) -> str:
        word = words[match["slot"]]
        return word if match["article"] is None else f"{match['article']}{article(word)[1:]} {word}"  # keeps "A"

    return _SLOT.sub(put, template)


def check_slots(key: str, template: str, required: Collection[str] = (), optional: Collection[str] = ()) -> None:
    """Refuse a template that lacks a required slot or has an unknown one.

    Raises:
        PromptSetError: the template is refused; the message names `key` and the expected slots.
    """
    slots = {match["slot"] for match in _SLOT.finditer(template)}
    rest = _SLOT.sub("", template)
    if slots >= set(required) and slots <= {*required, *optional} and not set("{}") & set(rest):
        return
    expected = " and ".join(f"{{{slot}}}" for slot in required or optional)
    raise PromptSetError(f"{key}: got {template!r}; expected {'' if required else 'no placeholder but '}{expected}.")
