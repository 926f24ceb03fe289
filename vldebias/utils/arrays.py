"""Name the types of numpy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Codes = NDArray[np.int64]
"""Integer codes of values, such as the classes of images."""
Counts = NDArray[np.int64]
Rows = NDArray[np.intp]
"""Row numbers."""
