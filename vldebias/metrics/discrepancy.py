"""Discrepancy of generated images: how far the attribute frequencies are from uniform (eq. 7.2 of the thesis).

`discrepancy` takes the labels of some images; the functions of counts (..., |A|) take many prompts at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.metrics.arrays import Values, codes, vector

Floats = NDArray[np.float64]
Counts = NDArray[np.integer] | Floats


@dataclass(frozen=True)
class AttributeShares:
    """Shares of the attribute values among the n rows with a known attribute, and how many had none."""

    shares: tuple[float, ...]
    n: int
    unknown_rate: float

    @property
    def discrepancy(self) -> float:
        """sqrt(sum_a (share_a - 1/|A|)^2), eq. 7.2."""
        return float(np.sqrt(((np.asarray(self.shares) - 1 / len(self.shares)) ** 2).sum()))

    @property
    def deviation_ratio(self) -> float:
        """max_a |share_a - 1/|A|| / (1 - 1/|A|), see `deviation_ratio`."""
        return float(deviation_ratios(np.asarray(self.shares)))

    @property
    def kl_from_uniform(self) -> float:
        """sum_a share_a log(share_a |A|), see `kl_from_uniform`."""
        return float(kl_divergences(np.asarray(self.shares)))


def attribute_shares(labels: Values, n_groups: int, *, unknown: int | None = None) -> AttributeShares:
    """Share of each attribute value among rows whose attribute is known, with the rate of the unknown ones.

    Args:
        labels: (n,) integers 0 .. n_groups - 1, from a classifier or from people.
        n_groups: |A|, of which some may not occur.
        unknown: the label that means "cannot tell", for instance -1 or n_groups; None if there is no such label.

    Raises:
        InvalidInputError: labels outside the range, or none that is known.
    """
    if n_groups < 2:
        raise InvalidInputError(f"n_groups: expected at least 2 attribute values, got {n_groups}")
    if unknown is not None and 0 <= unknown < n_groups:
        raise InvalidInputError(f"unknown: expected a label outside 0 .. {n_groups - 1}, got {unknown}")
    column = vector(labels, "labels")
    known = column if unknown is None else column[column != unknown]
    if len(known) == 0:
        raise InvalidInputError(f"labels: all {len(column)} are unknown ({unknown}); there is no share to report")
    _, index = codes(known, n_groups, "labels")
    counts = np.bincount(index, minlength=n_groups)
    return AttributeShares(tuple((counts / counts.sum()).tolist()), len(known), 1 - len(known) / len(column))


def discrepancy(labels: Values, n_groups: int, *, unknown: int | None = None) -> float:
    """sqrt(sum_a (f_a - 1/|A|)^2) with f_a the frequency of attribute a (eq. 7.2); 0 is uniform.

    Its maximum is sqrt(1 - 1/|A|): .707 for two values, .894 for five. Few images per prompt bias it upwards: n fair
    draws have about sqrt((1 - 1/|A|) / n). Unknown rows are left out; report their rate beside it with
    `attribute_shares`. Arguments and Raises: see there.

    >>> discrepancy([0, 0, 0, 1], 2)
    0.3535533905932738
    """
    return attribute_shares(labels, n_groups, unknown=unknown).discrepancy


def discrepancies(counts: Counts) -> Floats:
    """Eq. 7.2 (...) from counts of the values (..., |A|); sqrt(1 - 1/|A|), its maximum, where nothing was counted."""
    return np.sqrt(_squares(counts))


def squared_discrepancies(counts: Counts) -> Floats:
    """Unbiased estimates (...) of the squared discrepancy, from counts of the values (..., |A|).

    The plain square of n images is too large by (1 - sum_a p_a^2) / n on average, of which
    (1 - sum_a share_a^2) / (n - 1) is an unbiased estimate. It may be negative. With fewer than two images there is
    none, and the maximum 1 - 1/|A| stands for it.
    """
    n = counts.sum(axis=-1)
    shares = counts / np.maximum(n, 1)[..., None]
    spread = (1 - (shares**2).sum(axis=-1)) / np.maximum(n - 1, 1)
    return np.where(n > 1, _squares(counts) - spread, 1 - 1 / counts.shape[-1])


def shares_radius(
    counts: Counts, images: Counts | None = None, *, resamples: int = 2000, seed: int = 0, level: float = 0.95
) -> Floats:
    """How far the shares of each row of counts (p, |A|) may be from the true ones: (p,) L2 distances at `level`.

    By the triangle inequality the discrepancy of a row is within it as well. Resampled discrepancies would not do: they
    inherit the upward bias, and their interval can miss the very value that was measured. It is a quantile over
    resamples of the images, to which half an image of each value is added, or images that all show one value would pass
    for certain. No bound at all, sqrt(1 - 1/|A|), where nothing was counted.

    images: (p,) how many images were counted, where several people labelled one: their answers are no more images.
    """
    rng = np.random.default_rng(seed)
    values, total = counts.shape[1], counts.sum(axis=1)
    n = (total if images is None else images).astype(np.int64)
    centres = (counts * (n / np.maximum(total, 1))[:, None] + 0.5) / (n + values / 2)[:, None]
    radius = np.full(len(counts), np.sqrt(1 - 1 / values))
    for i in np.flatnonzero(n):
        drawn = rng.multinomial(n[i], centres[i], size=resamples) / n[i]
        radius[i] = np.quantile(np.linalg.norm(drawn - centres[i], axis=1), level)
    return radius


def deviation_ratio(labels: Values, n_groups: int, *, unknown: int | None = None) -> float:
    """max_a |N_a / N - 1/|A|| / (1 - 1/|A|), in [0, 1]: 0 is uniform, 1 is one value alone.

    What is reported over the 36 professions of WinoBias: Gandikota et al., "Unified Concept Editing in Diffusion
    Models" (2024). Few images bias it upwards. Unknown rows are left out. Arguments and Raises: see `attribute_shares`.

    >>> deviation_ratio([0, 0, 0, 1], 2)
    0.5
    """
    return attribute_shares(labels, n_groups, unknown=unknown).deviation_ratio


def kl_from_uniform(labels: Values, n_groups: int, *, unknown: int | None = None) -> float:
    """KL(shares || uniform) = sum_a f_a log(f_a |A|) in nats, in [0, log |A|]; 0 log 0 is 0.

    What is reported by Zhang et al., "ITI-GEN: Inclusive Text-to-Image Generation" (2023). Few images bias it upwards:
    n fair draws have about (|A| - 1) / (2 n). Unknown rows are left out. Arguments and Raises: see `attribute_shares`.

    >>> kl_from_uniform([1, 1, 1], 2)
    0.6931471805599453
    """
    return attribute_shares(labels, n_groups, unknown=unknown).kl_from_uniform


def deviation_ratios(counts: Counts) -> Floats:
    """`deviation_ratio` over the last axis of counts or shares (..., |A|); 1 where nothing was counted."""
    shares, known = _shares(counts)
    even = 1 / counts.shape[-1]
    return np.where(known, np.abs(shares - even).max(axis=-1) / (1 - even), 1.0)


def kl_divergences(counts: Counts) -> Floats:
    """`kl_from_uniform` over the last axis of counts or shares (..., |A|); log |A| where nothing was counted."""
    (shares, known), values = _shares(counts), counts.shape[-1]
    terms = shares * np.log(np.where(shares > 0, shares * values, 1.0))
    return np.where(known, np.maximum(terms.sum(axis=-1), 0.0), np.log(values))


def _squares(counts: Counts) -> Floats:
    """sum_a (share_a - 1/|A|)^2 over the last axis; the most that it can be where nothing was counted."""
    (shares, known), even = _shares(counts), 1 / counts.shape[-1]
    return np.where(known, ((shares - even) ** 2).sum(axis=-1), 1 - even)


def _shares(counts: Counts) -> tuple[Floats, NDArray[np.bool_]]:
    """Shares (..., |A|), and where anything was counted (...)."""
    n = counts.sum(axis=-1)
    return counts / np.where(n > 0, n, 1)[..., None], n > 0
