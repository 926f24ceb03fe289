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
_SENTENCE_END = re.compile(r"[.!?\n:]")
_BREAK = re.compile(r"[,.;:!?()\[\]{}|\"\n\u2014\u2013/\u201c\u201d]")
_QUOTED = re.compile(
    r"\"[^\"]*\"|\u201c[^\u201c\u201d]*\u201d|(?<![^\s(])'[^']*[^'\s]'(?![^\W_])|\u2018[^\u2019]*\u2019"
)
_NUMBER = re.compile(r"\d+(?:st|nd|rd|th|s)?")
_GENDERED_ENDING = re.compile(r"[a-z]{2}(?:men|man|women|woman|boys?|girls?)$")
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
    for ending, replacements in endings.items():
        stem = word.removesuffix(ending)
        if stem == word:
            continue
        candidates = [stem + replacement for replacement in replacements]
        is_doubled = stem[-1:] == stem[-2:-1]  # "sitting"
        if len(replacements) > 1 and is_doubled:
            candidates.append(stem[:-1])
        for candidate in candidates:
            if set(classes(candidate)) & set(wanted):
                return candidate
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
    noun = singular(word)
    if listed(noun, "also-person") or noun.endswith(tuple(lists()["person-ending"])):
        return True
    if _is_unknown_trade(noun) or "p" in classes(noun):
        return True
    last_part = noun.rsplit("-", 1)[-1]  # "sculptor" of "painter-sculptor"
    return "p" in classes(last_part) and not listed(noun, "gendered")


def _is_unknown_trade(noun: str) -> bool:
    """Return whether a word that is in no dictionary ends like a trade: "codebreaker"."""
    if classes(noun) or gendered(noun):
        return False
    return noun.endswith(tuple(lists()["agent-ending"]))


@cache
def gendered(word: str) -> bool:
    """Return whether a word in lower case states a gender."""
    word = re.sub(r"['\u2019]s?$", "", word)
    if _GENDERED_ENDING.search(word) and not listed(word, "not-gendered"):
        return True
    return any(listed(part, "gendered") for part in (word, *word.split("-")))


def adjective(word: str) -> bool:
    """Return whether a word before a noun is an adjective rather than a noun."""
    if word in origins():
        return True
    word_classes = classes(word)
    if "a" in word_classes:
        is_noun_too = bool(set(word_classes) & set("npx"))
        is_mostly_adjective = word_classes[0] == "a"
        if is_mostly_adjective or not is_noun_too or word.endswith("less"):
            return True
    if "-" in word:
        return adjective(word.rsplit("-", 1)[1])
    is_participle = word.endswith(("ed", "ing")) and base(word) != word
    return is_participle and "n" not in word_classes


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
        self.opens = self._find_clauses(gaps)
        self.sentence = [bool(_SENTENCE_END.search(gap)) for gap in gaps]
        self.sentence[0] = True
        self.silent = _is_quoted(prompt, self.start)
        self.credited = _is_credited(self.low)
        is_title = _is_title(self.words)
        self.capital = [word[0].isupper() and not is_title for word in self.words]

    def _find_clauses(self, gaps: list[str]) -> list[bool]:
        """For each word, and for the end, whether a clause begins there."""
        opens = [bool(_BREAK.search(gap)) for gap in gaps]
        opens[0] = True
        opens[-1] = True
        for i in range(1, len(self.low)):
            if gaps[i] == ". " and listed(self.low[i - 1], "abbreviation"):
                opens[i] = False  # "Dr. Smith"
        return opens

    def before(self, i: int) -> str:
        """Return the word before word i in its clause; "" at the start of the clause."""
        return "" if i < 1 or self.opens[i] else self.low[i - 1]

    def after(self, i: int) -> str:
        """Return the word after word i in its clause; "" at the end of the clause."""
        return "" if i + 1 >= len(self.low) or self.opens[i + 1] else self.low[i + 1]


def _is_title(words: list[str]) -> bool:
    """Whether most words are written with a capital, as in a title: then capitals say nothing."""
    content_words = [
        word
        for word in words
        if word[0].isalpha() and not listed(word, "preposition", "determiner")
    ]
    capitals = sum(word[0].isupper() for word in content_words)
    return len(content_words) > 1 and capitals > 0.7 * len(content_words)


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
        goes_on = bool(runs) and runs[-1][1] == i and not text.opens[i]
        if not _is_name(text, i, goes_on):
            continue
        if goes_on:
            first, _ = runs.pop()
            runs.append((first, i + 1))
        else:
            runs.append((i, i + 1))
    return [(first, stop) for first, stop in runs if _of_person(text, first, stop)]


