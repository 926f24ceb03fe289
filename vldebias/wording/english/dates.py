"""Find ages and dates in a prompt, such as "aged 60", "1943", "the 1870s" or "14th century"."""

from __future__ import annotations

import re

from vldebias.prompts.english.words import has_listed, listed, lists
from vldebias.wording.english.text import Text

_TENS = "twenties|thirties|forties|fifties|sixties|seventies|eighties|nineties"
_TEN_TO_NINETY = r"(?:\d+|(?:ten|elev|twel|twen|thir|for|fif|six|seven|eigh|nine)\w*)"
# Ages before a person or thing, as in "a 30yo nurse" or "a 30-year-old Bordeaux". The number of
# repetitions is bounded, because long runs of digits would otherwise take quadratic time.
AGE_BEFORE_NOUN = re.compile(
    r"\b\d{1,3}\s?(?:years?olds?|yo|y\.o\.|y/o|yrs?(?:[- ]old)?)\b|\b\d{1,3}-years?\b(?=\s+\w)"
    r"|\b(?:\w{1,40}[- ](?:and a half[- ])?)?[\d,]{0,20}[\w-]{0,40}"
    r"[-\s]years?[-\s](?:olds?|of[-\s]age)\b"
    r"|\b(?:month|week|day)s?[- ]olds?\b|\b(?:\d+|\w+ty)[- ]something\b"
    r"|\b(?:u|under|over)[- ]?(?:[6-9]|1\d|2[0-3])s?\b",
    re.IGNORECASE,
)
# Ages after a person, as in "a nurse in her late forties" or "a nurse aged 60".
AGE_BEHIND = re.compile(
    rf"\b(?:aged?|turning|age of|past|over) (?:of )?{_TEN_TO_NINETY}\b"
    rf"|\b(?:early|mid|late)[ -](?:{_TENS}|\d0s|teens)\b|, [34]0s,"
    rf"|\b(?:her|his|their|its|my|your|the) (?:{_TENS}|teens)\b"
    r"|\b(?:her|his|their|its|my|your) \d\ds\b"
    r"|(?:man|woman|lady) of (?:twenty|thirty|forty|fifty|sixty|seventy|eighty)\b"
    rf"|\bin (?:{_TENS}|teens)\b|\b{_TEN_TO_NINETY}(?:th|st|nd)? birthday\b",
    re.IGNORECASE,
)
# "1943", "1870s" and "1914-18", or "79ad" and "480bce".
_YEAR = re.compile(r"(1\d{3})(['\u2019]?s)?(?:-\d+)?|\d{1,4}(bce?|ad|ce)")
_MODERN_YEAR = re.compile(r"20[0-4]\ds?")
_CENTURY = re.compile(r"(\d{1,2})(?:st|nd|rd|th)(?:-century)?")
_CENTURIES = ("century", "centuries")
MODERN = 2000
_ANCIENT = 0


def year_of_word(text: Text, i: int) -> int | None:
    """Return the last year of the date at word i, or None if the word is not a date.

    "1943" yields 1943, "1870s" yields 1879, and "14th-century" yields 1399. All dates in ancient
    times yield 0, and all years since 2000 yield 2000.

    Args:
        text: The text.
        i: The index of the word.
    """
    word = text.bare[i]
    following = text.after(i)
    if word.isalpha() and following not in _CENTURIES:
        return None
    if _MODERN_YEAR.fullmatch(word):
        return MODERN
    before = text.before(i)
    has_era = listed(following, "era") or before == "ad"
    if has_era and word.isdigit():
        return _ANCIENT  # All dates with an era are ancient: "400 BC", "AD 79".
    match = _YEAR.fullmatch(word)
    # A number with a unit is no date: "1920 x 1080".
    has_unit = has_listed((before, following), "unit")
    if match is None or has_unit:
        return _last_year_of_century(text, i)
    digits, plural, era = match.groups()
    if era:
        return _ANCIENT
    year = int(digits)
    if plural and year % 10 == 0:
        year += 9 if year % 100 else 99  # the decade "1870s" or the century "1800s"
    return year


def _last_year_of_century(text: Text, i: int) -> int | None:
    """Return the last year of the century at word i, such as 1399 for "14th century"."""
    word = text.bare[i]
    if not word.endswith("-century") and text.after(i) not in _CENTURIES:
        return None
    match = _CENTURY.fullmatch(word)
    if match:
        return int(match[1]) * 100 - 1
    names = list(lists()["century-name"])  # from "first" on
    name = word.removesuffix("-century")
    return (names.index(name) + 1) * 100 - 1 if name in names else None
