"""What every metric accepts: tensors, ndarrays and sequences, checked once and read as numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vldebias.errors import InvalidInputError

Values = Tensor | np.ndarray | Sequence[Any]


def rows(values: Values, name: str) -> np.ndarray:
    """`values` as a non-empty array with at least one axis; NaN is refused."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        array = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    else:
        array = np.asarray(values)
        if array.dtype == object and all(isinstance(value, str) for value in array.flat):  # a column of pandas
            array = array.astype(str)
    if array.ndim == 0 or array.dtype == object or len(array) == 0:
        raise InvalidInputError(f"{name}: expected a non-empty array, got shape {array.shape} of {array.dtype}")
    if array.dtype.kind in "fc" and np.isnan(array).any():
        raise InvalidInputError(f"{name}: {int(np.isnan(array).sum())} of {array.size} values are NaN")
    return array


def vector(values: Values, name: str) -> np.ndarray:
    """`values` as a non-empty one-dimensional array."""
    array = rows(values, name)
    if array.ndim != 1:
        raise InvalidInputError(f"{name}: expected shape (n,), got {array.shape}")
    return array


def vectors(**named: Values) -> list[np.ndarray]:
    """Several vectors of one length."""
    arrays = {name: vector(values, name) for name, values in named.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"expected vectors of one length, got {lengths}")
    return list(arrays.values())


def truth(values: np.ndarray, name: str) -> np.ndarray:
    """(n,) booleans of truth values: True and False, or 1 and 0; a text "0" would be true, and so would -1."""
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise InvalidInputError(f"{name}: expected truth values, got {np.unique(values)[:8].tolist()}")
    return values.astype(bool)


def codes(groups: np.ndarray, n_groups: int | None, name: str = "groups") -> tuple[np.ndarray, np.ndarray]:
    """Names (g,) of the groups and the code (n,) of each row.

    Without `n_groups` the groups are the distinct labels, in order. With it, labels must be 0 .. n_groups - 1, and a
    group may be empty.

    Raises:
        InvalidInputError: fractions, which are scores, or labels outside of 0 .. n_groups - 1.
    """
    if n_groups is None:
        if groups.dtype.kind in "fc" and (groups != np.round(groups)).any():
            raise InvalidInputError(
                f"{name}: expected labels, got fractions such as {np.unique(groups)[:3].tolist()}; are they scores, "
                "and the arguments in another order?"
            )
        names, index = np.unique(groups, return_inverse=True)
        return names, index
    if groups.dtype.kind not in "iub" or groups.min() < 0 or groups.max() >= n_groups:
        shown = np.unique(groups)[:8].tolist()
        raise InvalidInputError(f"{name}: with n_groups={n_groups} expected integers 0 .. {n_groups - 1}, got {shown}")
    return np.arange(n_groups), groups.astype(np.int64)