def _is_name(text: Text, i: int, inside: bool) -> bool:
    """Whether word i can be part of a name; `inside`, after another such word."""
    word = text.bare[i]
    if listed(word, *STOPS, "tag", "draw", "picture"):
        return False
    if word in names_of_history() and not inside:
        return False  # "a Tudor king", "a hoplite"
    if _is_in_full_name(text, i) or listed(word, "famous"):
        return True
    word_classes = kinds(word)
    is_only_name = not word_classes.strip("fliu")
    if is_only_name:
        return True
    if text.capital[i]:
        return _is_name_in_capitals(text, i, inside)
    # "mark jones" in small letters: a given name that is a rare word, before a family name.
    is_given_name = "f" in word_classes and "u" in word_classes
    return is_given_name and bool(set(kinds(text.after(i))) & set("li"))


def _is_name_in_capitals(text: Text, i: int, inside: bool) -> bool:
    """Whether a word with a capital can be part of a name."""
    word_classes = kinds(text.bare[i])
    is_person = person(text.bare[i])
    if inside and ("l" in word_classes or not is_person):
        return True  # "Baker" of "Tom Baker"
    if "f" in word_classes and text.after(i) in ("", "the"):
        return True  # "Frank the waiter"
    return not text.sentence[i] and not is_person


def _is_in_full_name(text: Text, i: int) -> bool:
    """Whether word i is of a full name, capitals or not: "john smith", "tom hanks"."""
    first = i if listed(text.low[i], "given-name") else i - 1
    last = first + 1
    if first < 0 or last >= len(text.low) or text.opens[last]:
        return False
    if not listed(text.low[first], "given-name"):
        return False
    classes_of_last = kinds(text.bare[last])
    return "l" in classes_of_last or not classes_of_last


def _of_person(text: Text, first: int, stop: int) -> bool:
    """Whether a run of name words is that of a person, not of a place, a brand or a thing."""
    words = text.bare[first:stop]
    if any(_is_in_full_name(text, i) for i in range(first, stop)):
        return True
    if _names_no_person(words):
        return False
    if any(listed(word, "famous") or "i" in kinds(word) for word in words):
        return True
    has_given_name = "f" in kinds(words[0])
    has_family_name = len(words) > 1
    if text.capital[first]:
        return has_given_name or has_family_name
    return has_given_name and has_family_name


def _names_no_person(words: list[str]) -> bool:
    """Whether words name something else: "La Liga", "the Supreme Court", "a Roman"."""
    if " ".join(words) in names_of_history():
        return True
    if len(words) == 1 and words[0] in origins():
        return True
    return any(listed(word, "no-name") for word in words)


def _named(text: Text, names: list[tuple[int, int]], i: int) -> bool:
    """Whether one of the names is of the person at word i, or of somebody shown with this
    person."""
    has_title = text.before(i) == "the" or listed(text.before(i), "title")
    if has_title and text.capital[i] and text.words[i].istitle():
        return True  # "the Joker", "Doctor Smith"
    for first, stop in names:
        if first <= i < stop or _seen(text, first, stop, i):
            return True
    return False


def _is_time_of_place(text: Text, i: int) -> bool:
    """Whether word i describes a place as one of a time: "in medieval France"."""
    return listed(text.low[i], "time-of-place") or _NUMBER.fullmatch(text.low[i]) is not None


def _seen(text: Text, first: int, stop: int, i: int) -> bool:
    """Whether a name is that of somebody in the picture, not of a place, an artist or a style."""
    start = first
    while text.before(start) and (text.capital[start - 1] or _is_time_of_place(text, start - 1)):
        start -= 1
    before = text.before(start)
    after = text.after(stop - 1)
    if text.credited[first] or listed(before, "elsewhere"):
        return False
    if first < i:
        # Before the person: a name of its own, not one that describes the person, "a Ford driver".
        has_word_between = any(listed(word, *STOPS) for word in text.low[stop:i])
        return not after or text.opens[first] or has_word_between
    is_same_clause = not any(text.opens[i + 1 : first + 1])
    if is_same_clause:
        names_a_thing = not listed(after, *STOPS) and "n" in kinds(after)
        return before not in ("of", "by", "wearing") and not names_a_thing
    # A clause of its own right behind that of the person: "a singer, Ella Fitzgerald".
    is_next_clause = not any(text.opens[i + 1 : first])
    return is_next_clause and not before and not after


# ---- the phrase of a person
# --------------------------------------------------------------------------------


