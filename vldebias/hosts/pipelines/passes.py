"""Find the rows of a call's prompts in a denoiser pass, and the pass's timestep.

Rows are found by their content: the denoiser's inputs are compared with the embeddings that
`encode_prompt` returned for this call, so the order and number of guidance branches do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import torch
from torch import Tensor, nn

Arguments = Sequence[object]
Keywords = Mapping[str, object]


@dataclass
class EncodedPrompts:
    """Store the prompt embeddings of one call, without duplicates.

    Attributes:
        embeddings: for each encoding, the embeddings of the distinct prompts (distinct, tokens, d).
        images: for each distinct prompt, the indices of its images, in order.
        count: number of images.
        received: the last prompt tensor that the denoiser received, and the image of each row.
    """

    embeddings: list[Tensor]
    images: list[list[int]]
    count: int
    received: tuple[Tensor, dict[int, int]] | None = None

    @classmethod
    def from_rows(cls, encodings: Sequence[Tensor]) -> EncodedPrompts:
        """Return the distinct prompts in encodings (images, tokens, d).

        Rows that are equal in the first encoding belong to the same prompt.
        """
        first = encodings[0]
        images: list[list[int]] = []
        for row in range(len(first)):
            for known in images:
                if torch.equal(first[row], first[known[0]]):
                    known.append(row)
                    break
            else:
                images.append([row])
        encoded = cls([], images, len(first))
        encoded.add(encodings)
        return encoded

    def add(self, encodings: Sequence[Tensor]) -> None:
        """Add encodings (images, tokens, d) of the same prompts from a different encoder."""
        firsts = [images[0] for images in self.images]
        self.embeddings += [rows[firsts] for rows in encodings]

    def rows(self, args: Arguments, kwargs: Keywords) -> dict[int, int]:
        """Return a mapping from batch row to image, for the rows with a prompt.

        The p-th row with a given embedding belongs to the p-th image with that embedding. If there
        are more rows than images, the images repeat, as with a second conditional branch.

        Args:
            args: positional arguments of the denoiser.
            kwargs: keyword arguments of the denoiser.
        """
        for value in (*args, *kwargs.values()):
            if self.received is not None and value is self.received[0]:
                return self.received[1]
            if not isinstance(value, Tensor) or value.ndim != 3 or not value.is_floating_point():
                continue
            for embedding in self.embeddings:
                if embedding.shape[1:] != value.shape[1:]:
                    continue
                found: dict[int, int] = {}
                for images, prompt in zip(self.images, embedding.to(value), strict=True):
                    is_equal = (value == prompt).flatten(1).all(1)
                    for place, row in enumerate(is_equal.nonzero().flatten().tolist()):
                        found[row] = images[place % len(images)]
                if found:
                    self.received = (value, found)
                    return found
        return {}


def batch_of(args: Arguments, kwargs: Keywords) -> int:
    """Return the batch size that a denoiser receives.

    Args:
        args: positional arguments of the denoiser.
        kwargs: keyword arguments of the denoiser.
    """
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return max((len(tensor) for tensor in tensors if tensor.ndim >= 3), default=1)


def time_of(args: Arguments, kwargs: Keywords) -> float | None:
    """Return the timestep that a denoiser receives, or None if it receives none.

    Args:
        args: positional arguments of the denoiser.
        kwargs: keyword arguments of the denoiser.
    """
    value = kwargs.get("timestep")
    if value is None and len(args) > 1:
        value = args[1]
    if isinstance(value, Tensor):
        return float(value.flatten()[0])
    return float(value) if isinstance(value, SupportsFloat) else None


def text_output(module: nn.Module, args: Arguments, kwargs: Keywords, output: Tensor) -> Tensor:
    """Return a cross-attention layer's output for the text, without IP-Adapter images.

    The adapter's processors receive (text states, [states of each image]) and add a term for each
    image. Called again without images, they return only the text term.

    Args:
        module: the cross-attention layer.
        args: positional arguments of the module's call.
        kwargs: keyword arguments of the module's call.
        output: the module's output.
    """
    states = kwargs.get("encoder_hidden_states")
    if not isinstance(states, tuple):
        return output
    text_kwargs = {name: value for name, value in kwargs.items() if name != "ip_adapter_masks"}
    text_kwargs["encoder_hidden_states"] = (states[0], [])
    return module.forward(*args, **text_kwargs)
