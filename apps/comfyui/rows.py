"""Join conditionings for several prompts into one with a row for each image.

In ComfyUI, a conditioning is a list of (states, options). The states have shape (1, tokens, width),
and the options contain the pooled vector and settings. The list has several entries if hooks change
the text encoder during sampling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vldebias.errors import InvalidInputError, UnsupportedHostError

Conditioning = list[list[object]]

# Maximum length to which states are repeated (sixteen blocks of 77 tokens), because sampling with
# longer states is slow. Repeating has no effect if a model uses states only in cross-attention.
MOST_TOKENS = 16 * 77
_INSTEAD = "use Balance Prompt with CLIP Text Encode, which generates the images one by one"


@dataclass(frozen=True)
class Family:
    """Describe a model family and how it uses a prompt's states.

    Attributes:
        name: the family's name.
        can_repeat: whether states can be repeated because they are only used in cross-attention.
    """

    name: str
    can_repeat: bool

    def common_length(self, lengths: Sequence[int]) -> int:
        """Return the number of tokens to which states of different lengths are repeated.

        Raises:
            InvalidInputError: If states must not be repeated or would become too long.
        """
        # Repeating all keys equally often does not change the result of attention.
        length = math.lcm(*lengths)
        if self.can_repeat and length <= MOST_TOKENS:
            return length
        numbers = ", ".join(map(str, lengths))
        raise InvalidInputError(
            f"the prompts in this run have different lengths ({numbers} tokens), but {self.name}"
            f" supports only one length per sampler call; shorten the prompt, or {_INSTEAD}"
        )


# Maps ComfyUI's text encoder classes to model families.
FAMILIES = {
    "SD1ClipModel": Family("SD 1", can_repeat=True),
    "SD2ClipModel": Family("SD 2", can_repeat=True),
    "SDXLClipModel": Family("SDXL", can_repeat=True),
    "SD3ClipModel": Family("SD 3", can_repeat=False),
    "FluxClipModel": Family("Flux", can_repeat=False),
}


def family_of(text_encoder: object) -> Family:
    """Return a text encoder's model family.

    Raises:
        UnsupportedHostError: If the family is not supported; the message names the class.
    """
    # For SD 3 and Flux, ComfyUI creates a subclass per file, whose name ends with an underscore.
    class_name = type(text_encoder).__name__.rstrip("_")
    family = FAMILIES.get(class_name)
    if family is None:
        names = ", ".join(family.name for family in FAMILIES.values())
        raise UnsupportedHostError(
            f"the text encoder {class_name} is not supported, since it was not tested with one row"
            f" per image (supported: {names}); {_INSTEAD}"
        )
    return family


def join_rows(conditionings: Sequence[Conditioning], family: Family) -> Conditioning:
    """Join conditionings into one with a row for each prompt.

    Args:
        conditionings: the conditioning of each image, all from the same text encoder.
        family: the model family.

    Raises:
        InvalidInputError: If the prompts have different options, or lengths that the family does
            not support in one call.
    """
    # Hooks create one entry per sampling phase.
    if len({len(entries) for entries in conditionings}) > 1:
        raise InvalidInputError(
            f"the prompts were encoded in different numbers of steps; {_INSTEAD}"
        )
    joined: Conditioning = []
    for entries in zip(*conditionings, strict=True):
        states = [entry[0] for entry in entries]
        options = [entry[1] for entry in entries]
        lengths = sorted({row.shape[1] for row in states})
        length = lengths[0]
        if len(lengths) > 1:
            length = family.common_length(lengths)
        # (images, tokens, width)
        rows = torch.cat([row.repeat(1, length // row.shape[1], 1) for row in states])
        joined.append([rows, _join_options(options)])
    return joined


def _join_options(options: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    """Join options that are tensors with one row, and check that all other options are equal."""
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in options for name in row):
        values: list[Any] = [row.get(name) for row in options]
        if all(map(_is_row, values)):
            if len({value.shape for value in values}) > 1:
                raise _different(name)
            joined[name] = torch.cat(list(values))
        elif _are_equal(values):
            joined[name] = values[0]
        else:
            raise _different(name)
    return joined


def _is_row(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape[0] == 1


def _are_equal(values: Sequence[object]) -> bool:
    if all(value is values[0] for value in values):
        return True
    has_tensors = any(isinstance(value, torch.Tensor) for value in values)
    return not has_tensors and all(value == values[0] for value in values)


def _different(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"the option {name!r} of the text encoder differs between the prompts; {_INSTEAD}"
    )
