"""Decide which groups to compare."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from vldebias.errors import InvalidInputError
from vldebias.prompts import load_prompts
from vldebias.utils.files import packaged
from vldebias.utils.label_words import plain
from vldebias.utils.phrases import listed_words, quantity

# Packaged prompt sets whose values are groups that judges or data sets use.
SETS = ("gender", "age", "race", "fairface-race", "skin-tone")
_SHOWN = 8  # maximum number of groups listed in a sentence
# Matches 0.91, 0,91 (from spreadsheets), 9.1e-1 and 91 %.
_FRACTION = re.compile(r"(?:0?[.,]\d+|[01][.,]\d+|\d[.,]\d+e-\d+)|\d+(?:[.,]\d+)? ?%")


def groups_named(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the groups that a user listed, or the values in the prompt set that a user named.

    Args:
        texts: group names, or the name or file of one prompt set.

    Raises:
        InvalidInputError: If there are fewer than two groups, or a group is repeated.
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


def refuse_probabilities(names: Sequence[str], source: str) -> None:
    """Reject labels that are probabilities, that is, decimal numbers from 0 to 1 or percentages.

    Args:
        names: the labels that occur.
        source: description of their column for messages.

    Raises:
        InvalidInputError: If all labels are probabilities.
    """
    fractions = [name for name in names if _FRACTION.fullmatch(name)]
    # If only "0.0" and "1.0" occur, they are codes instead of probabilities.
    has_decimals = any(re.search(r"[.,]0*[1-9]|%", name) for name in fractions)
    if has_decimals and all(name in fractions or name in ("0", "1") for name in names):
        raise InvalidInputError(
            f"{source}: got numbers such as {fractions[0]}, which look like probabilities; expected"
            " the group of each image. Create such a column first, for example female if p > 0.5"
        )


def refuse_single_group(names: Sequence[str], source: str) -> None:
    """Reject fewer than two groups, because there is nothing to compare.

    Args:
        names: the groups to compare.
        source: description of their column for messages.

    Raises:
        InvalidInputError: If there are fewer than two names.
    """
    if len(names) > 1:
        return
    if not names:
        raise InvalidInputError(
            f"{source}: no image has a known group; expected two groups or more; name the"
            " groups that could occur (--groups)"
        )
    fitting = _sets_with(names)
    example = f"--groups {fitting[0]}" if fitting else f"--groups {shlex.quote(names[0])},OTHER"
    raise InvalidInputError(
        f"{source}: every image with a known group shows {names[0]!r}; expected two groups or more;"
        f" name all groups that could occur, such as {example}"
    )


def absent_groups(names: Sequence[str]) -> str:
    """Describe which packaged sets contain further groups that no image shows.

    Returns "" if the names are exactly the groups in a set, or do not match any set.
    """
    fitting = _sets_with(names)
    sizes = {name: len(load_prompts(name).attributes) for name in fitting}
    if not fitting or len(set(map(plain, names))) in sizes.values():
        return ""
    flags = [f"--groups {name} ({size} groups)" for name, size in sizes.items()]
    return (
        f"only {quantity(len(names), 'group')} occur ({', '.join(names)}), and the shares are"
        " compared over these; if others could occur, list them:"
        f" {listed_words(flags, 'or')}"
    )


def compared_over(names: Sequence[str], *, are_named: bool) -> str:
    """Describe which groups are compared.

    Args:
        names: group names.
        are_named: whether the user listed them; otherwise, they are the groups that occur.
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
    """Return the names of packaged sets that contain all of the groups."""
    groups = set(map(plain, names))
    return [name for name in SETS if groups <= set(map(plain, load_prompts(name).attributes))]
