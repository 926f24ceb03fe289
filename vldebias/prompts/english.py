"""Find the subject of an English prompt: the noun phrase of an unnamed person whose attribute value
is not stated.

No parser is used. A noun for a person is looked up, its phrase extends to the left over adjectives
and nouns, and the surrounding words decide whether it is a person in the picture. In doubt the
prompt has no subject.

`balance_wordnet.txt.gz` is made by `eval/lexicon.py` from WordNet 3.1 (licence:
`balance_wordnet.LICENSE`) and the name lists of the US census of 1990 (public domain); its classes
are explained there. `balance_words.txt` is written by hand.
"""

from __future__ import annotations

import gzip
import re
from bisect import bisect_right
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

_HERE = Path(__file__).parent
_PLURALS = {
    "ies": ("y",),
    "sses": ("ss",),
    "ches": ("ch",),
    "shes": ("sh",),
    "xes": ("x",),
    "oes": ("o",),
    "s": ("",),
}
_VERBS = {**_PLURALS, "ied": ("y",), "ed": ("", "e"), "ing": ("", "e")}

_WORD = re.compile(r"[^\W_]+(?:[-'\u2019&.][^\W_]+)*['\u2019]?")
_BREAK = re.compile(r"[,.;:!?()\[\]{}|\"\n\u2014\u2013/\u201c\u201d]")
_QUOTED = re.compile(
    r"\"[^\"]*\"|\u201c[^\u201c\u201d]*\u201d|(?<![^\s(])'[^']*[^'\s]'(?![^\W_])|\u2018[^\u2019]*\u2019"
)
_NUMBER = re.compile(r"\d+(?:st|nd|rd|th|s)?")
_POSSESSIVE = ("'s", "s'")
LONGEST_PROMPT = 1000  # words
_LONGEST_PHRASE = 20  # words
_NO_CREDIT = frozenset({"a", "an", "the", "of", "with", "portrait", "wearing"})
STOPS = ("determiner", "preposition", "function")


# ---- words
# -------------------------------------------------------------------------------------------------


@cache
def _words() -> dict[str, str]:
    with gzip.open(_HERE / "balance_wordnet.txt.gz", "rt", encoding="utf-8") as file:
        return dict(line.rstrip("\n").split("\t") for line in file)


def classes(word: str) -> str:
    """Return the classes of a word or phrase, most frequent first (see `eval/lexicon.py`); "" if
    unknown."""
    return _words().get(word, "")


@cache
def lists() -> dict[str, dict[str, None]]:
    """Return the lists of `balance_words.txt` by name; the keys of a list are its words in
    order."""
    return read_lists(_HERE / "balance_words.txt")


def read_lists(path: Path) -> dict[str, dict[str, None]]:
    """Read a file of word lists: "name: words", continued on indented lines; "_" is a space."""
    text = re.sub(r"(?m)^#.*\n", "", path.read_text(encoding="utf-8")).replace("\n ", " ")
    words_of_name: dict[str, dict[str, None]] = {}
    for line in filter(None, text.splitlines()):
        name, _, words = line.partition(":")
        entries = words_of_name.setdefault(name, {})
        entries.update(dict.fromkeys(word.replace("_", " ") for word in words.split()))
    return words_of_name


@cache
def origins() -> frozenset[str]:
    """Return the adjectives in lower case that say which people or nation a person is of."""
    return _facts_of("people", "open-nation")


@cache
def names_of_history() -> frozenset[str]:
    """Return the words in lower case for peoples, troops, churches and periods: no names."""
    history = ("troops", "one-origin", "period", "church", "expedition", "war", "war-site")
    return _facts_of("people", "open-nation", "league", "closed-school", *history)


def is_proper(word: str) -> bool:
    """Return whether a word in lower case is written with a capital in any sentence."""
    return word in origins() or word in religions() or word in lists()["nation"]


@cache
def religions() -> frozenset[str]:
    """Return the words for religions in lower case."""
    return frozenset(word.lower() for word in lists()["religion"])


