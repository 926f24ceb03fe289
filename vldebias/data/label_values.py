"""Recognise labels that name no group, match labels to known values, and detect likely mistakes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from vldebias.data.labels import Labels
from vldebias.errors import CLOSE_LABELS, did_you_mean, shown, warn_of_input
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
# Numbers that mean a missing value in columns of codes: those of survey software, of pandas and of
# training code, and the largest one-byte and two-byte integers.
_NEGATIVE_CODES = {"-1", "-9", "-99", "-100", "-999"}
_LARGE_CODES = {"99", "255", "999", "9999", "65535"}
_CODE = re.compile(r"[0-4]?\d|50")
_LEAST_VALUES = 2  # other labels, next to which a number may mean a missing value
# Labels of annotators who looked, and could not tell. Other words only mean that nobody labelled.
_PEOPLE_CANNOT_TELL = {"unclear", "unsure", "not sure", "ambiguous", "cannot tell", "neutral"}


def says_people_cannot_tell(label: str) -> bool:
    """Return True if a label says that people looked at the image and could not tell.

    >>> [says_people_cannot_tell(label) for label in ("Unclear", "N/A", "unknown")]
    [True, False, False]
    """
    return plain(label) in _PEOPLE_CANNOT_TELL


def missing_labels(
    rows: Mapping[str, int],
    place: str = "",
    *,
    values: Collection[str] = (),
    unknown: Collection[str] | None = None,
    remedy: str = "if this is a group, list in unknown= only the labels that are missing",
) -> list[str]:
    """Return the labels that mean a missing value: words such as "N/A", and some numbers.

    A number such as -1 is missing if no other negative number occurs but -1, -9, -99, -100 and
    -999, and 99 or 255 if the other labels are codes up to 50 or have no digits. There must be two
    other labels or more, so that -1 and 1 are both values.

    Args:
        rows: label -> number of rows.
        place: the column's description for the warning, which says what counts as unknown. Without
            it, there is no warning.
        values: known values, which are never missing values ("none" may be one).
        unknown: the labels that are missing, as chosen by the user. Default: as above.
        remedy: what the warning advises if a label is a group.

    >>> missing_labels({"1": 9, "2": 8, "-1": 3}), missing_labels({"-1": 9, "1": 8})
    (['-1'], [])
    """
    if unknown is not None:
        return [name for name in rows if name in unknown]
    words = {name for name in rows if name not in values and names_no_group(name)}
    number_of = {name: re.sub(r"\.0+$", "", name) for name in rows if name not in {*values, *words}}
    negative = {name for name, number in number_of.items() if re.fullmatch(r"-\d+", number)}
    large = {name for name, number in number_of.items() if number in _LARGE_CODES}
    remaining = {name for name in rows if name not in words | negative | large}
    are_codes = all(_CODE.fullmatch(number_of.get(name, name)) for name in remaining)
    numbers = set()
    if {number_of[name] for name in negative} <= _NEGATIVE_CODES:
        numbers |= negative
    if are_codes or not any(re.search(r"\d", name) for name in remaining):
        numbers |= large
    if len(set(rows) - words - numbers) < _LEAST_VALUES:
        numbers = set()
    names = [name for name in rows if name in words | numbers]
    named = {name: rows[name] for name in names if plain(name) != "unknown"}
    if named and place:
        first = next(iter(named))
        warn_of_input(
            f"{place}: {sum(named.values()):,} of {sum(rows.values()):,} labels name no group and"
            f" count as unknown, such as {shown(first)} ({named[first]:,}); {remedy}",
        )
    return names


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
    unknown_names = missing_labels(rows, values=values)
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
