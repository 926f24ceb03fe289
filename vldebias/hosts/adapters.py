"""Measure a text encoder's adapters (LoRA), and detect changes cheaply."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import nn

_SAME = 5e-3  # tolerance; a cast to another precision changes an adapter's norm by less


def adapters_length(modules: Iterable[nn.Module]) -> float:
    """Return the norm of all active LoRA weights times their scale (peft), or 0 without any."""
    total = 0.0
    for layer in _adapted_layers(modules):
        active = _active_adapters(layer)
        for name, weight in layer.named_parameters():
            adapters = active & set(name.split("."))
            if "lora_" in name and adapters and not weight.is_meta:
                scale = _scaling(layer).get(adapters.pop(), 1.0)
                total += float((scale * weight.detach().double()).square().sum())
    return math.sqrt(total)


def _adapted_layers(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the peft layers that wrap a plain layer."""
    parts = (part for module in modules for part in module.modules())
    return [part for part in parts if "base_layer" in part._modules]


def _active_adapters(layer: object) -> set[str]:
    if getattr(layer, "disable_adapters", False):
        return set()
    return set(getattr(layer, "active_adapters", ()))


def _scaling(layer: nn.Module) -> dict[str, float]:
    return dict(getattr(layer, "scaling", {}))


def inner_module(module: object) -> object:
    """Return a module without the wrapper of torch.compile."""
    return getattr(module, "_orig_mod", module)


class Adapters:
    """Track the weights and adapters of text encoders.

    Adapters are compared by the norm of their weights, because reloading may rename them. The norm
    is recomputed only if modules, adapters, their scales or the set of active adapters have
    changed. Changed weights are detected by torch's version counters.

    Args:
        modules: the text encoders.
        owner: the attributes of the pipeline, or of another object, that may hold the encoders.
    """

    def __init__(self, modules: Iterable[nn.Module], owner: Mapping[str, object]) -> None:
        self._modules = list(modules)
        self._owner = owner
        self._place_of = {}
        for name, value in owner.items():
            if any(inner_module(value) is module for module in self._modules):
                self._place_of[name] = inner_module(value)
        self._remember()
        named = [pair for module in self._modules for pair in module.named_parameters()]
        # torch does not version tensors that were created in inference mode.
        weights = [w for name, w in named if "lora_" not in name and not w.is_inference()]
        # Loading changes all weights, so checking some of them saves time.
        self._weights = [(weight, weight._version) for weight in weights[::4]]
        self._length = self._present = adapters_length(self._modules)

    def changed(self) -> bool:
        """Return whether the encoders or adapters have changed since this object was created."""
        for name, module in self._place_of.items():
            present = self._owner.get(name)
            if present is not module and inner_module(present) is not module:
                return True
        for weight, version in self._weights:
            if weight._version != version:
                return True
        is_same = True
        for modules, children in zip(self._parents, self._children, strict=True):
            is_same = is_same and tuple(modules.values()) == children
        for layer, facts in zip(self._layers, self._facts, strict=True):
            is_same = is_same and _facts(layer) == facts
        if not is_same:
            self._remember()
            self._present = adapters_length(self._modules)
        return not math.isclose(self._present, self._length, rel_tol=_SAME)

    def _remember(self) -> None:
        parts = [part for module in self._modules for part in module.modules()]
        # Compare the children of each module, because peft replaces them with its own layers.
        self._parents = [part._modules for part in parts if part._modules]
        self._children = [tuple(children.values()) for children in self._parents]
        self._layers = _adapted_layers(self._modules)
        self._facts = [_facts(layer) for layer in self._layers]


def _facts(layer: nn.Module) -> tuple[object, ...]:
    """Return a layer's active adapters, with the identity and version of their weights."""
    weights = []
    for name, weight in layer.named_parameters():
        if "lora_" in name:
            # torch does not version tensors that were created in inference mode.
            version = 0 if weight.is_inference() else weight._version
            weights.append((name, id(weight), weight.data_ptr(), version))
    return frozenset(_active_adapters(layer)), tuple(weights), _scaling(layer)