def _facts_of(*names: str) -> frozenset[str]:
    """Return the entries of the lists of these names in all files of `facts/`."""
    entries: set[str] = set()
    for path in sorted((_HERE / "facts").glob("*.txt")):
        lists_of_file = read_lists(path)
        for name in names:
            entries.update(lists_of_file.get(name, ()))
    return frozenset(entries)


def listed(word: str, *names: str) -> bool:
    """Return whether one of the named lists has the word; digits count as a determiner."""
    return (word.isdigit() and "determiner" in names) or any(
        word in lists()[name] for name in names
    )


def _without(word: str, endings: Mapping[str, tuple[str, ...]], wanted: str) -> str:
    """Return the word of the wanted classes of which `word` is a form with one of the endings; else
    `word`."""
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
    return irregular.get(word) or _without(word, _PLURALS, "pnx")


@cache
def base(word: str) -> str:
    """Return the base form of a verb in its third person, past or -ing form; return any other word
    unchanged."""
    return _without(word, _VERBS, "v")


@cache
def kinds(word: str) -> str:
    """Return the classes of a word in lower case, inflected or not."""
    return classes(word) or classes(singular(word)) or classes(base(word))


@cache
def person(word: str) -> bool:
    """Return whether a noun in lower case, singular or plural, is a person without a stated
    gender."""
    one = singular(word)
    if listed(one, "also-person") or one.endswith(tuple(lists()["person-ending"])):
        return True
    if not classes(one) and one.endswith(tuple(lists()["agent-ending"])) and not gendered(one):
        return True  # "codebreaker": in no dictionary
    return "p" in classes(one) or (
        "p" in classes(one.rsplit("-", 1)[-1]) and not listed(one, "gendered")
    )


@cache
def gendered(word: str) -> bool:
    """Return whether a word in lower case states a gender."""
    word = re.sub(r"['\u2019]s?$", "", word)
    compound = re.search(r"[a-z]{2}(?:men|man|women|woman|boys?|girls?)$", word) and not listed(
        word, "not-gendered"
    )
    return bool(compound) or any(listed(one, "gendered") for one in (word, *word.split("-")))


def adjective(word: str) -> bool:
    """Return whether a word before a noun is an adjective rather than a noun."""
    if word in origins():
        return True
    own = classes(word)
    if "a" in own and (word.endswith("less") or not set(own) & set("npx") or own[0] == "a"):
        return True
    if "-" in word:
        return adjective(word.rsplit("-", 1)[1])
    return word.endswith(("ed", "ing")) and base(word) != word and "n" not in own


# ---- a prompt
# ----------------------------------------------------------------------------------------------


class Text:
    """Split a prompt into words, and mark where clauses begin and which words are quoted.

    Words behind the first `LONGEST_PROMPT` are not read: no text encoder of an image generator
    reads them (77 tokens in CLIP, 512 in T5, 1,024 in Qwen), and the time of a call stays bounded.
    """

    def __init__(self, prompt: str) -> None:
        tokens = list(islice(_WORD.finditer(prompt), LONGEST_PROMPT))
        if len(tokens) == LONGEST_PROMPT:
            prompt = prompt[: tokens[-1].end()]
        self.prompt = prompt
        self.start = [token.start() for token in tokens]
        self.words = [token[0] for token in tokens]
        self.low = [_lower(word) for word in self.words]
        self.bare = [re.sub(r"'s?$", "", word) for word in self.low]
        gaps = _gaps(prompt, tokens)
        self.opens = [
            i in (0, len(tokens)) or bool(_BREAK.search(gap)) for i, gap in enumerate(gaps)
        ]  # a clause
        for i in range(1, len(tokens)):
            if gaps[i] == ". " and listed(self.low[i - 1], "abbreviation"):
                self.opens[i] = False
        self.sentence = [i == 0 or bool(re.search(r"[.!?\n:]", gap)) for i, gap in enumerate(gaps)]
        self.silent = _is_quoted(prompt, self.start)
        self.credited = _is_credited(self.low)
        long = [
            word
            for word in self.words
            if word[0].isalpha() and not listed(word, "preposition", "determiner")
        ]
        title_case = len(long) > 1 and sum(word[0].isupper() for word in long) > 0.7 * len(long)
        self.capital = [word[0].isupper() and not title_case for word in self.words]

    def before(self, i: int) -> str:
        """Return the word before word i in its clause; "" at the start of the clause."""
        return "" if i < 1 or self.opens[i] else self.low[i - 1]

    def after(self, i: int) -> str:
        """Return the word after word i in its clause; "" at the end of the clause."""
        return "" if i + 1 >= len(self.low) or self.opens[i + 1] else self.low[i + 1]


