"""A fingerprint of weights that survives casts to half precision but tells two checkpoints apart."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from vldebias.edit import Fingerprint

__all__ = ["weights_fingerprint"]

_TENSORS = 16  # spread over the depth of the tower
_VALUES = 65536  # read per tensor, so that a T5-XXL costs no more than a small CLIP


def weights_fingerprint(*modules: nn.Module) -> Fingerprint | None:
    """Structure, and two numbers for each of 16 tensors.

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
    return Fingerprint(
        structure,
        norms=tuple(round(float(v.norm()), 6) for v in values),
        waves=tuple(round(float(v @ _wave(len(v))), 6) for v in values),
        adapters=round(math.sqrt(sum(float(p.detach().double().square().sum()) for p in _adapters(modules))), 6),
    )


def _base_parameters(modules: list[nn.Module]) -> list[tuple[str, Tensor]]:
    """Named parameters without adapters: loading a LoRA does not change which base weights these are."""
    named = [(f"{i}.{n}", p) for i, module in enumerate(modules) for n, p in module.named_parameters()]
    return sorted(((n.replace(".base_layer", ""), p) for n, p in named if "lora_" not in n), key=lambda item: item[0])


def _adapters(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """The LoRA weights that are at work."""
    layers = (part for module in modules for part in module.modules() if hasattr(part, "base_layer"))
    for layer in layers:
        active = [] if getattr(layer, "disable_adapters", False) else getattr(layer, "active_adapters", [])
        for name, parameter in layer.named_parameters():
            if "lora_" in name and set(name.split(".")) & set(active) and not parameter.is_meta:
                yield parameter


def _values(parameter: Tensor) -> Tensor:
    """At most 65536 values of a tensor, evenly spread, as float64 on the CPU."""
    whole = parameter.detach()
    if type(whole) is not Tensor and hasattr(type(whole), "dequantize"):  # torchao: a tensor of its own kind
        whole = whole.dequantize()
    flat = whole.flatten()
    return flat[:: max(1, flat.numel() // _VALUES)][:_VALUES].to("cpu", torch.float64)


def _wave(length: int) -> Tensor:
    """A fixed vector of values of mean square 1 that follows no pattern of the weights."""
    return math.sqrt(2) * torch.sin(torch.arange(1, length + 1, dtype=torch.float64).square())
