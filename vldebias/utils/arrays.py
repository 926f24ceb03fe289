"""Name the types of numpy arrays, and refuse masked values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Codes = NDArray[np.int64]
"""Integer codes of values, such as the classes of images."""
Counts = NDArray[np.int64]
Rows = NDArray[np.intp]
"""Row numbers."""


def refuse_masked(values: object, name: str) -> None:
    """Raise an error if an array contains masked values, which numpy functions would read.

    Args:
        values: any array or other object.
        name: argument name, for messages.

    Raises:
        InvalidInputError: If values are masked.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InvalidInputError(
            f"{name}: got a masked array with {np.ma.count_masked(values)} masked values; expected"
            f" plain values; pass {name}.filled(...), or remove the masked rows"
        )
