"""Provide random numbers, pixel noise and caption sentences for both worlds."""

import zlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.miniature.pictures import splitmix64
from vldebias.miniature.words import SIZE

if TYPE_CHECKING:
    import torch

Codes = NDArray[np.int64]
Floats = NDArray[np.float32]

TEMPLATES = ("a photo of {}", "a picture of {}", "this is a picture of {}", "this is {}")

_STEP = np.uint64(0x9E3779B97F4A7C15)


class Draws:
    """Generate random numbers for the images start to start + n - 1 of a seed.

    A slot is the name of a sampled property ("hair", "horizon"). Image i for a seed gets the same
    numbers in any batch, and adding a slot does not change the others.

    Raises:
        InvalidInputError: If seed, start or n is negative.
    """

    def __init__(self, seed: int, start: int, n: int) -> None:
        if min(seed, start, n) < 0:
            raise InvalidInputError(
                f"seed, start and n must not be negative, got {seed}, {start} and {n}"
            )
        self.n = n
        index = np.arange(start, start + n, dtype=np.uint64)
        self._keys = splitmix64(splitmix64(seed % 2**64) ^ splitmix64(index))

    def bits(self, slot: str, count: int = 1) -> NDArray[np.uint64]:
        """Return uniform 64-bit words (n, count)."""
        slot_key = splitmix64(zlib.crc32(slot.encode()))
        counters = self._keys[:, None] + slot_key + np.arange(count, dtype=np.uint64) * _STEP
        return splitmix64(counters)

    def uniform(self, slot: str, low: float = 0.0, high: float = 1.0) -> NDArray[np.float32]:
        """Return uniform floats (n,) in [low, high)."""
        return self.uniforms(slot, 1, low, high)[:, 0]

    def uniforms(
        self, slot: str, count: int, low: float = 0.0, high: float = 1.0
    ) -> NDArray[np.float32]:
        """Return uniform floats (n, count) in [low, high)."""
        unit = (self.bits(slot, count) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return unit * np.float32(high - low) + np.float32(low)

    def noise(self, slot: str, count: int, sigma: float) -> NDArray[np.float32]:
        """Return uniform values (n, count) with mean 0 and standard deviation sigma."""
        words = self.bits(slot, -(-count // 4)).astype("<u8").view("<u2")[:, :count]
        reach = np.float32(sigma * 3**0.5)
        return words.astype(np.float32) * (reach / np.float32(32767.5)) - reach

    def integers(self, slot: str, high: int) -> NDArray[np.int64]:
        """Return uniform integers (n,) in [0, high)."""
        return (self.bits(slot)[:, 0] % np.uint64(high)).astype(np.int64)

    def choice(self, slot: str, weights: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return indices (n,) sampled with weights (k,) for all images or (n, k) per image."""
        cumulative = np.cumsum(
            np.broadcast_to(weights, (self.n, weights.shape[-1])), axis=1, dtype=np.float64
        )
        threshold = self.uniform(slot).astype(np.float64) * cumulative[:, -1]
        return (threshold[:, None] >= cumulative[:, :-1]).sum(axis=1)


def shuffled(items: int, name: str) -> NDArray[np.int64]:
    """Return a fixed permutation of range(items) that depends only on the name."""
    return np.argsort(Draws(0, 0, 1).bits(name, items)[0], kind="stable")


def colours(*values: float | tuple[float, float, float]) -> Floats:
    """Return red, green and blue (3,) in [0, 1], or rows (n, 3) for several colours."""
    return np.array(values, np.float32)


def finish(pixels: Floats, draws: Draws, sigma: float) -> "torch.Tensor":
    """Add independent noise to images (n, 64, 64, 3) and clip them to [0, 1].

    Returns:
        The images (n, 3, 64, 64) as float32.
    """
    import torch

    noise = draws.noise("pixel noise", SIZE * SIZE * 3, sigma)
    return torch.from_numpy(
        np.ascontiguousarray(
            np.clip(pixels + noise.reshape(pixels.shape), 0, 1).transpose(0, 3, 1, 2)
        )
    )


def sentence(text: str, template: int, *, proper: bool = True, stop: bool = True) -> str:
    """Insert a text into a template with an article ("a" unless `proper`) and a period."""
    article = "an" if proper and text[0] in "aeiou" else "a"
    return TEMPLATES[template].format(f"{article} {text}") + "." * stop
