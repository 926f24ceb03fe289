"""Compute a fingerprint of a text tower that survives casts to half precision, and the length of its adapters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.edit import Fingerprint

TEXTS = ("a photo of a tree", "two small dogs are playing in the park", "The old town hall, in winter.")
"""Texts whose embeddings are part of a fingerprint; none of them is about people."""

_TENSORS = 16  # spread over the depth of the tower, whose numbers stand beside those of all
_VALUES = 65536  # read of a tensor that is not read whole, so that a T5-XXL costs little more than a small CLIP
_WHOLE = 1 << 21  # values: every head that ends in a space of images and texts is smaller
# Of mean square 1, following no pattern of the weights; longer tensors repeat it.
_WAVE = math.sqrt(2) * torch.sin(torch.arange(1, _VALUES + 1, dtype=torch.float64, device="cpu").square())


def weights_fingerprint(*modules: nn.Module) -> Fingerprint | None:
    """Return the structure and two numbers per tensor; of tensors above two million values a spread sample is read.

    Return None where there are no weights to read (none at all, or on the meta device). Numbers rather than a hash of
    bytes, because the same checkpoint is loaded in float32, float16 and bfloat16. The wave, a product with a fixed
    vector of norm 1 per value, is there because fine-tuning turns a tensor much more than it stretches it.
    """
    named = [(f"{i}.{n}", p) for i, module in enumerate(modules) for n, p in module.named_parameters()]
    # without adapters: loading a LoRA does not change which base weights these are
    plain = [(name.replace(".base_layer", ""), one) for name, one in named if "lora_" not in name]
    plain.sort(key=lambda one: one[0])
    tensors = [one for _, one in plain]
    count = min(_TENSORS, len(tensors))
    sample = [tensors[i * len(tensors) // count] for i in range(count)]
    if not tensors or any(one.is_meta for one in sample):
        return None
    structure = "".join(f"{name}{tuple(one.shape)}" for name, one in plain)
    norms, waves = zip(*(_numbers(one, few=True) for one in sample), strict=True)
    return Fingerprint(
        hashlib.sha256(structure.encode()).hexdigest()[:16],
        norms,
        waves,
        adapters=round(adapters_length(modules), 6),
        tensors=() if any(one.is_meta for one in tensors) else tuple(map(_numbers, tensors)),
    )


def _numbers(parameter: Tensor, few: bool = False) -> tuple[float, float]:
    """Return length and product with the wave, in float64, so that sums in another order round to the same.

    Of a large tensor about 65536 values are read: the first ones if `few`, else by an odd step, so that they are not
    from the same columns of each row.
    """
    whole = parameter.detach()
    if type(whole) is not Tensor and hasattr(type(whole), "dequantize"):  # torchao: a tensor of its own kind
        whole = whole.dequantize()
    flat = whole.flatten()
    if few:
        flat = flat[:: max(1, len(flat) // _VALUES)][:_VALUES]
    elif len(flat) > _WHOLE:
        flat = flat[:: len(flat) // _VALUES | 1]
    wide = flat.to("cpu", torch.float64)
    product = sum(float(part @ _WAVE[: len(part)]) for part in wide.split(_VALUES))
    return round(float(wide.norm()), 6), round(product, 6)


def adapters_length(modules: Iterable[nn.Module]) -> float:
    """Return the length of all LoRA weights (peft) that are active; 0 without."""
    total = 0.0
    layer: Any
    for layer in (part for module in modules for part in module.modules() if "base_layer" in part._modules):
        acting = set() if getattr(layer, "disable_adapters", False) else set(getattr(layer, "active_adapters", ()))
        for name, weight in layer.named_parameters():
            if "lora_" in name and acting & set(name.split(".")) and not weight.is_meta:
                total += float(weight.detach().double().square().sum())
    return math.sqrt(total)
