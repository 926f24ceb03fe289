"""Discrepancy of generated images: how far the attribute frequencies are from uniform (eq. 7.2 of the thesis)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.metrics.arrays import Values, codes, vector

__all__ = ["AttributeShares", "attribute_shares", "discrepancy"]


@dataclass(frozen=True)
class AttributeShares:
    """Shares of the attribute values among the n rows with a known attribute, and how many had none."""

    shares: tuple[float, ...]
    n: int
    unknown_rate: float

    @property
    def discrepancy(self) -> float:
        """sqrt(sum_a (share_a - 1/|A|)^2), eq. 7.2."""
        return float(np.linalg.norm(np.asarray(self.shares) - 1 / len(self.shares)))


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
    given = vector(labels, "labels")
    known = given if unknown is None else given[given != unknown]
    if len(known) == 0:
        raise InvalidInputError(f"labels: all {len(given)} are unknown ({unknown}); there is no share to report")
    _, index = codes(known, n_groups, "labels")
    counts = np.bincount(index, minlength=n_groups)
    return AttributeShares(tuple((counts / counts.sum()).tolist()), len(known), 1 - len(known) / len(given))


def discrepancy(labels: Values, n_groups: int, *, unknown: int | None = None) -> float:
    """sqrt(sum_a (f_a - 1/|A|)^2) with f_a the frequency of attribute a (eq. 7.2); 0 is uniform.

    Its maximum is sqrt(1 - 1/|A|): .707 for two values, .894 for five. Few images per prompt bias it upwards: n fair
    draws have about sqrt((1 - 1/|A|) / n). Unknown rows are left out; report their rate beside it with
    `attribute_shares`. Arguments and Raises: see there.

    >>> discrepancy([0, 0, 0, 1], 2)
    0.3535533905932738
    """
    return attribute_shares(labels, n_groups, unknown=unknown).discrepancy
