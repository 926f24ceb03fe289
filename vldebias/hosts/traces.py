"""What text encoders are given, and which of the states that a pipeline makes of it belongs to which token.

An encoder gives states; the pipeline cuts templates off, joins layers, pads, turns lists. Where a token ends up is
found by trying: the encoders run once, then the pipeline runs again on what they gave with the state of that token
turned around. The row that changed is that of the token, whatever stands before and behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

Tokens = int | slice


class Call(NamedTuple):
    """A call of an encoder: ids (b, tokens), their mask, and what it gave."""

    ids: Tensor
    mask: Tensor | None
    output: Any


class Trace:
    """Inside, calls of text encoders in this thread are noted; after `turn` they are given again, turned.

    outputs: keep what was given, so that it can be given again.

    Attributes:
        calls: name of an encoder -> its calls, in order.
    """

    def __init__(self, encoders: Mapping[str, nn.Module], *, outputs: bool = True) -> None:
        self._encoders, self._thread, self._outputs = encoders, threading.get_ident(), outputs
        self._standing = {name: vars(encoder).get("forward") for name, encoder in encoders.items()}
        self.calls: dict[str, list[Call]] = {name: [] for name in encoders}
        self._turned: Mapping[str, Tokens] | None = None
        self._given: dict[str, int] = {}

    def __enter__(self) -> Self:
        for name, encoder in self._encoders.items():
            encoder.forward = partial(self._forward, name, encoder.forward)
        return self

    def __exit__(self, *_: object) -> None:
        encoder: Any
        for name, encoder in self._encoders.items():
            del encoder.forward
            if self._standing[name] is not None:
                encoder.forward = self._standing[name]

    def turn(self, tokens: Mapping[str, Tokens]) -> None:
        """From here on give what was given before, with the states of these tokens turned."""
        self._turned, self._given = tokens, dict.fromkeys(self._encoders, 0)

    def _forward(self, name: str, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return original(*args, **kwargs)
        calls = self.calls[name]
        if self._turned is None:
            output, ids = original(*args, **kwargs), kwargs.get("input_ids", args[0] if args else None)
            if isinstance(ids, Tensor) and ids.ndim == 2:
                calls.append(Call(ids, kwargs.get("attention_mask"), output if self._outputs else None))
            return output
        place, self._given[name] = self._given[name], self._given[name] + 1
        if place >= len(calls):
            return original(*args, **kwargs)
        call = calls[place]
        if place or name not in self._turned:
            return call.output
        return _turned(call.output, call.ids.shape[1], self._turned[name])


def _turned(value: Any, length: int, tokens: Tokens) -> Any:
    """An encoder's output, with the states of some tokens turned around: wherever a tensor has as many places."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or value.ndim < 3 or length not in value.shape[:2]:
            return value
        changed = value.clone()
        part = changed[:, tokens] if value.shape[1] == length else changed[tokens]
        part.copy_(-part - 1)
        return changed
    if isinstance(value, dict | SimpleNamespace):
        named = value if isinstance(value, dict) else vars(value)
        return type(value)(**{key: _turned(one, length, tokens) for key, one in named.items()})
    if isinstance(value, list | tuple):
        return type(value)(_turned(one, length, tokens) for one in value)
    return value


def real_tokens(call: Call, tokenizer: Any) -> list[int]:
    """Places of the tokens of the first row that are no padding."""
    if call.mask is not None:
        return [int(i) for i in call.mask[0].cpu().nonzero().flatten()]
    inner, ids = getattr(tokenizer, "tokenizer", tokenizer), call.ids[0].tolist()
    pad, end = (getattr(inner, f"{kind}_token_id", None) for kind in ("pad", "eos"))
    behind = ids.index(end) if end in ids else len(ids)  # the first end token: some tokenizers pad with it
    return [i for i, one in enumerate(ids) if i <= behind or (pad != end and one != pad)]


def constant_tail(rows: Iterable[list[int]]) -> int:
    """How many tokens follow the one that ends a prompt, of the ids that several prompts became."""
    backwards = [row[::-1] for row in rows]
    shortest = min(map(len, backwards))
    same = next((i for i in range(shortest) if len({row[i] for row in backwards}) > 1), shortest)
    return max(same - 1, 0)


def opened(value: Any) -> tuple[Tensor, Any] | None:
    """Embeddings as a tensor (b, tokens, d) or (b, d), and the function that gives such a tensor their form.

    They are that already, or a list of rows (tokens, d), or a list of such lists, or (b, tokens, layers, d), whose
    layers are read as one vector; None: something else.
    """
    if isinstance(value, Tensor):
        if value.ndim == 4 and value.is_floating_point():
            return value.flatten(-2), lambda flat: flat.unflatten(-1, value.shape[-2:])
        return (value, lambda same: same) if value.ndim in (2, 3) and value.is_floating_point() else None
    parts = value if isinstance(value, list | tuple) else []
    rows = [row for part in parts for row in (part if isinstance(part, list | tuple) else [part])]
    if not rows or not all(isinstance(row, Tensor) and row.ndim == 2 and row.is_floating_point() for row in rows):
        return None

    def close(changed: Tensor) -> Any:
        each = iter([one[: len(row)] for one, row in zip(changed, rows, strict=True)])
        kind = type(value)
        return kind(type(p)(next(each) for _ in p) if isinstance(p, list | tuple) else next(each) for p in value)

    return pad_sequence(rows, batch_first=True), close


def same_values(one: Any, other: Any) -> bool:
    """Equal tensors, or equal lists or mappings of them; or the same thing."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_values, one, other))
    return one is other or (not isinstance(one, Tensor | list | tuple | dict) and bool(one == other))
