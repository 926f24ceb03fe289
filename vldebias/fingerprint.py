"""A fingerprint of weights that survives casts to half precision but tells two checkpoints apart."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["fingerprint_matches", "weights_fingerprint"]

_TENSORS = 16  # spread over the depth of the tower
_VALUES = 65536  # read per tensor, so that a T5-XXL costs no more than a small CLIP
_RTOL = 5e-3  # rounding to bfloat16 moves a norm by less; another checkpoint moves some norm by more


def _base_parameters(modules: list[nn.Module]) -> list[tuple[str, Tensor]]:
    """Named parameters without adapters: loading a LoRA does not change which base weights these are."""
    named = [(f"{i}.{n}", p) for i, module in enumerate(modules) for n, p in module.named_parameters()]
    return sorted((n.replace(".base_layer", ""), p) for n, p in named if "lora_" not in n)


def _norm(parameter: Tensor) -> float:
    flat = parameter.detach().flatten()
    return float(flat[:: max(1, flat.numel() // _VALUES)][:_VALUES].double().norm())


def weights_fingerprint(*modules: nn.Module) -> dict[str, Any] | None:
    """{"structure": hash of names and shapes, "norms": norms of 16 tensors}; None where weights are on meta.

    Norms rather than bytes, because the same checkpoint is loaded in float32, float16 and bfloat16.
    """
    parameters = _base_parameters(list(modules))
    if not parameters:
        return None
    structure = hashlib.sha256("".join(f"{n}{tuple(p.shape)}" for n, p in parameters).encode()).hexdigest()[:16]
    step = max(1, len(parameters) // _TENSORS)
    sample = [p for _, p in parameters[::step][:_TENSORS]]
    if any(p.is_meta for p in sample):
        return None
    with torch.no_grad():
        return {"structure": structure, "norms": [round(_norm(p), 6) for p in sample]}


def fingerprint_matches(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """True if the two could be the same weights; an absent fingerprint excludes nothing."""
    if one is None or other is None:
        return True
    if one["structure"] != other["structure"] or len(one["norms"]) != len(other["norms"]):
        return False
    return all(
        abs(a - b) <= _RTOL * max(abs(a), abs(b)) + 1e-6 for a, b in zip(one["norms"], other["norms"], strict=True)
    )
