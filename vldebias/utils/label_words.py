"""Compare labels regardless of how they are written, and recognise those that name no group."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

from vldebias.utils.phrases import listed_words

# Answers from judges, annotators and tables that do not name a group, as returned by `plain`.
_NO_GROUP = {
    *("", "unknown", "unk", "unclear", "undetermined", "not known", "not sure", "unsure"),
    *("uncertain", "ambiguous", "indeterminate", "inconclusive", "undeterminable", "no majority"),
    *("n a", "na", "nan", "nat", "none", "null", "idk", "sorry", "cannot", "cannot tell"),
    *("unidentifiable", "unrecognizable", "unrecognisable", "unspecified", "not specified"),
    *("not stated", "not applicable", "prefer not to say", "declined", "refused", "no answer"),
    *("no response", "nobody", "no one", "none visible", "not a person", "not a human"),
    *("multiple", "multiple people", "several people", "unbekannt", "unklar", "keine angabe"),
    *("inconnu", "desconocido", "desconhecido", "sconosciuto", "неизвестно", "不明", "未知"),
}
_REFUSAL = re.compile(
    r"\bsorry\b|\bapologi[sz]e\b|\bas an ai\b"
    r"|\b(?:can ?not|can't|could not|couldn't|unable to|not able to|(?:im|not )possible to"
    r"|(?:hard|difficult) to) (?:\w+ly )?(?:tell|determine|say|see|identify|infer|assess"
    r"|recogni[sz]e|classify|discern|answer|judge|provide|help|assist)\b"
    r"|^(?:(?:it|the \w+) is )?(?:unclear|undetermined|unknown|indeterminate"
    r"|not (?:really |clearly )?(?:clear|visible|sure|certain|determinable|identifiable))\b"
    r"|^no (?:clear |visible )?(?:people|persons?|humans?|faces?|subjects?)\b"
    r"|^(?:faces?|persons?|people) (?:is |are )?not (?:visible|detected|found|shown)\b"
)
VALUE_OF_ALIAS = {"f": "female", "woman": "female", "women": "female"}
VALUE_OF_ALIAS |= {"m": "male", "man": "male", "men": "male"}
"""Values that are often abbreviated or named by a noun."""


def plain(label: str) -> str:
    """Return a label without differences in case, spaces, underscores, hyphens, slashes and points.

    Numbers are returned unchanged.

    >>> [plain(label) for label in ("Latino_Hispanic", "20 - 29", "n.a.", "-1")]
    ['latino hispanic', '20 29', 'n a', '-1']
    """
    text = unicodedata.normalize("NFKC", label).strip().casefold()
    if re.fullmatch(r"[-+]?\d+(\.\d+)?", text):
        return text
    text = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return " ".join(re.sub(r"[\s_./\\\u2010-\u2015-]+", " ", text).split())


def names_no_group(label: str) -> bool:
    """Return True if a label does not name a group: a refusal, "cannot tell" or "N/A".

    >>> [names_no_group(label) for label in ("no_face", "I'm sorry, I can't tell.", "other")]
    [True, True, False]
    """
    text = plain(label)
    return text.strip("[](){}<>\"'`*?! ") in _NO_GROUP or _REFUSAL.search(text) is not None


def written_alike(labels: Iterable[str], *, in_table: bool = False) -> list[str]:
    """Describe labels that are probably one group, such as "Male", "male " and "m".

    Args:
        labels: the labels that occur.
        in_table: whether to name the option of `vldebias eval shares` that merges them.

    >>> written_alike(["F", "female", "m"])
    ["'F' and 'female' may be one group; use one spelling"]
    """
    names_of_value = defaultdict[str, dict[str, str]](dict)
    for label in labels:
        text = " ".join(label.split()).casefold()
        names_of_value[VALUE_OF_ALIAS.get(text, text)][label] = text
    problems = []
    for value, text_of_name in names_of_value.items():
        names = list(text_of_name)
        usual = value if value in names else names[-1]
        flags = [f"--rename {name}={usual}" for name in names if name != usual]
        remedy = "use one spelling"
        if in_table:
            remedy = f"merge them (in `vldebias eval shares` {' '.join(flags)})"
        are_equal = len(set(text_of_name.values())) == 1
        problem = "differ only in case or spaces" if are_equal else "may be one group"
        if flags:
            problems.append(f"{listed_words(list(map(repr, names)))} {problem}; {remedy}")
    return problems
