"""Test which pipeline families in the installed diffusers have cross-attention layers in which
values can be set. The others must be rejected with a message."""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from diffusers_tiny import CASES, FAMILIES

from vldebias.errors import UnsupportedHostError
from vldebias.hosts import resolve
from vldebias.methods.cross_attention import at_denoiser

PLAIN = "A photo of a doctor."
FIXED = ("prompt", "generator", "num_inference_steps", "output_type", "num_images_per_prompt")


@contextmanager
def called(case: Any, pipe: Any) -> Iterator[dict[str, Any]]:
    """Yield the call arguments of a tiny pipeline. Pictures stay small inside the block."""
    call = type(pipe).__call__
    kept: dict[str, Any] = {}

    @functools.wraps(call)
    def keep(self: Any, **arguments: Any) -> Any:
        kept.update(arguments)
        return [torch.zeros(1, 1)]

    with mock.patch.object(type(pipe), "__call__", keep):
        case.draw(pipe, [PLAIN])
    for name in (*FIXED, "num_videos_per_prompt"):
        kept.pop(name, None)
    small = {name: lambda *_, value=tuple(value): value for name, value in case.small.items()}
    with mock.patch.dict(vars(sys.modules[type(pipe).__module__]), small):
        yield kept


def layers_of(name: str) -> list[str]:
    """Return the cross-attention layers found in a family."""
    if name in FAMILIES:
        make, call = FAMILIES[name]
        size = {"height": 16, "width": 16} | call
        return at_denoiser(resolve(make()), ()).found_layers(PLAIN, **size)
    case = CASES[name]
    pipe = case.make(is_complete=True)
    with called(case, pipe) as options:
        return at_denoiser(resolve(pipe), ()).found_layers(PLAIN, **options)


# Families with cross-attention whose denoiser receives the output of `encode_prompt`. The others
# join picture and text in one attention, or (LTX2) transform the embeddings in between.
SERVED = {
    "StableDiffusion",
    "StableDiffusionXL",
    "PixArt",
    "Sana",
    "HunyuanDiT",
    "Kolors",
    "Latte",
    "LTX",
    "Wan",
    "Kandinsky3",
    "Cosmos",
    "SanaVideo",
    "Kandinsky5Image",
    "Kandinsky5Video",
}
QUICK = [*FAMILIES, "HunyuanDiT", "Wan", "Lumina2"]


def marked(names: list[str]) -> list[Any]:
    slow = pytest.mark.slow
    return [name if name in QUICK else pytest.param(name, marks=slow) for name in names]


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi's own pipeline without a GPU
@pytest.mark.parametrize("name", marked([*FAMILIES, *CASES]))
def test_every_family_is_supported_or_rejected_with_a_message(name: str) -> None:
    if name in SERVED:
        layers = layers_of(name)
        assert layers
        assert all("attn" in layer or "attention" in layer for layer in layers)
        return
    with pytest.raises(UnsupportedHostError, match="no cross-attention that reads only the prompt"):
        layers_of(name)
