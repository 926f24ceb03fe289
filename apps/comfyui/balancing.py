"""Balance the prompts for a run's images, without a model or ComfyUI."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from vldebias.errors import REMOVED, InvalidInputError, did_you_mean
from vldebias.prompts import load_prompts
from vldebias.prompts.attribute import words_of_values
from vldebias.wording import Balancer
from vldebias.wording.reasons import reason_in_words

from .alternatives import choose_alternatives

ATTRIBUTES = ("gender", "age", "race", "fairface-race", "skin-tone")
MOST_IMAGES = 64
LARGEST = 2**53 - 1  # the largest integer that is exact in JavaScript, and thus in a widget
# Tolerance for rounded shares, such as three times 33.3 %.
ROUNDING = 0.005
SEED_OF_VALUES = 0  # fixed, because values depend only on the images' seeds

# Fixed prompts with one to four people. They determine the values for all prompts with the same
# number of people, so that values depend only on the images' seeds. Otherwise, values would be
# uneven over queued runs whose prompts differ, for example because of wildcards.
_PERSONS = (
    "a person",
    "a nurse and a pilot",
    "a nurse, a pilot and a chef",
    "a nurse, a pilot, a chef and a judge",
)
_SHARE = re.compile(r"(?P<value>[^:=]+)[:=]\s*(?P<share>\d+(?:\.\d*)?|\.\d+)\s*%?\s*")


@dataclass(frozen=True)
class ImagePrompts:
    """Store the prompts, values and seeds for a run's images.

    Attributes:
        prompts: the prompt of each image.
        values: the value in each prompt, separated by commas for several people; empty if the
            prompt is unchanged.
        seeds: the noise seed for each image. Seeds are consecutive.
        lines: a line for each image with its value, or with the reason why its prompt is
            unchanged.
    """

    prompts: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def add(self, prompt: str, value: str, seed: int, reason: str | None) -> None:
        """Add the next image.

        Args:
            prompt: the image's prompt.
            value: the value in the prompt.
            seed: the image's noise seed.
            reason: why the prompt is unchanged, or None if a value was inserted.
        """
        self.prompts.append(prompt)
        self.values.append(value)
        self.seeds.append(seed)
        result = value if reason is None else f"left unchanged ({reason_in_words(reason)})"
        self.lines.append(f"image {len(self.prompts)}: {result}")

    @property
    def reasons(self) -> str:
        """Return the lines for all images as one string."""
        return "\n".join(self.lines)


def balance(
    prompts: Sequence[str],
    attribute: str,
    images: int,
    shares: str = "",
    seed: int = 0,
    index: int = 0,
) -> ImagePrompts:
    """State attribute values in the prompt for each image in a run.

    Args:
        prompts: the run's prompts, in any syntax. An upstream node may provide several.
        attribute: an entry of ATTRIBUTES.
        images: number of images per prompt.
        shares: "female: 70, male: 30", in percent or as fractions. Empty for even shares.
        seed: noise seed of the first image. The other images have consecutive seeds, and the
            first seed and the number of images determine the values. Their shares are exact over
            every full block: two images for even shares, ten for 70 and 30.
        index: zero-based index of the run. Runs with the same `images`, `seed` and number of
            prompts form one sequence.

    Raises:
        InvalidInputError: If an argument is invalid; the message names it.
    """
    if isinstance(prompts, str) or not prompts:
        raise InvalidInputError(f"prompts: got {prompts!r}; expected a list of at least one prompt")
    _check_number("images", images, 1, MOST_IMAGES)
    _check_number("seed", seed, 0, LARGEST)
    _check_number("index", index, 0, LARGEST // MOST_IMAGES)
    balancer = Balancer(attribute, shares=read_shares(shares, attribute), seed=SEED_OF_VALUES)
    result = ImagePrompts()
    # Number the images consecutively across all prompts and runs. Otherwise, the first image of
    # every prompt would have the same value and the same noise.
    size = images * len(prompts)
    # Wrap around to 0 after the largest number that a widget supports.
    start = (seed + index * size) % (LARGEST + 1)
    run = range(start, start + size)
    for place in range(size):
        noise = (start + place) % (LARGEST + 1)
        text, value, reason = _write(balancer, prompts[place // images], run, place)
        # Choose alternatives after inserting the value, so that it is also inserted into branches
        # that mention a person.
        result.add(choose_alternatives(text, str(noise)), value, noise, reason)
    return result


def single_settings(settings: Mapping[str, Sequence[object]]) -> dict[str, Any]:
    """Unwrap settings that ComfyUI passes as lists with a single value.

    Raises:
        InvalidInputError: If the values in a list differ, or an old workflow connects an input that
            was removed.
    """
    value_of_setting: dict[str, Any] = {}
    for name, values in settings.items():
        if name in REMOVED:
            raise InvalidInputError(f"{name}: this input was removed; {REMOVED[name]}")
        number = len(set(values))
        if number != 1:
            raise InvalidInputError(
                f"{name}: got a list of {number} different values; expected the same value for all"
                " prompts"
            )
        value_of_setting[name] = values[0]
    return value_of_setting


def read_shares(text: str, attribute: str) -> dict[str, float] | None:
    """Parse shares such as "female: 70, male: 30".

    Args:
        text: the shares as typed by the user.
        attribute: an entry of ATTRIBUTES.

    Returns:
        Shares that sum to 1, keyed by value (spelled as in the prompt set), or None for an empty
        text, which means even shares.

    Raises:
        InvalidInputError: If the attribute or a value is unknown, a value occurs twice, a share is
            not a number, or the sum is neither 100 nor 1.
    """
    if attribute not in ATTRIBUTES:
        raise InvalidInputError(
            f"attribute: got {attribute!r}; expected one of {', '.join(ATTRIBUTES)};"
            f" {did_you_mean(attribute, ATTRIBUTES)}"
        )
    names = list(words_of_values(load_prompts(attribute)))
    # "Female" and "female" are the same value.
    name_of_spelling = {name.lower(): name for name in names}
    share_of_value: dict[str, float] = {}
    # Chinese and Japanese keyboards produce full-width colons, commas and digits.
    for part in re.split(r"[,;\n]", unicodedata.normalize("NFKC", text)):
        if not part.strip():
            continue
        # The user may have typed a percent sign, as in "female: 70 %".
        match = _SHARE.fullmatch(part.strip())
        if match is None:
            raise InvalidInputError(
                f"shares: got {part.strip()!r}; expected a share for each value, such as"
                f" '{names[0]}: 70, {names[1]}: 30', or nothing for even shares"
            )
        spelling = match["value"].strip()
        name = name_of_spelling.get(spelling.lower())
        if name is None:
            # Do not suggest a similar value, because it may refer to a different group of people.
            raise InvalidInputError(
                f"shares: {spelling!r} is not a value of {attribute}; expected one of"
                f" {', '.join(names)}"
            )
        if name in share_of_value:
            raise InvalidInputError(f"shares: {name!r} occurs twice; expected each value once")
        share_of_value[name] = float(match["share"])
    if not share_of_value:
        return None
    total = sum(share_of_value.values())
    # The total may be infinite, because users can type "1e999".
    is_percent = isfinite(total) and abs(total - 100) <= 100 * ROUNDING
    if not is_percent and abs(total - 1) > ROUNDING:
        raise InvalidInputError(
            f"shares: they sum to {total:g}; expected 100 (percent) or 1 (fractions)"
        )
    # The balancer requires shares to sum to exactly 1.
    return {value: share / total for value, share in share_of_value.items()}


def problem_of(attribute: str | None, shares: str | None) -> str | None:
    """Return the error message for invalid inputs, or None if they are valid.

    Args:
        attribute: name of the attribute, or None if an upstream node provides it.
        shares: text such as "female: 70, male: 30", or None if an upstream node provides it.
    """
    if attribute is None:
        return None
    try:
        read_shares(shares or "", attribute)
    except InvalidInputError as error:
        return str(error)
    return None


def _write(balancer: Balancer, prompt: str, run: range, place: int) -> tuple[str, str, str | None]:
    """Return an image's prompt, the values in it, and the reason if it is unchanged.

    The image is the one at a zero-based place in a run, which is a range of noise seeds.
    """
    balanced = balancer.at(prompt, balancer.indices_of_run(prompt, run)[place])
    if balanced.values[0] is None:
        return prompt, "", balanced.reasons[0]
    values = [value for _, value in balanced.people[0]]
    # For groups, use the prompt's own values, because they depend on the size of the group.
    if any(isinstance(value, Mapping) for value in values):
        return balanced.prompts[0], ", ".join(map(_describe, values)), None
    # Otherwise, use the values for a fixed prompt, see `_PERSONS`.
    prompt_of_values = _PERSONS[len(values) - 1]
    index = balancer.indices_of_run(prompt_of_values, run)[place]
    persons = balancer.at(prompt_of_values, index).people[0]
    even_values = [value for _, value in persons]
    (text,) = balancer.write([prompt], [even_values])
    return text, ", ".join(even_values), None


def _describe(value_of_person: str | Mapping[str, object]) -> str:
    """Format a person's value or a group's values as words.

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
