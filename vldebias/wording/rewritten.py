"""Insert values into prompts that a language model rewrote.

The original prompt determines who can get a value. Calls with `original=` use this module.
"""

from __future__ import annotations

from collections.abc import Sequence

from vldebias.wording.groups import Mixture
from vldebias.wording.language import MOST_PERSONS, NounValue, RewrittenPromptError, Value
from vldebias.wording.languages import language_of
from vldebias.wording.persons import NEXT_TEXT, PersonReader
from vldebias.wording.syntax import json_texts


def write_rewritten(
    readers: Sequence[PersonReader], original: str, values: Sequence[Sequence[Value]], text: str
) -> str:
    """Insert the values of all attributes into a rewritten prompt.

    Args:
        readers: One reader per attribute.
        original: The prompt before it was rewritten.
        values: For each attribute, the values for the people in the original prompt who can get
            one, or an empty sequence if nothing should be inserted.
        text: The rewritten prompt.
    """
    for reader, values_of_persons in zip(readers, values, strict=True):
        if values_of_persons and values_of_persons[0] is not None:
            text = _replace_values(reader, original, values_of_persons, text)
    return text


def _replace_values(reader: PersonReader, original: str, values: Sequence[Value], text: str) -> str:
    """Insert the values of one attribute, replacing anything that the rewriter stated.

    `values` contains one value per person in the original prompt who can get one, in text order.

    Raises:
        RewrittenPromptError: If the text states a value that cannot be replaced.
    """
    people = _people(reader, original, values)
    # Values in markup, as in "<random:male|female> astronaut", cannot be replaced.
    if json_texts(text) is None and reader.states_in_syntax(text):
        raise RewrittenPromptError("rewritten: stated")
    replaced: list[str] = []
    for part in text.split(NEXT_TEXT):
        language = language_of(part)
        if language is None:
            raise RewrittenPromptError("rewritten: unknown language")
        replaced.append(language.replace_values(part, reader.attribute, people))
    return NEXT_TEXT.join(replaced)


def why_not_replaced(readers: Sequence[PersonReader], original: str, text: str) -> dict[int, str]:
    """Return a mapping from attribute index to the reason its value cannot be replaced.

    Args:
        readers: One reader per attribute.
        original: The prompt before it was rewritten.
        text: The rewritten prompt.
    """
    reasons: dict[int, str] = {}
    for number, reader in enumerate(readers):
        values: list[Value] = []
        for outcomes in reader.outcomes(original, strength=1.0):
            # The reason does not depend on the value, except that a mixture needs a group.
            mixtures = [value for value in outcomes if isinstance(value, Mixture)]
            values.append(mixtures[0] if mixtures else next(iter(outcomes)))
        if original != text and values:
            try:
                _replace_values(reader, original, values, text)
            except RewrittenPromptError as problem:
                reasons[number] = str(problem)
    return reasons


def values_in(reader: PersonReader, original: str, text: str) -> list[tuple[str, Value]]:
    """Return pairs (noun, value) with the values that a rewritten prompt states for open people.

    Args:
        reader: The reader for the attribute.
        original: The prompt before it was rewritten.
        text: The rewritten prompt.
    """
    language = language_of(text)
    people = _people(reader, original, [None] * MOST_PERSONS)
    if language is None:
        return []
    values = language.values_in(text, reader.attribute, people)
    persons, _ = reader.open_persons(original)
    open_nouns = {person.noun for person in persons}
    pairs = zip(people, values, strict=True)
    return [(noun, value) for (noun, _), value in pairs if noun in open_nouns]


def _people(reader: PersonReader, original: str, values: Sequence[Value]) -> list[NounValue]:
    """Return (noun, value) for all people in an original prompt, or (noun, None) if fixed."""
    persons = reader.persons(original)
    if isinstance(persons, str):
        return []
    open_persons, _ = reader.open_persons(original)
    value_of_place: dict[tuple[int, int, str], Value] = {}
    for person, value in zip(open_persons, values, strict=False):
        _, mention, _ = person.mentions[0]
        if mention.can_be(value):
            value_of_place[person.place] = value
    return [(person.noun, value_of_place.get(person.place)) for person in persons]
