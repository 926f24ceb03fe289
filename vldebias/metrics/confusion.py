"""Shares without any people: from a judge and a table of how often it is wrong, that somebody else counted.

Source: Rogan and Gladen, "Estimating prevalence from the results of a screening test" (1978), for several values. What
the judge says of images with shares p is M^T p, with M the rows of its confusion table, so p = M^-T q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.metrics.bootstrap import Interval, recentred_interval
from vldebias.metrics.discrepancy import discrepancies

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UnconfusedShares:
    """Shares (k,) of the values, and draws of them (b, k) that tables and images like these would give."""

    shares: Floats
    draws: Floats
    images: int

    def interval(self, value: int) -> Interval:
        """The share of a value."""
        low, high = np.quantile(self.draws[:, value], [0.025, 0.975])
        return self._interval(float(self.shares[value]), float(low), float(high))

    def discrepancy(self) -> Interval:
        """Eq. 7.2 of all images together."""
        of, most = float(discrepancies(self.shares)), float(np.sqrt(1 - 1 / len(self.shares)))
        return self._interval(of, *recentred_interval(of, discrepancies(self.draws), (0.0, most)))

    def _interval(self, value: float, low: float, high: float) -> Interval:
        return Interval(value, min(value, low), max(value, high), 0.95, self.images, len(self.draws))


def unconfused_shares(counts: Floats, confusion: Floats, *, resamples: int = 2000, seed: int = 0) -> UnconfusedShares:
    """Shares of the values from a judge's counts and its confusion table.

    It holds where the judge errs on these images as it did on those of the table, which nothing here can check: labels
    of some of these images need no such belief (`vldebias.metrics.corrected_shares`).

    Args:
        counts: (k,) images of which the judge says each value; those of which it says none are left out.
        confusion: (k, k) counts: what is true down, what the judge says across, in the same order.

    Raises:
        InvalidInputError: other shapes, a row without images, or a table that is not invertible beyond its own noise:
            more than 2.5 % of the tables like it turn it round.
    """
    seen, table = np.asarray(counts, np.float64), np.asarray(confusion, np.float64)
    if seen.ndim != 1 or len(seen) != len(table) or seen.sum() <= 0:
        raise InvalidInputError(
            f"counts: expected images of each of {len(table)} values, got shape {seen.shape} of {seen.sum():g} images"
        )
    drawn = tables_like(table, resamples, seed)
    shares = _solved((table / table.sum(1, keepdims=True))[None], (seen / seen.sum())[None])[0]
    each = np.random.default_rng(seed + 1).dirichlet(seen + 0.5, size=resamples)
    return UnconfusedShares(shares, _solved(drawn, each), int(seen.sum()))


def tables_like(confusion: Floats, resamples: int = 2000, seed: int = 0) -> Floats:
    """(b, k, k) rates that tables of as many images would give. Raises: see `unconfused_shares`."""
    table = np.asarray(confusion, np.float64)
    k = len(table)
    if table.shape != (k, k) or k < 2 or not np.isfinite(table).all() or (table < 0).any() or (table.sum(1) <= 0).any():
        raise InvalidInputError(
            f"confusion table: expected counts, as many rows as columns, with images in every row, got shape "
            f"{table.shape} with rows of {table.sum(-1).tolist()} images"
        )
    rng = np.random.default_rng(seed)
    rates = table / table.sum(1, keepdims=True)
    drawn = np.stack([rng.dirichlet(row + 0.5, size=resamples) for row in table], axis=1)
    turned = np.mean(np.sign(np.linalg.det(drawn)) != np.sign(np.linalg.det(rates)))
    if abs(np.linalg.det(rates)) < 1e-9 or turned > 0.025:
        raise InvalidInputError(
            f"confusion table: is not invertible: {turned:.0%} of the tables like it turn it round, so what the judge "
            "says does not tell what is true; count more images, or label some of these"
        )
    return drawn


def _solved(rates: Floats, said: Floats) -> Floats:
    """p (b, k) with M^T p = q, where it falls outside of what shares can be at their border."""
    solved = np.clip(np.linalg.solve(np.swapaxes(rates, 1, 2), said[..., None])[..., 0], 0.0, None)
    return np.asarray(solved / solved.sum(1, keepdims=True))
