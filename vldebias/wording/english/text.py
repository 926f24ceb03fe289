"""Split a prompt into words and clauses."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from itertools import islice

from vldebias.prompts.english.words import listed

# A word with its hyphens and apostrophes: "mother-in-law's", "R&B", "UI/UX".
_WORD = re.compile(
    r"(?<=\s)[&+](?=\s)|[A-Z]{2,}/[A-Z]{2,}\b|[^\W_]+(?:[-'\u2019&.][^\W_]+)*['\u2019]?"
)
_SENTENCE_END = re.compile(r"[.!?\n:]")
_BREAK = re.compile(r"[,.;:!?()\[\]{}|\"\n\u2014\u2013/\u201c\u201d]")
# A quotation; the apostrophe of "the nurse's" opens none.
_QUOTED = re.compile(
    r"\"[^\"]*\"|\u201c[^\u201c\u201d]*\u201d|(?<![^\s(])'[^']*[^'\s]'(?![^\W_])|\u2018[^\u2019]*\u2019"
)
_STYLES = frozenset({"style", "manner", "tradition", "reminiscent"})  # of an artist
LONGEST_PROMPT = 1000  # words
# "US" stays different from "us", and "IT" from "it".
_IN_LOWER_CASE = {"&": "and", "+": "and", "US": "u.s", "IT": "i.t"}
# Words that end the name of an artist: "by Rembrandt, a portrait of a nurse".
_NO_CREDIT = frozenset({"a", "an", "the", "of", "with", "portrait", "wearing"})


class Text:
    """Split a prompt into words, and mark where clauses begin and which words are quoted.

    Only the first `LONGEST_PROMPT` words are read, which bounds the time of a call: no text encoder
    of an image generator reads more (77 tokens in CLIP, 512 in T5, 1,024 in Qwen).

    Attributes, each with one entry a word:
        start: offset of its first character in `prompt`.
        words: the word as written.
        low: the word in lower case.
        bare: the word in lower case without a possessive 's.
        opens: whether a clause begins with it; one more entry for the end of the prompt.
        sentence: whether a sentence begins with it.
        silent: whether it is in quotation marks.
        credited: whether it may be part of an artist's name, after "by".
        capital: whether it is capitalized, unless the prompt is a title.
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
            gap = prompt[end:start]  # before word i, or after the last one
            # "Dr. Smith"
            is_abbreviated = i > 0 and gap == ". " and listed(self.low[i - 1], "abbreviation")
            self.opens.append(bool(_BREAK.search(gap)) and not is_abbreviated)
            self.sentence.append(bool(_SENTENCE_END.search(gap)))
            end = start + len(self.words[i]) if i < len(self.words) else start
        self.opens[0] = True
        self.opens[-1] = True
        self.sentence[0] = True
        self.silent = _is_quoted(prompt, self.start)
        self.credited = _is_credited(self.low)
        # "of" and "the" are lower-case even in a title, whose other capitals mean nothing.
        main_words = [word for word in self.words if not listed(word, "preposition", "determiner")]
        capitals = [word[0].isupper() for word in main_words if word[0].isalpha()]
        is_title = len(capitals) > 1 and sum(capitals) > 0.7 * len(capitals)
        self.capital = [not is_title and word[0].isupper() for word in self.words]

    def before(self, i: int) -> str:
        """Return the word before word i in its clause; "" at the start of the clause."""
        if i < 1 or self.opens[i]:
            return ""
        return self.low[i - 1]

    def clause_start(self, i: int) -> int:
        """Return the position of the first word of the clause of word i."""
        while i > 0 and not self.opens[i]:
            i -= 1
        return i

    def is_same_sentence(self, first: int, last: int) -> bool:
        """Return whether no sentence begins between two words.

        Args:
            first: position of the earlier word.
            last: position of the later word.
        """
        return not any(self.sentence[first + 1 : last + 1])

    def after(self, i: int) -> str:
        """Return the word after word i in its clause; "" at the end of the clause."""
        if i + 1 >= len(self.low) or self.opens[i + 1]:
            return ""
        return self.low[i + 1]


def _is_quoted(prompt: str, starts: list[int]) -> list[bool]:
    """Return for each word whether it is in quotation marks."""
    # Bisection keeps long prompts with many quotations fast.
    quotes = [match.span() for match in _QUOTED.finditer(prompt)]
    openings = [start for start, _ in quotes]
    quoted = []
    for start in starts:
        n = bisect_right(openings, start)
        quoted.append(n > 0 and start < quotes[n - 1][1])
    return quoted


def _is_credited(words: list[str]) -> list[bool]:
    """Return for each word whether it may be part of an artist's name: after "by"."""
    credited = []
    credits = False
    for i, word in enumerate(words):
        credited.append(credits)
        is_behind_style = word == "of" and words[max(0, i - 1)] in _STYLES
        if word == "by" or is_behind_style:
            credits = True
        elif word in _NO_CREDIT:
            credits = False
    return credited


@lru_cache(maxsize=1000)
def read_text(prompt: str) -> Text:
    """Return the words of a prompt, split once."""
    return Text(prompt)
