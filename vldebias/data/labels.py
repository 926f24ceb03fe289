"""Labels of rows: one code per row, one name per code, UNKNOWN where a row has none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.errors import InvalidInputError

__all__ = ["UNKNOWN", "Labels", "cross"]

UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class Labels:
    """codes (n,) int64 in 0 .. len(names) - 1, or UNKNOWN; a name may have no row.

    Raises:
        InvalidInputError: codes that are not (n,) integers or have no name, a name twice.
    """

    codes: NDArray[np.int64]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes)
        if codes.ndim != 1 or codes.dtype.kind not in "iub":
            raise InvalidInputError(f"labels: expected integer codes (n,), got {codes.shape} of {codes.dtype}")
        if len(set(self.names)) != len(self.names):
            raise InvalidInputError(f"labels: a name stands twice in {list(self.names)}")
        if len(codes) and not (codes.min() >= UNKNOWN and codes.max() < len(self.names)):
            outside = np.unique(codes[(codes < UNKNOWN) | (codes >= len(self.names))])[:8].tolist()
            raise InvalidInputError(
                f"labels: expected codes {UNKNOWN} (unknown) .. {len(self.names) - 1} for {list(self.names)}, "
                f"got {outside}"
            )
        object.__setattr__(self, "codes", codes.astype(np.int64))
        object.__setattr__(self, "names", tuple(self.names))

    @classmethod
    def of(cls, values: Iterable[Any], names: Sequence[str] | None = None) -> Labels:
        """Labels from one value per row; None and "" are unknown.

        names: the values that may occur, in their order; by default those that do, sorted.

        Raises:
            InvalidInputError: a value that is not among `names`.
        """
        texts = ["" if value is None else str(value) for value in values]
        known = tuple(names) if names is not None else tuple(sorted(set(texts) - {""}))
        code = {name: i for i, name in enumerate(known)} | {"": UNKNOWN}
        strangers = sorted(set(texts) - set(code))
        if strangers:
            raise InvalidInputError(f"labels: expected one of {list(known)}, got {strangers[:8]}")
        return cls(np.array([code[text] for text in texts], dtype=np.int64), known)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: ArrayLike | slice) -> Labels:
        """The labels of some rows: a slice, indices or a mask."""
        return Labels(self.codes[rows if isinstance(rows, slice) else np.asarray(rows)], self.names)

    @property
    def known(self) -> NDArray[np.bool_]:
        """(n,) mask of the rows that have a label."""
        return self.codes != UNKNOWN

    @property
    def counts(self) -> dict[str, int]:
        """Rows of each name, in the order of the names; unknown rows are left out."""
        found = np.bincount(self.codes[self.known], minlength=len(self.names))
        return dict(zip(self.names, found.tolist(), strict=True))

    def __repr__(self) -> str:
        return f"Labels({len(self)} rows, {self.counts}, {int((~self.known).sum())} unknown)"


def cross(*labels: Labels) -> Labels:
    """Intersections, such as "landbird/water" or "female/black"; unknown where one of the labels is.

    The code is row-major: for two labels code = first.code * len(second.names) + second.code.

    Raises:
        InvalidInputError: none given, or of different lengths.
    """
    if not labels or len({len(one) for one in labels}) > 1:
        raise InvalidInputError(f"cross: expected labels of one length, got lengths {[len(one) for one in labels]}")

    def pair(a: Labels, b: Labels) -> Labels:
        codes = np.where(a.known & b.known, a.codes * len(b.names) + b.codes, UNKNOWN)
        return Labels(codes, tuple(f"{x}/{y}" for x in a.names for y in b.names))

    return reduce(pair, labels)