def _lower(word: str) -> str:
    """A word in lower case; "US" stays apart from "us"."""
    return "u.s" if word == "US" else word.lower().replace("\u2019", "'")


def _gaps(prompt: str, tokens: list[re.Match[str]]) -> list[str]:
    """What stands before each word and behind the last one."""
    ends = [0, *(token.end() for token in tokens)]
    starts = [*(token.start() for token in tokens), len(prompt)]
    return [prompt[end:start] for end, start in zip(ends, starts, strict=True)]


def _is_quoted(prompt: str, starts: list[int]) -> list[bool]:
    """For each word whether it stands in quotation marks."""
    quotes = [match.span() for match in _QUOTED.finditer(prompt)]
    openings = [start for start, _ in quotes]
    quoted = []
    for start in starts:
        n = bisect_right(openings, start)
        quoted.append(n > 0 and start < quotes[n - 1][1])
    return quoted


def _is_credited(words: list[str]) -> list[bool]:
    """For each word whether it can be of an artist's name: behind "by" or "style of"."""
    credited = []
    credits = False
    for i, word in enumerate(words):
        credited.append(credits)
        if word == "by" or (word == "of" and words[max(0, i - 1)] == "style"):
            credits = True
        elif word in _NO_CREDIT:
            credits = False
    return credited


@lru_cache(maxsize=1000)
def read_text(prompt: str) -> Text:
    """Return the words of a prompt, split once."""
    return Text(prompt)


class Subject(NamedTuple):
    """Hold the noun phrase of a person in a prompt.

    Attributes:
        words: offset and word in lower case of the adjectives and of the first noun.
        start: offset of the phrase behind its determiners ("tired" of "two tired coaches").
        end: offset behind its last noun.
        plural: whether the last noun is a plural.
    """

    words: list[tuple[int, str]]
    start: int
    end: int
    plural: bool


@lru_cache(maxsize=1000)  # the images of a prompt ask again
def find_subject(prompt: str, gender: bool) -> Subject | str:
    """Return the subject of a prompt, or the reason why there is none.

    gender: whether it is the attribute; then a noun that states a gender is no subject, otherwise
    it can be one.
    """
    text = read_text(prompt)
    reason = _reason_to_leave(text, gender)
    return reason or _find_person(text, gender)


def _reason_to_leave(text: Text, gender: bool) -> str:
    """Why a prompt as a whole is left alone; "" if it is not."""
    if len(text.prompt) > 4 and text.prompt.isupper():
        return "upper case"
    if _is_foreign(text):
        return "not English"
    if gender and any(map(gendered, text.low)):
        return "stated"
    words = f" {' '.join(text.low)} "
    return "named" if any(f" {phrase} " in words for phrase in lists()["unique"]) else ""


def _is_foreign(text: Text) -> bool:
    """Whether more words are foreign than English."""
    foreign = 0
    before = ""
    for word in text.words:
        # "van" of "Vincent van Gogh" is no foreign word.
        if listed(word.lower(), "foreign") and not before[:1].isupper():
            foreign += 1
        if word[0] > "\u024f":
            foreign += 1
        before = word
    return foreign > sum(listed(word, "english") for word in text.low)


