"""What a judge read in a set of pictures: the share of every value, of unknown, and the discrepancy, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.evaluation.generation.discrepancies import Counts

__all__ = ["UNKNOWN_NAME", "Attribute", "Share", "measure", "wilson"]

UNKNOWN_NAME = "cannot tell"
RESAMPLES, SEED = 1000, 0


@dataclass(frozen=True)
class Share:
    """How many of the pictures show a value, and the 95 % interval (Wilson) of its share."""

    value: str
    count: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Attribute:
    """One attribute of n pictures.

    shares: of all pictures, every value and "cannot tell", which sum to one. discrepancy: eq. 7.2 over the pictures
    that can be told, with an interval of 95 %; None where none of them can.
    """

    name: str
    n: int
    shares: tuple[Share, ...]
    discrepancy: tuple[float, float, float] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def wilson(count: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` in `n`; Wilson's holds for few pictures and for shares of 0 and 1."""
    from scipy.stats import binomtest

    found = binomtest(count, n).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def measure(name: str, values: Sequence[str], codes: NDArray[np.int64]) -> Attribute:
    """Shares and discrepancy of codes (n,), 0 .. len(values) - 1 or -1 for unknown; n > 0."""
    counts = Counts.of(codes[None], len(values))
    known, n = counts.known[0].tolist(), len(codes)
    rows = zip((*values, UNKNOWN_NAME), (*known, n - sum(known)), strict=True)
    shares = tuple(Share(value, count, count / n, *wilson(count, n)) for value, count in rows)
    if not sum(known):
        return Attribute(name, n, shares, None)
    found, radius = float(counts.discrepancy[0]), float(counts.radius(resamples=RESAMPLES, seed=SEED)[0])
    most = float(np.sqrt(1 - 1 / len(values)))
    return Attribute(name, n, shares, (found, max(found - radius, 0.0), min(found + radius, most)))
