"""Silence the parts of a prompt about what the picture must not show.

A text encoder that reads "do not include people, both women and men" draws people. A verb that
excludes something silences the rest of its sentence, and a label such as "Negative prompt:" the
rest of its paragraph. The offsets of all other words stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

from vldebias.prompts.english.words import read_lists

_LISTS = read_lists(Path(__file__).with_suffix(".txt"))
# Languages without spaces between words.
_UNSPACED = ("zh", "ja")


_compile = partial(re.compile, flags=re.IGNORECASE)


def _any_of(entries: Iterable[str]) -> str:
    """Return a pattern that matches any of these words and prefers the longest."""
    longest_first = sorted(entries, key=len, reverse=True)
    words = [
        re.escape(entry).replace(r"\ ", r"\s+").replace(r"\*", r"\w*") for entry in longest_first
    ]
    return f"(?:{'|'.join(words) or '(?!)'})".replace("'", "['\u2019]")


# ---- all languages: labels and negative weights

_LABEL = re.compile(
    # A label stands at the start of a line or behind punctuation, and may be in bold or a heading.
    r"(?:^|(?<=\s)(?=negative)|(?<=[.,;!?()\[|\n\u3002\uff0c\uff1b\u3001])|(?<=[.,;!?|] ))"
    r"[^\S\n]{0,9}[#*_>-]{0,9}"
    rf"[^\S\n]{{0,9}}{_any_of(_LISTS['label'])}"
    # The list begins behind a colon or on the next line.
    r"[*_]{0,9}[^\S\n]{0,9}(?:[:=\uff1a]|(?=\n))"
    # If the list begins on the same line, it ends there, unless the line ends with a comma.
    r"(?:[^\n]*\w[^\n]*(?:(?<=[,;])[^\S\n]*\n[^\n]*)*"
    # Otherwise, it ends at an empty line or before a line with another label.
    r"|(?:(?!\n[^\S\n]{0,9}\n|\n[^\S\n]{0,9}[#*]{0,9}[\w ]{2,20}[:\uff1a]).)*)",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
# What "###" separates from the rest of its line.
_MARK = re.compile(r"(?<=\S)[^\S\n]+#{3,}.*", re.DOTALL)
# "[people, blurry::-1]", "(people:-1)" and "people::-0.5".
_WEIGHT = re.compile(
    r"[\[(][^\[\]()\n]{0,200}::?-(?:\d+(?:\.\d+)?|\.\d+)\s*[\])]"
    r"|[^,.;:|\n()\[\]{}]{1,200}::-(?:\d+(?:\.\d+)?|\.\d+)"
)
# The number of people is stated to be zero: "people: none".
_NONE = re.compile(
    r"(?:^|(?<=[.,;:(\[|\n\uff0c\u3002])|(?<=- ))[\w ]{1,40}[:=\uff1a]\s*"
    rf"{_any_of(_LISTS['none'])}(?!\w|[.]\d| \w)",
    re.IGNORECASE,
)

_PATTERNS_OF_SIGN = (
    (re.compile(r"[:=\n\uff1a]"), (_LABEL, _NONE)),
    (re.compile("###|:-"), (_MARK, _WEIGHT)),
)


def without_labelled(prompt: str) -> str:
    """Replace lists of what a picture must not show, such as negative prompts, with spaces."""
    # Most prompts contain none of these signs, and a search for a sign is fast.
    for sign, patterns in _PATTERNS_OF_SIGN:
        if sign.search(prompt):
            for pattern in patterns:
                prompt = pattern.sub(end_clause, prompt)
    return prompt


# ---- English

_SHOW, _PERSON, _WITHOUT_WORD, _NEXT = (
    _any_of(_LISTS[f"en-{name}"]) for name in ("show", "person", "without", "next")
)
# An imperative begins a clause or follows one of these words.
_IMPERATIVE = (
    r"(?:(?:^|[.,;:!?()\[\]\n\u2014\u2013])\s{0,9}|(?:^|(?<=\s))-\s{1,9}"
    r"|\b(?:please|and|but|to|just|also|must|should|always|you|kindly|then|strictly)\s+)"
)
_NOT = (
    r"(?:(?:do|does|did|must|should|can|may|might|shall|will|would|could|need)"
    r"(?: ?not|n['\u2019]?t|['\u2019]t)|never|not to)"
)
_EXCLUDES = re.compile(
    rf"(?:\b{_NOT}\s+(?:(?:to|for|ever|even|like|wish)\s+)?{_SHOW}\b"
    rf"|{_IMPERATIVE}(?:{_any_of(_LISTS['en-avoid'])}|{_any_of(_LISTS['en-drop'])}(?=\s+"
    rf"(?:the|any|all|every|{_PERSON})\b)|(?:keep|leave|crop|edit|cut|filter)\s+[^.,;:\n]{{1,60}}?"
    r"\s(?:out|away)\b(?! of focus))\b"
    r"|\bbefore\s+[^.,;:\n]{1,60}?\s(?:arrives?|comes?|gets?\s(?:in|there)|shows?\s+up)\b"
    rf"|\b(?:no|without|zero|any)\s+(?:(?:visible|single|other|living|real|any)\s+)*{_PERSON}\b"
    # The sentence does not end within "f/1.8".
    r")(?:(?![.](?:\s|$))[^;!?\n])*",
    re.IGNORECASE,
)
_WITHOUT = re.compile(
    rf"((?:\b{_WITHOUT_WORD}|\b(?:clean|clear|rid|strip|empty) [^.,;:\n]{{1,30}} of"
    r"|(?<!\ba )(?<!\ban )(?<!\bthe )\bno)\s+)"
    rf"((?:(?!\b{_NEXT}\b|\b\w+s (?:an?|the|another)\b)[^,.;:!?()\n\[\]])*)",
    re.IGNORECASE,
)


# ---- all languages: somebody who has left

_LONGEST_SUBJECT = 80  # characters
_WORD = r"[\w'\u2019-]+"
_CLAUSE_END = r"[,.;:!?()\[\]\n\u3001\u3002\uff0c\uff1b\u2014\u2013]"
_NEVER = re.compile("(?!)")


def _without_subjects(
    text: str, gone: re.Pattern[str], boundary: re.Pattern[str], introduced: re.Pattern[str]
) -> str:
    """Replace each clause that ends with a phrase such as "have left" with spaces.

    Somebody whom the clause introduces, such as "a barista", is in the picture.
    """
    for phrase in gone.finditer(text):
        start = max(0, phrase.start() - _LONGEST_SUBJECT)
        for found in boundary.finditer(text, start, phrase.start()):
            start = found.end()
        subject = text[start : phrase.start()]
        if subject.strip() and not introduced.search(subject):
            text = text[:start] + " " * (phrase.end() - start) + text[phrase.end() :]
    return text


class _Absence:
    """Patterns of a language for what a picture must not show.

    Attributes:
        excludes: A verb or a preposition that excludes what follows.
        behind: A phrase that excludes the clause before.
        gone: A phrase about somebody who has left, which excludes its subject.
        boundary: What the subject of such a phrase follows.
        introduced: A subject with an indefinite article.
    """

    def __init__(self, code: str) -> None:
        is_spaced = code not in _UNSPACED
        start, end, gap = (r"(?<!\w)", r"(?!\w)", r"\s+")
        if not is_spaced:
            start, end, gap = ("(?<![\u3066\u3067])", "", r"\s*")

        def words(name: str) -> str:
            return _any_of(_LISTS.get(f"{code}-{name}", ()))

        # An auxiliary and adverbs may precede a participle, or follow it at the end of a clause.
        # Their number is limited, so that the time is linear for a prompt that repeats them.
        between = rf"(?:(?:{words('has')}|{words('soon')}){gap}){{0,4}}"
        left = rf"{between}{words('left')}(?:{gap}{words('has')})?"
        away = rf"{words('has')}{gap}{between}{words('off')}"
        absent = rf"(?:{words('has')}{gap}){{0,4}}{words('not')}{gap}{between}{words('here')}"
        # The phrase ends its clause: "a chef has left" but not "a chef has left the kitchen".
        ends_clause = rf"{end}(?=\s*(?:{_CLAUSE_END}|$|{words('then')}{end}))"
        # "On the left" and "looking left" are directions.
        start_of_left = rf"{start}(?<!\bthe )(?<!\bto )(?<!ing )"
        self.gone = _compile(rf"{start_of_left}(?:{left}|{away}){ends_clause}")
        self.behind = _compile(rf"{start}(?:{words('behind')}|{absent}){end}")
        self.boundary = _compile(rf"{_CLAUSE_END}|\s-\s|{start}{words('who')}{end}")
        noun_phrase = rf"\s+(?:{_WORD}\s+){{1,2}}$" if is_spaced else r"\w{1,4}$"
        self.introduced = _compile(rf"{start}{words('a')}{noun_phrase}")

        ends = r".;!?\n\u3002\uff1b\uff01"  # of a sentence
        joins = words("and")
        sign = rf"[^{ends},\uff0c\u3001\u7684]"
        nouns = rf"{sign}{{1,20}}?(?={joins}|[{ends},\uff0c\u3001\u7684]|$)(?:{joins}{sign}+?)*"
        if is_spaced:
            article = rf"(?:[\w'\u2019-]{{1,5}}\s+(?!{joins}\s))?"
            nouns = rf"\s+{article}{_WORD}(?:\s+{joins}\s+{article}{_WORD})*"
        # "Personne" means "nobody" behind a negation.
        nouns += rf"(?:,\s+{words('nobody')}{end}[^{ends},]*)?"
        lacking = rf"(?:{words('without')}|{words('after')}{gap}{between}{words('left')})"
        self.excludes = _compile(
            rf"{start}(?:{words('verb')}{end}[^{ends}]*|{lacking}{end}{nouns})"
        )


_absence_of = cache(_Absence)


def without_absent(text: str, code: str) -> str:
    """Replace what a text in a language says that the picture must not show with spaces.

    Args:
        text: The text.
        code: The code of its language.
    """
    absence = _absence_of(code)
    text = _without_subjects(text, absence.gone, absence.boundary, absence.introduced)
    text = _without_subjects(text, absence.behind, absence.boundary, _NEVER)
    if code == "en":
        text = _EXCLUDES.sub(end_clause, text)
        return _WITHOUT.sub(lambda found: found[1] + " " * len(found[2]), text)
    return absence.excludes.sub(end_clause, text)


def end_clause(match: re.Match[str]) -> str:
    """Return a line break, which ends a clause, and spaces for all other characters of a match."""
    return ("\n" + " " * len(match[0]))[: len(match[0])]
