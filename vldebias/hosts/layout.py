"""What `encode_prompt` gives, as one tensor (b, tokens, d) or (b, d), and back as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def opened(value: Any, stack: int | None = None) -> tuple[Tensor, Callable[[Tensor], Any]] | None:
    """`value` as a tensor, and the function that gives such a tensor the form of `value`.

    Args:
        value: a tensor (b, tokens, d) or (b, d); one (tokens, d) per prompt in a list, or in lists in a list; several
            layers in a tensor or list.
        stack: the axis of layers. They become one vector of width layers * d.

    Returns:
        None where it is something else.
    """
    if stack is not None:
        layers = torch.stack(list(value)) if _is_list(value, 3) else value
        if not isinstance(layers, Tensor) or layers.ndim != 4:
            return None
        sizes = (layers.shape[stack], layers.shape[-1])

        def restack(flat: Tensor) -> Any:
            apart = flat.unflatten(-1, sizes).movedim(-2, stack)
            return apart if isinstance(value, Tensor) else type(value)(apart.unbind(0))

        return layers.movedim(stack, -2).flatten(-2), restack
    if isinstance(value, Tensor):
        return (value, lambda same: same) if value.ndim in (2, 3) else None
    if _is_list(value, 2):
        lengths = [len(row) for row in value]
        return pad_sequence(list(value), batch_first=True), lambda rows: _cut(rows, lengths)
    if isinstance(value, (list, tuple)) and value and all(_is_list(part, 2) for part in value):
        inside = opened([row for part in value for row in part])
        assert inside is not None
        tensor, close = inside
        return tensor, lambda rows: _regroup(close(rows), [len(part) for part in value])
    return None


def _is_list(value: Any, ndim: int) -> bool:
    rows = value if isinstance(value, (list, tuple)) else ()
    return bool(rows) and all(isinstance(row, Tensor) and row.ndim == ndim for row in rows)


def _cut(rows: Tensor, lengths: list[int]) -> list[Tensor]:
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def _regroup(rows: list[Tensor], sizes: list[int]) -> list[list[Tensor]]:
    each = iter(rows)
    return [[next(each) for _ in range(size)] for size in sizes]
