"""Decide which groups the shares of images are compared over, and which labels name none."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from vldebias.data.label_checks import names_of_unknown
from vldebias.data.spellings import matched, meaning_of, names_no_group
from vldebias.errors import InvalidInputError
from vldebias.prompts import load_prompts
from vldebias.report.phrases import listed_words, quantity
from vldebias.utils.files import packaged

# Packaged sets whose values are the groups of a judge or a data set.
SETS = ("gender", "age", "race", "fairface-race", "skin-tone")
_SHOWN = 8  # groups that a sentence lists
# 0.91, 0,91 of a spreadsheet, 9.1e-1 and 91 %.
_FRACTION = re.compile(r"(?:0?[.,]\d+|[01][.,]\d+|\d[.,]\d+e-\d+)|\d+(?:[.,]\d+)? ?%")


def groups_named(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the groups that a user names: a list, or the values of a prompt set.

    Args:
        texts: names of groups, or the name or the file of one prompt set.

    Raises:
        InvalidInputError: fewer than two groups, or a name twice.
    """
    names = tuple(texts)
    is_set = len(names) == 1 and (names[0] in packaged("prompts") or names[0].endswith(".yaml"))
    if is_set:
        names = tuple(load_prompts(names[0]).attributes)
    if len(names) < 2 or len(set(names)) < len(names):
        raise InvalidInputError(
            f"--groups: got {', '.join(names) or 'none'}; expected two or more different groups,"
            f" such as female,male, or the name of a prompt set with values: {', '.join(SETS)}"
        )
    return names


def labels_without_group(names: Collection[str], groups: Sequence[str]) -> list[str]:
    """Return the labels that name no group, such as "cannot tell" and "N/A", unless they are among
    the groups that the user named.

    Args:
        names: the labels that occur.
        groups: that the user named; () if none are named.
    """
    marks = [name for name in names_of_unknown(names) if not re.fullmatch(r"[-+]?\d+", name)]
    answers = [name for name in names if name.casefold() != "none" and names_no_group(name)]
    return [name for name in dict.fromkeys([*marks, *answers]) if name not in groups]


def spelt_otherwise(names: Sequence[str], groups: Sequence[str]) -> dict[str, str]:
    """Return spelling -> group, for labels that write one of the named groups in another way.

    Args:
        names: the labels that occur.
        groups: that the user named.
    """
    return matched(names, {group: group for group in groups})


def refuse_probabilities(names: Sequence[str], where: str) -> None:
    """Refuse labels that are all numbers from 0 to 1 with decimals.

    Args:
        names: the labels that occur.
        where: their column, for messages.

    Raises:
        InvalidInputError: they are.
    """
    fractions = [name for name in names if _FRACTION.fullmatch(name)]
    # "0.0" and "1.0" alone are codes.
    has_decimals = any(re.search(r"[.,]0*[1-9]|%", name) for name in fractions)
    if has_decimals and all(name in fractions or name in ("0", "1") for name in names):
        raise InvalidInputError(
            f"{where}: got numbers such as {fractions[0]}, which look like probabilities; expected"
            " the group of each image: write it into a column first, such as female if p > 0.5"
        )


def refuse_single_group(names: Sequence[str], where: str) -> None:
    """Refuse labels of one group or none, whose shares have nothing to be compared with.

    Args:
        names: the groups that are compared.
        where: their column, for messages.

    Raises:
        InvalidInputError: fewer than two names.
    """
    if len(names) > 1:
        return
    if not names:
        raise InvalidInputError(
            f"{where}: no image has a known group; expected two groups or more; name the"
            " groups that could occur (--groups)"
        )
    fitting = _sets_with(names)
    example = f"--groups {fitting[0]}" if fitting else f"--groups {names[0]},OTHER"
    raise InvalidInputError(
        f"{where}: every image with a known group shows {names[0]!r}; expected two groups or more;"
        f" name all groups that could occur, such as {example}"
    )


def absent_groups(names: Sequence[str]) -> str:
    """Write which packaged sets have groups that no image shows; "" if the names are those of a
    set, or of none."""
    fitting = _sets_with(names)
    sizes = {name: len(load_prompts(name).attributes) for name in fitting}
    if not fitting or len(set(map(meaning_of, names))) in sizes.values():
        return ""
    flags = [f"--groups {name} ({size} groups)" for name, size in sizes.items()]
    return (
        f"only {quantity(len(names), 'group')} occur ({', '.join(names)}), and the shares are"
        " compared over these; if others could occur, name them:"
        f" {listed_words(flags, 'or')}"
    )


def compared_over(names: Sequence[str], *, are_named: bool) -> str:
    """Write over which groups shares are compared.

    Args:
        names: of the groups.
        are_named: whether the user named them, or they are those that occur.
    """
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        shown += f" and {len(names) - _SHOWN} more"
    if are_named:
        return f"Shares are compared over the {len(names)} groups that were named: {shown}."
    return (
        f"Shares are compared over the {len(names)} groups that occur in the table: {shown}. A"
        " group that no image shows counts only if it is named (--groups)."
    )


def _sets_with(names: Sequence[str]) -> list[str]:
    """Return the packaged sets that have all of some values, in any spelling."""
    meanings = {meaning_of(name) for name in names}
    fitting = []
    for name in SETS:
        values: Mapping[str, object] = load_prompts(name).attributes
        if meanings <= {meaning_of(value) for value in values}:
            fitting.append(name)
    return fitting
