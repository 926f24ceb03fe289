"""Merged weights say so, also after they were saved and loaded: projecting them once more is another method.

Models of transformers and diffusers carry an entry of their config, which their libraries write into config.json and
read back, and which survives a cast. A checkpoint of open_clip is a state dict whose keys are fixed, so there the head
itself is marked: the lowest bits of 64 of its values spell a constant. That is below the rounding of the merge itself,
chance gives it once in 2^64 models, and a cast to another precision or further training takes it off.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

MARK = "_vldebias_merged"

_DIGEST = hashlib.sha256(b"vldebias merged").digest()
_BITS = torch.tensor([_DIGEST[i // 8] >> (i % 8) & 1 for i in range(64)])
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def mark_config(model: Any, note: str) -> None:
    """Write what was merged into the config of a model of transformers or diffusers."""
    if hasattr(model, "register_to_config"):
        model.register_to_config(**{MARK: note})
    else:
        setattr(model.config, MARK, note)


def config_mark(model: Any) -> str | None:
    """What `mark_config` wrote into this model or the checkpoint that it was loaded from; None where nothing."""
    note = getattr(getattr(model, "config", None), MARK, None)
    return note if isinstance(note, str) else None


def stamp(weight: Tensor) -> None:
    """Spell the constant in the lowest bits of `weight`, in place; a weight of fewer values stays as it is."""
    places = _places(weight)
    if places is not None:
        bits = _BITS.to(weight.device)
        with torch.no_grad():
            flat = weight.detach().flatten()
            values = flat[places].view(_INTEGERS[weight.element_size()])
            flat[places] = ((values & ~1) | bits.to(values.dtype)).view(weight.dtype)
            weight.copy_(flat.view(weight.shape))


def is_stamped(weight: Tensor) -> bool:
    """Whether the lowest bits spell it."""
    places = _places(weight)
    if places is None:
        return False
    values = weight.detach().flatten()[places].view(_INTEGERS[weight.element_size()])
    return bool(((values & 1).cpu() == _BITS).all())


def _places(weight: Tensor) -> Tensor | None:
    """64 places spread over the weight; None where it has fewer, or no bits at hand."""
    if weight.numel() < len(_BITS) or weight.is_meta or weight.element_size() not in _INTEGERS:
        return None
    if not weight.is_floating_point():
        return None
    return torch.arange(len(_BITS), device=weight.device) * (weight.numel() // len(_BITS))