def _find_person(text: Text, gender: bool) -> Subject | str:
    """The first unnamed person in the picture, or the reason why there is none."""
    names = _names(text)
    if any(listed(word, "token") for word in text.low):
        return "named"  # "a photo of sks person": a token that stands for somebody
    seen = False
    for i, word in enumerate(text.low):
        if text.silent[i] or listed(word, "no-single-value") or not _may_be_person(text, i, gender):
            continue
        seen = True
        words = _phrase(text, i)
        if words and _named(text, names, i):
            return "named"
        if words:
            end = text.start[i] + len(text.words[i])
            return Subject(words, words[0][0], end, singular(word) != word)
    if names:
        return "named"
    return "no person in the picture" if seen else "no person"


def _may_be_person(text: Text, i: int, gender: bool) -> bool:
    """Whether word i can be a noun for a person."""
    word = text.low[i]
    if person(word) or listed(singular(word), "thing"):
        return True
    if not gender and listed(word, "gendered-noun"):
        return True
    return listed(f"{text.before(i)} {singular(word)}", "person-phrase")


# ---- names of persons
# --------------------------------------------------------------------------------------


def _names(text: Text) -> list[tuple[int, int]]:
    """The runs of words (first, one after the last) that may name a person or a well-known
    figure."""
    runs: list[tuple[int, int]] = []
    for i in range(len(text.words)):
        inside = runs[-1:] != [] and runs[-1][1] == i and not text.opens[i]
        if _is_name(text, i, inside):
            runs.append((runs.pop()[0] if inside else i, i + 1))
    return [(first, stop) for first, stop in runs if _of_person(text, first, stop)]


def _is_name(text: Text, i: int, inside: bool) -> bool:
    """Whether word i can be part of a name; `inside`, after another such word."""
    own = kinds(text.bare[i])
    if listed(text.bare[i], *STOPS, "tag", "draw", "picture"):
        return False
    if text.bare[i] in names_of_history() and not inside:
        return False  # "a Tudor king", "a hoplite"
    if _is_in_full_name(text, i):
        return True
    if not own.strip("fliu") or listed(text.bare[i], "famous"):
        return True
    if text.capital[i]:
        return (
            (inside and (not person(text.bare[i]) or "l" in own))
            or ("f" in own and text.after(i) in ("", "the"))
            or not (text.sentence[i] or person(text.bare[i]))
        )
    return "f" in own and "u" in own and bool(set(kinds(text.after(i))) & set("li"))


def _is_in_full_name(text: Text, i: int) -> bool:
    """Whether word i is of a full name, capitals or not: "john smith", "tom hanks"."""
    given = i if listed(text.low[i], "given-name") else i - 1
    if given < 0 or not listed(text.low[given], "given-name") or given + 1 >= len(text.low):
        return False
    family = text.bare[given + 1]
    return not text.opens[given + 1] and ("l" in kinds(family) or not kinds(family))


def _of_person(text: Text, first: int, stop: int) -> bool:
    """Whether a run of name words is that of a person, not of a place, a brand or a thing."""
    own = text.bare[first:stop]
    if any(_is_in_full_name(text, i) for i in range(first, stop)):
        return True
    if " ".join(own) in names_of_history():
        return False  # "La Liga"
    if any(listed(word, "no-name") for word in own) or (len(own) == 1 and own[0] in origins()):
        return False  # "the Supreme Court", "a Roman", "an American"
    if any(listed(word, "famous") or "i" in kinds(word) for word in own):
        return True
    given, family = "f" in kinds(own[0]), len(own) > 1
    return given or family if text.capital[first] else given and family


def _named(text: Text, names: list[tuple[int, int]], i: int) -> bool:
    """Whether one of the names is of the person at word i, or of somebody shown with this
    person."""
    if (
        (text.before(i) == "the" or listed(text.before(i), "title"))
        and text.capital[i]
        and text.words[i].istitle()
    ):
        return True  # "the Joker", "Doctor Smith"
    return any(first <= i < stop or _seen(text, first, stop, i) for first, stop in names)


def _is_time_of_place(text: Text, i: int) -> bool:
    """Whether word i describes a place as one of a time: "in medieval France"."""
    return listed(text.low[i], "time-of-place") or _NUMBER.fullmatch(text.low[i]) is not None


