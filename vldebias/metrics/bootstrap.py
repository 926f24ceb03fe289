"""Resampling, the only home of it: intervals for any statistic of the rows of a test split, and the draws they rest on.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 8 and 13. The statistic is computed
anew inside every resample, so a worst group is picked again each time. Resample what was drawn independently: images
of a test split, or prompts with their images (`clusters`); rows that repeat an image make intervals too narrow.

`bootstrap_interval` takes arrays and a statistic. What is linear in the rows, or depends on them through counts alone,
needs no resampled arrays: `resampled_weights` draws how often each row occurs, `resampled_counts` how often each cell.
Where many rows are few different ones and the statistic says what it is of counts (`counted`), that is the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.metrics.arrays import Values, rows, vector

Floats = NDArray[np.float64]
_BLOCK = 1 << 20  # entries of a block of resampled rows: bounds the memory
_WEIGHTS = 1 << 23  # entries of a block of weights
_REPEATED = 8  # rows to a different one, from which on those are counted
Statistic = Callable[..., Any]
_COUNTED: dict[Statistic, Statistic] = {}  # statistic -> the same of different rows and their counts
Of = TypeVar("Of", bound=Statistic)


def counted(of_counts: Statistic) -> Callable[[Of], Of]:
    """Says what a statistic of arrays (n, ...) is of the m different rows of the arrays and how often each is there.

    Intervals of hits in groups then draw counts of a few kinds of rows instead of all rows.

    Args:
        of_counts: takes the arrays (m, ...) and counts (b, m), as the last; gives (b,) values.

    >>> @counted(lambda hit, counts: counts @ hit / counts.sum(axis=1))
    ... def accuracy(hit):
    ...     return float(np.mean(hit))
    >>> print(bootstrap_interval(np.arange(10_000) % 10 > 0, statistic=accuracy))
    0.900 [0.894, 0.906]
    """

    def told(statistic: Of) -> Of:
        _COUNTED[statistic] = of_counts
        return statistic

    return told


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


def percentile_interval(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """The middle `level` of the values (resamples,) that a statistic takes.

    Raises:
        InvalidInputError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise InvalidInputError(f"level: expected a coverage in (0, 1), got {level}")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def recentred_interval(
    value: float, values: Floats, bounds: tuple[float, float] = (-np.inf, np.inf), level: float = 0.95
) -> tuple[float, float]:
    """`percentile_interval`, moved so that the mean of `values` is `value`, and cut at the `bounds` of the statistic.

    For statistics that a resample pushes one way, such as a maximum over groups: their percentiles can miss the value
    itself. `value` is never cut off.
    """
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]) + (value - values.mean())
    return float(min(value, max(low, bounds[0]))), float(max(value, min(high, bounds[1])))


