"""Find out whether a prompt states the attribute itself, by whole words and phrases, ignoring case."""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from vldebias.errors import InvalidInputError

# A word is a run of letters and digits; Han and kana, written without spaces, are one word per character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


class StatedWords:
    """Find the words of a prompt set in a text.

    Whole words, case ignored: "man" is found in "Man," and "man's", not in "manager", "mankind" or "chairman".
    Whatever is not a letter or digit only separates words, so "dark-skinned" and "dark skinned" are the same
    phrase, also after a tokenizer has encoded and decoded them ("dark - skinned"). As a side effect, "male" is
    found in "male-dominated" too. That is the safe error, because a prompt with a stated word is left alone.

    Args:
        words: words and phrases, such as `PromptSet.stated_words`; if empty, nothing is found.

    Raises:
        InvalidInputError: `words` is one text, or an entry has no letter or digit.
    """

    def __init__(self, words: Iterable[str]) -> None:
        if isinstance(words, str):
            raise InvalidInputError(f"stated words: got the text {words!r}; expected several; write [{words!r}].")
        self.words = tuple(dict.fromkeys(words))
        self._entries: dict[tuple[str, ...], str] = {}
        for word in self.words:
            key = _split(word)
            if not key:
                raise InvalidInputError(f"stated words: got {word!r}; expected letters or digits; take it out.")
            self._entries.setdefault(key, word)
        self._longest = max(map(len, self._entries), default=0)

    def match(self, text: str) -> bool:
        """Return whether `text` contains at least one of the words."""
        return next(self._found(text), None) is not None

    def find(self, text: str) -> tuple[str, ...]:
        """Return the words that `text` contains, spelled as given, once each, in order of appearance.

        Matches run from left to right, the longest first, without overlap: "white woman" is one phrase.
        """
        return tuple(dict.fromkeys(self._found(text)))

    def _found(self, text: str) -> Iterator[str]:
        words = _split(text)
        start = 0
        while start < len(words):
            for stop in range(min(start + self._longest, len(words)), start, -1):
                entry = self._entries.get(words[start:stop])
                if entry is not None:
                    yield entry
                    start = stop
                    break
            else:
                start += 1


def _split(text: str) -> tuple[str, ...]:
    # NFKC folds full-width and other compatibility forms into the plain letters.
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