def _seen(text: Text, first: int, stop: int, i: int) -> bool:
    """Whether a name is that of somebody in the picture, not of a place, an artist or a style."""
    start = first
    while text.before(start) and (text.capital[start - 1] or _is_time_of_place(text, start - 1)):
        start -= 1
    before, after = text.before(start), text.after(stop - 1)
    if text.credited[first] or listed(before, "elsewhere"):
        return False
    if first < i:
        return (
            not after
            or text.opens[first]
            or any(listed(text.low[j], *STOPS) for j in range(stop, i))
        )
    if not any(text.opens[i + 1 : first + 1]):  # in the same clause
        return before not in ("of", "by", "wearing") and (
            listed(after, *STOPS) or "n" not in kinds(after)
        )
    return not before and not after and not any(text.opens[i + 1 : first])


# ---- the phrase of a person
# --------------------------------------------------------------------------------


def _phrase(text: Text, i: int) -> list[tuple[int, str]]:
    """The phrase whose head is word i, a noun for a person; empty where it is no person in the
    picture."""
    low, one = text.low, singular(text.low[i])
    plural = low[i] != one
    start, noun = _left(text, i)
    determiner, own = text.before(start), low[start:i]
    bare = (
        not plural and not listed(determiner, "determiner") and not determiner.endswith(_POSSESSIVE)
    )
    if determiner == "no" or not _is_head(text, i, plural) or _thing(text, i, one, own):
        return []
    at = start
    while listed(text.before(at), "determiner"):
        at -= 1
    if not _in_picture(text, text.before(at), at - 1, bare) or (
        bare and not _tag(text, one, start, own)
    ):
        return []
    return [(text.start[j], low[j]) for j in range(start, noun + 1)]


def _is_head(text: Text, i: int, plural: bool) -> bool:
    """Whether word i is the last noun of its phrase, not a modifier as in "nurse shark"."""
    after = text.after(i)
    rest = text.after(i + 1)
    pictured = after in ("portrait", "headshot") and rest == "of"  # "a professional portrait of"
    if not pictured and _ends_with_head(after, rest):
        return True
    described = listed(rest, "determiner", "pronoun") or adjective(rest)
    if after.endswith("s") and not plural and "v" in (known := kinds(base(after))):
        # A verb in its third person, or a noun in the plural: "the chef cooks a meal", "the nurse
        # uniforms".
        return not classes(after).startswith("n") and (described or "v" in known.partition("n")[0])
    if pictured or (listed(after, "made") and not listed(rest, "determiner")):
        return False  # "a child drawing", "an old master painting"
    noun = plural or "a" not in kinds(text.low[i])  # not as in "an alien liquid"
    if after.endswith("ing"):
        return listed(after, "human-verb") or noun or not _noun_follows(text, i + 1)
    return (plural and "v" in classes(after)) or (noun and not _noun_follows(text, i))


def _ends_with_head(after: str, rest: str) -> bool:
    """Whether a phrase ends before a word, by the word and the one behind it."""
    adverb = after.endswith("ly") and not set(kinds(after)) & set("nx")
    numbered = after in ("number", "no") and rest.isdigit()  # "a nurse number 3"
    return not after or adverb or numbered or listed(after, *STOPS, "asleep", "tag", "past")


def _noun_follows(text: Text, i: int) -> bool:
    """Whether a noun follows word i, at once or after adjectives, and is the head: "a giant
    floating castle"."""
    while (word := text.after(i)) and not listed(word, *STOPS, "tag"):
        if not adjective(word):
            return True
        i += 1
    return False


