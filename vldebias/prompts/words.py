"""Find the words by which a text states an attribute, and fill the slots of templates with words."""

import re
import unicodedata
from collections.abc import Collection, Iterable

from vldebias.errors import InvalidInputError, PromptSetError

# A word is a run of letters and digits; Han and kana, written without spaces, are one word per character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")

_SLOT = re.compile(r"(?:\b(?P<article>[Aa])n?\s+)?\{(?P<slot>[^{}]*)\}")
# English goes by sound: "yoo" and "won" take "a" though written with a vowel, a silent h takes "an".
_CONSONANT_SOUND = re.compile(
    r"uni(?![mn]|d(?!i))|unanim|us[aeiu]|ut[aeio]|ur[aeiou]|ubiq|uk[ru]|ugand|uygh|eu|ewe|onc?e\b", re.IGNORECASE
)
_SILENT_H = re.compile(r"hour|honest|honou?r|heir", re.IGNORECASE)


class StatedWords:
    """Find the words of a prompt set in a text.

    Whole words are matched, ignoring case: "man" is found in "Man," and "man's", not in "manager" or "chairman".
    Whatever is not a letter or digit only separates words, so "dark-skinned" and "dark skinned" are the same
    phrase, also after a tokenizer has encoded and decoded them ("dark - skinned"). As a side effect, "male" is
    found in "male-dominated" too, which is the safe error, because a prompt with a stated word is left alone.

    Raises:
        InvalidInputError: `words` is one text, or an entry has no letter or digit.
    """

    def __init__(self, words: Iterable[str]) -> None:
        if isinstance(words, str):
            raise InvalidInputError(f"stated words: got the text {words!r}; expected several; write [{words!r}].")
        self.words = tuple(dict.fromkeys(words))
        self._entries: dict[tuple[str, ...], str] = {}
        for word in self.words:
            self._entries.setdefault(_split(word), word)
        if () in self._entries:
            raise InvalidInputError(f"stated words: got {self._entries[()]!r}; expected letters or digits.")
        self._longest = max(map(len, self._entries), default=0)

    def match(self, text: str) -> bool:
        """Return whether `text` contains at least one of the words."""
        return bool(self.find(text))

    def find(self, text: str) -> tuple[str, ...]:
        """Return the words that `text` contains, spelled as given, once each, in order of appearance.

        Matches run from left to right, the longest first, without overlap: "white woman" is one phrase.
        """
        words, found, start = _split(text), dict[str, None](), 0
        while start < len(words):
            stops = range(min(start + self._longest, len(words)), start, -1)
            stop = next((stop for stop in stops if words[start:stop] in self._entries), None)
            if stop is not None:
                found[self._entries[words[start:stop]]] = None
            start = stop or start + 1
        return tuple(found)


def _split(text: str) -> tuple[str, ...]:
    # NFKC folds full-width and other compatibility forms into the plain letters.
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


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
    """Raise PromptSetError for a template that lacks a required slot or has an unknown one; `key` is its name."""
    slots = {match["slot"] for match in _SLOT.finditer(template)}
    fits = set(required) <= slots <= {*required, *optional}
    if not fits or set("{}").intersection(_SLOT.sub("", template)):
        expected = " and ".join(f"{{{slot}}}" for slot in required or optional)
        raise PromptSetError(
            f"{key}: got {template!r}; expected {expected or 'no slots'}{' or none' * (not required)}."
        )