def wilson_interval(hits: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion: closed form, of a width above 0 also where hits is 0 or n.

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference".

    >>> [round(bound, 4) for bound in wilson_interval(0, 20)]
    [0.0, 0.1611]

    Raises:
        InvalidInputError: no rows, hits outside 0 .. n, a level outside (0, 1).
    """
    if not 0 < level < 1 or not 0 <= hits <= n or n < 1:
        raise InvalidInputError(f"expected 0 <= hits <= n, n >= 1 and a level in (0, 1), got {hits}, {n}, {level}")
    z = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    share = hits / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if hits == 0 else (centre - half) / scale
    return low, 1.0 if hits == n else (centre + half) / scale


def resampled_weights(n: int, resamples: int, seed: int, among: int | None = None) -> Iterator[NDArray[np.int32]]:
    """How often each of n rows is in each bootstrap resample of n rows: blocks (b, n), whose rows sum to n.

    among: of so many of the rows alone, blocks (b, among): as many draws as fall on them, which is binomial. Few of
        many millions cost what few do.
    """
    rng, m = np.random.default_rng(seed), n if among is None else among
    for b in _blocks(_WEIGHTS // m, resamples):
        block = np.empty((b, m), dtype=np.int32)
        for one in block:  # by itself: its counts stay in the cache
            draws = n if m == n else rng.binomial(n, m / n)
            one[:] = np.bincount(rng.integers(m, size=draws), minlength=m)
        yield block


def resampled_counts(
    counts: NDArray[np.integer], resamples: int, seed: int, size: int | None = None
) -> Iterator[NDArray[np.int64]]:
    """The table of counts in each bootstrap resample of the rows that it counts: blocks (b, *counts.shape).

    Rows of one cell are interchangeable, so resamples of n rows are multinomial counts over the cells: the very
    distribution that drawing n rows has. A table of n ones gives the weights of n rows.

    size: rows of a resample, n by default. Of few rows n - 1: their mean then varies as the mean of a sample does,
    with n by (n - 1) / n too little (Rao and Wu, 1988, "Resampling inference with complex survey data").
    """
    rng, n = np.random.default_rng(seed), int(counts.sum())
    shares = counts.reshape(-1) / n
    for b in _blocks(_BLOCK // counts.size, resamples):
        yield rng.multinomial(n if size is None else size, shares, size=b).reshape(b, *counts.shape)


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

    Of arrays with few different rows, such as hits and groups, the counts are drawn, which is the same distribution:
    for the mean, the accuracies of `vldebias.metrics` and what is `counted`.

    Raises:
        InvalidInputError: no or unequal arrays, a level or number of resamples out of range, a statistic that gives
            NaN.

    >>> print(bootstrap_interval([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], seed=1))
    0.625 [0.250, 0.875]
    """
    data = [rows(array, f"arrays[{i}]") for i, array in enumerate(arrays)]
    if statistic is None:
        statistic, vectorized = _means, True
    of_counts = _COUNTED.get(statistic) if paired or len(data) == 1 else None
    value, drawn = _bootstrap(data, statistic, vectorized, resamples, seed, paired, clusters, of_counts)
    return Interval(float(value[0]), *percentile_interval(drawn[:, 0], level), level, max(map(len, data)), resamples)


def resampled_values(
    values: Mapping[str, Values],
    *shared: Values,
    statistic: Callable[..., Any] | None = None,
    resamples: int = 2000,
    seed: int = 0,
    clusters: Values | None = None,
    vectorized: bool = True,
) -> tuple[dict[str, float], dict[str, Floats]]:
    """Name -> statistic(values, *shared), and name -> what it is (resamples,) on the same resamples for all names.

    Differences of such draws are paired: much narrower than those of two intervals where two methods err on the same
    images. Each name is measured once per resample. Arguments and Raises: see `bootstrap_interval`.
    """
    measure, names = statistic or _means, list(values)
    data = [rows(array, name) for name, array in values.items()]
    data += [rows(array, f"shared[{i}]") for i, array in enumerate(shared)]

    def measure_all(*drawn: np.ndarray) -> np.ndarray:
        rest = drawn[len(names) :]
        return np.stack([measure(one, *rest) for one in drawn[: len(names)]], axis=-1)

    def count_all(*given: np.ndarray) -> np.ndarray:
        rest = given[len(names) :]
        return np.stack([_COUNTED[measure](one, *rest) for one in given[: len(names)]], axis=-1)

    batched = vectorized or statistic is None
    of_counts = count_all if measure in _COUNTED else None
    value, drawn = _bootstrap(data, measure_all, batched, resamples, seed, True, clusters, of_counts)
    return dict(zip(names, value.tolist(), strict=True)), dict(zip(names, drawn.T, strict=True))


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
    measure: Statistic = statistic or np.mean

    def difference(first: np.ndarray, second: np.ndarray, *rest: np.ndarray) -> float:
        return float(measure(second, *rest)) - float(measure(first, *rest))

    def of_counts(first: np.ndarray, second: np.ndarray, *rest: np.ndarray) -> Floats:
        return _COUNTED[measure](second, *rest) - _COUNTED[measure](first, *rest)

    data = [rows(array, f"arrays[{i}]") for i, array in enumerate((before, after, *shared))]
    how = of_counts if measure in _COUNTED else None
    value, drawn = _bootstrap(data, difference, False, resamples, seed, True, clusters, how)
    return Interval(float(value[0]), *percentile_interval(drawn[:, 0], level), level, len(data[0]), resamples)


def _counted_mean(values: np.ndarray, counts: NDArray[np.int64]) -> Floats:
    means: Floats = values.reshape(len(values), -1).mean(1)
    return counts @ means / counts.sum(axis=1)


@counted(_counted_mean)
def _means(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1).mean(1)


counted(_counted_mean)(np.mean)


def _bootstrap(
    data: list[np.ndarray],
    statistic: Callable[..., Any],
    vectorized: bool,
    resamples: int,
    seed: int,
    paired: bool,
    clusters: Values | None,
    of_counts: Statistic | None = None,
) -> tuple[Floats, Floats]:
    """The m values of a statistic, (m,) of the data and (resamples, m) of its resamples.

    of_counts: the statistic of different rows and their counts, where it may be used.
    """
    lengths = [len(array) for array in data]
    if not data or ((paired or clusters is not None) and len(set(lengths)) > 1):
        raise InvalidInputError(f"arrays: expected one or more arrays of one length, got lengths {lengths}")
    if resamples < 1:
        raise InvalidInputError(f"resamples: expected at least 1, got {resamples}")

    def gathered(index: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [array[i] for array, i in zip(data, index, strict=True)]

    def measure(index: list[np.ndarray]) -> Floats:
        """(b, m) of the rows (b, n) of every array; a loop gathers one resample at a time, which stays in the cache."""
        alone = zip(*index, strict=True)
        drawn = statistic(*gathered(index)) if vectorized else [statistic(*gathered(one)) for one in alone]
        return np.asarray(drawn, dtype=np.float64).reshape(len(index[0]), -1)

    rng = np.random.default_rng(seed)
    kinds = None if of_counts is None or clusters is not None else _kinds(data)
    if of_counts is None or kinds is None:
        drawn = np.concatenate([measure(index) for index in _indices(data, resamples, rng, paired, clusters)])
    else:
        first, sizes = kinds
        different = [array[first] for array in data]
        blocks = (of_counts(*different, counts) for counts in resampled_counts(sizes, resamples, seed))
        drawn = np.concatenate([np.asarray(some, dtype=np.float64).reshape(len(some), -1) for some in blocks])
    value = measure([np.arange(n)[None] for n in lengths])[0]
    if not (np.isfinite(value).all() and np.isfinite(drawn).all()):
        bad = (~np.isfinite(drawn)).any(axis=1).sum()
        raise InvalidInputError(f"statistic: {bad} of {resamples} resamples are not finite")
    return value, drawn


def _kinds(data: Sequence[np.ndarray]) -> tuple[NDArray[np.intp], NDArray[np.int64]] | None:
    """Where the first row of each kind is, and how many there are; None where the kinds are not few."""
    n = len(data[0])
    code, first, sizes = np.zeros(n, dtype=np.int64), np.arange(n), np.ones(n, dtype=np.int64)
    for array in data:
        if array.ndim > 1:
            return None
        names, own = np.unique(array, return_inverse=True)
        both = code * len(names) + own
        _, first, code, sizes = np.unique(both, return_index=True, return_inverse=True, return_counts=True)
        if len(first) * _REPEATED > n:
            return None
    return first, sizes


def _indices(
    data: list[np.ndarray], resamples: int, rng: np.random.Generator, paired: bool, clusters: Values | None
) -> Iterator[list[np.ndarray]]:
    """Blocks of resamples: for each array the indices (b, n) of the rows that are drawn.

    Of clusters one resample at a time: clusters with replacement, then rows inside each with replacement.
    """
    lengths = [len(array) for array in data]
    if clusters is not None:
        label = vector(clusters, "clusters")
        if len(label) != lengths[0]:
            raise InvalidInputError(f"clusters: expected one label per row ({lengths[0]}), got {len(label)}")
        _, index, sizes = np.unique(label, return_inverse=True, return_counts=True)
        members, starts = np.argsort(index, kind="stable"), np.cumsum(sizes) - sizes
        for _ in range(resamples):
            chosen = rng.integers(len(sizes), size=len(sizes))
            size = np.repeat(sizes[chosen], sizes[chosen])
            places = np.repeat(starts[chosen], sizes[chosen]) + (rng.random(len(size)) * size).astype(np.int64)
            yield [members[places][None]] * len(data)
        return
    for b in _blocks(_BLOCK // max(lengths), resamples):
        if paired:
            yield [rng.integers(lengths[0], size=(b, lengths[0]))] * len(data)
        else:
            yield [rng.integers(n, size=(b, n)) for n in lengths]


def _blocks(size: int, count: int) -> Iterator[int]:
    """Sizes of blocks that add up to `count`, none above `size` or 1."""
    for start in range(0, count, max(size, 1)):
        yield min(max(size, 1), count - start)
