"""What is asked about an image, and who answers: questions with their choices, and the names of annotators."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vldebias.errors import InvalidInputError
from vldebias.evaluation.human.log import CANNOT_TELL, NO_PERSON
from vldebias.evaluation.human.votes import NO_MAJORITY
from vldebias.prompts import load_prompts
from vldebias.resources import prompt_names

__all__ = ["KEYS", "LONGEST_NAME", "Question", "annotator_name", "questions_of"]

KEYS = "123456789abcdefghijk"  # the key of each choice; no attribute of the literature needs the letters
LONGEST_NAME = 40


@dataclass(frozen=True)
class Question:
    """One attribute, and the values that an image may show.

    Raises:
        InvalidInputError: fewer than two values, one twice, more than there are keys, or a name that is reserved.
    """

    attribute: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.attribute or self.attribute != self.attribute.strip():
            raise InvalidInputError(f"--attribute: expected a name such as gender, got {self.attribute!r}")
        if len(self.values) < 2 or len(set(self.values)) < len(self.values) or not all(self.values):
            raise InvalidInputError(
                f"--choices of {self.attribute}: expected two or more different values such as male,female, "
                f"got {','.join(self.values)!r}"
            )
        reserved = sorted({CANNOT_TELL, NO_PERSON, NO_MAJORITY} & set(self.values))
        if reserved:
            raise InvalidInputError(f"--choices of {self.attribute}: {reserved[0]!r} is always offered; leave it out")
        if len(self.choices) > len(KEYS):
            raise InvalidInputError(
                f"--choices of {self.attribute}: at most {len(KEYS) - 2} values have a key, got {len(self.values)}"
            )

    @property
    def choices(self) -> tuple[str, ...]:
        """The values, then the two ways to name none."""
        return (*self.values, CANNOT_TELL, NO_PERSON)


def questions_of(
    attributes: Sequence[str], choices: Sequence[str] = (), prompt_set: str | None = None
) -> tuple[Question, ...]:
    """One question per attribute.

    Args:
        attributes: names, each once.
        choices: for the attribute at the same place, values with commas between them, or the name of a prompt set
            whose attribute has them. Without: the prompt set called as the attribute, else `prompt_set`.
        prompt_set: what the images were drawn with; it counts where its name ends with the attribute.

    Raises:
        InvalidInputError: no attribute, one twice, more choices than attributes, or an attribute without values.
    """
    if not attributes:
        raise InvalidInputError("say what is judged: --attribute gender, and --choices male,female if it is your own")
    if len(set(attributes)) < len(attributes) or len(choices) > len(attributes):
        raise InvalidInputError(
            f"expected different attributes and at most one --choices for each, in the same order; "
            f"got --attribute {', '.join(attributes)} and {len(choices)} --choices"
        )
    given = [*choices, *[""] * (len(attributes) - len(choices))]
    return tuple(Question(a, _values(a, c, prompt_set)) for a, c in zip(attributes, given, strict=True))


def _values(attribute: str, choices: str, prompt_set: str | None) -> tuple[str, ...]:
    if choices and choices not in prompt_names():
        return tuple(value.strip() for value in choices.split(","))
    drawn_with = prompt_set if prompt_set in prompt_names() and prompt_set.endswith(attribute) else None
    for name in (choices, attribute, drawn_with):
        if name and name in prompt_names() and (values := tuple(load_prompts(name).attributes)):
            return values
    known = [name for name in prompt_names() if load_prompts(name).attributes]
    raise InvalidInputError(
        f"--attribute {attribute}: its values are not known; list them, as in --choices small,large, "
        f"or name one of the prompt sets {', '.join(known)}"
    )


def annotator_name(text: str, known: Iterable[str] = (), allowed: Sequence[str] = ()) -> str:
    """The name as answers are kept under it. "ada" is "Ada" where `known` has an Ada: nobody starts over by a typo.

    Raises:
        InvalidInputError: empty, too long, with characters other than letters, digits, spaces and . ' - _, or not
            among `allowed` where that is not empty.
    """
    if len(text) > 10 * LONGEST_NAME:  # before anything is done with it
        raise InvalidInputError(f"A name has at most {LONGEST_NAME} characters, this one has {len(text)}.")
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if not any(character.isalnum() for character in name):
        raise InvalidInputError("Type your name, with at least one letter: it keeps your answers apart from others'.")
    if len(name) > LONGEST_NAME:
        raise InvalidInputError(f"A name has at most {LONGEST_NAME} characters, this one has {len(name)}.")
    strange = sorted({c for c in name if unicodedata.category(c)[0] not in "LMN" and c not in " .'-_"})
    if strange:
        shown = " ".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in strange)
        raise InvalidInputError(f"A name has letters, digits, spaces and . ' - _ alone; leave out {shown}")
    name = {other.casefold(): other for other in (*known, *allowed)}.get(name.casefold(), name)
    if allowed and name not in allowed:
        raise InvalidInputError(f"This study is for {', '.join(allowed)}; ask whoever runs it to add you.")
    return name
