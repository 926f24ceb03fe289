"""Analyse English prompts for balancing: classes of words, clauses, and names of persons.

`balance_wordnet.txt.gz` is made by `eval/lexicon.py` from WordNet 3.1 (licence: `balance_wordnet.LICENSE`) and the name
lists of the US census of 1990 (public domain); its classes are explained there. `balance_words.txt` is written by hand.
"""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_PLURALS = {"ies": ("y",), "sses": ("ss",), "ches": ("ch",), "shes": ("sh",), "xes": ("x",), "oes": ("o",), "s": ("",)}
_VERBS = {**_PLURALS, "ied": ("y",), "ed": ("", "e"), "ing": ("", "e")}

_WORD = re.compile(r"[^\W_]+(?:[-'\u2019&.][^\W_]+)*['\u2019]?")
_BREAK = re.compile(r"[,.;:!?()\[\]{}|\"\n\u2014\u2013/\u201c\u201d]")
_QUOTED = re.compile(r"\"[^\"]*\"|\u201c[^\u201d]*\u201d|(?<![^\s(])'[^']*[^'\s]'(?![^\W_])|\u2018[^\u2019]*\u2019")
STOPS = ("determiner", "preposition", "function")


# ---- words -------------------------------------------------------------------------------------------------


@cache
def _words() -> dict[str, str]:
    with gzip.open(_HERE / "balance_wordnet.txt.gz", "rt", encoding="utf-8") as file:
        return dict(line.rstrip("\n").split("\t") for line in file)


def classes(word: str) -> str:
    """Return the classes of a word or phrase, most frequent first (see `eval/lexicon.py`); "" if unknown."""
    return _words().get(word, "")


@cache
def lists() -> dict[str, dict[str, None]]:
    """Return the lists of `balance_words.txt` by name; the keys of a list are its words in order."""
    text = re.sub(r"(?m)^#.*\n", "", (_HERE / "balance_words.txt").read_text(encoding="utf-8")).replace("\n ", " ")
    named = (line.partition(":") for line in text.splitlines() if line)
    return {name: dict.fromkeys(word.replace("_", " ") for word in own.split()) for name, _, own in named}


def listed(word: str, *names: str) -> bool:
    """Return whether one of the named lists has the word; digits count as a determiner."""
    return (word.isdigit() and "determiner" in names) or any(word in lists()[name] for name in names)


def _without(word: str, endings: dict[str, tuple[str, ...]], wanted: str) -> str:
    """Return the word of the wanted classes of which `word` is a form with one of the endings; else `word`."""
    for end, news in endings.items():
        stem = word.removesuffix(end)
        doubled = [stem[:-1]] if len(news) > 1 and stem[-1:] == stem[-2:-1] else []  # "sitting"
        for one in (*(stem + new for new in news), *doubled) if stem != word else ():
            if set(classes(one)) & set(wanted):
                return one
    return word


@cache
def singular(word: str) -> str:
    """Return the singular of a plural noun; return any other word unchanged."""
    irregular = dict(pair.split("/") for pair in lists()["plural/singular"])
    return irregular.get(word) or (word if word.endswith(("ss", "us", "is")) else _without(word, _PLURALS, "pnx"))


@cache
def base(word: str) -> str:
    """Return the base form of a verb in its third person, past or -ing form; return any other word unchanged."""
    return _without(word, _VERBS, "v")


@cache
def kinds(word: str) -> str:
    """Return the classes of a word in lower case, inflected or not."""
    return classes(word) or classes(singular(word)) or classes(base(word))


@cache
def person(word: str) -> bool:
    """Return whether a noun in lower case, singular or plural, is a person without a stated gender."""
    one = singular(word)
    return "p" in classes(one) or ("p" in classes(one.rsplit("-", 1)[-1]) and not listed(one, "gendered"))


@cache
def gendered(word: str) -> bool:
    """Return whether a word in lower case states a gender."""
    word = re.sub(r"['\u2019]s?$", "", word)
    if any(listed(one, "gendered") for one in (word, *word.split("-"))):
        return True
    compound = re.search(r"[a-z]{2}(?:men|man|women|woman|boys?|girls?)$", word) and not listed(word, "not-gendered")
    return bool(compound) and bool(set(classes(re.sub("men$", "man", word).removesuffix("s"))) & set("pn"))


def adjective(word: str) -> bool:
    """Return whether a word before a noun is an adjective rather than a noun."""
    own = classes(word)
    if "a" in own and (word.endswith("less") or not set(own) & set("npx") or own[0] == "a"):
        return True
    if "-" in word:
        return adjective(word.rsplit("-", 1)[1])
    return word.endswith(("ed", "ing")) and base(word) != word and "n" not in own


# ---- a prompt ----------------------------------------------------------------------------------------------


