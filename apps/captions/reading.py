"""Read which value a text states, which values images have, and which words mean unclear."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from vldebias.data.label_values import matched, says_people_cannot_tell
from vldebias.errors import InvalidInputError
from vldebias.prompts import PromptSet
from vldebias.prompts.attribute import Attribute
from vldebias.utils.label_words import names_no_group, plain
from vldebias.wording.english.reading import DescribedPerson, English
from vldebias.wording.languages import ENGLISH, language_of

# What a text states if it is not exactly one value of the prompt set.
NOT_STATED, SEVERAL, OTHER = "none", "several", "other"
REFUSED = "refused"  # no value, because the model declines to answer
UNCLEAR = "unclear"  # label of an image of people whose value cannot be told
NO_LABEL = ""  # of an image that nobody labelled
_BOTH = ("both", "mixed", "several")  # labels of images that show several values
_LEAST_REFERENCES = 2  # captions by people that must agree for a clear label
# Sentences of models that do not answer, besides those that judges write.
_UNDETERMINED = re.compile(
    r"\b(?:can ?not|can't|could not|couldn't|will not|won't|do(?:es)? not|do(?:es)?n't)"
    r" (?:\w+ly )?(?:be )?(?:tell|told|determin|know|say|said|identif|infer|see|answer|judg|guess"
    r"|comment|show|depict|contain)"
)
_CACHED = 100_000  # captioners repeat themselves


def cannot_tell(text: str) -> bool:
    """Return whether a label or an answer says that the value is unknown.

    >>> cannot_tell("N/A"), cannot_tell("It can't be determined."), cannot_tell("A person")
    (True, True, False)
    """
    return names_no_group(text) or _UNDETERMINED.search(plain(text)) is not None


class Statement(NamedTuple):
    """What a text states about an attribute.

    Attributes:
        values: the values in the prompt set that are stated about anybody.
        is_stated: whether any value is stated, also one that is not in the prompt set.
        persons: the people in an English text.
        is_english: whether the text is in English, so that its people are known.
    """

    values: frozenset[str]
    is_stated: bool
    persons: tuple[DescribedPerson, ...]
    is_english: bool = True


class StatementReader:
    """Read what texts state about an attribute of people, with a cache.

    Args:
        prompt_set: prompt set of the attribute.

    Raises:
        InvalidInputError: If a value is called like what is counted if no value is stated.
    """

    def __init__(self, prompt_set: PromptSet) -> None:
        for value in prompt_set.attributes:
            if value in (NOT_STATED, SEVERAL, OTHER, UNCLEAR) or names_no_group(value):
                raise InvalidInputError(
                    f"{prompt_set.name}: the value {value!r} cannot be counted, because captions"
                    " without a value are reported under such a name; rename it in the prompt set"
                )
        self.attribute = Attribute(prompt_set, {})
        self.values = tuple(prompt_set.attributes)
        self.read = lru_cache(_CACHED)(self._read)

    def _read(self, text: str) -> Statement:
        language = language_of(text)
        is_english = isinstance(language, English)
        persons: tuple[DescribedPerson, ...] = ()
        if isinstance(language, English):
            persons = tuple(language.persons_with_values(text, self.attribute))
        language = language or ENGLISH
        # A word may state a value outside of the phrases for people, as in "a woman water skiing",
        # which is read as a thing, or "a picture of a woman".
        values = {person.value for person in persons if isinstance(person.value, str)}
        values |= set(language.stated_values(text, self.attribute))
        is_stated = bool(values) or any(person.is_stated for person in persons)
        if not is_english:
            is_stated = is_stated or language.states(text, self.attribute)
        return Statement(frozenset(values), is_stated, persons, is_english)

    def stated_value(self, texts: Sequence[str]) -> str:
        """Return the value that the texts about an image state, or one of the other answers.

        If they state several values, nobody can tell which one describes the labelled person, so
        the image is counted apart.
        """
        statements = [self.read(text) for text in texts]
        values = frozenset().union(*(statement.values for statement in statements))
        if len(values) == 1:
            return next(iter(values))
        if values:
            return SEVERAL
        return OTHER if any(statement.is_stated for statement in statements) else NOT_STATED

    def label_of_references(self, references: Sequence[str]) -> str:
        """Return the label of an image according to captions by people.

        Returns:
            A value if two or more captions state it and none states another. SEVERAL if a caption
            states several values. UNCLEAR if the captions describe people, but at most one states
            a value, or they disagree. "" if there are no people.
        """
        found = [self.stated_value([text]) for text in references]
        if SEVERAL in found or OTHER in found:
            return SEVERAL
        stated = [value for value in found if value != NOT_STATED]
        if len(set(stated)) == 1 and len(stated) >= _LEAST_REFERENCES:
            return stated[0]
        n_people = 0
        for text, value in zip(references, found, strict=True):
            n_people += value != NOT_STATED or bool(self.read(text).persons)
        return UNCLEAR if n_people >= _LEAST_REFERENCES else ""

    def meanings(self, labels: Collection[str]) -> dict[str, str]:
        """Return what labels or answers mean: a value, UNCLEAR, SEVERAL, or NO_LABEL.

        Those that mean none of these are not in the result.

        Args:
            labels: different labels, such as "F", "a woman", "masculine", "both" and "not sure".
        """
        values = {value: value for value in self.values}
        meaning = values | matched(labels, values)
        for label in set(labels) - set(meaning):
            value = self.stated_value([label])
            if value == SEVERAL or label.casefold() in _BOTH:
                meaning[label] = SEVERAL
            elif value in values:
                meaning[label] = value
            elif says_people_cannot_tell(label) or _UNDETERMINED.search(plain(label)):
                meaning[label] = UNCLEAR
            elif names_no_group(label):
                meaning[label] = NO_LABEL
        return meaning
