"""Write the prompts of a run's pictures: text alone, without a model and without ComfyUI."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.prompts import load_prompts
from vldebias.prompts.attribute import words_of_values
from vldebias.wording import Balancer
from vldebias.wording.reasons import reason_in_words

from .alternatives import choose_alternatives

ATTRIBUTES = ("gender", "age", "race", "fairface-race", "skin-tone")
MOST_IMAGES = 64
LARGEST = 2**53 - 1  # a widget is a number of JavaScript, which is exact up to here
# Shares that round to 100 %, such as three times 33.3, are meant to sum to 1.
ROUNDING = 0.005
SEED_OF_VALUES = 0  # of all runs: the seed of a picture decides its value

# Which value a picture gets depends on its seed alone: so the runs of a queue stay even also
# where the text changes from one run to the next, as it does behind a node of wildcards.
_PERSONS = (
    "a person",
    "a nurse and a pilot",
    "a nurse, a pilot and a chef",
    "a nurse, a pilot, a chef and a judge",
)
_SHARE = re.compile(r"(?P<value>[^:=]+)[:=]\s*(?P<share>\d+(?:\.\d*)?|\.\d+)\s*%?\s*")


@dataclass(frozen=True)
class PicturePrompts:
    """What the pictures of a run are made of, in their order.

    Attributes:
        prompts: the prompt of each picture.
        values: the value that was written into each, of several persons one after the other;
            empty where the prompt was left alone.
        seeds: a seed of the noise for each, the next of the picture before.
        lines: for each picture a line: the value, or why the prompt was left alone.
    """

    prompts: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def add(self, prompt: str, value: str, seed: int, reason: str | None) -> None:
        """Add the next picture; reason: why its prompt was left alone, or None."""
        self.prompts.append(prompt)
        self.values.append(value)
        self.seeds.append(seed)
        result = value if reason is None else f"left alone ({reason_in_words(reason)})"
        self.lines.append(f"picture {len(self.prompts)}: {result}")

    @property
    def reasons(self) -> str:
        """Return the lines of all pictures as one text."""
        return "\n".join(self.lines)


def balance(
    prompts: Sequence[str],
    attribute: str,
    images: int,
    shares: str = "",
    seed: int = 0,
    index: int = 0,
    original: Sequence[str] = ("",),
) -> PicturePrompts:
    """Write values of an attribute into the prompt of each picture of a run.

    Args:
        prompts: the prompts of the run, with whatever syntax their generator reads: one, or the
            list that another node gives.
        attribute: one of ATTRIBUTES.
        images: number of pictures of each prompt.
        shares: "female: 70, male: 30", in percent or as fractions; empty for even shares.
        seed: of the noise of the first picture; the others have the next ones. The same seed gives
            the same value.
        index: number of the run, from 0 on. Runs of equal `images` and `seed`, and as many prompts,
            continue each other.
        original: what the user wrote, where another node rewrote it: one for all prompts or one for
            each, which decides what is open. Empty where nothing was rewritten.

    Raises:
        InvalidInputError: no prompt, another number of originals, an unknown attribute or value,
            shares that do not sum to 100 % or 1, numbers out of range.
    """
    if isinstance(prompts, str) or not prompts:
        raise InvalidInputError(f"prompts: got {prompts!r}; expected a list of one text or more")
    if len(original) not in (1, len(prompts)):
        raise InvalidInputError(
            f"original: got {len(original)} texts for {len(prompts)} prompts; expected one for all"
            " prompts, or one for each"
        )
    originals = list(original) * len(prompts) if len(original) == 1 else original
    _check_number("images", images, 1, MOST_IMAGES)
    _check_number("seed", seed, 0, LARGEST)
    _check_number("index", index, 0, LARGEST // MOST_IMAGES)
    balancer = Balancer(attribute, shares=read_shares(shares, attribute), seed=SEED_OF_VALUES)
    pictures = PicturePrompts()
    # The pictures of a queue's runs are numbered through, and so are those of a list of prompts:
    # else the first picture of each prompt would show the same value from the same noise.
    first = index * images * len(prompts)
    for place in range(images * len(prompts)):
        # Beyond the largest number that a widget holds it begins at 0 again.
        noise = (seed + first + place) % (LARGEST + 1)
        number = place // images
        prompt = prompts[number]
        text, value, reason = _write(balancer, prompt, originals[number].strip() or prompt, noise)
        # Chosen after the value is written: a branch that is a person has the word by then.
        pictures.add(choose_alternatives(text, str(noise)), value, noise, reason)
    return pictures


def single_settings(settings: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the one value of each setting; ComfyUI gives a list to a node that reads lists.

    Raises:
        InvalidInputError: another node gives different values, for which there is one run.
    """
    value_of_setting: dict[str, Any] = {}
    for name, values in settings.items():
        number = len(set(values))
        if number != 1:
            raise InvalidInputError(
                f"{name}: got a list of {number} different values; expected one value for all"
                " prompts"
            )
        value_of_setting[name] = values[0]
    return value_of_setting


