"""Write counts of people in words: "1 woman and 7 men"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

# What one person and several persons of a value are called; other values are adjectives: "4 young".
PERSONS = {"female": ("woman", "women"), "male": ("man", "men")}


def in_words(counts: Mapping[str, int]) -> str:
    """Write counts: "1 woman and 7 men", "3 young, 3 middle and 2 old"."""
    return listed_words([counted(count, value) for value, count in counts.items()])


def counted(count: int, value: str) -> str:
    """Write how many persons have a value: "1 woman", "7 men", "3 young"."""
    singular, plural = PERSONS.get(value, (value, value))
    return f"{count} {singular if count == 1 else plural}"


def quantity(count: int, noun: str) -> str:
    """Write how many things there are: "1 prompt", "1,200 prompts"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def quantity_of(count: int, units: str) -> str:
    """Write how many there are of units named in the plural: "1 image", "20 queries"."""
    if count != 1:
        return f"{count:,} {units}"
    if units.endswith("ies"):
        return f"1 {units.removesuffix('ies')}y"
    if units.endswith("sses"):
        return f"1 {units.removesuffix('es')}"
    return f"1 {units.removesuffix('s')}"


def largest_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts with the largest first; equal ones keep their order."""
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def listed(numbers: Iterable[int]) -> str:
    """Write the numbers alone, where the values were named before: "4 and 4", "3, 3 and 2"."""
    return listed_words([str(number) for number in numbers])


def listed_words(words: Sequence[str], joint: str = "and") -> str:
    """Write words as a list: "a", "a and b", "a, b and c"; "" for none."""
    if len(words) < 2:
        return "".join(words)
    *first, last = words
    return f"{', '.join(first)} {joint} {last}"


def person(value: str) -> str:
    """Return what one person of a value is called: "woman", "young"."""
    return PERSONS.get(value, (value, value))[0]


def persons(value: str) -> str:
    """Return what several persons of a value are called: "women", "young"."""
    return PERSONS.get(value, (value, value))[1]


def capitalised(words: str) -> str:
    """Write words as the start of a sentence; the other letters keep their case."""
    return words[:1].upper() + words[1:]
