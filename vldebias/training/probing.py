"""What a forward pass of both towers touches: found by making one, because architectures do not say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from vldebias.errors import UnsupportedHostError

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

__all__ = ["called", "reached"]

Weight = TypeVar("Weight", bound=Tensor)


def reached(towers: Towers, parameters: Sequence[Weight]) -> list[Weight]:
    """Those of `parameters` from which a gradient of a feature comes; all of them require gradients afterwards.

    Raises:
        UnsupportedHostError: there are none in floating point.
    """
    numbers = [p for p in parameters if p.is_floating_point()]
    if not numbers:
        raise UnsupportedHostError(
            f"{type(towers.model).__name__}: its weights are quantized; load the model unquantized to train it"
        )
    for parameter in numbers:
        parameter.requires_grad_(True)
    with _still(towers.model), torch.enable_grad():
        total = torch.stack([features.float().sum() for features in _one_pair(towers)]).sum()
        gradients = torch.autograd.grad(total, numbers, allow_unused=True)
    return [p for p, gradient in zip(numbers, gradients, strict=True) if gradient is not None]


def called(towers: Towers, modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Those of `modules` whose forward runs: of others, another module reads the weights, or nothing does."""
    seen: set[str] = set()

    def hook(name: str) -> None:
        def note(*_: object) -> None:
            seen.add(name)

        handles.append(modules[name].register_forward_hook(note))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    try:
        for name in modules:
            hook(name)
        with _still(towers.model), torch.no_grad():
            _one_pair(towers)
    finally:
        for handle in handles:
            handle.remove()
    return {name: module for name, module in modules.items() if name in seen}


def _one_pair(towers: Towers) -> tuple[Tensor, Tensor]:
    """Features (1, d) of an empty image and of a short caption."""
    device = towers.device
    tokens = {name: tensor.to(device) for name, tensor in towers.tokenize(["a photo"]).items()}
    return towers.image(torch.zeros(1, 3, *towers.size, device=device)), towers.text(tokens)


@contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, and each module's own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