def read_shares(text: str, attribute: str) -> dict[str, float] | None:
    """Read "female: 70, male: 30" into shares that sum to 1.

    Returns:
        value -> share, with the values as the prompt set spells them; None for an empty text,
        which means even shares.

    Raises:
        InvalidInputError: an unknown attribute or value, a value that occurs twice, a share that
            is no number, shares that sum neither to 100 nor to 1.
    """
    if attribute not in ATTRIBUTES:
        raise InvalidInputError(
            f"attribute: got {attribute!r}; expected one of {', '.join(ATTRIBUTES)};"
            f" {did_you_mean(attribute, ATTRIBUTES)}"
        )
    names = list(words_of_values(load_prompts(attribute)))
    # "Female" and "female" are one value.
    name_of_spelling = {name.lower(): name for name in names}
    share_of_value: dict[str, float] = {}
    # Keyboards of Chinese and Japanese write wide colons, commas and digits.
    for part in re.split(r"[,;\n]", unicodedata.normalize("NFKC", text)):
        if not part.strip():
            continue
        # "female: 70 %"
        match = _SHARE.fullmatch(part.strip())
        if match is None:
            raise InvalidInputError(
                f"shares: got {part.strip()!r}; expected values with a share, such as"
                f" '{names[0]}: 70, {names[1]}: 30', or nothing for even shares"
            )
        spelling = match["value"].strip()
        name = name_of_spelling.get(spelling.lower())
        if name is None:
            # All values are named, and none is suggested: the nearest spelling of a group of
            # people may be another group.
            raise InvalidInputError(
                f"shares: {spelling!r} is no value of {attribute}; expected one of"
                f" {', '.join(names)}"
            )
        if name in share_of_value:
            raise InvalidInputError(f"shares: {name!r} occurs twice; expected each value once")
        share_of_value[name] = float(match["share"])
    if not share_of_value:
        return None
    total = sum(share_of_value.values())
    # "1e999" is a number that a person can type.
    is_percent = isfinite(total) and abs(total - 100) <= 100 * ROUNDING
    if not is_percent and abs(total - 1) > ROUNDING:
        raise InvalidInputError(
            f"shares: they sum to {total:g}; expected 100 (percent) or 1 (fractions)"
        )
    # To 1 exactly, which the balancer asks for.
    return {value: share / total for value, share in share_of_value.items()}


def problem_of(attribute: str | None, shares: str | None) -> str | None:
    """Return the sentence that refuses these inputs, or None where they can run.

    attribute, shares: see `balance`; None where another node gives them when it has run.
    """
    if attribute is None:
        return None
    try:
        read_shares(shares or "", attribute)
    except InvalidInputError as error:
        return str(error)
    return None


def _write(
    balancer: Balancer, prompt: str, original: str, seed: int
) -> tuple[str, str, str | None]:
    """Return the prompt of one picture, the values in it, and the reason if it was left alone."""
    made = balancer.at(prompt, seed, original)
    if made.values[0] is None:
        return prompt, "", made.reasons[0]
    values = [value for _, value in made.people[0]]
    # A group's value -> number of persons counts for its own text.
    if any(isinstance(value, Mapping) for value in values):
        return made.prompts[0], ", ".join(map(_describe, values)), None
    # The values of a fixed text, written into this one; see `_PERSONS`.
    persons = balancer.at(_PERSONS[len(values) - 1], seed).people[0]
    even_values = [value for _, value in persons]
    (written,) = balancer.write([prompt], [even_values], [original])
    return written, ", ".join(even_values), None


def _describe(value_of_person: str | Mapping[str, Any]) -> str:
    """Return the value of a person, or the values of a group, as words.

    >>> _describe({"female": 2, "male": 1}), _describe({"female": None, "male": None})
    ('2 female, 1 male', 'female, male')
    """
    if isinstance(value_of_person, str):
        return value_of_person
    parts = []
    for value, number in value_of_person.items():
        if number is None:
            parts.append(str(value))
        else:
            parts.append(f"{number} {value}")
    return ", ".join(parts)


def _check_number(name: str, number: int, least: int, greatest: int) -> None:
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if not is_whole or not least <= number <= greatest:
        raise InvalidInputError(
            f"{name}: got {number!r}; expected a whole number from {least} to {greatest:,}"
        )
