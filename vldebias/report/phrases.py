"""Express counts of people in words: "1 woman and 7 men"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

# Singular and plural nouns for values; other values are adjectives: "4 young".
PERSONS = {"female": ("woman", "women"), "male": ("man", "men")}


def in_words(counts: Mapping[str, int]) -> str:
    """Return counts in words: "1 woman and 7 men", "3 young, 3 middle and 2 old"."""
    return listed_words([counted(count, value) for value, count in counts.items()])


def counted(count: int, value: str) -> str:
    """Return a number of people in words: "1 woman", "7 men", "3 young".

    Args:
        count: the number of people.
        value: their value of the attribute, such as "female".
    """
    singular, plural = PERSONS.get(value, (value, value))
    return f"{count} {singular if count == 1 else plural}"


def quantity(count: int, noun: str) -> str:
    """Return a number with a noun: "1 prompt", "1,200 prompts".

    Args:
        count: the number.
        noun: the noun in the singular, with a regular plural.
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def quantity_of(count: int, units: str) -> str:
    """Return a number with its unit: "1 image", "20 queries".

    Args:
        count: the number.
        units: the unit in the plural.
    """
    if count != 1:
        return f"{count:,} {units}"
    if units.endswith("ies"):
        return f"1 {units.removesuffix('ies')}y"
    if units.endswith("sses"):
        return f"1 {units.removesuffix('es')}"
    return f"1 {units.removesuffix('s')}"


def largest_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort counts in descending order, keeping the order of ties."""
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def listed(numbers: Iterable[int]) -> str:
    """Join numbers as a list: "4 and 4", "3, 3 and 2"."""
    return listed_words([str(number) for number in numbers])


def listed_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Join words as a list: "a", "a and b", "a, b and c"; "" for none.

    Args:
        words: the words.
        conjunction: word before the last item.
    """
    if len(words) < 2:
        return "".join(words)
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}"


def person(value: str) -> str:
    """Return the singular noun or adjective for a value: "woman", "young"."""
    return PERSONS.get(value, (value, value))[0]


def persons(value: str) -> str:
    """Return the plural noun or adjective for a value: "women", "young"."""
    return PERSONS.get(value, (value, value))[1]


def capitalised(words: str) -> str:
    """Capitalise the first letter, leaving the others unchanged."""
    return words[:1].upper() + words[1:]
