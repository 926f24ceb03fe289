"""Check the arrays that metrics accept, resample them, and compute intervals from resampled values.

An evaluator gives a value and its draws (resamples,) on the same resamples for every method, so the difference of two
methods' draws is paired. The statistic is computed again in every resample: a worst group is picked again in each.
Resample what was sampled independently, such as the images of a test split: rows that repeat an image make intervals
too narrow.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 8 and 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError

Floats = NDArray[np.float64]
Values = Tensor | np.ndarray | Sequence[Any]
Statistic = Callable[..., Any]
_BLOCK = 1 << 20  # entries of a block of resampled rows: bounds the memory
_WEIGHTS = 1 << 23  # entries of a block of weights
_REPEATED = 8  # rows per different row from which on counts are resampled instead of rows

# ---- arrays --------------------------------------------------------------------------------------------------


def rows(values: Values, name: str) -> np.ndarray:
    """Return `values` as a non-empty array with at least one axis; NaN raises an error."""
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
    """Return `values` as a non-empty one-dimensional array."""
    array = rows(values, name)
    if array.ndim != 1:
        raise InvalidInputError(f"{name}: expected shape (n,), got {array.shape}")
    return array


def vectors(**named: Values) -> list[np.ndarray]:
    """Return several vectors of one length."""
    arrays = {name: vector(values, name) for name, values in named.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"expected vectors of one length, got {lengths}")
    return list(arrays.values())


def codes(groups: np.ndarray, n_groups: int | None, name: str = "groups") -> tuple[np.ndarray, np.ndarray]:
    """Return the names (g,) of the groups and the code (n,) of each row.

    Without `n_groups` the groups are the distinct labels, sorted. With it, labels are 0 .. n_groups - 1, and a group
    may be empty.

    Raises:
        InvalidInputError: fractions, which are scores, or labels outside 0 .. n_groups - 1.
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


# ---- intervals -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """Hold a value with its bootstrap interval; n: rows of the largest array, resamples: number of draws."""

    value: float
    low: float
    high: float
    level: float
    n: int
    resamples: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def percentile_interval(draws: Floats, level: float = 0.95) -> tuple[float, float]:
    """Return the ends of the middle `level` of the draws (resamples,).

    Raises:
        InvalidInputError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise InvalidInputError(f"level: expected a coverage in (0, 1), got {level}")
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def recentred_interval(
    value: float, draws: Floats, bounds: tuple[float, float] = (-np.inf, np.inf), level: float = 0.95
) -> tuple[float, float]:
    """Return the percentile interval, moved so that the mean of the draws is `value`, and cut at `bounds`.

    It is for statistics that a resample pushes one way, such as a maximum over groups: their percentiles can miss the
    value itself. `value` is never cut off.
    """
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]) + (value - draws.mean())
    return float(min(value, max(low, bounds[0]))), float(max(value, min(high, bounds[1])))


def wilson_interval(hits: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval (1927) of a proportion; its width is above 0 even if hits is 0 or n.

    >>> [round(bound, 4) for bound in wilson_interval(0, 20)]
    [0.0, 0.1611]

    Raises:
        InvalidInputError: no rows, hits outside 0 .. n, a level outside (0, 1).
    """
    if not 0 < level < 1 or not 0 <= hits <= n or n < 1:
        raise InvalidInputError(f"expected 0 <= hits <= n, n >= 1 and a level in (0, 1), got {hits}, {n}, {level}")
    z, share = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))), hits / n
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    centre, scale = share + z * z / (2 * n), 1 + z * z / n
    low = 0.0 if hits == 0 else (centre - half) / scale
    return low, 1.0 if hits == n else (centre + half) / scale


# ---- resamples -----------------------------------------------------------------------------------------------