def _phrase(text: Text, i: int) -> list[tuple[int, str]]:
    """The phrase whose head is word i, a noun for a person; empty where it is no person in the
    picture."""
    noun = singular(text.low[i])
    is_plural = text.low[i] != noun
    start, first_noun = _left(text, i)
    modifiers = text.low[start:i]
    determiner = text.before(start)
    has_determiner = listed(determiner, "determiner") or determiner.endswith(_POSSESSIVE)
    is_bare = not is_plural and not has_determiner
    if determiner == "no" or not _is_head(text, i, is_plural) or _thing(text, i, noun, modifiers):
        return []
    opening = start
    while listed(text.before(opening), "determiner"):
        opening -= 1
    if not _in_picture(text, text.before(opening), opening - 1, is_bare):
        return []
    if is_bare and not _tag(text, noun, start, modifiers):
        return []
    return [(text.start[j], text.low[j]) for j in range(start, first_noun + 1)]


def _is_head(text: Text, i: int, plural: bool) -> bool:
    """Whether word i is the last noun of its phrase, not a modifier as in "nurse shark"."""
    after = text.after(i)
    rest = text.after(i + 1)
    is_portrait = after in ("portrait", "headshot") and rest == "of"  # "a professional portrait of"
    if is_portrait or _ends_with_head(after, rest):
        return not is_portrait
    verb_classes = kinds(base(after))
    if after.endswith("s") and not plural and "v" in verb_classes:
        return _is_verb(after, rest, verb_classes)
    if listed(after, "made") and not listed(rest, "determiner"):
        return False  # "a child drawing", "an old master painting"
    is_noun = plural or "a" not in kinds(text.low[i])  # not as in "an alien liquid"
    if after.endswith("ing"):
        return listed(after, "human-verb") or is_noun or not _noun_follows(text, i + 1)
    is_subject_of_verb = plural and "v" in classes(after)
    return is_subject_of_verb or (is_noun and not _noun_follows(text, i))


def _is_verb(word: str, rest: str, verb_classes: str) -> bool:
    """Whether a word in -s is a verb, by the word behind it: "the chef cooks a meal".

    Not a noun in the plural: "the nurse uniforms". verb_classes: those of its base form.
    """
    if classes(word).startswith("n"):
        return False
    has_object = listed(rest, "determiner", "pronoun") or adjective(rest)
    is_mostly_verb = "v" in verb_classes.partition("n")[0]
    return has_object or is_mostly_verb


def _ends_with_head(after: str, rest: str) -> bool:
    """Whether a phrase ends before a word, by the word and the one behind it."""
    if not after or listed(after, *STOPS, "asleep", "tag", "past"):
        return True
    if after in ("number", "no") and rest.isdigit():
        return True  # "a nurse number 3"
    is_noun = bool(set(kinds(after)) & set("nx"))
    return after.endswith("ly") and not is_noun


def _noun_follows(text: Text, i: int) -> bool:
    """Whether a noun follows word i, at once or after adjectives, and is the head: "a giant
    floating castle"."""
    word = text.after(i)
    while word and not listed(word, *STOPS, "tag"):
        if not adjective(word):
            return True
        i += 1
        word = text.after(i)
    return False


def _left(text: Text, i: int) -> tuple[int, int]:
    """Where the phrase of word i starts, and where its nouns do: "tired old | police officer"."""
    start = i
    first_noun = i
    while not text.opens[start] and i - start < _LONGEST_PHRASE:
        joins = _joins_adjectives(text, start)
        is_compound = first_noun == start and _is_compound(text, start)
        if not is_compound and not joins:
            if _ends_phrase_before(text, start):
                break
            is_compound = _is_part_of_noun(text, start, text.low[i])
        start -= 1
        if first_noun == start + 1 and is_compound and not joins:
            first_noun = start
    return start, first_noun


def _joins_adjectives(text: Text, start: int) -> bool:
    """Whether the word before start goes on with adjectives: "tall and tired", "very tired"."""
    word = text.low[start - 1]
    if word in ("very", "quite", "most", "so"):
        return True
    if word != "and" or start < 2:
        return False
    return adjective(text.low[start]) and adjective(text.low[start - 2])


def _is_compound(text: Text, start: int) -> bool:
    """Whether a dictionary or a list has the word before start with the one at start as one noun:
    "police officer"."""
    word = text.low[start - 1]
    last = text.low[start]
    if listed(f"{word} {singular(last)}", "person-phrase", "pair"):
        return True
    return classes(f"{word} {last}") in ("c", "p", "n") and not listed(word, "age")


def _ends_phrase_before(text: Text, start: int) -> bool:
    """Whether the word before start is none of the phrase: "the", "her", "draw"."""
    word = text.low[start - 1]
    if listed(word, "draw") and text.opens[start - 1]:
        return True
    return listed(word, *STOPS, "not-subject") or word.endswith(_POSSESSIVE)


