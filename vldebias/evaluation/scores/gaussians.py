"""Frechet distance of sets of features to one reference, by torchmetrics, and how sure it is, by a jackknife."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vldebias.errors import InvalidInputError

__all__ = ["FrechetReference", "Moments", "jackknife"]


@dataclass(frozen=True, eq=False)
class Moments:
    """Number of rows, their sum (d,) and the sum of their outer products (d, d), in float64: what a Gaussian needs."""

    n: int
    total: Tensor
    outer: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Moments:
        """Of rows (n, d)."""
        rows = features.double()
        return cls(len(rows), rows.sum(0), rows.T @ rows)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.n + other.n, self.total + other.total, self.outer + other.outer)

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.n - other.n, self.total - other.total, self.outer - other.outer)

    @property
    def mean(self) -> Tensor:
        """(d,)."""
        return self.total / self.n

    @property
    def covariance(self) -> Tensor:
        """(d, d), unbiased."""
        return (self.outer - self.n * torch.outer(self.mean, self.mean)) / (self.n - 1)


class FrechetReference:
    """|m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)) of sets of features to one reference, both taken as Gaussians.

    Args:
        batches: features (b, d) of the reference; read once, only sums are kept.
        dim: d.

    Raises:
        InvalidInputError: fewer than two rows, rows of another width, or not finite.
    """

    def __init__(self, batches: Iterable[Tensor], dim: int) -> None:
        from torchmetrics.image.fid import FrechetInceptionDistance

        self._metric = FrechetInceptionDistance(feature=_Given(dim), reset_real_features=False)
        self._dim = dim
        found = Moments(0, torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dim, dtype=torch.float64))
        for batch in batches:
            self._metric.update(self._checked(batch), real=True)
            found = found + Moments.of(batch)
        if found.n < 2:
            raise InvalidInputError(f"FID: expected two or more images in the reference, got {found.n}")
        self.moments = found
        self._root = _root(found.covariance)

    def distance(self, features: Tensor) -> float:
        """Of rows (n, d), n >= 2, by torchmetrics.

        Raises:
            InvalidInputError: fewer than two rows, rows of another width, or not finite.
        """
        if len(features) < 2:
            raise InvalidInputError(f"FID: expected two or more images, got {len(features)}")
        self._metric.reset()
        self._metric.update(self._checked(features), real=False)
        return float(self._metric.compute())

    def left_out(self, features: Tensor, blocks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Distance (g,) of the rows without each of the blocks 0 .. g - 1 in turn.

        The same quantity as `distance`, from moments that a block is taken off: with the root of the reference
        known, each costs the eigenvalues of one symmetric matrix.
        """
        whole = Moments.of(features)
        mask = torch.from_numpy(blocks)
        return np.array([self._of(whole - Moments.of(features[mask == block])) for block in range(blocks.max() + 1)])

    def _of(self, one: Moments) -> float:
        shift = (one.mean - self.moments.mean).square().sum()
        covariance = one.covariance
        common = torch.linalg.eigvalsh(self._root @ covariance @ self._root).clamp(min=0).sqrt().sum()
        return float(shift + covariance.trace() + self.moments.covariance.trace() - 2 * common)

    def _checked(self, batch: Tensor) -> Tensor:
        if batch.ndim != 2 or batch.shape[1] != self._dim or not torch.isfinite(batch).all():
            raise InvalidInputError(f"features: expected finite (n, {self._dim}), got {tuple(batch.shape)}")
        return batch.double()


def jackknife(value: float, left_out: NDArray[np.float64]) -> tuple[float, float]:
    """95 % interval of `value` from its g values without one of g blocks of about equal size.

    value -+ t_{g-1} se with se^2 = (g - 1) / g sum (v_i - mean)^2 (Efron and Tibshirani, 1993, chapter 11).
    """
    from scipy.stats import t

    g = len(left_out)
    error = np.sqrt((g - 1) / g * ((left_out - left_out.mean()) ** 2).sum())
    by = float(t.ppf(0.975, g - 1) * error)
    return value - by, value + by


def _root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


class _Given(nn.Module):
    """Features that were computed before, where torchmetrics expects a network."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_features = dim

    def forward(self, features: Tensor) -> Tensor:
        return features
