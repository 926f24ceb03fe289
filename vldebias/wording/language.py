"""Say what a language does for balanced prompts: find the persons of a text, and write values.

A new language is a class with four methods, `reads`, `find`, `states` and `write`, and a line in
`languages/__init__.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from vldebias.prompts.attribute import Attribute
from vldebias.wording.groups import Group, Mixture, fits

Value = str | Mixture | None

MOST_PERSONS = 4  # of a prompt that get a value; the first ones


class Person(NamedTuple):
    """Hold one person of a text, or the group that a noun in the plural names.

    Attributes:
        noun: the noun as it is written; "" for a placeholder or a place that the user found.
        start, end: the characters of the noun with the modifiers that are part of it, "police
            officer".
        place: the characters that a word for a value replaces; equal where it is inserted.
        reason: why no value is written beside this person, "stated" or "group"; "" if one can be.
            "context" (facts leave one value) can be overruled by the user's `decide`.
        group: the persons of a noun in the plural.
    """

    noun: str
    start: int
    end: int
    place: tuple[int, int]
    reason: str = ""
    group: Group | None = None

    def can_be(self, value: Value) -> TypeGuard[str | Mixture]:
        """Return whether there is a value, and it can be said of this person; a mixture may have
        been made for another text, "five nurses", than this one, "a nurse"."""
        if isinstance(value, Mapping):
            return self.group is not None and fits(self.group, value)
        return value is not None


# A value of an attribute that is to be said of a person.
Saying = tuple[Person, Attribute, str | Mixture]

# The noun of a person of an original prompt, and the value that this one gets; None: none.
NounValue = tuple[str, Value]


class Replacement(NamedTuple):
    """Hold a text that takes the place of the characters from start to end."""

    start: int
    end: int
    text: str


class RewrittenPromptError(ValueError):
    """Say why a rewritten prompt keeps the values that it states: "rewritten: names Anna"."""


class Language(ABC):
    """Read and write prompts in one language.

    code: as in ISO 639, "de". name: in English.
    """

    code: str
    name: str

    @abstractmethod
    def reads(self, text: str) -> bool:
        """Return whether a text is in this language."""

    def knows(self, text: str) -> bool:
        """Return whether a text has a word of a woman, man, group or office of this language."""
        return False

    @abstractmethod
    def find(self, text: str, attribute: Attribute) -> tuple[Person, ...] | str:
        """Return every person whom a text shows, in order, or the reason why nobody gets a value.

        Args:
            text: a reading of a prompt: as long as the prompt, but what is markup is blank, and
                what ends a clause is a line end. So offsets in it are offsets in the prompt.
            attribute: what is balanced. A person whose value of it is fixed has a `reason`.

        Returns:
            The persons; or "stated", "named", "no person", "not understood", "pronoun",
            "group", ... as `vldebias.wording.reasons` says them in words.
        """

    @abstractmethod
    def states(self, text: str, attribute: Attribute) -> bool:
        """Return whether any word of a text states a value, of whatever it is said."""

    @abstractmethod
    def write(self, text: str, sayings: Sequence[Saying]) -> list[Replacement]:
        """Return what to replace in a text so that it says these values; no two overlap.

        All values of a text come at once, since endings may have to agree.
        """

    def replace_values(self, text: str, attribute: Attribute, people: Sequence[NounValue]) -> str:
        """Return a rewritten prompt in which the people of the original one have these values,
        whatever the rewriter stated.

        Whether that is possible must not depend on the values.

        Raises:
            RewrittenPromptError: the text states a value that this language cannot replace.
        """
        persons = self.find(text, attribute)
        if isinstance(persons, str):
            raise RewrittenPromptError(f"rewritten: {persons}")
        # One person is the one of the original; of several, those with the same nouns.
        nouns = [noun.lower() for noun, _ in people]
        if len(persons) != len(people) or len(people) > 1:
            found = [person.noun.lower() for person in persons]
            if any(found.count(noun) != 1 for noun in nouns):
                raise RewrittenPromptError("rewritten: not understood")
            persons = tuple(persons[found.index(noun)] for noun in nouns)
        sayings: list[Saying] = []
        for person, (_, value) in zip(persons, people, strict=True):
            if value is None:
                continue
            if person.reason:
                raise RewrittenPromptError(f"rewritten: {person.reason}")
            if not person.can_be(value):
                raise RewrittenPromptError("rewritten: group")
            sayings.append((person, attribute, value))
        return replace_all(text, self.write(text, sayings))

    def values_in(
        self, text: str, attribute: Attribute, people: Sequence[NounValue]
    ) -> list[Value]:
        """Return which value a text states of each of these people; None where it states none."""
        raise NotImplementedError(f"{self.name}: no values are read")


def replace_all(text: str, replacements: Iterable[Replacement]) -> str:
    """Return a text with its replacements, made from its end to its start so that offsets hold."""
    for start, end, new in sorted(replacements, reverse=True):
        text = text[:start] + new + text[end:]
    return text
