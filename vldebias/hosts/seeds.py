"""Number the images of a call by the random generators that draw them, so that the same call shows
the same persons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from vldebias.wording.dealing import seed_from

Seeds = int | torch.Generator | Sequence[int | torch.Generator]
"""What draws the images of a call: one for all of them, or one for each."""


def indices_of(seeds: Any, prompts: Sequence[str]) -> list[int] | None:
    """Return the index of each image for `Balancer.at`; None where `seeds` do not say it.

    One seed s for n images of a prompt stands for the indices s n to s n + n - 1, so that seeds in
    a row are indices in a row. A seed for each image is its index.

    Args:
        seeds: as `Seeds`; None, or anything else that a pipeline of yours takes as its generator.
        prompts: of the images, in their order.
    """
    if isinstance(seeds, list | tuple):
        # A pipeline that encodes once for all images of a prompt has a generator for each of them.
        step, rest = divmod(len(seeds), max(len(prompts), 1))
        if not step or rest or not all(map(_is_seed, seeds)):
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


def _is_seed(value: object) -> bool:
    """Return whether a value is a random generator or a seed of one."""
    if isinstance(value, bool):
        return False
    return isinstance(value, torch.Generator) or (isinstance(value, int) and value >= 0)


def index_of(seed: int | torch.Generator) -> int:
    """Return the index that a seed stands for: of a generator that has drawn nothing its own seed,
    of another a number that follows from its state."""
    if isinstance(seed, int):
        return seed
    fresh = torch.Generator(seed.device).manual_seed(seed.initial_seed())
    state = seed.get_state()
    if torch.equal(state, fresh.get_state()):
        return seed.initial_seed()
    return seed_from(state.numpy().tobytes().hex())