def resampled_weights(n: int, resamples: int, seed: int, among: int | None = None) -> Iterator[NDArray[np.int32]]:
    """Yield how often each of n rows occurs in each resample of n rows: blocks (b, n), whose rows sum to n.

    among: blocks (b, among) of so many of the rows alone; the number of draws that fall on them is binomial.
    """
    rng, m = np.random.default_rng(seed), n if among is None else among
    for b in _blocks(_WEIGHTS // m, resamples):
        block = np.empty((b, m), dtype=np.int32)
        for one in block:  # one at a time: its counts stay in the cache
            draws = n if m == n else rng.binomial(n, m / n)
            one[:] = np.bincount(rng.integers(m, size=draws), minlength=m)
        yield block


def resampled_counts(
    counts: NDArray[np.integer], resamples: int, seed: int, size: int | None = None
) -> Iterator[NDArray[np.int64]]:
    """Yield the table of counts in each resample of the counted rows: blocks (b, *counts.shape).

    Rows of one cell are interchangeable, so resamples of n rows are multinomial counts over the cells: the same
    distribution as n drawn rows, at a cost that does not grow with n.

    size: rows of a resample, n by default. For few rows use n - 1: their mean then has the variance of a sample mean,
    while n gives (n - 1) / n of it (Rao and Wu, 1988, "Resampling inference with complex survey data").
    """
    rng, n = np.random.default_rng(seed), int(counts.sum())
    shares = counts.reshape(-1) / n
    for b in _blocks(_BLOCK // counts.size, resamples):
        yield rng.multinomial(n if size is None else size, shares, size=b).reshape(b, *counts.shape)


def bootstrap_interval(
    *arrays: Values,
    statistic: Statistic | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    paired: bool = True,
) -> Interval:
    """Return the percentile interval of `statistic(*arrays)`, or of the mean if no statistic is given.

    Args:
        arrays: (n, ...) each; a statistic sees them resampled along the first axis.
        statistic: function of the arrays, such as `worst_group_accuracy`; returns a number.
        level: coverage, in (0, 1).
        paired: row i of every array belongs to the same image, so they are resampled together. False: independent
            samples, each resampled separately; lengths may differ.

    Raises:
        InvalidInputError: no or unequal arrays, a level or number of resamples out of range, a statistic that gives
            NaN.

    >>> print(bootstrap_interval([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], seed=1))
    0.625 [0.250, 0.875]
    """
    data = [rows(array, f"arrays[{i}]") for i, array in enumerate(arrays)]
    value, draws = _draws(data, 1, statistic, resamples, seed, paired, batched=False)
    return Interval(float(value[0]), *percentile_interval(draws[:, 0], level), level, max(map(len, data)), resamples)


def resampled_values(
    values: Mapping[str, Values],
    *shared: Values,
    statistic: Statistic | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[dict[str, float], dict[str, Floats]]:
    """Return name -> statistic(values, *shared), and name -> its draws (resamples,), on the same resamples for all.

    The statistic takes arrays (resamples, n) and gives (resamples,); other arguments and Raises: `bootstrap_interval`.
    """
    data = [rows(array, name) for name, array in values.items()]
    data += [rows(array, f"shared[{i}]") for i, array in enumerate(shared)]
    value, draws = _draws(data, len(values), statistic, resamples, seed, paired=True, batched=True)
    return dict(zip(values, value.tolist(), strict=True)), dict(zip(values, draws.T, strict=True))


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over all but the first axis of arrays (b, n, ...) of resamples."""
    return values.reshape(len(values), -1).mean(1)


def _draws(
    data: list[np.ndarray], m: int, statistic: Statistic | None, resamples: int, seed: int, paired: bool, batched: bool
) -> tuple[Floats, Floats]:
    """The statistic of each of the first m arrays with the shared others: (m,) of the data, (resamples, m) of draws."""
    lengths = [len(array) for array in data]
    if not data or (paired and len(set(lengths)) > 1):
        raise InvalidInputError(f"arrays: expected one or more arrays of one length, got lengths {lengths}")
    if resamples < 1:
        raise InvalidInputError(f"resamples: expected at least 1, got {resamples}")

    def each(arrays: Sequence[np.ndarray]) -> Floats:
        measure = statistic or _mean
        return np.stack([np.asarray(measure(one, *arrays[m:]), dtype=np.float64) for one in arrays[:m]], axis=-1)

    def of_rows(index: list[np.ndarray]) -> Floats:
        """(b, m) of the rows (b, n) of every array; a loop gathers one resample at a time, which stays in the cache."""
        if batched or statistic is None:
            return each([array[i] for array, i in zip(data, index, strict=True)]).reshape(-1, m)
        alone = zip(*index, strict=True)
        return np.stack([each([a[i] for a, i in zip(data, one, strict=True)]).reshape(m) for one in alone])

    # Means of few different rows, such as hits: counts of the kinds of rows are drawn, which is the same distribution.
    means = (statistic is None or statistic is np.mean) and (paired or len(data) == 1)
    if means and (kinds := _kinds(data)):
        first, sizes = kinds
        columns = [array[first].reshape(len(first), -1).mean(1) for array in data[:m]]
        blocks = resampled_counts(sizes, resamples, seed)
        parts = [np.stack([counts @ one for one in columns], axis=-1) / sizes.sum() for counts in blocks]
    else:
        rng, parts = np.random.default_rng(seed), []
        for b in _blocks(_BLOCK // max(lengths), resamples):
            shared = [rng.integers(n, size=(b, n)) for n in (lengths[:1] if paired else lengths)]
            parts.append(of_rows(shared * len(data) if paired else shared))
    value, draws = of_rows([np.arange(n)[None] for n in lengths])[0], np.concatenate(parts)
    if not (np.isfinite(value).all() and np.isfinite(draws).all()):
        bad = (~np.isfinite(draws)).any(axis=1).sum()
        raise InvalidInputError(f"statistic: {bad} of {resamples} resamples are not finite")
    return value, draws


def _kinds(data: Sequence[np.ndarray]) -> tuple[NDArray[np.intp], NDArray[np.int64]] | None:
    """Where the first row of each kind is, and how many there are; None where the kinds are not few."""
    n = len(data[0])
    if any(array.ndim > 1 for array in data):
        return None
    code, first, sizes = np.zeros(n, dtype=np.int64), np.arange(n), np.ones(n, dtype=np.int64)
    for array in data:
        names, own = np.unique(array, return_inverse=True)
        _, first, code, sizes = np.unique(code * len(names) + own, True, True, True)
        if len(first) * _REPEATED > n:
            return None
    return first, sizes


def _blocks(size: int, count: int) -> Iterator[int]:
    """Yield sizes of blocks that add up to `count`, none above `size` or 1."""
    for start in range(0, count, max(size, 1)):
        yield min(max(size, 1), count - start)
