"""Where a prompt ends among the tokens that a text encoder is given, whatever stands around it.

A projection is fitted on the first token that stands behind every prompt: the end-of-text token of CLIP, BERT and T5,
the end of the turn in a chat. It is the same token whatever the prompt says and has read all of it. Where nothing
follows (Gemma, Llama), it is the last token of the prompt. System messages, which come before the prompt, and what
opens the answer, which comes after, are never fitted on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PROBES = ("a cat", "two dogs", "the sun")
"""Prompts that end in different tokens."""


@dataclass(frozen=True)
class Reading:
    """What an encoder was called with: ids (b, tokens) and their attention mask, all true where none was given."""

    ids: Tensor
    mask: Tensor
    config: Any


@contextmanager
def recorded(encoder: nn.Module) -> Iterator[list[Reading]]:
    """What the encoder is called with inside, in this thread."""
    readings: list[Reading] = []
    here = threading.get_ident()

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if threading.get_ident() == here and isinstance(ids, Tensor):
            mask = kwargs.get("attention_mask")
            mask = torch.ones_like(ids) if mask is None else mask
            readings.append(Reading(ids, mask, getattr(module, "config", None)))

    hook = encoder.register_forward_pre_hook(record, with_kwargs=True)
    try:
        yield readings
    finally:
        hook.remove()


def tokens_after_prompt(readings: Sequence[Reading]) -> int:
    """How many tokens follow the one that ends a prompt, from readings of several, one prompt each."""
    rows = [r.ids[0][r.mask[0] != 0].flip(0).cpu() for r in readings]
    shortest = min(len(row) for row in rows)
    same = torch.stack([row[:shortest] == rows[0][:shortest] for row in rows]).all(0)
    tail = shortest if same.all() else int((~same).int().argmax())
    return max(tail - 1, 0)


def last_true(mask: Tensor) -> Tensor:
    """Place of the last nonzero entry in each row of (n, tokens)."""
    return mask.shape[1] - 1 - (mask != 0).flip(1).int().argmax(1)
