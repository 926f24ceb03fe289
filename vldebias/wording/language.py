"""Define the language interface for balanced prompts.

Most languages are tables of words that `languages/table.py` reads. For any other way of reading,
implement the four methods `reads`, `find`, `states` and `write`, and register the object with
`languages.register_language`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from vldebias.prompts.attribute import Attribute
from vldebias.wording.groups import Group, Mixture

Value = str | Mixture | None

# Maximum number of people per prompt who get a value. Any further people stay unchanged.
MOST_PERSONS = 4


class Mention(NamedTuple):
    """A mention of a person or a group in one text, where a value can be inserted.

    If a prompt has alternatives or an image has several texts, the same person can be mentioned
    several times. `DepictedPerson` combines these mentions.

    Attributes:
        noun: The noun as spelled in the text, or "" for a placeholder without a noun.
        start, end: The span of the noun including compound modifiers, as in "police officer".
        place: The span that is replaced with the word for the value. If it is empty, the word is
            inserted.
        reason: Why this person cannot get a value, such as "stated" or "group", or "" if they can.
            The user's `decide` can overrule "context: ..." (facts allow only one value).
        group: The group, if the noun is plural.
    """

    noun: str
    start: int
    end: int
    place: tuple[int, int]
    reason: str = ""
    group: Group | None = None

    def can_be(self, value: Value) -> TypeGuard[str | Mixture]:
        """Return whether a value is not None and fits this mention.

        A mixture that was created for "five nurses" in a different text does not fit "a nurse".
        """
        if isinstance(value, Mapping):
            counts = [count for count in value.values() if count is not None]
            size = sum(counts) if len(counts) == len(value) else None
            return self.group is not None and self.group.mixes and self.group.size == size
        return value is not None


# The mention at which to insert a value, the attribute, and the value.
Assignment = tuple[Mention, Attribute, str | Mixture]

# The noun for a person, and a value for that person or None.
NounValue = tuple[str, Value]


class Replacement(NamedTuple):
    """A string that replaces the characters from start to end."""

    start: int
    end: int
    text: str


class Language(ABC):
    """Find people in prompts in one language, and insert values for them.

    Attributes:
        code: The ISO 639 code, such as "de".
        name: The English name of the language.
    """

    code: str
    name: str

    @abstractmethod
    def reads(self, text: str) -> bool:
        """Return whether a text is in this language."""

    def knows(self, text: str) -> bool:
        """Return whether a text has this language's word for a woman, man, group or office."""
        return False

    @abstractmethod
    def find(self, text: str, attribute: Attribute) -> tuple[Mention, ...] | str:
        """Find everybody that a text shows, or the reason why nobody can get a value.

        Args:
            text: The prompt, with markup replaced by spaces, or by line breaks if it ends a clause.
                Its length is unchanged, so that offsets are valid in the prompt.
            attribute: The attribute to balance. People whose value is fixed have a `reason`.

        Returns:
            The mentions in text order, or a reason such as "stated", "named", "no person" or "not
            understood". `vldebias.wording.reasons` describes the reasons.
        """

    def may_be_marked(self, text: str) -> bool:
        """Return whether the user's `find` may be asked about a text that `find` leaves."""
        return False

    def find_marked(
        self, text: str, attribute: Attribute, marks: Sequence[int]
    ) -> tuple[Mention, ...]:
        """Find people whose nouns the user has marked, or none if marks are not supported.

        A mark says that a person is shown whose value is open, and lifts the doubts of `find`. What
        the text states, facts and names still decide.

        Args:
            text, attribute: See `find`.
            marks: The offset of the noun for each person, or of a word before it in its phrase.
                Offsets of words that an alternative does not contain are ignored.
        """
        return ()

    @abstractmethod
    def states(self, text: str, attribute: Attribute) -> bool:
        """Return whether any word in a text states a value, even if it does not describe a person.

        Args:
            text: A prompt or a part of one.
            attribute: The attribute to balance.
        """

    @abstractmethod
    def write(self, text: str, assignments: Sequence[Assignment]) -> list[Replacement]:
        """Return non-overlapping replacements that insert values into a text.

        All values for a text are passed together because word endings may have to agree.

        Args:
            text: The text that contains the mentions.
            assignments: A tuple (mention, attribute, value) for each value.
        """

    def values_in(
        self, text: str, attribute: Attribute, people: Sequence[NounValue]
    ) -> list[Value]:
        """Return the value that a text states for each of these people, or None.

        Args:
            text: A description, such as a caption or a rewritten prompt.
            attribute: The attribute to look for.
            people: The noun for each person. The values are not read.
        """
        raise NotImplementedError(f"{self.name}: reading values is not supported")

    def neutral(self, text: str, attribute: Attribute) -> str:
        """Return a description without the values of unnamed people, or unchanged.

        Args:
            text: A description, such as a caption.
            attribute: The attribute whose values are replaced by neutral words, or removed.
        """
        return text

    def stated_values(self, text: str, attribute: Attribute) -> list[str]:
        """Return the values that the words of a text state, whomever they describe.

        The list is empty for other attributes than gender, because "white" may be the color of a
        coat, and if the language cannot tell which value a word states.

        Args:
            text: A description, such as a caption.
            attribute: The attribute to look for.
        """
        return []


def replace_all(text: str, replacements: Iterable[Replacement]) -> str:
    """Apply replacements from the end of a text to its start, so that offsets stay valid.

    Args:
        text: The text.
        replacements: Non-overlapping replacements in any order.
    """
    for start, end, new in sorted(replacements, reverse=True):
        text = text[:start] + new + text[end:]
    return text