class Text:
    """Split a prompt into words, and mark where clauses begin and which words are quoted."""

    def __init__(self, prompt: str) -> None:
        tokens = list(_WORD.finditer(prompt))
        self.prompt = prompt
        self.start = [token.start() for token in tokens]
        self.words = [token[0] for token in tokens]
        self.low = [word.lower().replace("\u2019", "'") for word in self.words]
        ends = [0, *(token.end() for token in tokens)]
        self.gaps = [prompt[a:b] for a, b in zip(ends, [*self.start, len(prompt)], strict=True)]  # before each word
        self.opens = [i == 0 or bool(_BREAK.search(gap)) for i, gap in enumerate(self.gaps)]  # a clause, before word i
        self.opens[-1] = True
        self.sentence = [i == 0 or bool(re.search(r"[.!?\n:]", gap)) for i, gap in enumerate(self.gaps)]
        self.silent = [any(m.start() <= s < m.end() for m in _QUOTED.finditer(prompt)) for s in self.start]
        long = [word for word in self.words if word[0].isalpha() and not listed(word, "preposition", "determiner")]
        self.title_case = len(long) > 1 and sum(word[0].isupper() for word in long) > 0.7 * len(long)

    def __len__(self) -> int:
        return len(self.words)

    def before(self, i: int) -> str:
        """Return the word before word i in its clause; "" at the start of the clause."""
        return "" if i < 1 or self.opens[i] else self.low[i - 1]

    def after(self, i: int) -> str:
        """Return the word after word i in its clause; "" at the end of the clause."""
        return "" if i + 1 >= len(self) or self.opens[i + 1] else self.low[i + 1]

    def capital(self, i: int) -> bool:
        """Return whether word i has a capital letter in a prompt that is not in title case."""
        return self.words[i][0].isupper() and not self.title_case

    @property
    def foreign(self) -> bool:
        """Return whether the prompt is not in English, by its letters and its function words."""
        letters = [c for c in self.prompt if c.isalpha()]
        if letters and sum(c > "\u024f" for c in letters) > 0.3 * len(letters):
            return True
        pairs = zip(self.words, ["", *self.words], strict=False)  # "van" of "Vincent van Gogh" is no foreign word
        other = sum(word.lower() in lists()["foreign"] and not before[:1].isupper() for word, before in pairs)
        return other > 0 and other > sum(word in lists()["english"] for word in self.low)


# ---- names of persons --------------------------------------------------------------------------------------


def person_names(text: Text) -> list[tuple[int, int]]:
    """Return the runs of words (first, one after the last) that may name a person or a well-known figure."""
    runs, i = list[tuple[int, int]](), 0
    while i < len(text):
        stop = i
        while stop < len(text) and (stop == i or not text.opens[stop]) and _is_name(text, stop, stop > i):
            stop += 1
        if stop > i and _of_person(text, i, stop):
            runs.append((i, stop))
        i = max(stop, i + 1)
    return runs


def _bare(word: str) -> str:
    return re.sub(r"'s?$", "", word)


def _is_name(text: Text, i: int, inside: bool) -> bool:
    """Whether word i can be part of a name; `inside`, after another such word."""
    low = _bare(text.low[i])
    own = kinds(low)
    if listed(low, *STOPS, "tag", "draw", "picture"):
        return False
    if not own.strip("fliu") or listed(low, "famous"):
        return True
    if text.capital(i):
        return inside or ("f" in own and text.opens[i + 1]) or not (text.sentence[i] or person(low))
    return "f" in own and "u" in own and bool(set(kinds(text.after(i))) & set("li"))


def _of_person(text: Text, first: int, stop: int) -> bool:
    """Whether a run of name words is that of a person, not of a place, a brand or a thing."""
    own = [_bare(word) for word in text.low[first:stop]]
    if any(listed(word, "famous") or ("i" in kinds(word) and not kinds(word).strip("fliu")) for word in own):
        return True
    given, family = "f" in kinds(own[0]), len(own) > 1
    return given or family if text.capital(first) else given and family


def named(text: Text, names: list[tuple[int, int]], i: int) -> bool:
    """Return whether one of the names is of the person at word i, or of somebody shown with this person."""
    if not text.title_case:
        after = text.words[i + 1] if text.after(i) else ""
        if after[:1].isupper() and not after.isupper():
            return True  # "President Lincoln", "nurse Peter"
        called = listed(text.before(i), "title") or text.before(i) in ("the", "in", "from")
        if called and text.words[i].istitle() and not text.sentence[i]:
            return True  # "the Joker", "Doctor Smith"
    return any(first <= i < stop or _seen(text, first, stop, i) for first, stop in names)


def _seen(text: Text, first: int, stop: int, i: int) -> bool:
    """Whether a name is that of somebody in the picture, not of a place, an artist or a style."""
    left = text.prompt[: text.start[first]].lower()
    credited = re.search(r"\b(?:by|style of) (?!.*\b(?:a|an|the|of|with|portrait|wearing)\b)", left, re.DOTALL)
    start = first
    while text.before(start) and text.capital(start - 1):
        start -= 1
    before, after = text.before(start), text.after(stop - 1)
    artist = any(listed(_bare(word), "artist") for word in text.low[first:stop])
    if credited or artist or listed(before, "elsewhere"):
        return False
    if first < i:
        return not after or before == "" or any(listed(text.low[j], *STOPS) for j in range(stop, i))
    if not any(text.opens[i + 1 : first + 1]):  # in the same clause
        return before not in ("of", "by", "wearing") and (listed(after, *STOPS) or "n" not in kinds(after))
    return not before and not after and not any(text.opens[i + 1 : first])
