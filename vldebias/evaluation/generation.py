"""Generate images from prompts with fixed seeds, so that two methods can be compared image by image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["generate"]


def generate(
    pipe: Any,
    prompts: Sequence[str],
    seeds: Sequence[int],
    *,
    steps: int = 20,
    guidance: float = 3.0,
    batch_size: int = 64,
    on_batch: Callable[[int], None] | None = None,
) -> Tensor:
    """One image per (prompt, seed) of the two equally long lists: (n, 3, height, width) in [0, 1] on the CPU.

    Every image has a generator of its own, so an image depends on its prompt and seed and not on its batch:
    methods are compared on the same initial noise.
    """
    images = []
    for start in range(0, len(prompts), batch_size):
        batch = slice(start, start + batch_size)
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds[batch]]
        done = pipe(
            list(prompts[batch]),
            generator=generators,
            num_inference_steps=steps,
            guidance_scale=guidance,
            output_type="pt",
        )
        images.append(done.images.float().cpu().clamp(0, 1))
        if on_batch is not None:
            on_batch(len(generators))
    return torch.cat(images)