def _is_part_of_noun(text: Text, start: int, head: str) -> bool:
    """Whether the word before start is part of the noun and no adjective: "civil engineer"."""
    word = text.low[start - 1]
    describes = adjective(word) or listed(word, "size", "age", "skin")
    if not describes or listed(word, "occupational"):
        return True
    if listed(word, "place-adjective") and text.capital[start]:
        return True  # "New York chef"
    is_gerund = word.endswith("ing") and "n" in kinds(word)
    if is_gerund and listed(singular(head), "gerund-head"):
        return True  # "swimming coach"
    return _is_proper_pair(text, start)


def _is_proper_pair(text: Text, i: int) -> bool:
    """Whether word i and the one before are of one proper name: "Red Cross", "Civil War"."""
    capital = text.capital[i] and text.capital[i - 1] and not text.sentence[i - 1]
    return capital and text.low[i - 1] not in origins() and not listed(text.low[i - 1], "origin")


def _thing(text: Text, i: int, noun: str, modifiers: list[str]) -> bool:
    """Whether a noun is an animal or a thing here: "a rabbit detective", "a toy soldier", "a server
    in a rack"."""
    after = text.after(i)
    if _is_named_thing(noun, modifiers, after) or _is_made_or_animal(noun, modifiers):
        return True
    if listed(noun, "cued-thing"):
        is_model_of = noun == "model" and after == "of" and not modifiers  # "a model of an atom"
        return is_model_of or _has_cue(text, "thing-cue")
    if noun in ("head", "chair"):
        words_behind = text.low[i + 2 : i + 5]
        is_of_people = any(listed(singular(word), "organization") for word in words_behind)
        return not (after == "of" and is_of_people)  # "the head of the department"
    return listed(noun, "thing") and not _is_human(text, noun, modifiers, after)


def _is_named_thing(noun: str, modifiers: list[str], after: str) -> bool:
    """Whether a noun and what stands beside it are a word for a thing: "dish washer"."""
    if noun == "comic" and after in ("about", "of"):
        return True
    if not modifiers:
        return False
    phrase = f"{modifiers[-1]} {noun}"
    return listed(phrase, "thing-phrase") or classes(phrase) in ("n", "x")


def _is_made_or_animal(noun: str, modifiers: list[str]) -> bool:
    """Whether modifiers make a noun a product, a toy or an animal: "a Ford Explorer"."""
    for kind, exceptions in (("brand", "brand-person"), ("toy", "toy-handles")):
        if any(listed(word, kind) for word in modifiers) and not listed(noun, exceptions):
            return True
    return any(map(_animal, modifiers)) and not listed(noun, "handles")


def _is_human(text: Text, noun: str, modifiers: list[str], after: str) -> bool:
    """Whether a noun that is often a thing is a person: "a fan in the stands"."""
    if listed(after, "human-verb") or any(listed(word, "thing-person") for word in modifiers):
        return True
    if _has_cue(text, "person-cue"):
        return True
    is_figure = noun in ("character", "figure")
    return is_figure and (not modifiers or adjective(modifiers[-1]))


def _has_cue(text: Text, name: str) -> bool:
    """Whether the prompt has a word of a list."""
    return any(listed(word, name) for word in text.low)


def _animal(word: str) -> bool:
    """Whether a word before a noun is an animal: "rabbit" of "a rabbit detective"."""
    if listed(singular(word), "animal"):
        return True
    if "x" not in kinds(word)[:2]:
        return False
    return not (gendered(word) or adjective(word) or listed(word, "not-animal"))  # "a male nurse"


def _tag(text: Text, noun: str, start: int, modifiers: list[str]) -> bool:
    """Whether a noun without a determiner is a subject: "doctor, 4k", not "a lake, award winning
    photographer"."""
    clauses_before = sum(text.opens[1 : start + 1])
    if listed(noun, "style-tag") and (clauses_before or not modifiers):
        return False
    if listed(noun, "art-tag") and clauses_before:
        return False
    if clauses_before < 2:
        return True
    return any(adjective(word) or set(kinds(word)) & set("npa") for word in modifiers)


def _in_picture(text: Text, relation: str, where: int, bare: bool) -> bool:
    """Whether what stands before a phrase leaves the person in the picture: not "a painting by a
    master"."""
    before = text.before(where)
    if listed(relation, "not-subject"):
        return False
    if relation == "by":
        is_verb = before.endswith(("ed", "ing")) or listed(before, "past")
        return is_verb and not listed(before, "credit-verb", "picture")
    if relation == "of":
        kinds_of_noun = ("picture", "group", "part", "container", "number")
        return listed(before, *kinds_of_noun) or listed(singular(before), *kinds_of_noun)
    return not (bare and relation) or listed(relation, "joins", "draw")
