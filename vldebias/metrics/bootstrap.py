"""Percentile bootstrap: an interval for any statistic of the rows of a test split.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 8 and 13. The statistic is computed
anew inside every resample, so a worst group is picked again each time. Resample what was drawn independently: images
of a test split, or prompts with their images (`clusters`); rows that repeat an image make intervals too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.metrics.arrays import Values, rows, vector

__all__ = ["Interval", "bootstrap_interval", "paired_difference_interval"]

_BLOCK = 1 << 20  # index entries per block of resamples: bounds the memory


@dataclass(frozen=True)
class Interval:
    """A value with its bootstrap interval; n: rows (or rows of the largest array), resamples: draws."""

    value: float
    low: float
    high: float
    level: float
    n: int
    resamples: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap_interval(
    *arrays: Values,
    statistic: Callable[..., Any] | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    paired: bool = True,
    clusters: Values | None = None,
    vectorized: bool = False,
) -> Interval:
    """Percentile interval of `statistic(*arrays)`; of the mean where no statistic is given.

    Args:
        arrays: (n, ...) each; a statistic sees them resampled along the first axis.
        statistic: function of the arrays, such as `worst_group_accuracy`; returns a number.
        level: coverage, in (0, 1).
        paired: row i of every array belongs to the same image, so they are drawn together. False: independent
            samples, each drawn for itself; lengths may differ.
        clusters: (n,) labels. Draw clusters with replacement, then rows inside each drawn cluster (professions,
            then their images).
        vectorized: the statistic takes arrays (resamples, n) and returns (resamples,); saves the loop.

    Raises:
        InvalidInputError: no or unequal arrays, a level or number of resamples out of range, a statistic that gives
            NaN.

    >>> print(bootstrap_interval([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], seed=1))
    0.625 [0.250, 0.875]
    """
    data = [rows(array, f"arrays[{i}]") for i, array in enumerate(arrays)]
    _check(data, level, resamples, paired or clusters is not None)
    if statistic is None:
        statistic, vectorized = _averages, True
    drawn = np.concatenate(
        [
            _evaluate(statistic, [a[i] for a, i in zip(data, index, strict=True)], vectorized)
            for index in _indices(data, resamples, np.random.default_rng(seed), paired, clusters)
        ]
    )
    value = float(_evaluate(statistic, [a[None] for a in data], vectorized)[0])
    if not np.isfinite([value, *drawn]).all():
        raise InvalidInputError(f"statistic: {np.sum(~np.isfinite(drawn))} of {resamples} resamples are not finite")
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), level, max(map(len, data)), resamples)


def paired_difference_interval(
    before: Values,
    after: Values,
    *shared: Values,
    statistic: Callable[..., Any] | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    clusters: Values | None = None,
) -> Interval:
    """Interval of statistic(after, *shared) - statistic(before, *shared) on the same rows, drawn together.

    Much narrower than the difference of two intervals where both methods err on the same images. Arguments and
    Raises: see `bootstrap_interval`.
    """
    measure = statistic or _average

    def difference(first: np.ndarray, second: np.ndarray, *rest: np.ndarray) -> float:
        return float(measure(second, *rest)) - float(measure(first, *rest))

    return bootstrap_interval(
        before,
        after,
        *shared,
        statistic=difference,
        level=level,
        resamples=resamples,
        seed=seed,
        clusters=clusters,
    )


def _check(data: list[np.ndarray], level: float, resamples: int, same_length: bool) -> None:
    lengths = [len(array) for array in data]
    if not data or (same_length and len(set(lengths)) > 1):
        raise InvalidInputError(f"arrays: expected one or more arrays of one length, got lengths {lengths}")
    if not 0 < level < 1:
        raise InvalidInputError(f"level: expected a coverage in (0, 1), got {level}")
    if resamples < 1:
        raise InvalidInputError(f"resamples: expected at least 1, got {resamples}")


def _average(values: np.ndarray) -> float:
    return float(values.mean())


def _averages(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1).mean(1)


def _evaluate(statistic: Callable[..., Any], resampled: list[np.ndarray], vectorized: bool) -> np.ndarray:
    """The statistic (b,) of b resamples, arrays (b, n, ...)."""
    found = statistic(*resampled) if vectorized else [statistic(*row) for row in zip(*resampled, strict=True)]
    return np.asarray(found, dtype=np.float64).reshape(len(resampled[0]))


def _indices(
    data: list[np.ndarray], resamples: int, rng: np.random.Generator, paired: bool, clusters: Values | None
) -> Iterator[list[np.ndarray]]:
    """Blocks of resamples: for each array the indices (b, n) of the rows that are drawn."""
    if clusters is not None:
        yield from ([index[None]] * len(data) for index in _clustered(data, resamples, rng, clusters))
        return
    lengths = [len(array) for array in data]
    block = max(1, _BLOCK // max(lengths))
    for start in range(0, resamples, block):
        b = min(block, resamples - start)
        if paired:
            yield [rng.integers(lengths[0], size=(b, lengths[0]))] * len(data)
        else:
            yield [rng.integers(n, size=(b, n)) for n in lengths]


def _clustered(
    data: list[np.ndarray], resamples: int, rng: np.random.Generator, clusters: Values
) -> Iterator[np.ndarray]:
    """Rows of one resample at a time: clusters with replacement, then rows inside each with replacement."""
    label = vector(clusters, "clusters")
    if len(label) != len(data[0]):
        raise InvalidInputError(f"clusters: expected one label per row ({len(data[0])}), got {len(label)}")
    _, index, sizes = np.unique(label, return_inverse=True, return_counts=True)
    members, starts = np.argsort(index, kind="stable"), np.cumsum(sizes) - sizes
    for _ in range(resamples):
        chosen = rng.integers(len(sizes), size=len(sizes))
        size = np.repeat(sizes[chosen], sizes[chosen])
        yield members[np.repeat(starts[chosen], sizes[chosen]) + (rng.random(len(size)) * size).astype(np.int64)]
