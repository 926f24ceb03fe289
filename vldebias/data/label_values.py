"""Recognise labels that name no group, match labels to known values, and detect likely mistakes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from vldebias.data.labels import Labels
from vldebias.errors import CLOSE_LABELS, did_you_mean, warn_of_input
from vldebias.utils.label_words import VALUE_OF_ALIAS, names_no_group, plain, written_alike

CLASS = "class"
"""Label column that names each reference image's class (`vldebias.methods.Reference`)."""
# A group is rare if it has fewer than _FEW rows and at most a share _RARE of all rows.
_FEW = 5
_RARE = 0.02
_MANY_GROUPS = 4  # with fewer groups, a high ratio of groups to rows does not indicate ids
_MOST_GROUPS = 0.8  # above this ratio of groups to rows, the groups are probably ids
# The values of a label column if the user does not name a prompt set.
USUAL_VALUES: Mapping[str, Collection[str]] = {"gender": ("female", "male")}
# Phrases of models that decline to answer, as `is_refusal` compares them.
REFUSALS = (
    *("sorry", "i apologize", "an ai", "i cannot", "i do not", "i will not", "i am not", "i was"),
    *("i refuse", "i decline", "i avoid", "i refrain", "i rather", "i prefer", "something i"),
    *("assume", "assumptions", "inappropriate", "sensitive", "privacy", "guidelines", "policy"),
    "request",
)
# What follows "I cannot", "I do not" or "I am not" in answers about images that show too little.
UNDECIDED = ("tell", "see", "say", "know", "think", "sure", "certain")
_UNDECIDED = re.compile(
    rf"(?: sorry(?: but)?)? i (?:cannot|do not|am not)(?: entirely)? (?:{'|'.join(UNDECIDED)}) "
)
_FULL_FORMS = {
    **{r"'m\b": " am", r"'d\b": " would", r"'ll\b": " will", r"\bwon't\b": "will not"},
    **{
        r"n't\b": " not",
        "apologise": "apologize",
        "policies": "policy",
        "not appropriate": "inappropriate",
    },
    r"\b(?:ca|can) not\b": "cannot",
    r"\b(?:am )?(?:unable|not able) to\b": "cannot",
    r"\b(?:shall|should|must|may|would|could) not\b": "will not",
    # "I must respectfully decline", "I'll have to pass"
    r"\bi (?:(?:will|would|must|have to|need to|try to|respectfully) )+(?!not\b)": "i ",
}
_QUOTATION = re.compile(r"(?<=\S )[\"\u201c][^\"\u201d]*[\"\u201d]")
# Integers that mean a missing value in a column of codes: the largest one-byte and two-byte
# integers, and codes used by survey software.
_UNKNOWN_CODES = {"255", "65535", "99", "999", "9999", "-9", "-99", "-100", "-999"}
# Numbers that mean a missing value if the groups are words
_NO_WORDS = _UNKNOWN_CODES | {"-1"}
# Labels of annotators who looked, and could not tell. Other words only mean that nobody labelled.
_PEOPLE_CANNOT_TELL = {"unclear", "unsure", "not sure", "ambiguous", "cannot tell", "neutral"}


def says_people_cannot_tell(label: str) -> bool:
    """Return True if a label says that people looked at the image and could not tell.

    >>> [says_people_cannot_tell(label) for label in ("Unclear", "N/A", "unknown")]
    [True, False, False]
    """
    return plain(label) in _PEOPLE_CANNOT_TELL


def _numbers_beside_words(labels: Collection[str]) -> set[str]:
    """Return special numbers, such as -1, if all groups are words, so that they mean missing."""
    numbers = {label for label in labels if re.search(r"\d", label)}
    are_words = not all(names_no_group(label) for label in set(labels) - numbers)
    return numbers if are_words and numbers <= _NO_WORDS else set()


def without_missing(labels: Labels, place: str) -> Labels:
    """Return labels in which words and numbers for a missing value, such as "N/A", are unknown.

    Warns about words other than "unknown", which may be a group in some tables.

    Args:
        labels: the column.
        place: the column's description in the warning.
    """
    numbers = _numbers_beside_words(labels.names)
    missing = [name for name in labels.names if name in numbers or names_no_group(name)]
    rows = {name: labels.counts[name] for name in missing if plain(name) != "unknown"}
    if rows:
        first = next(iter(rows))
        warn_of_input(
            f"{place}: {sum(rows.values()):,} of {len(labels):,} labels name no group and count as"
            f" unknown, such as {first[:80]!r} ({rows[first]:,}); if this is a group, give it"
            " another name in the table",
        )
    return labels.without(missing) if missing else labels


def is_refusal(text: str) -> bool:
    """Return whether a text in English declines to answer, such as "I can't help with that".

    >>> is_refusal("I'm not able to assist."), is_refusal("I can't tell from this angle.")
    (True, False)
    """
    # Signs in a picture may say "I will not be silent".
    words = plain(_QUOTATION.sub("", text))
    for short, full in _FULL_FORMS.items():
        words = re.sub(short, full, words)
    words = " ".join(["", *re.findall(r"\w+", words), ""])
    words = _UNDECIDED.sub(" ", words)
    return any(f" {phrase} " in words for phrase in REFUSALS)


