"""Support diffusers caches (`enable_cache`), which skip parts of a denoiser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from vldebias.errors import UnsupportedHostError

if TYPE_CHECKING:
    from diffusers import CacheMixin


def cache_of(denoiser: nn.Module) -> object | None:
    """Return the configuration of the cache enabled on a denoiser, or None."""
    return getattr(denoiser, "_cache_config", None)


def refuse_dropped_rows(name: str, denoiser: nn.Module) -> None:
    """Raise UnsupportedHostError if FasterCache is enabled.

    FasterCache removes the unconditional half of the batch inside the denoiser, after the prompt's
    rows have been found, so values would be set in the wrong rows or in none.

    Args:
        name: name of the pipeline, for the message.
        denoiser: the UNet or transformer, to which FasterCache adds hooks.
    """
    cache = cache_of(denoiser)
    if type(cache).__name__ == "FasterCacheConfig":
        raise UnsupportedHostError(
            f"{name}: FasterCache is enabled, which drops rows of the batch inside the denoiser,"
            " so values cannot be set in cross-attention. Call disable_cache() on the denoiser,"
            " or enable a different cache, such as PyramidAttentionBroadcast or FirstBlockCache"
        )


@contextmanager
def without_caches(denoisers: Iterable[CacheMixin]) -> Iterator[None]:
    """Disable the caches of denoisers inside the block, so that every layer runs in every step."""
    cached: list[tuple[CacheMixin, object]] = []
    for denoiser in denoisers:
        cache = cache_of(denoiser)
        if cache is not None:
            cached.append((denoiser, cache))
            denoiser.disable_cache()
    try:
        yield
    finally:
        for denoiser, cache in cached:
            denoiser.enable_cache(cache)
