"""Discrepancy of many prompts at once: shares, eq. 7.2 per prompt, a bias-corrected square, how sure one prompt is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.data import UNKNOWN
from vldebias.errors import InvalidInputError

__all__ = ["Counts"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Counts:
    """How often each attribute value occurs among the images of each prompt.

    known: (prompts, values); total: images of each prompt, those included that cannot be told.
    """

    known: NDArray[np.int64]
    total: int

    @classmethod
    def of(cls, codes: NDArray[np.int64], values: int) -> Counts:
        """From codes (prompts, images) in 0 .. values - 1 or UNKNOWN.

        Raises:
            InvalidInputError: another shape, no images, fewer than two values, a code without a value.
        """
        codes = np.asarray(codes)
        if codes.ndim != 2 or not codes.size or values < 2:
            raise InvalidInputError(
                f"codes: expected (prompts, images) and two or more values, got {codes.shape}, {values}"
            )
        if codes.min() < UNKNOWN or codes.max() >= values:
            raise InvalidInputError(f"codes: expected {UNKNOWN} .. {values - 1}, got {codes.min()} .. {codes.max()}")
        return cls((codes[..., None] == np.arange(values)).sum(axis=1), codes.shape[1])

    @property
    def told(self) -> NDArray[np.int64]:
        """(prompts,) images whose value is known."""
        return self.known.sum(axis=-1)

    @property
    def unknown_rate(self) -> Floats:
        """(prompts,) share of images that cannot be told."""
        return 1 - self.told / self.total

    @property
    def undecidable(self) -> int:
        """Prompts none of whose images can be told; they count with the largest discrepancy there is."""
        return int((self.told == 0).sum())

    @property
    def shares(self) -> Floats:
        """(prompts, values) shares among the images that can be told; NaN where there is none."""
        told = self.told[..., None]
        return np.divide(self.known, told, out=np.full(self.known.shape, np.nan), where=told > 0)

    @property
    def discrepancy(self) -> Floats:
        """(prompts,) sqrt(sum_a (share_a - 1/|A|)^2), eq. 7.2; sqrt(1 - 1/|A|), its maximum, where nothing is known.

        Few images bias it upwards: n images of a fair prompt have about sqrt((1 - 1/|A|) / n).
        """
        return np.sqrt(self._squares(self.known))

    @property
    def squared(self) -> Floats:
        """(prompts,) unbiased estimate of the squared discrepancy.

        The plain square of n images is too large by (1 - sum_a p_a^2) / n on average, of which
        (1 - sum_a share_a^2) / (n - 1) is an unbiased estimate. It may be negative. With fewer than two known images
        there is none, and the maximum 1 - 1/|A| stands for it.
        """
        n = self.told
        spread = (1 - np.nan_to_num(self.shares**2).sum(axis=-1)) / np.maximum(n - 1, 1)
        return np.where(n > 1, self._squares(self.known) - spread, self._largest)

    def radius(self, *, resamples: int, seed: int) -> Floats:
        """(prompts,) how far the shares may be from the true ones, as an L2 distance with 95 % confidence.

        By the triangle inequality the discrepancy of a prompt is within it as well. Resampled discrepancies would not
        do: they inherit the upward bias, and their interval can miss the very value that was measured. It is the 95 %
        quantile over resamples of the images, to which half an image of each value is added, or images that all show
        one value would pass for certain. No bound at all, sqrt(1 - 1/|A|), where nothing is known.
        """
        rng = np.random.default_rng(seed)
        centres = (self.known + 0.5) / (self.told + self.known.shape[1] / 2)[:, None]
        found = np.full(len(self.known), np.sqrt(self._largest))
        for i in np.flatnonzero(self.told):
            drawn = rng.multinomial(self.told[i], centres[i], size=resamples) / self.told[i]
            found[i] = np.quantile(np.linalg.norm(drawn - centres[i], axis=1), 0.95)
        return found

    @property
    def _largest(self) -> float:
        return 1 - 1 / self.known.shape[-1]

    def _squares(self, known: NDArray[np.int64]) -> Floats:
        values, n = known.shape[-1], known.sum(axis=-1)
        squares = ((known / np.maximum(n, 1)[..., None] - 1 / values) ** 2).sum(axis=-1)
        return np.where(n > 0, squares, self._largest)
