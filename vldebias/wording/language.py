"""The interface of a language for balanced prompts: find the people of a text, write values.

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


class Mention(NamedTuple):
    """A place in one text where a person or a group is named, and where a value can be written.

    A language finds mentions. Images can name a person several times, in alternatives or in texts
    for several encoders; `DepictedPerson` joins these mentions.

    Attributes:
        noun: the noun as written; "" for a placeholder or a place that the user's `find` returned.
        start, end: the characters of the noun with its compound modifiers, "police officer".
        place: the characters that the word for a value replaces; equal offsets insert it.
        reason: why this person gets no value, such as "stated" or "group"; "" if it can get one.
            The user's `decide` can overrule "context" (the facts leave one value).
        group: the group that a plural noun names.
    """

    noun: str
    start: int
    end: int
    place: tuple[int, int]
    reason: str = ""
    group: Group | None = None

    def can_be(self, value: Value) -> TypeGuard[str | Mixture]:
        """Return whether a value is given and fits this mention.

        A mixture may have been made for "five nurses" in another text and not fit "a nurse".
        """
        if isinstance(value, Mapping):
            return self.group is not None and fits(self.group, value)
        return value is not None


# A value of an attribute that is to be written at a mention.
Assignment = tuple[Mention, Attribute, str | Mixture]

# The noun of a person in an original prompt and the value assigned to that person, or None.
NounValue = tuple[str, Value]


class Replacement(NamedTuple):
    """A text that replaces the characters from start to end."""

    start: int
    end: int
    text: str


class RewrittenPromptError(ValueError):
    """A rewritten prompt must stay unchanged; the message is the reason."""


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
        """Return whether a text has a word for a woman, man, group or office in this language."""
        return False

    @abstractmethod
    def find(self, text: str, attribute: Attribute) -> tuple[Mention, ...] | str:
        """Return every person whom a text shows, in order, or the reason why nobody gets a value.

        Args:
            text: a reading of a prompt. It is as long as the prompt, so that offsets agree, with
                markup replaced by spaces and clause ends by line ends.
            attribute: the attribute to balance. People whose value is fixed have a `reason`.

        Returns:
            The mentions, or a reason such as "stated", "named", "no person" or "not understood";
            `vldebias.wording.reasons` explains them.
        """

    @abstractmethod
    def states(self, text: str, attribute: Attribute) -> bool:
        """Return whether any word of a text states a value, about a person or not.

        Args:
            text: a prompt or a part of one.
            attribute: the attribute to balance.
        """

    @abstractmethod
    def write(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        """Return replacements that write these values into a text; they do not overlap.

        All values of a text are passed together because endings may have to agree.

        Args:
            text: the text in which the mentions were found.
            assignments: (mention, attribute, value) of each value.
        """

    def replace_values(self, text: str, attribute: Attribute, people: Sequence[NounValue]) -> str:
        """Return a rewritten prompt in which the original's people have these values.

        Whether this is possible must not depend on the values.

        Args:
            text: the rewritten prompt.
            attribute: the attribute to balance.
            people: noun and value of each person of the original, None for no value.

        Raises:
            RewrittenPromptError: the prompt must stay unchanged.
        """
        persons = self.find(text, attribute)
        if isinstance(persons, str):
            raise RewrittenPromptError(f"rewritten: {persons}")
        # A single person corresponds to the original's.
        if len(persons) != len(people) or len(people) > 1:
            persons = _match_by_noun(persons, people)
        assignments: list[Assignment] = []
        for person, (_, value) in zip(persons, people, strict=True):
            if value is None:
                continue
            if person.reason:
                raise RewrittenPromptError(f"rewritten: {person.reason}")
            if not person.can_be(value):
                raise RewrittenPromptError("rewritten: group")
            assignments.append((person, attribute, value))
        return replace_all(text, self.write(text, assignments))

    def values_in(
        self, text: str, attribute: Attribute, people: Sequence[NounValue]
    ) -> list[Value]:
        """Return the value that a text states for each of these people, or None.

        Args:
            text: the rewritten prompt.
            attribute: the attribute to balance.
            people: noun and value of each person of the original.
        """
        raise NotImplementedError(f"{self.name}: no values are read")


def _match_by_noun(persons: Sequence[Mention], people: Sequence[NounValue]) -> tuple[Mention, ...]:
    """Return the mention of each person of the original, which has the same noun.

    Raises:
        RewrittenPromptError: no mention or several mentions have the noun.
    """
    found = [person.noun.lower() for person in persons]
    nouns = [noun.lower() for noun, _ in people]
    if any(found.count(noun) != 1 for noun in nouns):
        raise RewrittenPromptError("rewritten: not understood")
    return tuple(persons[found.index(noun)] for noun in nouns)


def replace_all(text: str, replacements: Iterable[Replacement]) -> str:
    """Apply replacements from the end of a text to its start, so that offsets stay valid.

    Args:
        text: the text.
        replacements: they do not overlap; in any order.
    """
    for start, end, new in sorted(replacements, reverse=True):
        text = text[:start] + new + text[end:]
    return text
