"""Derive image indices from a call's random generators, so that equal calls get equal values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeGuard

import torch

from vldebias.wording.assignment import seed_from

Seeds = int | torch.Generator | Sequence[int | torch.Generator]
"""Random generators or seeds for a call, either one for all images or one per image."""


def indices_of(seeds: object, prompts: Sequence[str]) -> list[int] | None:
    """Return the index of each image for `Balancer.at`, or None if `seeds` contains no seeds.

    A seed s for n images of a prompt corresponds to indices s n to s n + n - 1, so that consecutive
    seeds give consecutive indices. With one seed per image, the seed is the index.

    Args:
        seeds: generators or seeds (see `Seeds`), None, or anything else that a custom pipeline
            accepts as its generator.
        prompts: the images' prompts, in order.
    """
    if isinstance(seeds, list | tuple):
        # A pipeline may encode a prompt once for all of its images, but use one generator per
        # image.
        step, remainder = divmod(len(seeds), max(len(prompts), 1))
        if not step or remainder or not all(map(_is_seed, seeds)):
            return None
        return [index_of(seed) for seed in seeds[::step]]
    if not _is_seed(seeds):
        return None
    index = index_of(seeds)
    images_of_prompt = Counter(prompts)
    seen: Counter[str] = Counter()
    indices = []
    for prompt in prompts:
        indices.append(index * images_of_prompt[prompt] + seen[prompt])
        seen[prompt] += 1
    return indices


def _is_seed(value: object) -> TypeGuard[int | torch.Generator]:
    """Return whether a value is a random generator or a seed."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return is_number or isinstance(value, torch.Generator)


def index_of(seed: int | torch.Generator) -> int:
    """Return the position of a seed's image in the sequence of values.

    The position is the seed itself, or the seed of an unused generator. For a generator that was
    already used, it is a number derived from the generator's state.
    """
    if isinstance(seed, int):
        return seed
    fresh = torch.Generator(seed.device).manual_seed(seed.initial_seed())
    state = seed.get_state()
    if torch.equal(state, fresh.get_state()):
        return seed.initial_seed()
    return seed_from(state.numpy().tobytes().hex())
