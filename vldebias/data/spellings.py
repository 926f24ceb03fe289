"""Detect different spellings of the same value in a column."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping

# Synonyms of each value, in several languages and from face-labelling tools.
_SYNONYMS = {
    "female": "woman women weiblich frau frauen femme femmes féminin féminine mujer mujeres"
    " femenino femenina donna donne femminile mulher feminino feminina vrouw vrouwelijk kvinna"
    " kvinnlig kobieta женщина женский fem lady ladies ♀ 女 女性 女人 여 여성 여자",
    "male": "man men männlich mann männer homme hommes masculin hombre hombres masculino uomo"
    " uomini maschile homem mannelijk manlig mężczyzna мужчина мужской masc gentleman gentlemen ♂"
    " 男 男性 男人 남 남성 남자",
    "nonbinary": "non_binary nb enby nichtbinär",
    "yes": "true y t",
    "no": "false n",
    "white": "caucasian",
    "black": "african_american",
    "blond": "blonde",
    "grey": "gray",
    "old": "elderly",
    "latino hispanic": "latino hispanic latina latinx hispanic_latino latino_or_hispanic"
    " hispanic_or_latino",
    "middle eastern": "mideastern middle_east",
}
# Answers from judges and surveys that do not name a group, in several languages.
_NO_ANSWERS = {
    *("unknown", "unk", "unclear", "undetermined", "not known", "n/a", "na", "nan", "none", "null"),
    *("<na>", "nat", "?", "unsure", "uncertain", "ambiguous", "indeterminate", "cannot", "sorry"),
    *("unidentifiable", "unrecognizable", "not applicable", "no answer", "unspecified", "idk"),
    *("not specified", "not stated", "prefer not to say", "declined", "refused", "no response"),
    *("nobody", "no one", "inconclusive", "undeterminable", "indeterminable"),
    *("unrecognisable", "none visible", "unbekannt", "unklar"),
    *("keine angabe", "nicht bestimmbar", "nicht erkennbar"),
    *("inconnu", "inconnue", "indéterminé", "desconocido", "desconocida", "indeterminado"),
    *(
        "sconosciuto",
        "desconhecido",
        "неизвестно",
        "不明",
        "未知",
        "不确定",
        "無法判斷",
        "无法判断",
    ),
    *("불명", "알 수 없음", "無法確定", "无法确定", "判断できない"),
}
_TELL = (
    r"(?:be )?(?:tell|told|determin|say|said|identif|infer|assess|see|seen|recogni[sz]e|classif"
    r"|discern|answer|judg|provid|comment|assist|help|make|guess|know|show|depict|contain)"
)
_REFUSAL = re.compile(
    r"\b(?:i'?m|i am|we'?re) (?:very |so )?sorry\b|^sorry\b|\bapologi[sz]e\b|\bas an ai\b"
    rf"|\b(?:can ?not|can't|could not|couldn't|unable to|not able to|impossible to"
    rf"|not possible to|hard to|difficult to|won't|will not|do(?:es)? not|don't|doesn't)"
    rf" (?:reliably |clearly |accurately |really )?{_TELL}"
    r"|^(?:it is |it's |the \w+ is )?not (?:really |clearly )?(?:clear|visible|sure|certain"
    r"|determinable|identifiable|discernible|recogni[sz]able)\b"
    r"|^no (?:clear |visible )?(?:people|persons?|humans?|faces?|subjects?)\b"
    r"|^(?:faces?|persons?|people|humans?|\w+) (?:is |are )?not (?:visible|detected|found|shown)\b"
    r"|^(?:it is |it's |the \w+ is )?(?:unclear|undetermined|unknown|indeterminate)\b"
    r"|\bnicht (?:erkennbar|bestimmbar|zu erkennen)\b|\bimpossible (?:à|de) déterminer\b"
    r"|\bno (?:se puede|es posible) determinar\b"
)
_IN_SENTENCE = re.compile(
    r"\b(?:is|are|was|appears?|looks?|seems?|shows?|depicts?|image|photo|picture|person)\b"
)
_MEANING = {}
for _value, _words in _SYNONYMS.items():
    for _word in _words.split():
        _MEANING[_word.replace("_", " ")] = _value
_MONTHS = (
    *("jan", "feb", "mar mär mrz", "apr avr abr", "may mai mei maj", "jun", "jul", "aug aoû ago"),
    *("sep set", "oct okt out", "nov", "dec dez déc dic"),
)
_MONTH_OF = {name: number for number, names in enumerate(_MONTHS, 1) for name in names.split()}
_DASHES = re.compile(r"\s*[-\u2010-\u2015\u2212~\u301c]\s*")
_IRREGULAR = {"children": "child", "people": "person"}


def meaning_of(name: str) -> str:
    """Return the canonical form of a value, which is the same for different spellings.

    >>> [meaning_of(name) for name in ("Women", "20 - 29", "9-Mar", "70+", "Latino_Hispanic")]
    ['female', '20-29', '3-9', 'more than 70', 'latino hispanic']
    """
    text = " ".join(unicodedata.normalize("NFKC", name).split()).casefold()
    if re.fullmatch(r"[-+]?\d+(\.\d+)?", text):
        return re.sub(r"\.0+$", "", text)
    # Survey forms contain values such as "Female (F)".
    text = re.sub(r"^(\w{2,}) ?[(\[]\w[)\]]$", r"\1", text)
    text = text.strip("[](){}*`'\"\u201c\u201d\u2018\u2019").rstrip(".")
    age = _age(text)
    if age is not None:
        return age
    text = " ".join(re.sub(r"[-_/\u2010-\u2015]", " ", text).split())
    text = _IRREGULAR.get(text, text)
    for candidate in (text, text.removesuffix("s")):
        if candidate in _SYNONYMS:
            return candidate
        if candidate in _MEANING:
            return _MEANING[candidate]
    return text


def has_synonyms(name: str) -> bool:
    """Return True if a name is one of the values whose synonyms are known, such as "Women"."""
    return meaning_of(name) in _SYNONYMS


def names_no_group(text: str) -> bool:
    """Return True if a label does not name a group: a refusal, "cannot tell" or "N/A".

    >>> [names_no_group(text) for text in ("N/A", "I'm sorry, I can't tell.", "female", "other")]
    [True, True, False, False]
    """
    plain = " ".join(unicodedata.normalize("NFKC", text).split()).casefold()
    plain = plain.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if plain.strip("[](){}\"' .!") in _NO_ANSWERS or plain in _NO_ANSWERS:
        return True
    return _REFUSAL.search(plain) is not None


def is_sentence(text: str) -> bool:
    """Return True if a label is a sentence rather than a group name.

    >>> is_sentence("The person appears to be female."), is_sentence("American Indian or Alaskan")
    (True, False)
    """
    words = text.split()
    if len(words) < 3:
        return False
    ends_as_sentence = words[-1].endswith((".", "!", "?")) and not words[-1].endswith("etc.")
    return ends_as_sentence or _IN_SENTENCE.search(text.casefold()) is not None


def _age(text: str) -> str | None:
    """Return an age range as "20-29" or "more than 70", or None for other values."""
    plain = _DASHES.sub("-", text.replace("_", "-"))
    bounds = re.fullmatch(r"(\d{1,3})(?:-| to | bis | à | a )(\d{1,3})(?: years?)?", plain)
    if bounds:
        return "-".join(str(int(bound)) for bound in bounds.groups())
    above = re.fullmatch(
        r"(?:more than|over|older than|above|>=?|≥)?\s*(\d{1,3})\s*"
        r"(\+|plus|and (?:over|older|above|up)|or (?:over|older|above|more))?(?: years?)?",
        plain,
    )
    if above and plain != above.group(1):
        return f"more than {int(above.group(1))}"
    return spreadsheet_range(text)


def spreadsheet_range(text: str) -> str | None:
    """Recover a range that a spreadsheet converted to a date; return None for other values.

    >>> [spreadsheet_range(text) for text in ("9-Mar", "Oct-19", "2026-03-09", "female")]
    ['3-9', '10-19', '3-9', None]
    """
    if not re.search(r"\d", text):
        return None
    parts = list(filter(None, re.split(r"[-/. ]+", text.strip().casefold())))
    numbers = []
    for part in parts:
        if part[:3] in _MONTH_OF and part.isalpha():
            numbers.append(_MONTH_OF[part[:3]])
        elif part.isdecimal():
            numbers.append(int(part))
        elif part not in ("00:00:00", "0:00"):
            return None
    # Drop the year of a full date. Two numbers without a month name are a range, not a date.
    if len(numbers) == 3 and max(numbers) > 1900:
        numbers.remove(max(numbers))
    elif len(numbers) != 2 or all(map(str.isdecimal, parts)):
        return None
    low, high = sorted(numbers)
    if low == high:
        return None
    return f"{low}-{high % 100}" if high > 1900 else f"{low}-{high}"


def written_twice(names: Iterable[str]) -> list[list[str]]:
    """Group names that are spellings of the same value.

    "F" abbreviates the only other value that starts with it; "nurses" equals "nurse".
    """
    names = list(names)
    meanings = {name: meaning_of(name) for name in names}
    for name, meaning in meanings.items():
        abbreviated = _abbreviated(meaning, meanings.values())
        if abbreviated is not None:
            meanings[name] = abbreviated
        elif meaning.endswith("s") and meaning[:-1] in meanings.values():
            meanings[name] = meaning[:-1]
    spellings = defaultdict[str, list[str]](list)
    for name in names:
        spellings[meanings[name]].append(name)
    return [group for group in spellings.values() if len(group) > 1]


def _abbreviated(letter: str, meanings: Iterable[str]) -> str | None:
    """Return the value that a single letter abbreviates, or None if there is not exactly one."""
    if len(letter) != 1 or not letter.isalpha():
        return None
    starting = {meaning for meaning in meanings if len(meaning) > 1 and meaning.startswith(letter)}
    word = min(starting, default="")
    # Ignore words of two letters: "A" does not abbreviate the blood group "AB", nor "V" "VI".
    return word if len(starting) == 1 and len(word) > 2 else None


def dates_among_ranges(names: Iterable[str]) -> dict[str, str]:
    """Map dates to the ranges they were converted from; return {} if no other names are ranges."""
    names = list(names)
    dates = {}
    for name in names:
        found = spreadsheet_range(name)
        if found is not None:
            dates[name] = found
    has_ranges = any(re.fullmatch(r"\s*\d+\s*[-\u2013]\s*\d+\s*", name) for name in names)
    return dates if has_ranges else {}


def matched(names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Map unknown spellings to known values.

    Args:
        names: spellings in the data.
        known: mapping from a value's code or name in the data set to the name to use.
    """
    known_of_meaning: dict[str, str] = {}
    for code, value in known.items():
        known_of_meaning.setdefault(meaning_of(value), code)
        known_of_meaning.setdefault(meaning_of(code), code)
    truths = {"yes": "1", "no": "-1" if "-1" in known else "0"}
    found = {}
    for name in names:
        if name in known:
            continue
        integer = re.fullmatch(r"\s*([-+]?\d+)\.0*\s*", name)
        code = integer.group(1) if integer else name
        meaning = meaning_of(name)
        meaning = _abbreviated(meaning, known_of_meaning) or meaning
        for candidate in (code, known_of_meaning.get(meaning), truths.get(meaning)):
            if candidate is not None and candidate in known:
                found[name] = candidate
                break
    return found