def matched(labels: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Map labels that differ from a known value only in form to the value's code.

    Case, spaces and punctuation are ignored, and "F" or "woman" is "female". Integers may be
    written as floats, and 1 and 0 (or -1) as booleans.

    Args:
        labels: labels in the data.
        known: mapping from a value's code or name in the data set to the name to use.
    """
    code_of_plain: dict[str, str] = {}
    for code, value in known.items():
        code_of_plain.setdefault(plain(value), code)
        code_of_plain.setdefault(plain(code), code)
    no = "-1" if "-1" in known else "0"
    code_of_truth = {"yes": "1", "true": "1", "no": no, "false": no}
    code_of_label = {}
    for label in labels:
        if label in known:
            continue
        text = plain(label)
        integer = re.sub(r"\.0+$", "", text)
        alias = VALUE_OF_ALIAS.get(text, text)
        codes = (code_of_plain.get(text, ""), code_of_plain.get(alias, ""))
        for code in (integer, *codes, code_of_truth.get(text, "")):
            if code and code in known:
                code_of_label[label] = code
                break
    return code_of_label


def misspelt(labels: Iterable[str], values_of: Mapping[str, Collection[str]]) -> list[str]:
    """Describe labels that are not a known value but spelt almost like one.

    If no label is a value of an attribute, the column describes something else.

    Args:
        labels: the labels that occur.
        values_of: attribute -> its known values.
    """
    labels = list(labels)
    problems = []
    for attribute, values in values_of.items():
        known = set(map(plain, values))
        strangers = [label for label in labels if plain(label) not in known]
        if len(strangers) == len(labels):
            continue
        for label in strangers:
            # Different values may share a word, as in "East Asian" and "West Asian", or differ in a
            # digit, as in "20-29" and "20-39".
            words = set(plain(label).split())
            candidates = [value for value in values if words.isdisjoint(plain(value).split())]
            hint = did_you_mean(label, candidates, "", CLOSE_LABELS)
            if hint and not re.search(r"\d", label):
                listed = ", ".join(values)
                problems.append(f"got {label!r}; the values of {attribute} are {listed}; {hint}")
    return problems


def names_of_unknown(labels: Collection[str], values: Collection[str] = ()) -> list[str]:
    """Return the labels that mean a missing value: words, and special numbers among codes.

    -1 means missing if 0 also occurs (pandas codes) or next to words, but in a column of -1 and 1,
    both are values.

    Args:
        labels: the labels that occur.
        values: known values, which are never missing values ("none" may be one).
    """
    marks = _UNKNOWN_CODES | ({"-1"} if "0" in labels else set())
    # Numbers mean missing values only if all other labels are codes from 0 to 50.
    are_codes = all(re.fullmatch(r"[0-4]?\d|50", label) or label in marks for label in labels)
    numbers = _numbers_beside_words(labels)
    names = []
    for label in labels:
        is_unknown = label in marks if are_codes else label in numbers or names_no_group(label)
        if is_unknown and label not in values:
            names.append(label)
    return names


def odd_values(
    labels: Labels, values_of: Mapping[str, Collection[str]] = USUAL_VALUES
) -> list[str]:
    """Describe likely mistakes in a group column, each with a remedy.

    These are labels for missing values, labels that may be one group, groups with fewer than
    five rows that make up at most 2% of all rows, and labels that are almost a known value.

    Args:
        labels: the column.
        values_of: attribute -> the values that the column may contain.
    """
    rows = {name: number for name, number in labels.counts.items() if number}
    total = sum(rows.values())
    values = [value for known in values_of.values() for value in known]
    unknown_names = names_of_unknown(rows, values)
    problems = written_alike(rows, in_table=True)
    if 0 < len(unknown_names) < len(rows):
        first = unknown_names[0]
        listed = " and ".join(map(repr, unknown_names))
        problems.append(
            f"there is a group named {listed}; if this means a missing value, set unknown={first!r}"
            f" (--unknown {first})"
        )
    known_names = [name for name in rows if name not in unknown_names]
    problems += misspelt(known_names, values_of)
    rare = [name for name in known_names if rows[name] < _FEW and rows[name] <= _RARE * total]
    if rare:
        examples = ", ".join(f"{name!r} ({rows[name]})" for name in rare[:5])
        if len(rare) > 5:
            examples += " ..."
        problems.append(
            f"{len(rare)} of {len(rows)} groups have fewer than {_FEW} rows: {examples}; correct"
            " the value, remove these rows, or add images; row numbers and scores cannot be groups"
        )
    return problems


def groups_as_many_as_rows(labels: Labels) -> str:
    """Return a message if a column has about as many groups as rows, otherwise "".

    This happens with ids, scores and ages, which are not groups.
    """
    names = [name for name, number in labels.counts.items() if number]
    n_rows = int(labels.known.sum())
    if len(names) < _MANY_GROUPS or len(names) <= _MOST_GROUPS * n_rows:
        return ""
    return (
        f"got {len(names)} groups in {n_rows} rows, such as {', '.join(names[:4])}; expected a few"
        " groups with several rows each; group the values first (ages into ranges, scores into yes"
        " and no)"
    )
