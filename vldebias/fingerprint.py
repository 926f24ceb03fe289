"""A fingerprint of weights that survives casts to half precision but tells two checkpoints apart."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["fingerprint_matches", "weights_fingerprint"]

_TENSORS = 16  # spread over the depth of the tower
_VALUES = 65536  # read per tensor, so that a T5-XXL costs no more than a small CLIP
_TOLERANCE = 5e-3  # rounding to bfloat16 moves a tensor by 1.6e-3 of its norm; fine-tuning by a per cent or more


def weights_fingerprint(*modules: nn.Module) -> dict[str, Any] | None:
    """{"structure": hash of names and shapes, "norms", "waves": two numbers for each of 16 tensors}.

    None where there are no weights to read (none at all, or on the meta device). Numbers rather than a hash of
    bytes, because the same checkpoint is loaded in float32, float16 and bfloat16. The wave, a product with a fixed
    vector of norm 1 per value, is there because fine-tuning turns a tensor much more than it stretches it.
    """
    parameters = _base_parameters(list(modules))
    if not parameters:
        return None
    structure = hashlib.sha256("".join(f"{n}{tuple(p.shape)}" for n, p in parameters).encode()).hexdigest()[:16]
    count = min(_TENSORS, len(parameters))
    sample = [parameters[i * len(parameters) // count][1] for i in range(count)]
    if any(p.is_meta for p in sample):
        return None
    values = [_values(p) for p in sample]
    return {
        "structure": structure,
        "norms": [round(float(v.norm()), 6) for v in values],
        "waves": [round(float(v @ _wave(len(v))), 6) for v in values],
    }


def fingerprint_matches(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """True if the two could be the same weights; an absent fingerprint excludes nothing."""
    if one is None or other is None:
        return True
    if one["structure"] != other["structure"] or len(one["norms"]) != len(other["norms"]):
        return False
    scales = [max(a, b, 1e-3) for a, b in zip(one["norms"], other["norms"], strict=True)]
    return all(_distance(one[key], other[key], scales) <= _TOLERANCE for key in ("norms", "waves"))


def _base_parameters(modules: list[nn.Module]) -> list[tuple[str, Tensor]]:
    """Named parameters without adapters: loading a LoRA does not change which base weights these are."""
    named = [(f"{i}.{n}", p) for i, module in enumerate(modules) for n, p in module.named_parameters()]
    return sorted(((n.replace(".base_layer", ""), p) for n, p in named if "lora_" not in n), key=lambda item: item[0])


def _values(parameter: Tensor) -> Tensor:
    """At most 65536 values of a tensor, evenly spread, as float64 on the CPU."""
    flat = parameter.detach().flatten()
    return flat[:: max(1, flat.numel() // _VALUES)][:_VALUES].to("cpu", torch.float64)


def _wave(length: int) -> Tensor:
    """A fixed vector of values of mean square 1 that follows no pattern of the weights."""
    return math.sqrt(2) * torch.sin(torch.arange(1, length + 1, dtype=torch.float64).square())


def _distance(a: list[float], b: list[float], scales: list[float]) -> float:
    """Root mean square over tensors of the difference relative to the norm of the tensor."""
    return math.sqrt(sum(((x - y) / s) ** 2 for x, y, s in zip(a, b, scales, strict=True)) / len(scales))
