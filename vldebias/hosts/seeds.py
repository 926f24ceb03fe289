"""Number the images of a call by their random generators, so that equal calls get equal values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeGuard

import torch

from vldebias.wording.assignment import seed_from

Seeds = int | torch.Generator | Sequence[int | torch.Generator]
"""Random generators or seeds of a call: one for all of its images, or one for each."""


def indices_of(seeds: object, prompts: Sequence[str]) -> list[int] | None:
    """Return the index of each image for `Balancer.at`; None if `seeds` are not seeds.

    A seed s for n images of a prompt stands for the indices s n to s n + n - 1, so that consecutive
    seeds are consecutive indices. A seed for each image is its index.

    Args:
        seeds: see `Seeds`; None, or anything else that a custom pipeline accepts as its generator.
        prompts: the prompts of the images, in their order.
    """
    if isinstance(seeds, list | tuple):
        # A pipeline that encodes once for all images of a prompt has a generator for each of them.
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
    """Return whether a value is a random generator or a seed of one."""
    if isinstance(value, bool):
        return False
    return isinstance(value, torch.Generator) or (isinstance(value, int) and value >= 0)


def index_of(seed: int | torch.Generator) -> int:
    """Return the index for a seed.

    For a generator that has not drawn anything it is the generator's seed, otherwise a number
    derived from its state.
    """
    if isinstance(seed, int):
        return seed
    fresh = torch.Generator(seed.device).manual_seed(seed.initial_seed())
    state = seed.get_state()
    if torch.equal(state, fresh.get_state()):
        return seed.initial_seed()
    return seed_from(state.numpy().tobytes().hex())
