"""Unit rows of features that are read when they are used, a block at a time: what an evaluation of millions looks at.

Features stay as they are stored, perhaps of half precision and mapped from a file. Whoever passes over them gets
float32 blocks of unit length; nothing as large as the whole is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError

BLOCK = 1 << 10  # rows that are held at once: 2 MB of 512 float32, which stay in the cache of a core


@dataclass(frozen=True, eq=False)
class Picked:
    """Some rows of features (m, d), by their indices (n,), copied when they are read: a million less a few takes none.

    It stands where an array of features does: it has a shape, a type and a length, and gives an array for a slice.
    """

    features: Any
    index: NDArray[np.int64]
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return len(self.index), int(self.features.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the features."""
        return np.dtype(self.features.dtype)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        return np.asarray(self.features[self.index[rows]])


@dataclass(frozen=True, eq=False)
class UnitRows:
    """The rows (n, d) of features, L2-normalised in float32, read when they are used.

    Attributes:
        features: (m, d) floats that give an array for a slice or for indices.
        ids: m names, for messages.
        index: (n,) which of the rows, in this order; None: all.
        change: what is done to the unit rows of a block (b, d), row by row, such as an edit of images.
    """

    features: Any
    ids: Sequence[str]
    index: NDArray[np.int64] | None = None
    change: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.features) if self.index is None else len(self.index)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return len(self), int(self.features.shape[1])

    def some(self, rows: ArrayLike) -> UnitRows:
        """Some of the rows, by indices or a mask, still to be read."""
        index = np.asarray(rows)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        return replace(self, index=index if self.index is None else self.index[index])

    def changed(self, change: Callable[[Tensor], Tensor]) -> UnitRows:
        """The same rows under a change of each, which comes after those before."""
        before = self.change
        return replace(self, change=change if before is None else lambda rows: change(before(rows)))

    def __getitem__(self, rows: Any) -> Tensor:
        """The unit rows at a slice, at indices or under a mask (numpy or torch), read now."""
        if not isinstance(rows, slice):
            return self.some(rows)[:]
        start, stop, step = rows.indices(len(self))
        if step != 1 or stop - start <= BLOCK:
            return self._read(rows if self.index is None else self.index[rows])
        found = torch.empty(stop - start, self.shape[1])
        for first in range(start, stop, BLOCK):
            found[first - start : first - start + BLOCK] = self[first : min(first + BLOCK, stop)]
        return found

    def split(self, size: int = BLOCK) -> Iterator[Tensor]:
        """Blocks (b, d) of at most `size` rows, in order.

        Raises:
            InvalidInputError: a row that is not finite or zero.
        """
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def whole(self) -> Tensor:
        """All of them at once (n, d), for what cannot do with less."""
        return self[:]

    def products(self, texts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name -> inner products (n, k) with its texts (k, d), in float32 and in one pass for all names."""
        found = {name: torch.empty(len(self), len(rows)) for name, rows in texts.items()}
        start = 0
        for block in self.split():
            for name, rows in texts.items():
                found[name][start : start + len(block)] = block @ rows.float().T
            start += len(block)
        return found

    def _read(self, rows: slice | NDArray[np.int64]) -> Tensor:
        came = self.features[rows]
        half = (
            came.dtype == np.float16
        )  # torch makes float32 of it with instructions for that, in a quarter of the time
        read = torch.from_numpy(np.array(came, dtype=None if half else np.float32)).float()
        lengths = read.norm(dim=1, keepdim=True)
        bad = ~(torch.isfinite(lengths) & (lengths > 0)).squeeze(1)
        if bad.any():
            places = np.arange(len(self.features))[rows][bad.numpy()]
            first = [self.ids[i] for i in places[:5].tolist()]
            raise InvalidInputError(f"features: {len(places)} rows are zero or not finite, such as {first}")
        read /= lengths
        return read if self.change is None else self.change(read)
