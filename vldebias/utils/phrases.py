"""Express counts in words, such as "1 woman and 7 men"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

# Singular and plural nouns for values. Other values are used as adjectives, as in "4 young".
PERSONS = {"female": ("woman", "women"), "male": ("man", "men")}

# Numbers of people in an image, which are written as words.
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def in_words(counts: Mapping[str, int]) -> str:
    """Express counts in words, such as "1 woman and 7 men" or "3 young, 3 middle and 2 old"."""
    return listed_words([counted(count, value) for value, count in counts.items()])


def counted(count: int, value: str) -> str:
    """Express a number of people in words, such as "1 woman", "7 men" or "3 young".

    Args:
        count: the number of people.
        value: the attribute value that they share, such as "female".
    """
    return f"{count} {person(value) if count == 1 else persons(value)}"


def people_in_words(value: str | Mapping[str, int | None]) -> str:
    """Express an image's value in words, such as "female" or "one man and two women".

    Args:
        value: the value of one person, or the number of people with each value. None means that
            the prompt does not give the number.
    """
    if isinstance(value, str):
        return value
    groups = []
    for name, count in value.items():
        words = person(name) if count == 1 else persons(name)
        if count is not None:
            words = f"{NUMBERS[count] if count < len(NUMBERS) else count} {words}"
        groups.append(words)
    return listed_words(groups)


def asked_for(
    values: Iterable[str | Mapping[str, int | None]],
    names: Sequence[str],
    seen: Mapping[str, int],
    *,
    judged: bool,
) -> str:
    """Describe the values that were requested for images, and how many images show them.

    Args:
        values: the value of each image, or its number of people with each value.
        names: the attribute's values, in order.
        seen: value -> number of images that show it. Empty if unknown.
        judged: whether a judge looked at the images. It looks at one person, so if an image should
            show several people, this is stated in place of the numbers in `seen`.
    """
    values = list(values)
    several = [value for value in values if not isinstance(value, str)]
    if not several:
        count_of_value = Counter(map(people_in_words, values))
        requested = largest_first({name: count_of_value[name] for name in names})
        shown = {name: seen.get(name, 0) for name in requested}
        if shown == requested:
            return f"{in_words(requested)}, as asked"
        return f"asked for {in_words(requested)}{f', seen: {in_words(shown)}' if seen else ''}"
    # "a man and a woman" and "a woman and a man" are the same request.
    requests = Counter(
        people_in_words({name: value[name] for name in names if name in value}) for value in several
    )
    parts = [
        f"{words} in {'1 image' if count == 1 else f'each of {count} images'}"
        for words, count in requests.items()
    ]
    note = "; the judge only looks at one person per image" if judged else ""
    return f"asked for {listed_words(parts)}{note}"


def quantity(count: int, noun: str) -> str:
    """Format a number with a noun, such as "1 prompt" or "1,200 prompts".

    Args:
        count: the number of things.
        noun: the singular of a noun with a regular plural.
    """
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


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


def lacking(
    missing: Sequence[str], total: int, what: str, why: str = "", *, unit: str = "image"
) -> str:
    """Return a sentence on images, or edits, that are left out.

    Args:
        missing: those that lack something.
        total: number of all of them.
        what: what they lack, such as "caption".
        why: why the first one lacks it, or "".
        unit: what they are.

    >>> lacking(["1.jpg", "2.jpg"], 60, "label")
    "2 of 60 images have no label, such as '1.jpg'; left out."
    """
    verb = "has" if len(missing) == 1 else "have"
    return (
        f"{len(missing):,} of {quantity(total, unit)} {verb} no {what}, such as"
        f" {missing[0]!r}{f' ({why})' if why else ''}; left out."
    )


def largest_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort counts in descending order, leaving ties in their original order."""
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


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
