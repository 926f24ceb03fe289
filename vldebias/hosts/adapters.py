"""Measure a text encoder's adapters (LoRA), and detect changes cheaply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy

import torch
from torch import nn

_SAME = 5e-3  # tolerance; a cast to another precision changes an adapter's norm by less
# Attributes of a peft layer that switch or scale its adapters.
_SETTINGS = ("_active_adapter", "_disable_adapters", "scaling")


def adapters_length(modules: Iterable[nn.Module]) -> float:
    """Return the norm of all active LoRA weights times their scale (peft), or 0 without any."""
    total = 0.0
    for layer in _adapted_layers(modules):
        if getattr(layer, "disable_adapters", False):
            continue
        active = set(getattr(layer, "active_adapters", ()))
        for name, weight in layer.named_parameters():
            adapters = active & set(name.split("."))
            if "lora_" in name and adapters and not weight.is_meta:
                scale = dict(getattr(layer, "scaling", {})).get(adapters.pop(), 1.0)
                total += float((scale * weight.detach().double()).square().sum())
    return math.sqrt(total)


def _adapted_layers(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the peft layers that wrap a plain layer."""
    parts = (part for module in modules for part in module.modules())
    return [part for part in parts if "base_layer" in part._modules]


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
        ids = set(map(id, self._modules))
        self._places = [name for name, value in owner.items() if id(inner_module(value)) in ids]
        self._lengths: list[float] = []  # norms of the adapters so far
        named = [pair for module in self._modules for pair in module.named_parameters()]
        # torch does not version tensors that were created in inference mode.
        weights = [w for name, w in named if "lora_" not in name and not w.is_inference()]
        # Loading changes all weights, so checking some of them saves time.
        self._weights = weights[::4]
        self._remember()
        self._changes = 0
        self._fitted = self._reported = (*self._known[:2], self._length)

    def check(self, warn_once: Callable[[str], None]) -> None:
        """Warn once for each change of the encoders or adapters since this object was created.

        Returning to the initial state is not a change. While the weights are trained, only the
        first change is reported. Compiled code skips the check, because torch recompiles it when
        modules change.

        Args:
            warn_once: a function that issues a warning, unless it is the same as an earlier one.
        """
        if torch.compiler.is_compiling():
            return
        facts = self._facts()
        if facts[2:] != self._known[2:]:
            self._remember()
        state = (*facts[:2], self._length)
        if state == self._fitted:
            self._reported = self._fitted
        if state == self._reported:
            return
        is_first = self._reported == self._fitted
        self._reported = state
        weights = (weight for module in self._modules for weight in module.parameters())
        if is_first or all(weight.grad is None for weight in weights):
            self._changes += 1
            # Python hides repeated messages, so the number makes later changes visible.
            times = f" {self._changes} times" if self._changes > 1 else ""
            warn_once(
                f"the text encoder, its weights or its adapters (LoRA) have changed{times} since"
                " the edit was attached, and so have its embeddings. To fit the edit again, call"
                " attachment.remove(), then vldebias.debias(host, attribute)"
            )

    def _facts(self) -> tuple[Sequence[object], ...]:
        """Return the encoders, the versions of their weights, and facts about their adapters."""
        present = map(self._owner.get, self._places)
        encoders = [id(getattr(encoder, "_orig_mod", encoder)) for encoder in present]
        weights = [weight._version for weight in self._weights]
        # Compare the children of each module, because peft replaces them with its own layers.
        children = [tuple(modules.values()) for modules in self._parents]
        settings = [copy(values.get(name)) for values in self._layers for name in _SETTINGS]
        adapters: list[object] = []
        for parameters, name in self._slots:
            weight = parameters[name]
            assert weight is not None
            version = 0 if weight.is_inference() else weight._version
            adapters += (id(weight), weight.data_ptr(), version)
        return encoders, weights, children, settings, adapters

    def _remember(self) -> None:
        layers = _adapted_layers(self._modules)
        # Adapters are loaded, scaled and switched together, so check every fourth layer.
        unchecked = {id(p) for i, layer in enumerate(layers) if i % 4 for p in layer.modules()}
        parts = [part for module in self._modules for part in module.modules()]
        self._parents = [p._modules for p in parts if p._modules and id(p) not in unchecked]
        self._layers = [vars(layer) for layer in layers[::4]]
        self._slots = []
        for layer in layers[::4]:
            for path, _ in layer.named_parameters():
                if "lora_" in path:
                    owner, _, name = path.rpartition(".")
                    self._slots.append((layer.get_submodule(owner)._parameters, name))
        self._known = self._facts()
        length = adapters_length(self._modules)
        close = (known for known in self._lengths if math.isclose(known, length, rel_tol=_SAME))
        self._length = next(close, length)
        self._lengths = [*self._lengths, self._length]