def _left(text: Text, i: int) -> tuple[int, int]:
    """Where the phrase of word i starts, and where its nouns do: "tired old | police officer"."""
    start = noun = i
    while not text.opens[start] and i - start < _LONGEST_PHRASE:
        word, last = text.low[start - 1], text.low[start]
        compound = classes(f"{word} {last}") in ("c", "p", "n") and not listed(word, "age")
        compound = compound or listed(f"{word} {singular(last)}", "person-phrase", "pair")
        joins = word == "and" and start > 1 and adjective(last) and adjective(text.low[start - 2])
        joins = joins or word in ("very", "quite", "most", "so")
        if not (noun == start and compound) and not joins:
            drawn = listed(word, "draw") and text.opens[start - 1]
            if drawn or listed(word, *STOPS, "not-subject") or word.endswith(_POSSESSIVE):
                break
            place = listed(word, "place-adjective") and text.capital[start]
            gerund = (
                word.endswith("ing")
                and "n" in kinds(word)
                and listed(singular(text.low[i]), "gerund-head")
            )
            describes = adjective(word) or listed(word, "size", "age", "skin")
            compound = not describes or listed(word, "occupational") or place or gerund
            compound = compound or _is_proper_pair(text, start)
        start -= 1
        noun = start if noun == start + 1 and compound and not joins else noun
    return start, noun


def _is_proper_pair(text: Text, i: int) -> bool:
    """Whether word i and the one before are of one proper name: "Red Cross", "Civil War"."""
    capital = text.capital[i] and text.capital[i - 1] and not text.sentence[i - 1]
    return capital and text.low[i - 1] not in origins() and not listed(text.low[i - 1], "origin")


def _thing(text: Text, i: int, one: str, own: list[str]) -> bool:
    """Whether a noun is an animal or a thing here: "a rabbit detective", "a toy soldier", "a server
    in a rack"."""
    phrase, after = f"{own[-1]} {one}" if own else "", text.after(i)
    is_comic = one == "comic" and after in ("about", "of")  # "a comic about a boy"
    if is_comic or listed(phrase, "thing-phrase") or classes(phrase) in ("n", "x"):
        return True
    for kind, handles in (
        ("brand", "brand-person"),
        ("toy", "toy-handles"),
    ):  # "a Ford Explorer", "a toy soldier"
        if any(listed(word, kind) for word in own) and not listed(one, handles):
            return True
    if any(map(_animal, own)) and not listed(one, "handles"):
        return True
    if listed(one, "cued-thing"):
        return any(listed(word, "thing-cue") for word in text.low) or (
            one == "model" and after == "of" and not own
        )
    if one in ("head", "chair"):
        return not (
            after == "of"
            and any(listed(singular(word), "organization") for word in text.low[i + 2 : i + 5])
        )
    human = listed(after, "human-verb") or any(listed(word, "thing-person") for word in own)
    human = human or any(listed(word, "person-cue") for word in text.low)
    human = human or (one in ("character", "figure") and (not own or adjective(own[-1])))
    return listed(one, "thing") and not human


def _animal(word: str) -> bool:
    other = gendered(word) or adjective(word) or listed(word, "not-animal")  # "a male nurse"
    return listed(singular(word), "animal") or ("x" in kinds(word)[:2] and not other)


def _tag(text: Text, one: str, start: int, own: list[str]) -> bool:
    """Whether a noun without a determiner is a subject: "doctor, 4k", not "a lake, award winning
    photographer"."""
    clauses = sum(text.opens[1 : start + 1])
    if (listed(one, "style-tag") and (clauses or not own)) or (listed(one, "art-tag") and clauses):
        return False
    return clauses < 2 or any(adjective(word) or set(kinds(word)) & set("npa") for word in own)


def _in_picture(text: Text, relation: str, where: int, bare: bool) -> bool:
    """Whether what stands before a phrase leaves the person in the picture: not "a painting by a
    master"."""
    before = text.before(where)
    if listed(relation, "not-subject"):
        return False
    if relation == "by":
        moves = before.endswith(("ed", "ing")) or listed(before, "past")
        return moves and not listed(before, "credit-verb", "picture")
    if relation == "of":
        kind = ("picture", "group", "part", "container", "number")
        return listed(before, *kind) or listed(singular(before), *kind)
    return not (bare and relation) or listed(relation, "joins", "draw")
