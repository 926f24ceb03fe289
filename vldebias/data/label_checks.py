"""Detect likely mistakes in the values of a label column."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache

from vldebias.data.labels import Labels
from vldebias.data.spellings import (
    dates_among_ranges,
    has_synonyms,
    is_sentence,
    meaning_of,
    spreadsheet_range,
    written_twice,
)

# A group is rare if it has fewer than _FEW rows and at most a share _RARE of all rows.
_FEW = 5
_RARE = 0.02
_MANY_GROUPS = 4  # with fewer groups, a high ratio of groups to rows does not indicate ids
_MOST_GROUPS = 0.8  # above this ratio of groups to rows, the groups are probably ids
_ALIKE = 0.8  # difflib similarity: one letter in five may differ
_MANY_TIMES = 4  # minimum ratio of correctly spelt rows to typos
# Words that mean a missing value, and numbers that do so in a column of codes.
_UNKNOWN_WORDS = {"nan", "none", "<na>", "nat", "null", "n/a", "?"}
_UNKNOWN_WORDS |= {"unknown", "unk", "unclear", "undetermined", "not known"}
# The largest one-byte and two-byte integers, and codes used by survey software.
_UNKNOWN_NUMBERS = ("255", "65535", "99", "999", "9999", "-9", "-99", "-100", "-999")


def odd_values(labels: Labels) -> list[str]:
    """Describe likely mistakes in a group column, each with a remedy.

    These are different spellings of a value (`spellings.written_twice`), sentences, scores, codes
    for missing values, groups with fewer than five rows that make up at most 2% of all rows, and
    rare values that are probably typos.
    """
    rows = {name: number for name, number in labels.counts.items() if number}
    total = sum(rows.values())
    unknown_names = names_of_unknown(rows)
    known_names = [name for name in rows if name not in unknown_names]
    problems = [*odd_names(tuple(known_names))]
    if 0 < len(unknown_names) < len(rows):
        first = unknown_names[0]
        names = " and ".join(map(repr, unknown_names))
        problems.append(
            f"there is a group named {names}; if this means a missing value, set unknown={first!r}"
            f" (--unknown {first})"
        )
    rare = [name for name in known_names if rows[name] < _FEW and rows[name] <= _RARE * total]
    if rare:
        examples = ", ".join(f"{name!r} ({rows[name]})" for name in rare[:5])
        if len(rare) > 5:
            examples += " ..."
        problems.append(
            f"{len(rare)} of {len(rows)} groups have fewer than {_FEW} rows: {examples}; correct"
            " the value, remove these rows, or add images; row numbers and scores cannot be groups"
        )
    for name, frequent_name in misspelt(rows):
        if name not in (*unknown_names, *rare):
            problems.append(
                f"{name!r} ({rows[name]} of {total} rows) is spelt almost like {frequent_name!r};"
                f" if they are the same, merge them (--rename {name}={frequent_name})"
            )
    return problems


@lru_cache(maxsize=256)
def odd_names(names: tuple[str, ...], *, has_flags: bool = True) -> tuple[str, ...]:
    """Describe likely mistakes in group names, each with a remedy.

    Args:
        names: the group names.
        has_flags: whether to mention the --rename flag of `vldebias eval shares`.
    """
    problems = [*_written_twice(names), *_written_otherwise(names)]
    if has_flags:
        return tuple(problems)
    # Remedies that use flags are enclosed in parentheses, so that they can be removed.
    command = "(?:in `vldebias eval shares` )?"
    flag = rf" \({command}(?:with the flag|--rename [^()]*(?:\([^()]*\)[^()]*)*)\)"
    return tuple(re.sub(flag, "", problem) for problem in problems)


def groups_as_many_as_rows(labels: Labels) -> str:
    """Return a message if a column has about as many groups as rows, otherwise "".

    This happens with ids, scores and ages, which are not groups.
    """
    names = [name for name, number in labels.counts.items() if number]
    n_rows = int(labels.known.sum())
    if len(names) < _MANY_GROUPS or len(names) <= _MOST_GROUPS * n_rows:
        return ""
    # Different spellings of a group have their own warning.
    groups = len(names) - sum(len(spellings) - 1 for spellings in written_twice(names))
    if groups <= _MOST_GROUPS * n_rows:
        return ""
    return (
        f"got {groups} groups in {n_rows} rows, such as {', '.join(names[:4])}; expected a few"
        " groups with several rows each; group the values first (ages into ranges, scores into yes"
        " and no)"
    )


def _written_twice(names: Sequence[str]) -> list[str]:
    """Describe values that have several spellings."""
    problems = []
    pairs = []
    for spellings in written_twice(names):
        listed = " and ".join(map(repr, spellings))
        # The canonical spelling replaces the others, as in F=female and 9-Mar=3-9.
        canonical = []
        for name in spellings:
            if name.casefold() == meaning_of(name) and name.removesuffix("s") not in canonical:
                canonical.append(name)
        value = canonical[-1] if canonical else spellings[-1]
        flags = [f"--rename {name}={value}" for name in spellings if name != value]
        if len({" ".join(name.split()).casefold() for name in spellings}) == 1:
            problems.append(
                f"{listed} differ only in case or spaces; merge them (in `vldebias eval shares`"
                f" {' '.join(flags)})"
            )
        elif any(map(spreadsheet_range, spellings)):
            pairs.append(f"{listed}, a range that a spreadsheet converted to a date ({flags[0]})")
        else:
            pairs.append(f"{listed} ({' '.join(flags)})")
    if pairs:
        problems.append(
            f"{'; '.join(pairs)} look like different spellings of the same value; if they are,"
            " merge them (in `vldebias eval shares` with the flag)"
        )
    return problems


def _written_otherwise(names: Sequence[str]) -> list[str]:
    """Describe suspicious names, such as dates among ranges, codes among words, and sentences."""

    def fitting(pattern: str) -> list[str]:
        return [name for name in names if re.fullmatch(pattern, name)]

    problems = []
    dates = dates_among_ranges(names)
    for spellings in written_twice(names):
        for name in spellings:
            dates.pop(name, None)
    if dates:
        listed = ", ".join(f"{name!r} was {text!r}" for name, text in dates.items())
        first = next(iter(dates))
        problems.append(
            f"a spreadsheet converted ranges to dates: {listed}; restore them"
            f" (--rename {first}={dates[first]})"
        )
    codes = fitting(r"[-+]?\d+")
    words = fitting(r"\D*")
    if len(codes) > 1 and words:
        problems.append(
            f"there are codes ({', '.join(map(repr, codes[:5]))}) and words"
            f" ({', '.join(map(repr, words[:5]))}); replace each code with its word (--rename"
            f" {codes[0]}={words[0]})"
        )
    sentences = [name for name in names if is_sentence(name)]
    if sentences:
        problems.append(
            f"{sentences[0][:80]!r} is a sentence, not the name of a group"
            f" ({len(sentences)} of {len(names)} values); ask the judge for a single word, or"
            " replace each sentence with a value (--rename 'SENTENCE=value')"
        )
    scores = fitting(r"[-+]?\d*\.\d*[1-9]\d*(?:e[-+]?\d+)?")
    if 2 * len(scores) > len(names) and len(scores) > 1:
        problems.append(
            f"numbers such as {scores[0]!r} look like probabilities or scores; convert them to"
            " groups, such as p > 0.5"
        )
    scored = fitting(r"[^\W\d].*?[\s:=(\[,]+(?:0?[.,]\d+|1[.,]0+|\d{1,3}(?:[.,]\d+)? ?%)[)\]]?")
    if scored:
        word = re.split(r"[\s:=(\[,]+[\d.,]", scored[0])[0]
        problems.append(
            f"{scored[0]!r} is a value with its score; write them into separate columns"
            f" (--rename '{scored[0]}={word}')"
        )
    joined = [name for name in names if _names_several(name, names)]
    if joined:
        problems.append(
            f"{joined[0]!r} looks like several values in one cell; write a separate row for each"
            f" value, or a name for both (--rename '{joined[0]}=mixed')"
        )
    objects = fitting(r"\{.*\}")
    if objects:
        problems.append(
            f"{objects[0][:60]!r} is a JSON object; write its value into a separate column"
        )
    lists = fitting(r"\[.*\]")
    if lists:
        problems.append(
            f"{lists[0]!r} is a list; write a separate row for each value"
            f' (--rename "{lists[0]}={lists[0].strip("[]").strip(chr(39))}")'
        )
    return problems


def _names_several(name: str, names: Collection[str]) -> bool:
    """Return whether a name lists several values, as in "female, male".

    At least one part must be another value of the column, or all must be values with synonyms. A
    slash may also separate the values of an intersection, such as "female/old".
    """
    parts = re.split(r"\s*[,;|&+]\s*|\s+and\s+", name)
    if len(parts) > 1 and all(map(has_synonyms, parts)):
        return True
    if len(parts) == 1:
        parts = name.split("/")
    other_names = {other.casefold() for other in names if other != name}
    return len(parts) > 1 and any(part.strip().casefold() in other_names for part in parts)


def names_of_unknown(names: Collection[str]) -> list[str]:
    """Return the names that mean a missing value: words, and special numbers among codes.

    -1 means missing if 0 also occurs (pandas codes), but in a column of -1 and 1, both are values.
    "none" is a value, like "glasses", but "None" is not.
    """
    marks = set(_UNKNOWN_NUMBERS)
    if "0" in names:
        marks.add("-1")
    words = set(_UNKNOWN_WORDS)
    if "none" in names:
        words.remove("none")
    # Numbers mean missing values only if all other names are codes from 0 to 50.
    are_codes = all(re.fullmatch(r"[0-4]?\d|50", name) or name in marks for name in names)
    if not are_codes:
        marks = set()
    return [name for name in names if name.casefold() in words or name in marks]


def misspelt(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return pairs of a rare value that looks like a typo and the frequent value it resembles.

    A value is not considered a typo if it is part of the other value ("male" and "female") or
    differs only in case, which is reported separately.
    """
    pairs = []
    for name, number in counts.items():
        if number >= _FEW:
            continue
        frequent = [word for word, rows in counts.items() if rows >= _MANY_TIMES * number]
        # A typo must be rarer than the correct word by at least a factor of four.
        for word in get_close_matches(name, frequent, n=1, cutoff=_ALIKE):
            is_part = name in word and len(word) - len(name) > 1
            if not is_part and name.casefold() != word.casefold():
                pairs.append((name, word))
    return pairs
