"""Express counts in words, such as "1 woman and 7 men"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

# Singular and plural nouns for values. Other values are used as adjectives, as in "4 young".
PERSONS = {"female": ("woman", "women"), "male": ("man", "men")}


def in_words(counts: Mapping[str, int]) -> str:
    """Express counts in words, such as "1 woman and 7 men" or "3 young, 3 middle and 2 old"."""
    return listed_words([counted(count, value) for value, count in counts.items()])


def counted(count: int, value: str) -> str:
    """Express a number of people in words, such as "1 woman", "7 men" or "3 young".

    Args:
        count: the number of people.
        value: the attribute value that they share, such as "female".
    """
    singular, plural = PERSONS.get(value, (value, value))
    return f"{count} {singular if count == 1 else plural}"


def quantity(count: int, noun: str) -> str:
    """Format a number with a noun, such as "1 prompt" or "1,200 prompts".

    Args:
        count: the number of things.
        noun: the singular of a noun with a regular plural.
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def quantity_of(count: int, units: str) -> str:
    """Format a number with its unit, such as "1 image" or "20 queries".

    Args:
        count: the number of units.
        units: the plural of the unit.
    """
    if count != 1:
        return f"{count:,} {units}"
    if units.endswith("ies"):
        return f"1 {units.removesuffix('ies')}y"
    if units.endswith("sses"):
        return f"1 {units.removesuffix('es')}"
    return f"1 {units.removesuffix('s')}"


def largest_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort counts in descending order, leaving ties in their original order."""
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def listed(numbers: Iterable[int]) -> str:
    """Join numbers as in a sentence, such as "4 and 4" or "3, 3 and 2"."""
    return listed_words([str(number) for number in numbers])


def listed_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Join words as in a sentence, such as "a and b" or "a, b and c".

    Args:
        words: the words to join. If there are none, the result is "".
        conjunction: the word before the last item.
    """
    if len(words) < 2:
        return "".join(words)
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}"


def person(value: str) -> str:
    """Return the singular noun or adjective for a value, such as "woman" or "young"."""
    return PERSONS.get(value, (value, value))[0]


def persons(value: str) -> str:
    """Return the plural noun or adjective for a value, such as "women" or "young"."""
    return PERSONS.get(value, (value, value))[1]


def capitalised(words: str) -> str:
    """Capitalise only the first letter."""
    return words[:1].upper() + words[1:]
