"""Split a prompt into words and clauses."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from itertools import islice

from vldebias.prompts.english.words import listed

# A word may contain hyphens, apostrophes and symbols: "mother-in-law's", "R&B", "UI/UX".
_WORD = re.compile(
    r"(?<=\s)[&+](?=\s)|[A-Z]{2,}/[A-Z]{2,}\b|[^\W_]+(?:(?:[-'\u2019&]|\.(?![A-Z][a-z]))[^\W_]+)*['\u2019]?"
)
_SENTENCE_END = re.compile(r"[.!?\n:]")
_BREAK = re.compile(r"[,.;:!?()\[\]{}|\"\n\u2014\u2013/\u201c\u201d]|\s-+\s|\s--")
# A quotation. An apostrophe, as in "the nurse's", does not start one.
_QUOTED = re.compile(
    r"\"[^\"]*\"|\u201c[^\u201c\u201d]*\u201d|(?<![^\s(])'[^']*[^'\s]'(?![^\W_])|\u2018[^\u2018\u2019]*\u2019"
)
_LETTER_WORD = re.compile(r"[A-Z]-[a-z]")  # "X-ray", "T-shirt"
LONGEST_PROMPT = 1000  # words
# The abbreviations "US" and "IT" must stay distinct from the words "us" and "it".
_IN_LOWER_CASE = {"&": "and", "+": "and", "US": "u.s", "IT": "i.t"}


class Text:
    """The words of a prompt, with clause boundaries and other annotations.

    Only the first `LONGEST_PROMPT` words are analysed, which bounds the running time. No text
    encoder in an image generator uses more (CLIP: 77 tokens, T5: 512, Qwen: 1,024).

    Attributes:
        start: The offset of each word's first character in `prompt`.
        words: The words with their original spelling.
        low: The words in lower case.
        bare: The words in lower case without a possessive 's.
        opens: Whether each word starts a clause, with an additional True for the end of the prompt.
        sentence: Whether each word starts a sentence, with an additional entry for the end.
        silent: Whether each word is in quotation marks.
        credited: Whether each word may be part of an artist's name, as after "by".
        capital: Whether each word is capitalized. Always False if the prompt is in title case.
    """

    def __init__(self, prompt: str) -> None:
        tokens = list(islice(_WORD.finditer(prompt), LONGEST_PROMPT))
        if len(tokens) == LONGEST_PROMPT:
            prompt = prompt[: tokens[-1].end()]
        self.prompt = prompt
        self.start = [token.start() for token in tokens]
        self.words = [token[0] for token in tokens]
        self.low = [
            _IN_LOWER_CASE.get(word) or word.lower().replace("\u2019", "'") for word in self.words
        ]
        self.bare = [re.sub(r"'s?$", "", word) if "'" in word else word for word in self.low]
        self.opens: list[bool] = []
        self.sentence: list[bool] = []
        end = 0
        for i, start in enumerate([*self.start, len(prompt)]):
            gap = prompt[end:start]  # the text before word i, or after the last word
            # The period in "Dr. Smith" does not end a clause.
            is_abbreviated = i > 0 and gap == ". " and listed(self.low[i - 1], "abbreviation")
            self.opens.append(bool(_BREAK.search(gap)) and not is_abbreviated)
            self.sentence.append(bool(_SENTENCE_END.search(gap)))
            end = start + len(self.words[i]) if i < len(self.words) else start
        self.opens[0] = True
        self.opens[-1] = True
        self.sentence[0] = True
        self.silent = _is_quoted(prompt, self.start)
        self.credited = _is_credited(self.low)
        # In a title, words such as "of" and "the" are lower-case, and the capitals of the other
        # words do not show that they are names.
        main_words = [word for word in self.words if not listed(word, "preposition", "determiner")]
        capitals = [word[0].isupper() for word in main_words if word[0].isalpha()]
        is_title = len(capitals) > 1 and sum(capitals) > 0.7 * len(capitals)
        self.capital = [
            not is_title and word[0].isupper() and not _LETTER_WORD.match(word)
            for word in self.words
        ]

    def before(self, i: int) -> str:
        """Return the word before word i, or "" if word i starts a clause."""
        if i < 1 or self.opens[i]:
            return ""
        return self.low[i - 1]

    def clause_start(self, i: int) -> int:
        """Return the index of the first word in the clause that contains word i."""
        while i > 0 and not self.opens[i]:
            i -= 1
        return i

    def is_same_sentence(self, first: int, last: int) -> bool:
        """Return whether two words are in the same sentence.

        Args:
            first: The index of the earlier word.
            last: The index of the later word.
        """
        return not any(self.sentence[first + 1 : last + 1])

    def after(self, i: int) -> str:
        """Return the word after word i, or "" if word i ends a clause."""
        if i + 1 >= len(self.low) or self.opens[i + 1]:
            return ""
        return self.low[i + 1]


def _is_quoted(prompt: str, starts: list[int]) -> list[bool]:
    """Return, for each word, whether it is in quotation marks."""
    # Bisection keeps this fast for long prompts with many quotations.
    quotes = [match.span() for match in _QUOTED.finditer(prompt)]
    openings = [start for start, _ in quotes]
    quoted = []
    for start in starts:
        n = bisect_right(openings, start)
        quoted.append(n > 0 and start < quotes[n - 1][1])
    return quoted


def _is_credited(words: list[str]) -> list[bool]:
    """Return, for each word, whether it may be part of an artist's name, as after "by"."""
    credited = []
    credits = False
    for i, word in enumerate(words):
        credited.append(credits)
        is_behind_style = word == "of" and listed(words[max(0, i - 1)], "credit-style")
        is_place = words[i - 1 : i] == ["surrounded"]
        if (word == "by" and not is_place) or is_behind_style:
            credits = True
        elif listed(word, "no-credit"):
            credits = False
    return credited


def without_quotations(prompt: str) -> str:
    """Replace the words in quotation marks with spaces, unless everything is in them."""
    rest = _QUOTED.sub(lambda quotation: " " * len(quotation[0]), prompt)
    return rest if re.search(r"\w", rest) else prompt


def with_capitals_of(old: str, new: str) -> str:
    """Return a word in the case of the word that it replaces: in capitals, or with a capital.

    Args:
        old: The word to replace.
        new: The new word.
    """
    if len(old) > 1 and old.isupper():
        return new.upper()
    return new[0].upper() + new[1:] if old[:1].isupper() else new


@lru_cache(maxsize=1000)
def read_text(prompt: str) -> Text:
    """Return the `Text` for a prompt from a cache."""
    return Text(prompt)
