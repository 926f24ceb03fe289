"""A fingerprint of weights that survives casts to half precision but tells two checkpoints apart; their adapters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.edit import Fingerprint

_TENSORS = 16  # spread over the depth of the tower, as the first two editions read them
_VALUES = 65536  # read of a tensor that is not read whole, so that a T5-XXL costs little more than a small CLIP
_WHOLE = 1 << 21  # values: every head that ends in a space of images and texts is smaller


def weights_fingerprint(*modules: nn.Module) -> Fingerprint | None:
    """Structure, and two numbers for each tensor; of tensors beyond two million values at places spread over them.

    None where there are no weights to read (none at all, or on the meta device). Numbers rather than a hash of
    bytes, because the same checkpoint is loaded in float32, float16 and bfloat16. The wave, a product with a fixed
    vector of norm 1 per value, is there because fine-tuning turns a tensor much more than it stretches it. Beside them
    stand the numbers of the 16 tensors that projections were saved with before.
    """
    named = [(f"{i}.{n}", p) for i, module in enumerate(modules) for n, p in module.named_parameters()]
    # without adapters: loading a LoRA does not change which base weights these are
    base = [(name.replace(".base_layer", ""), p) for name, p in named if "lora_" not in name]
    parameters = sorted(base, key=lambda item: item[0])
    if not parameters:
        return None
    structure = hashlib.sha256("".join(f"{n}{tuple(p.shape)}" for n, p in parameters).encode()).hexdigest()[:16]
    count = min(_TENSORS, len(parameters))
    sample = [parameters[i * len(parameters) // count][1] for i in range(count)]
    if any(p.is_meta for p in sample):
        return None
    flats = map(_flat, sample)  # of which the first two editions read at most 65536 values
    norms, waves = zip(*(_numbers(one[:: max(1, len(one) // _VALUES)][:_VALUES]) for one in flats), strict=True)
    whole = not any(p.is_meta for _, p in parameters)
    # All values of a tensor, or of a large one about 65536: an odd step, lest it sees the same columns of each row.
    every = map(_flat, (p for _, p in parameters if whole))
    return Fingerprint(
        structure,
        norms,
        waves,
        adapters=round(math.sqrt(sum(float(p.detach().double().square().sum()) for p in _adapters(modules))), 6),
        tensors=tuple(_numbers(one if len(one) <= _WHOLE else one[:: len(one) // _VALUES | 1]) for one in every),
    )


def _adapted_layers(modules: Iterable[nn.Module]) -> Iterator[Any]:
    return (part for module in modules for part in module.modules() if hasattr(part, "base_layer"))


def _adapters(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """The LoRA weights that are at work."""
    for layer in _adapted_layers(modules):
        active = [] if getattr(layer, "disable_adapters", False) else getattr(layer, "active_adapters", [])
        for name, parameter in layer.named_parameters():
            if "lora_" in name and set(name.split(".")) & set(active) and not parameter.is_meta:
                yield parameter


def _flat(parameter: Tensor) -> Tensor:
    whole = parameter.detach()
    if type(whole) is not Tensor and hasattr(type(whole), "dequantize"):  # torchao: a tensor of its own kind
        whole = whole.dequantize()
    return whole.flatten()


def _numbers(values: Tensor) -> tuple[float, float]:
    """Length, and product with the wave: in float64, so that sums in another order are the same when rounded."""
    wide, wave = values.to("cpu", torch.float64), _wave()
    product = sum(float(part @ wave[: len(part)]) for part in wide.split(_VALUES))
    return round(float(wide.norm()), 6), round(product, 6)


@cache
@torch.inference_mode(False)
def _wave() -> Tensor:
    """A fixed vector of values of mean square 1 that follows no pattern of the weights; longer tensors repeat it."""
    return math.sqrt(2) * torch.sin(torch.arange(1, _VALUES + 1, dtype=torch.float64, device="cpu").square())


# ---- adapters that are others than when an edit was attached -----------------------------------------------------

_Active = tuple[tuple[int, tuple[str, ...]], ...]


class Adapters:
    """Those of some modules, as they were when it was first asked; a model without peft costs two look-ups a call."""

    def __init__(self, modules: Sequence[nn.Module], root: object) -> None:
        self.modules, self._root = modules, root
        self._first: tuple[_Active, float | None] | None = None
        self._last: _Active = ()
        self._warned = False

    def changed(self) -> bool:
        """True once: when others are at work for the first time."""
        if self._warned:
            return False
        active = self._active()
        if self._first is None:
            self._first, self._last = (active, self._length(active)), active
        if active == self._last:
            return False
        self._last = active
        first, length = self._first
        now = self._length(active)
        if active == first or (now is not None and length is not None and math.isclose(now, length, rel_tol=5e-3)):
            return False
        self._warned = True
        return True

    def _active(self) -> _Active:
        """Layers with adapters, and the names of those that act; peft leaves its config on what it adapts."""
        places = (getattr(one, "__dict__", {}) for one in (*self.modules, self._root))
        if not self._last and not any(place.get("peft_config") for place in places):
            return ()
        layers = _adapted_layers(self.modules)
        acting = ((id(one), () if one.disable_adapters else tuple(one.active_adapters)) for one in layers)
        return tuple((layer, names) for layer, names in acting if names)

    def _length(self, active: _Active) -> float | None:
        """Of all that they add; None where the weights are elsewhere."""
        if not active:
            return 0.0
        mark = weights_fingerprint(*self.modules)
        return None if mark is None else mark.adapters
