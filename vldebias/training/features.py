"""Features as a model gives them between two steps: eval mode, no gradients, norm 1, modes put back afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.hosts.text import reading

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

__all__ = ["image_features", "text_features"]


def image_features(towers: Towers, images: Tensor) -> Tensor:
    """Unit features (b, d) float32 of images (b, 3, h, w), on the device of the model."""
    device, dtype = _place(towers.model)
    with reading(towers.model):
        return normalize(towers.image(images.to(device, dtype)).float(), dim=-1)


def text_features(towers: Towers, texts: Sequence[str], batch_size: int) -> Tensor:
    """Unit features (n, d) float32 of n texts, on the device of the model; `batch_size` at a time."""
    device, _ = _place(towers.model)
    parts = []
    with reading(towers.model):
        for start in range(0, len(texts), batch_size):
            tokens = towers.tokenize(texts[start : start + batch_size])
            moved = {name: tensor.to(device) for name, tensor in tokens.items()}
            parts.append(normalize(towers.text(moved).float(), dim=-1))
    return torch.cat(parts)


def _place(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the model is, and the precision that its layers read: norms around them may be kept in another."""
    layers = (module.weight for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear)))
    weights = [*layers, *model.parameters()]
    first = next((weight for weight in weights if weight.is_floating_point()), torch.zeros(()))
    return first.device, first.dtype
