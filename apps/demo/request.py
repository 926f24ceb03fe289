"""Define a visitor's request, which is validated before it reaches a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

from vldebias.errors import InvalidInputError

ATTRIBUTES = {
    "gender": "professions-gender",
    "race": "professions-race",
    "skin tone": "skin-tone",
    "age": "age",
}
"""Maps an attribute's name on the page to its prompt set."""
NUMBERS = (12, 16)  # images per row; fewer than 12 are too few to distinguish a change from chance
LONGEST = 300  # maximum prompt length in characters, more than any CLIP model uses
MOST_STEPS = 100
MOST_GUIDANCE = 30.0
LARGEST_SEED = 2**31 - 1
SEED_OF_VALUES = 0  # the same for all requests, because the value depends on the image's seed
THIRD_ROWS: dict[str, str | None] = {
    "none": None,
    "projection (cali)": "cali",
    "cross-attention": "cross-attention",
}
"""Maps a third row's name on the page to its method."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def check_text(text: object, name: str) -> str:
    """Return `text` on one line, without control characters.

    Raises:
        InvalidInputError: If it is not a string, is empty, or has more than 300 characters.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"{name}: expected a string, got {type(text).__name__}")
    encodable = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be encoded
    # Use a single line, because prompts become part of messages, Python code and names.
    line = " ".join(_CONTROL.sub(" ", encodable).split())
    if not line:
        raise InvalidInputError(
            f"{name}: the text is empty; write a few words, such as 'A photo of a doctor.'"
        )
    if len(line) > LONGEST:
        raise InvalidInputError(
            f"{name}: got {len(line):,} characters; shorten it to at most {LONGEST}"
        )
    return line


def check_number(value: object, low: float, high: float, name: str) -> float:
    """Return the value as a number after checking that it is in [low, high].

    Raises:
        InvalidInputError: If it is not a number, or is outside the range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidInputError(
            f"{name}: expected a number from {low:g} to {high:g}, got {value!r:.40}"
        )
    if not low <= value <= high:
        raise InvalidInputError(
            f"{name}: expected a number from {low:g} to {high:g}, got {value:g}"
        )
    return float(value)


def check_choice(value: object, choices: tuple[str, ...], name: str) -> str:
    """Return the value after checking that it is one of the choices.

    Raises:
        InvalidInputError: If the value is not one of `choices`.
    """
    if value not in choices:
        raise InvalidInputError(f"{name}: expected one of {', '.join(choices)}, got {value!r:.40}")
    return str(value)


@dataclass(frozen=True)
class Request:
    """Describe a request for one prompt. Image i in each row starts from the noise of seed + i.

    Attributes:
        attribute: a key of ATTRIBUTES.
        strength: share of images that are assigned a value, and edit strength in a third row.
        third_row: a key of THIRD_ROWS.
        pipeline: name of the pipeline, or "" for the first one.
    """

    prompt: str
    attribute: str = "gender"
    number: int = 16
    strength: float = 1.0
    third_row: str = "none"
    seed: int = 0
    steps: int = 20
    guidance: float = 3.0
    pipeline: str = ""

    @classmethod
    def from_form(
        cls,
        prompt: object,
        attribute: object,
        number: object,
        strength: object,
        third_row: object,
        seed: object,
        steps: object,
        guidance: object,
    ) -> Request:
        """Create a request from values sent by a form or a client.

        Raises:
            InvalidInputError: If a value is invalid; the message names it.
        """
        if number not in NUMBERS:
            raise InvalidInputError(
                f"images: expected {' or '.join(map(str, NUMBERS))}, got {number!r:.40}"
            )
        return cls(
            check_text(prompt, "prompt"),
            check_choice(attribute, tuple(ATTRIBUTES), "attribute"),
            int(number),
            check_number(strength, 0, 1, "strength"),
            check_choice(third_row, tuple(THIRD_ROWS), "third row"),
            int(check_number(seed, 0, LARGEST_SEED, "seed")),
            int(check_number(steps, 1, MOST_STEPS, "steps")),
            check_number(guidance, 0, MOST_GUIDANCE, "guidance"),
        )

    @property
    def seeds(self) -> range:
        """Return the seed of each image."""
        return range(self.seed, self.seed + self.number)

    def code(self, pipeline: str) -> str:
        """Return Python code that generates the same rows."""
        # Insert visitors' input with repr, so that it cannot become code.
        load = (
            "from vldebias import miniature\n\npipe = miniature.load_pipeline()"
            if pipeline == "miniature"
            else (
                "from diffusers import DiffusionPipeline\n\npipe ="
                f" DiffusionPipeline.from_pretrained({pipeline!r})"
            )
        )
        name = ATTRIBUTES[self.attribute]
        strength = f", strength={self.strength:g}" if self.strength < 1 else ""
        lines = [
            "import torch",
            "import vldebias",
            "from vldebias.methods import Balanced",
            load,
            (
                f"noise = [torch.Generator().manual_seed({self.seed} + i) for i in"
                f" range({self.number})]"
            ),
            f"prompts = [{self.prompt!r}] * {self.number}",
            f"method = Balanced(seed={SEED_OF_VALUES})",
            f'with vldebias.debias(pipe, "{name}", method=method{strength}):',
            (
                f"    images = pipe(prompts, generator=noise, num_inference_steps={self.steps}, "
                f"guidance_scale={self.guidance:g}).images"
            ),
        ]
        method = THIRD_ROWS[self.third_row]
        if method is not None:
            lines.append(
                f'# the third row: vldebias.debias(pipe, "{name}", method="{method}"{strength})'
            )
        return "\n".join(lines)
