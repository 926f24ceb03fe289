"""The names of splits: train, val, test and all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError

__all__ = ["CODES", "check_split", "rows_of"]

CODES: Mapping[str, int] = {"train": 0, "val": 1, "test": 2}  # as Waterbirds and CelebA number them


def check_split(data: str, split: str, known: tuple[str, ...], hint: str = "") -> str:
    """The split itself.

    Raises:
        InvalidInputError: not one that this data set has.
    """
    if split not in known:
        raise InvalidInputError(f"{data}: expected split {' or '.join(known)}, got {split!r}{hint and f'; {hint}'}")
    return split


def rows_of(split: str, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the rows of a split, in their order; `codes` as in CODES."""
    return np.arange(len(codes)) if split == "all" else np.flatnonzero(codes == CODES[split])
